"""Training: a resumed run repeats the uninterrupted one bit for bit; NaN, signals and wrong directories end cleanly."""

import io
import os
import signal
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from hydra import compose, initialize_config_dir
from rich.console import Console

from bearings.domains.tokenization import BPE
from bearings.errors import InterruptedRunError, UserError
from bearings.lightning_modules.callbacks import ProgressLine
from bearings.lightning_modules.checkpoints import CheckpointWriter
from bearings.lightning_modules.evaluation import Evaluation, Records
from bearings.lightning_modules.language_model import LanguageModel
from bearings.lightning_modules.schedule import learning_rate_factor
from bearings.tasks.configuration import CONFIGS, build, resolve
from bearings.tasks.house import House
from bearings.tasks.run_directory import RunDirectory

STEPS = 24
LETTERS = [
    "experiment=debug",
    f"trainer.steps={STEPS}",
    "trainer.validate_every=8",
    "trainer.checkpoint_every=5",
    "trainer.log_every=1",
    "trainer.accelerator=cpu",
    "trainer.precision=32-true",
    "model.dropout=0.1",
    "data.batch_size=3",
    "data.length=32",
    "task.sample_tokens=20",
]


def configured(tmp_path, *overrides, task="train"):
    with initialize_config_dir(str(CONFIGS), version_base="1.3"):
        config = compose("config", overrides=[*LETTERS, *overrides] if task == "train" else [f"task={task}"])
    plain = resolve(config)
    plain["domain"] = {"_target_": "conftest.Letters"}
    plain |= {"names": {"domain": "letters", "encoding": "any", "model": "tiny"}, "content": {}}
    return plain | {"runs": str(tmp_path / "runs"), "stores": str(tmp_path / "data")}


def go(plain):
    house = House.of(plain)
    house.console = Console(file=io.StringIO(), width=200)
    build(plain["task"], "task")(house)
    return RunDirectory.of(plain), house.console.file.getvalue()


@pytest.fixture
def losses(monkeypatch):
    """Every training loss by step, exactly."""
    seen = {}
    inner = LanguageModel.training_step

    def step(self, batch, batch_idx):
        now = self.global_step
        inner(self, batch, batch_idx)
        seen[now] = self.loss.item()

    monkeypatch.setattr(LanguageModel, "training_step", step)
    return seen


def interrupt_after(monkeypatch, step, number=signal.SIGINT):
    inner = ProgressLine.on_train_batch_end

    def end(self, trainer, *rest):
        inner(self, trainer, *rest)
        if trainer.global_step == step:
            os.kill(os.getpid(), number)

    monkeypatch.setattr(ProgressLine, "on_train_batch_end", end)


def weights(run, name="best"):
    return torch.load(run.path / "checkpoints" / f"{name}.ckpt", weights_only=True)["state_dict"]


@pytest.mark.parametrize(("encoding", "stops"), [("pope", (0, 7)), ("path", (6, 22))])
def test_an_interrupted_run_repeats_the_uninterrupted_one_bit_for_bit(tmp_path, monkeypatch, losses, encoding, stops):
    whole, _ = go(configured(tmp_path / "whole", f"encoding={encoding}"))
    expected = dict(losses)
    losses.clear()
    for workers, stop in enumerate(stops):
        with monkeypatch.context() as patch:
            interrupt_after(patch, stop + 1)
            with pytest.raises(InterruptedRunError, match=f"after step {stop + 1} of {STEPS}: the same command"):
                go(configured(tmp_path / "cut", f"encoding={encoding}", f"data.workers={workers}"))
    cut, text = go(configured(tmp_path / "cut", f"encoding={encoding}", "data.workers=1"))
    assert f"going on after step {stops[-1] + 1} of {STEPS}" in text
    assert losses == expected
    for name in ("best", "last"):
        for key, tensor in weights(whole, name).items():
            assert torch.equal(tensor, weights(cut, name)[key]), key
    for split in ("valid", "test"):
        assert np.array_equal(Records.load(whole.records(split)).nats, Records.load(cut.records(split)).nats)
    rows = [(run.path / "metrics.csv").read_text().splitlines() for run in (whole, cut)]
    steps = [[line.split(",")[0] for line in lines] for lines in rows]
    assert steps[0] == steps[1]


