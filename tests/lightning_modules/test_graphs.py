"""CUDA graphs: the same losses, step counts, resumption and messages as without them."""

import gc
from types import SimpleNamespace

import pytest
import torch
from training_support import STEPS, configured, go, interrupt_after

from bearings.core.errors import InterruptedRunError, UserError
from bearings.kernels.loss.cross_entropy import IGNORED
from bearings.lightning_modules import graphs
from bearings.lightning_modules.graphs import CaptureError, StepGraphs, padded_count, padded_length, uncollected
from bearings.lightning_modules.trainer import TrainerSettings
from bearings.session.session import Session

ON_GPU = torch.cuda.is_available()


def without_cuda(monkeypatch):
    """Let StepGraphs be made and called on a CPU."""
    monkeypatch.setattr(torch.cuda, "Stream", lambda: None)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: None)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr(StepGraphs, "_on_own_stream", lambda self, call: call())


@pytest.fixture
def replayed(monkeypatch):
    """Have runs replay their steps; how many were. On a CPU a graph is a stand-in that takes the step again."""
    count = SimpleNamespace(captures=0, replays=0)
    capture = StepGraphs._capture

    def counted(self, shape):
        capture(self, shape)
        count.captures += 1
        inner = shape.graph.replay

        def replay():
            count.replays += 1
            inner()

        shape.graph = SimpleNamespace(replay=replay)

    def stand_in(self, shape):
        def replay():
            shape.results = self.step(shape.batch)

        shape.graph = SimpleNamespace(replay=replay)

    monkeypatch.setattr(Session, "cuda_graphs", lambda *asked: (True, "a test asked for it"))
    if not ON_GPU:
        capture = stand_in
        without_cuda(monkeypatch)
    monkeypatch.setattr(StepGraphs, "_capture", counted)
    return count


def here(*overrides):
    """On the GPU where there is one; without dropout, whose draws change with the padding."""
    place = ["trainer.accelerator=gpu", "trainer.precision=bf16-mixed"] if ON_GPU else []
    return [*place, "model.dropout=0", *overrides]


def plain_losses(tmp_path, losses, monkeypatch, *overrides):
    with monkeypatch.context() as patch:
        patch.setattr(Session, "cuda_graphs", lambda *asked: (False, "a test asked for it"))
        go(configured(tmp_path / "plain", *here(*overrides)))
    found = dict(losses)
    losses.clear()
    return [found[step] for step in range(STEPS)]


@pytest.mark.parametrize(("encoding", "packed"), [("pope", "false"), ("path_fox", "true")])
def test_replayed_steps_have_the_losses_of_plain_ones(tmp_path, monkeypatch, losses, replayed, encoding, packed):
    given = f"encoding={encoding}", f"data.packed={packed}", "model.width=32", "model.heads=2"
    expected = plain_losses(tmp_path, losses, monkeypatch, *given)
    assert replayed.replays == 0
    run, said = go(configured(tmp_path / "graphs", *here(*given)))
    assert replayed.replays >= STEPS - graphs.PARTS * graphs.WARM_UP, said
    assert list(losses) == list(range(STEPS))
    assert list(losses.values()) == pytest.approx(expected, abs=0.02 if ON_GPU else 2e-5)
    rows = [line for line in (run.path / "metrics.csv").read_text().splitlines()[1:] if line.split(",")[1]]
    assert [int(row.split(",")[0]) for row in rows] == list(range(1, STEPS + 1))


def test_run_resumes_with_and_without_graphs(tmp_path, monkeypatch, losses, replayed):
    """Positions are dropped at step 12, when the graphs of the first steps become invalid."""
    given = "encoding=rope", "encoding.drop_after=0.5"
    expected = plain_losses(tmp_path, losses, monkeypatch, *given)
    with monkeypatch.context() as patch:
        interrupt_after(patch, 9)
        patch.setattr(Session, "cuda_graphs", lambda *asked: (False, "a test asked for it"))
        with pytest.raises(InterruptedRunError):
            go(configured(tmp_path / "cut", *here(*given)))
    with monkeypatch.context() as patch:
        interrupt_after(patch, 17)
        with pytest.raises(InterruptedRunError):
            go(configured(tmp_path / "cut", *here(*given)))
    monkeypatch.setattr(Session, "cuda_graphs", lambda *asked: (False, "a test asked for it"))
    go(configured(tmp_path / "cut", *here(*given)))
    assert replayed.replays
    assert [losses[step] for step in range(STEPS)] == pytest.approx(expected, abs=0.02 if ON_GPU else 2e-5)