def test_sigterm_keeps_the_step_too(tmp_path, monkeypatch):
    interrupt_after(monkeypatch, 5, signal.SIGTERM)
    with pytest.raises(InterruptedRunError, match="after step 5"):
        go(configured(tmp_path))


def test_a_stop_during_validation_is_heeded_and_the_validation_made_up_for(tmp_path, monkeypatch, losses):
    whole, _ = go(configured(tmp_path / "whole"))
    inner, scored = Evaluation.score, []

    def score(self, model, store, split, *rest, **options):
        scored.append(split)
        if len(scored) == 2:
            os.kill(os.getpid(), signal.SIGTERM)
        return inner(self, model, store, split, *rest, **options)

    with monkeypatch.context() as patch:
        patch.setattr(Evaluation, "score", score)
        with pytest.raises(InterruptedRunError, match="after step 16"):
            go(configured(tmp_path / "cut"))
    cut, _ = go(configured(tmp_path / "cut"))
    rows = [
        [row for row in (run.path / "metrics.csv").read_text().splitlines() if row.startswith("16,,")]
        for run in (whole, cut)
    ]
    assert len(rows[0]) == 1
    assert rows[0] == rows[1]


@pytest.mark.parametrize("every", [8, 100])
def test_a_run_killed_in_its_last_validation_makes_up_for_it(tmp_path, monkeypatch, every):
    given = f"trainer.validate_every={every}"
    whole, _ = go(configured(tmp_path / "whole", given))
    inner = LanguageModel.on_train_batch_start

    def killed(self, *rest, **options):
        if seen["step"] == STEPS - 1:
            raise MemoryError
        return score(self, *rest, **options)

    seen, score = {}, Evaluation.score

    def start(self, batch, batch_idx):
        seen["step"] = self.global_step
        inner(self, batch, batch_idx)

    with monkeypatch.context() as patch:
        patch.setattr(LanguageModel, "on_train_batch_start", start)
        patch.setattr(Evaluation, "score", killed)
        with pytest.raises(MemoryError):
            go(configured(tmp_path / "cut", given))
    cut, _ = go(configured(tmp_path / "cut", given))
    assert (
        torch.load(cut.best, weights_only=True)["global_step"]
        == torch.load(whole.best, weights_only=True)["global_step"]
    )
    assert np.array_equal(Records.load(whole.records("test")).nats, Records.load(cut.records("test")).nats)


def test_the_optimiser_follows_the_schedule_and_the_clip(tmp_path, monkeypatch):
    rates, norms = [], []
    inner = torch.optim.AdamW.step

    def step(self, closure=None):
        result = inner(self, closure)
        rates.append({group["lr"] for group in self.param_groups})
        gradients = [p.grad for group in self.param_groups for p in group["params"] if p.grad is not None]
        norms.append(torch.cat([gradient.flatten() for gradient in gradients]).norm().item())
        return result

    monkeypatch.setattr(torch.optim.AdamW, "step", step)
    go(configured(tmp_path, "optimizer.clip=0.01", "optimizer.warmup_steps=5"))
    expected = [4e-3 * learning_rate_factor(s, STEPS, 5, "cosine", 0.1) for s in range(STEPS)]
    assert [rate for (rate,) in rates] == pytest.approx(expected)
    assert norms == pytest.approx([0.01] * STEPS, rel=1e-3)


def test_looking_at_a_finished_run_leaves_its_manifest_alone(tmp_path):
    run, _ = go(configured(tmp_path))
    before = run.manifest
    assert len(before["sessions"]) == 1
    go(configured(tmp_path))
    assert run.manifest == before


def test_a_finished_run_is_reused_and_learns_the_rule(tmp_path, losses):
    overrides = ["trainer.steps=150", "trainer.validate_every=50", "optimizer.learning_rate=1e-2", "model.dropout=0.0"]
    run, text = go(configured(tmp_path, *overrides))
    assert len(losses) == 150
    assert Records.load(run.records("test")).nats_per_token < 1.3  # guessing costs log 11 = 2.4
    for made in ("config.yaml", "manifest.json", "metrics.csv", "samples/sample-0.txt", "plots/loss.png"):
        assert (run.path / made).exists()
    assert "Markov, order 1" in text
    kept = {path.stem for path in run.baselines("test").iterdir()}
    assert kept == {"unigram", "Markov, order 1", "xz -9e"}
    before = {path: path.stat().st_mtime_ns for path in run.path.rglob("*.npz")}
    losses.clear()
    _, again = go(configured(tmp_path, *overrides))
    assert not losses
    assert "already finished" in again
    assert before == {path: path.stat().st_mtime_ns for path in run.path.rglob("*.npz")}


def test_the_best_checkpoint_is_the_one_best_on_validation(tmp_path):
    run, _ = go(configured(tmp_path, "optimizer.learning_rate=3e-2", "trainer.validate_every=2"))
    with open(run.path / "metrics.csv") as file:
        head, *lines = (line.strip().split(",") for line in file)
    column = head.index("valid_nll")
    scores = {int(line[0]): float(line[column]) for line in lines if line[column]}
    best = torch.load(run.best, weights_only=True)
    assert best["global_step"] == min(scores, key=scores.get)
    assert Records.load(run.records("valid")).nats_per_token == pytest.approx(min(scores.values()), abs=1e-6)


def test_a_validation_writes_what_it_follows_and_what_it_found_once_each(tmp_path, monkeypatch):
    written = []
    inner = CheckpointWriter.save_checkpoint

    def save(self, checkpoint, path, **options):
        written.append(checkpoint["global_step"])
        inner(self, checkpoint, path, **options)

    monkeypatch.setattr(CheckpointWriter, "save_checkpoint", save)
    run, _ = go(configured(tmp_path, "trainer.checkpoint_every=1000"))
    assert written == [8, 8, 16, 16, 24, 24]
    assert sorted(path.name for path in run.best.parent.iterdir()) == ["best.ckpt", "last.ckpt", "previous.ckpt"]


def test_a_full_disk_is_told_and_spares_the_checkpoints_there_are(tmp_path, monkeypatch):
    inner = CheckpointWriter.save_checkpoint

    def save(self, checkpoint, path, **options):
        if checkpoint["global_step"] < 16:
            return inner(self, checkpoint, path, **options)
        path.write_bytes(b"half")
        return inner(self, checkpoint, Path("/dev/full"), **options)

    monkeypatch.setattr(CheckpointWriter, "save_checkpoint", save)
    with pytest.raises(OSError, match="No space left on device") as raised:
        go(configured(tmp_path))
    (run,) = tmp_path.glob("**/checkpoints")
    assert raised.value.filename == str(run / "last.ckpt")
    assert sorted(path.name for path in run.iterdir()) == ["best.ckpt", "last.ckpt", "previous.ckpt"]
    assert torch.load(run / "last.ckpt", weights_only=True)["global_step"] == 15