def test_rows_are_padded_to_a_few_lengths_and_the_padding_is_not_scored(monkeypatch):
    if not ON_GPU:
        without_cuda(monkeypatch)
    assert [padded_length(n, 512, 2048) for n in (1, 512, 513, 2000, 2048)] == [512, 512, 1024, 2048, 2048]
    assert [padded_length(n, 6, 22) for n in (6, 7, 19, 22)] == [6, 12, 22, 22]
    seen = []
    step = StepGraphs(lambda batch: seen.append({key: value.clone() for key, value in batch.items()}) or (), 8)
    batch = {"inputs": torch.tensor([[1, 2, 3]]), "targets": torch.tensor([[2, 3, 4]]), "tokens": 3, "pieces": 2}
    step({key: torch.full((1, 4), 9) for key in graphs.PADDING})
    step({**batch, "documents": torch.tensor([[0, 0, 1]])})
    assert all(seen[0][key].tolist() == [[9] * 4] for key in graphs.PADDING)
    assert seen[1]["inputs"].tolist() == [[1, 2, 3, 0]]
    assert seen[1]["targets"].tolist() == [[2, 3, 4, IGNORED]]
    assert seen[1]["documents"].tolist() == [[0, 0, 1, -1]]
    assert set(seen[1]) == {"inputs", "targets", "documents"}


def test_graphs_are_shared_by_batches_with_similar_numbers_of_documents(monkeypatch):
    if not ON_GPU:
        without_cuda(monkeypatch)
    assert [padded_count(n) for n in (1, 8, 9, 64, 127, 129, 1000)] == [8, 8, 16, 64, 128, 144, 1024]
    seen = []
    step = StepGraphs(lambda batch: seen.append(batch.get("pieces")) or (), 8, bounded=True)
    for length, pieces in ((8, 15), (8, 17), (7, 15)):  # rows of 7 tokens are padded, with another document each
        step({key: torch.zeros(2, length, dtype=torch.long) for key in graphs.PADDING} | {"pieces": pieces})
    assert seen == [16, 24, 24]
    assert len(step.shapes) == 2
    step({key: torch.zeros(2, 8, dtype=torch.long) for key in ("inputs", "targets")})
    assert seen[-1] is None


def test_a_step_that_cannot_be_captured_goes_on_without_or_says_so(tmp_path, monkeypatch, losses, replayed):
    expected = plain_losses(tmp_path, losses, monkeypatch)

    def fails(self, shape):
        raise CaptureError("it asked the GPU for a value")

    monkeypatch.setattr(StepGraphs, "_capture", fails)
    go(configured(tmp_path / "auto", *here()))
    assert [losses[step] for step in range(STEPS)] == pytest.approx(expected, abs=0.02 if ON_GPU else 2e-5)
    with monkeypatch.context() as patch:
        patch.setattr(TrainerSettings, "against_graphs", None)
        with pytest.raises(UserError, match="cuda_graphs=true: it asked the GPU for a value; use"):
            go(configured(tmp_path / "true", *here("trainer.cuda_graphs=true")))


@pytest.mark.gpu
def test_a_failed_capture_on_the_gpu_leaves_training_and_dropout_whole(tmp_path, monkeypatch, losses):
    from bearings.lightning_modules.language_model import LanguageModel

    given = "trainer.accelerator=gpu", "trainer.precision=bf16-mixed", "model.dropout=0.2"
    go(configured(tmp_path / "plain", *given, "trainer.cuda_graphs=false"))
    expected = [losses[step] for step in range(STEPS)]
    inner = LanguageModel._clipped_norm

    def asks(self):
        norm = inner(self)
        if torch.cuda.is_current_stream_capturing():
            norm.item()
        return norm

    monkeypatch.setattr(LanguageModel, "_clipped_norm", asks)
    monkeypatch.setattr(Session, "cuda_graphs", lambda *asked: (True, "a test asked for it"))
    monkeypatch.setattr(graphs, "PARTS", 10**6)  # no padding: dropout's draws are those of plain steps
    go(configured(tmp_path / "auto", *given))
    assert [losses[step] for step in range(STEPS)] == pytest.approx(expected, abs=0.02)


@pytest.mark.gpu
@pytest.mark.parametrize(("precision", "tolerance"), [("bf16-mixed", 0.02), ("32-true", 2e-5)])
def test_every_replay_draws_new_dropout(tmp_path, monkeypatch, losses, precision, tolerance):
    given = "trainer.accelerator=gpu", f"trainer.precision={precision}", "model.dropout=0.2"
    go(configured(tmp_path / "plain", *given, "trainer.cuda_graphs=false"))
    expected = [losses[step] for step in range(STEPS)]
    monkeypatch.setattr(graphs, "PARTS", 10**6)
    go(configured(tmp_path / "graphs", *given, "trainer.cuda_graphs=true"))
    assert [losses[step] for step in range(STEPS)] == pytest.approx(expected, abs=tolerance)


@pytest.mark.gpu
@pytest.mark.parametrize("encoding", ["pope", "path_fox"])
def test_deterministic_runs_are_equal_bit_for_bit(tmp_path, losses, encoding):
    given = (
        f"encoding={encoding}",
        "trainer.accelerator=gpu",
        "trainer.precision=bf16-mixed",
        "trainer.deterministic=true",
    )
    sizes = "model.width=64", "model.heads=2", "model.dropout=0.2", "trainer.cuda_graphs=true"
    go(configured(tmp_path / "one", *given, *sizes))
    first = dict(losses)
    go(configured(tmp_path / "two", *given, *sizes))
    assert losses == first