def test_nan_stops_with_its_step_and_keeps_the_last_good_checkpoint(tmp_path, monkeypatch):
    inner = LanguageModel.nats

    def nats(self, batch):
        loss = inner(self, batch)
        return loss * float("nan") if self.global_step == 11 else loss

    monkeypatch.setattr(LanguageModel, "nats", nats)
    plain = configured(tmp_path, "trainer.log_every=7")
    with pytest.raises(UserError, match=r"not finite at step 11 \(gradient norm nan, learning rate 0\.00.*last good"):
        go(plain)
    run = RunDirectory.of(plain)
    assert torch.load(run.last, weights_only=True)["global_step"] == 10
    assert all(torch.isfinite(tensor).all() for tensor in weights(run, "last").values())
    assert run.manifest["failed"].startswith("the loss or gradient was not finite at step 11")
    monkeypatch.setattr(LanguageModel, "nats", inner)
    go(plain)
    assert (run.manifest["failed"], run.manifest["finished"]) == (None, True)


def test_a_directory_of_another_configuration_is_refused(tmp_path):
    run, _ = go(configured(tmp_path))
    other = configured(tmp_path, "optimizer.learning_rate=0.5") | {"run": str(run.path)}
    with pytest.raises(UserError, match=r"another configuration \(optimizer.learning_rate=0.004 there, 0.5 here\)"):
        go(other)
    assert go(configured(tmp_path, "trainer.checkpoint_every=3") | {"run": str(run.path)})


def test_seeds_and_configurations_have_directories_of_their_own(tmp_path):
    paths = {
        str(RunDirectory.of(configured(tmp_path, *overrides)).path)
        for overrides in ([], ["seed=1"], ["model.width=64"], ["encoding.base=500.0"], ["data.packed=true"])
    }
    assert len(paths) == 5
    same = configured(tmp_path, "data.workers=3", "trainer.log_every=2")
    assert str(RunDirectory.of(same).path) in paths


def test_a_checkpoint_of_another_encoding_is_refused(tmp_path):
    rope, _ = go(configured(tmp_path, "encoding=rope"))
    pope, _ = go(configured(tmp_path, "encoding=pope"))
    pope.best.write_bytes(rope.best.read_bytes())
    plain = yaml.safe_load(pope.config_file.read_text())
    evaluate = {**plain, "task": configured(tmp_path, task="evaluate")["task"], "run": str(pope.path)}
    with pytest.raises(UserError, match=r"holds encoding .*RoPE.* asks for .*PoPE"):
        go(evaluate)
    pope.best.write_bytes(rope.best.read_bytes()[:5000])
    with pytest.raises(UserError, match=r"best.ckpt is damaged .* delete .*, and train the run again"):
        go(evaluate)
    pope.best.unlink()
    with pytest.raises(UserError, match=r"best.ckpt is not there: .* the file was lost: delete .* and train it again"):
        go(evaluate)
    pope.write_manifest(finished=False)
    with pytest.raises(UserError, match=r"best.ckpt was lost: delete .* and train the run again"):
        go(configured(tmp_path, "encoding=pope"))


def test_a_run_is_scored_and_continued_by_its_store_though_its_source_is_gone(tmp_path):
    text = tmp_path / "mine.txt"
    text.write_text("".join(f"this is line {i} of {i * i % 7}\n" for i in range(200)))
    small = ["domain.tokenizer=train", "domain.vocabulary_size=270", "domain.documents=line", f"domain.path={text}"]
    with initialize_config_dir(str(CONFIGS), version_base="1.3"):
        plain = resolve(compose("config", overrides=["domain=text", *LETTERS, *small]))
        tasks = {task: compose("config", overrides=[f"task={task}"])["task"] for task in ("evaluate", "export")}
    names = {"domain": "text", "encoding": "pope", "model": "small"}
    plain |= {"names": names, "runs": str(tmp_path / "runs"), "stores": str(tmp_path / "data")}
    house = House.of(plain)
    build(plain["task"], "task")(house)
    run = RunDirectory.of(house.config)
    before = Records.load(run.records("test"))
    config = yaml.safe_load(run.config_file.read_text())
    for change in (lambda: text.write_text("other\n"), text.unlink):
        change()
        for task in tasks.values():
            house = House.of({**config, "task": dict(task), "run": str(run.path)})
            house.console = Console(file=io.StringIO(), width=200)
            build(dict(task), "task")(house)
        assert np.array_equal(Records.load(run.records("test")).nats, before.nats)
        assert house.domain.decode(house.store().document(0)[1:])
        assert BPE.read(run.path / "export" / "tokenizer.json").digest == house.domain.codec.digest
    assert run.manifest["scored"]["test"]["code"].keys() == {"commit", "dirty"}


def test_a_run_that_was_not_tested_is_when_it_is_shown(tmp_path):
    run, _ = go(configured(tmp_path))
    tested = Records.load(run.records("test"))
    run.records("test").unlink()
    _, text = go(configured(tmp_path))
    assert "already finished" in text
    assert np.array_equal(Records.load(run.records("test")).nats, tested.nats)


def test_a_changed_source_is_told(tmp_path, monkeypatch):
    states = [{"commit": "a" * 40, "dirty": None}, {"commit": "a" * 40, "dirty": "b" * 12}]
    monkeypatch.setattr("bearings.tasks.run_directory.git_state", lambda: states[0])
    _, text = go(configured(tmp_path))
    assert "source has changed" not in text
    assert "source has changed" not in go(configured(tmp_path))[1]
    states.pop(0)
    told = (
        "the source has changed since this run was last trained: aaaaaaaaaa then, aaaaaaaaaa with changes bbbbbbbbbbbb"
    )
    assert told in go(configured(tmp_path))[1]


def test_a_damaged_manifest_is_told(tmp_path):
    run, _ = go(configured(tmp_path))
    manifest = run.path / "manifest.json"
    manifest.write_text(manifest.read_text()[:100])
    with pytest.raises(UserError, match=r"manifest.json is damaged .* train the run again"):
        go(configured(tmp_path))


def test_a_task_of_a_run_takes_no_other_configuration(tmp_path):
    plain = configured(tmp_path)
    run, _ = go(plain)
    for given in ("experiment=debug", "match=params"):
        with pytest.raises(UserError, match=f"{given.split('=')[0]}: .* was made with a configuration of its own"):
            RunDirectory.open(run.path).configuration_for(plain, [given, f"run={run.path}"])


def test_changed_data_are_refused(tmp_path):
    run, _ = go(configured(tmp_path))
    run.write_manifest(store={"sha256": "f" * 64})
    with pytest.raises(UserError, match="begun with other data"):
        go(configured(tmp_path))


def test_too_little_room_is_said_before_training(tmp_path, monkeypatch, losses):
    usage = type("Usage", (), {"free": 1000})
    monkeypatch.setattr("shutil.disk_usage", lambda path: usage)
    with pytest.raises(UserError, match="0 MiB are free and the checkpoints need"):
        go(configured(tmp_path))
    assert not losses


def test_two_processes_do_not_share_a_run(tmp_path, losses):
    plain = configured(tmp_path)
    with RunDirectory.of(plain).claimed(0), pytest.raises(UserError, match="another process is training here"):
        go(plain)


def test_packed_rows_train(tmp_path, losses):
    run, _ = go(configured(tmp_path, "data.packed=true", "encoding=fox"))
    assert len(losses) == STEPS
    assert np.isfinite(Records.load(run.records("test")).nats).all()


def test_validation_may_be_capped_while_the_figures_at_the_end_are_complete(tmp_path, monkeypatch):
    sizes, inner = [], Evaluation.score

    def score(self, model, store, split, *rest, **options):
        records = inner(self, model, store, split, *rest, **options)
        sizes.append((split, int(records.tokens.sum())))
        return records

    monkeypatch.setattr(Evaluation, "score", score)
    go(configured(tmp_path, "evaluation.validation_tokens=40"))
    store = House.of(configured(tmp_path)).store()
    assert sizes[-2:] == [(split, store.targets(split)) for split in ("valid", "test")]
    assert len(set(sizes[:-2])) == 1
    assert 20 < sizes[0][1] < store.targets("valid") / 2