def test_nothing_is_collected_while_a_graph_is_captured():
    with uncollected():
        assert not gc.isenabled()
    assert gc.isenabled()


@pytest.mark.parametrize("wrong", [{"micro_batch": 2}, {"activation_checkpointing": True}, {"accelerator": "cpu"}])
def test_graphs_are_refused_where_they_cannot_be(monkeypatch, wrong):
    gpu = {"is_available": True, "device_count": 1, "current_device": 0, "is_bf16_supported": True}
    for name, value in gpu.items():
        monkeypatch.setattr(torch.cuda, name, lambda value=value: value)
    assert TrainerSettings(cuda_graphs=True).against_graphs is None
    reason = TrainerSettings(**wrong).against_graphs
    named = "needs a GPU" if "accelerator" in wrong else next(iter(wrong))
    assert named in reason
    with pytest.raises(ValueError, match=f"^cuda_graphs=true: {reason}; use cuda_graphs=auto or false$"):
        TrainerSettings(cuda_graphs=True, **wrong)


@pytest.mark.parametrize("accelerator", ["auto", "gpu"])
def test_gpus_that_cuda_cannot_use_are_refused_rather_than_replaced_by_the_cpu(monkeypatch, accelerator):
    """As of a driver that is too old, or of a GPU that hangs."""
    for name, value in {"is_available": False, "device_count": 2}.items():
        monkeypatch.setattr(torch.cuda, name, lambda value=value: value)
    with pytest.raises(ValueError, match=f"^accelerator={accelerator}: CUDA fails to start on the 2 visible GPUs: "):
        TrainerSettings(accelerator=accelerator)
    assert TrainerSettings(accelerator="cpu").device.type == "cpu"


LARGE = "model.width=1024", "model.layers=24"


@pytest.mark.parametrize(("overrides", "worth_it"), [([], True), (LARGE, False), ([*LARGE, "data.packed=true"], True)])
def test_auto_replays_where_launches_bound_the_step_or_nothing_is_padded(tmp_path, monkeypatch, overrides, worth_it):
    plain = configured(tmp_path, "data.batch_size=32", "data.length=1024", *overrides)
    session = Session.of(plain)
    with torch.device("meta"):
        transformer = session.language_model(12).transformer
    assert session.cuda_graphs(transformer, 2**30)[0] is False  # on a CPU
    monkeypatch.setattr(TrainerSettings, "against_graphs", None)
    monkeypatch.setattr("bearings.session.session.free_memory", lambda device: 2**32)
    chosen, reason = session.cuda_graphs(transformer, 2**30)
    assert chosen is worth_it
    assert "ms of kernel launches" in reason
    assert ("rows are always full" in reason) is ("data.packed=true" in overrides)


@pytest.mark.parametrize(("overrides", "advised"), [([], True), (LARGE, False)])
def test_a_small_model_on_several_gpus_is_advised_to_use_one(tmp_path, monkeypatch, overrides, advised):
    session = Session.of(configured(tmp_path, "data.batch_size=32", "data.length=1024", *overrides))
    with torch.device("meta"):
        transformer = session.language_model(12).transformer
    monkeypatch.setattr("bearings.lightning_modules.cost.peak_flops", lambda device: None)
    monkeypatch.setattr(session.settings, "device", torch.device("cuda"))
    monkeypatch.setattr(TrainerSettings, "ranks", 2)
    chosen, reason = session.cuda_graphs(transformer, 2**30)
    assert not chosen
    assert reason.startswith("needs a single process, and this run has 2")
    assert ("one GPU would be faster (trainer.devices=1)" in reason) is advised


@pytest.mark.parametrize(("memory", "room"), [(2**31, True), (2**31 + 1, False), (None, False)])
def test_auto_uses_graphs_of_large_models_only_with_enough_free_memory(tmp_path, monkeypatch, memory, room):
    given = "data.batch_size=32", "data.length=1024", "data.packed=true"
    large, small = (Session.of(configured(tmp_path, *given, *sizes)) for sizes in (LARGE, ()))
    monkeypatch.setattr(TrainerSettings, "against_graphs", None)
    monkeypatch.setattr("bearings.session.session.free_memory", lambda device: 2**32)
    with torch.device("meta"):
        transformer, other = (session.language_model(12).transformer for session in (large, small))
    chosen, reason = large.cuda_graphs(transformer, memory)
    assert chosen is room
    assert ("more than half of the 4,096 MiB that are free" in reason) is not room
    assert small.cuda_graphs(other, memory)[0], "padded or not, small models of all encodings are run alike"
    monkeypatch.setattr(large.settings, "cuda_graphs", True)
    assert large.cuda_graphs(transformer, memory) == (True, "trainer.cuda_graphs=true")