def test_micro_batches_and_checkpointing_leave_the_losses_alone(tmp_path, losses):
    found = {}
    for name, given in {
        "whole": [],
        "parts": ["trainer.micro_batch=2"],  # of 3 rows: 2 and 1
        "checkpointing": ["trainer.activation_checkpointing=true"],
    }.items():
        dropout = "model.dropout=0.1" if name == "checkpointing" else "model.dropout=0.0"
        run, _ = go(configured(tmp_path / name, *given, dropout))
        found[name] = dict(losses), RunDirectory.of(configured(tmp_path, *given)).path.name
    whole, _ = go(configured(tmp_path / "dropout", "model.dropout=0.1"))
    assert losses == found["checkpointing"][0]
    assert list(found["parts"][0].values()) == pytest.approx(list(found["whole"][0].values()), abs=2e-5)
    assert len({name for _, name in found.values()}) == 1
    assert run.path.name == whole.path.name


def test_a_step_that_runs_out_of_memory_is_taken_again_in_halves(tmp_path, monkeypatch, losses):
    go(configured(tmp_path / "whole", "model.dropout=0.0"))
    expected, sizes, inner = list(losses.values()), [], LanguageModel.nats

    def nats(self, batch):
        sizes.append(len(batch["inputs"]))
        if sizes[-1] > limit:
            raise torch.OutOfMemoryError
        return inner(self, batch)

    limit = 1
    monkeypatch.setattr(LanguageModel, "nats", nats)
    go(configured(tmp_path / "halved", "model.dropout=0.0"))
    assert list(losses.values()) == pytest.approx(expected, abs=2e-5)
    assert sizes[:5] == [3, 2, 1, 1, 1]
    limit = 0
    with pytest.raises(UserError, match=r"out of memory with 1 rows at a time: set trainer\.micro_batch"):
        go(configured(tmp_path / "none", "model.dropout=0.0"))


def test_a_damaged_last_checkpoint_falls_back_to_the_one_before(tmp_path, monkeypatch, losses):
    go(configured(tmp_path / "whole"))
    expected = dict(losses)
    losses.clear()
    with monkeypatch.context() as patch:
        interrupt_after(patch, 13)
        with pytest.raises(InterruptedRunError):
            go(configured(tmp_path / "cut"))
    run = RunDirectory.of(configured(tmp_path / "cut"))
    steps = [torch.load(path, weights_only=True)["global_step"] for path in (run.last, run.previous)]
    assert steps == [13, 10]
    run.last.write_bytes(run.last.read_bytes()[:3000])
    _, text = go(configured(tmp_path / "cut"))
    assert "last.ckpt is damaged" in text
    assert "going on after step 10 of 24" in text
    assert losses == expected
    for path in (run.last, run.previous):
        path.write_bytes(b"")
    run.write_manifest(finished=False)
    with pytest.raises(UserError, match=r"previous\.ckpt is damaged"):
        go(configured(tmp_path / "cut"))


def test_other_seeds_are_of_this_configuration_alone(tmp_path):
    for name in ("tiny-0123abcd-s0", "tiny-0123abcd-s12", "tiny-0123abce-s0", "flip-small", "flip-sparse"):
        file = tmp_path / name / "nll" / "test.npz"
        file.parent.mkdir(parents=True)
        file.touch()
    seeds = RunDirectory(tmp_path / "tiny-0123abcd-s0", {}).other_seeds("test")
    assert [path.parts[-3] for path in seeds] == ["tiny-0123abcd-s0", "tiny-0123abcd-s12"]
    assert [path.parts[-3] for path in RunDirectory(tmp_path / "flip-small", {}).other_seeds("test")] == ["flip-small"]


def test_a_loaded_model_is_ready_to_score(tmp_path):
    plain = configured(tmp_path, "model.dropout=0.5")
    run, _ = go(plain)
    assert not House.of(plain).load(run.best, 12).training
