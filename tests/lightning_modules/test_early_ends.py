"""Runs that end early: resumption is exact bit for bit, and signals, NaN and full disks lose nothing."""

import csv
import errno
import io
import multiprocessing
import os
import signal
import time
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import training_support
from conftest import recorded_losses
from torch.utils.data import dataloader
from training_support import STEPS, configured, go, interrupt_after, weights

from bearings.core import stopping
from bearings.core.errors import InterruptedRunError, UserError
from bearings.domains.records import Records
from bearings.lightning_modules import callbacks, checkpoints
from bearings.lightning_modules.callbacks import Validation
from bearings.lightning_modules.checkpoints import CheckpointWriter
from bearings.lightning_modules.evaluation import Evaluation
from bearings.lightning_modules.language_model import LanguageModel
from bearings.lightning_modules.metrics_csv import MetricsCSV
from bearings.session.run_directory import RunDirectory


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        seen = recorded_losses(patch)
        return go(configured(tmp_path_factory.mktemp("whole")))[0], seen


@pytest.fixture
def whole(uninterrupted):
    """A run that was not interrupted."""
    return uninterrupted[0]


@pytest.fixture
def expected(uninterrupted):
    """Its losses."""
    return uninterrupted[1]


@pytest.mark.parametrize(("encoding", "stops"), [("pope", (0, 7)), ("path", (6, 22))])
def test_an_interrupted_run_repeats_the_uninterrupted_one_bit_for_bit(tmp_path, monkeypatch, losses, encoding, stops):
    whole, _ = go(configured(tmp_path / "whole", f"encoding={encoding}"))
    expected = dict(losses)
    losses.clear()
    for workers, stop in enumerate(stops):
        with monkeypatch.context() as patch:
            interrupt_after(patch, stop + 1)
            with pytest.raises(InterruptedRunError, match=f"after step {stop + 1} of {STEPS}: rerun the same command"):
                go(configured(tmp_path / "cut", f"encoding={encoding}", f"data.workers={workers}"))
    cut, text = go(configured(tmp_path / "cut", f"encoding={encoding}", "data.workers=1"))
    assert f"resuming after step {stops[-1] + 1} of {STEPS}" in text
    assert losses == expected
    for name in ("best", "last"):
        for key, tensor in weights(whole, name).items():
            assert torch.equal(tensor, weights(cut, name)[key]), key
    for split in ("valid", "test"):
        assert np.array_equal(Records.load(whole.records(split)).nats, Records.load(cut.records(split)).nats)
    rows = [(run.path / "metrics.csv").read_text().splitlines() for run in (whole, cut)]
    steps = [[line.split(",")[0] for line in lines] for lines in rows]
    assert steps[0] == steps[1]
    assert [each["from_step"] for each in cut.manifest["sessions"]] == [0, *(stop + 1 for stop in stops)]


@pytest.mark.parametrize("hook", ["on_fit_start", "on_train_batch_end"])
def test_ctrl_c_handled_by_lightning_is_reported_and_works_again(tmp_path, monkeypatch, hook):
    """Before the first step there is no checkpoint to write; a second one does not wait for the step to end."""

    def interrupt(self, *rest):
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)

    before = signal.getsignal(signal.SIGINT)
    with monkeypatch.context() as patch:
        patch.setattr(stopping, "AGAIN", -1.0)
        patch.setattr(callbacks.ProgressLine, hook, interrupt)
        with pytest.raises(KeyboardInterrupt):
            go(configured(tmp_path))
    assert signal.getsignal(signal.SIGINT) == before
    run, text = go(configured(tmp_path))
    assert "already" not in text
    assert [each["from_step"] for each in run.manifest["sessions"]] == [0]  # no step of the stopped one is left


def test_sigterm_keeps_the_step_too(tmp_path, monkeypatch):
    interrupt_after(monkeypatch, 5, signal.SIGTERM)
    with pytest.raises(InterruptedRunError, match="after step 5"):
        go(configured(tmp_path))


def test_a_signal_to_the_whole_process_group_spares_the_workers_and_comes_twice(
    tmp_path, monkeypatch, losses, expected
):
    """As from SLURM and `timeout`, which signals the process and then its group."""

    def killed(number, pid, *, inner=os.kill):
        for child in multiprocessing.active_children():
            inner(child.pid, signal.SIGINT)
            inner(child.pid, signal.SIGTERM)
        time.sleep(0.1)
        assert len(multiprocessing.active_children()) == 2
        inner(number, pid)
        inner(number, pid)

    for number in (signal.SIGINT, signal.SIGTERM):
        with monkeypatch.context() as patch:
            interrupt_after(patch, 5 if number == signal.SIGINT else 12, number)
            patch.setattr(training_support.os, "kill", killed)
            with pytest.raises(InterruptedRunError, match=r"after step (5|12) of 24"):
                go(configured(tmp_path / "cut", "data.workers=2"))
        assert not multiprocessing.active_children()
    go(configured(tmp_path / "cut"))
    assert losses == expected


def test_a_killed_loader_process_is_reported_and_the_run_resumes(tmp_path, monkeypatch, losses, expected):
    """The error is raised where a batch is asked for, and not in code that may be writing a file."""

    def killed(pid, number, *, inner=os.kill):
        worker = multiprocessing.active_children()[0]
        inner(worker.pid, signal.SIGKILL)
        os.waitid(os.P_PID, worker.pid, os.WEXITED | os.WNOWAIT)
        undisturbed.append(worker)

    undisturbed = []
    with monkeypatch.context() as patch:
        interrupt_after(patch, 14)
        patch.setattr(training_support.os, "kill", killed)
        with pytest.raises(UserError, match=r"a process that loads training data was killed .*: .*data.workers"):
            go(configured(tmp_path / "cut", "data.workers=1"))
    assert undisturbed
    go(configured(tmp_path / "cut"))
    assert losses == expected


@pytest.mark.parametrize("error", [ConnectionResetError, EOFError])
def test_a_loader_process_killed_while_it_sends_is_reported(tmp_path, monkeypatch, error):
    def receive(self):
        raise error

    monkeypatch.setattr(dataloader._SingleProcessDataLoaderIter, "_next_data", receive)
    with pytest.raises(UserError, match=rf"training data was killed \({error.__name__}\), perhaps"):
        go(configured(tmp_path))


def test_a_stop_during_validation_is_heeded_and_the_validation_made_up_for(tmp_path, monkeypatch, whole):
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


@pytest.mark.parametrize("written", [False, True])
def test_a_run_killed_while_it_logs_a_validation_has_its_row_once(tmp_path, monkeypatch, written, whole):
    """The row is in metrics.csv only if the process was killed after writing it."""
    inner = MetricsCSV.log_metrics

    def killed(self, metrics, step=None):
        if step == 16 and "valid_nll" in metrics:
            if written:
                inner(self, metrics, step)
            raise MemoryError
        inner(self, metrics, step)

    with monkeypatch.context() as patch:
        patch.setattr(MetricsCSV, "log_metrics", killed)
        with pytest.raises(MemoryError):
            go(configured(tmp_path / "cut"))
    cut, _ = go(configured(tmp_path / "cut"))
    rows = [validations(run) for run in (whole, cut)]
    assert [row["step"] for row in rows[0]] == ["8", "16", "24"]
    assert rows[0] == rows[1]


def test_a_validation_that_is_repeated_from_an_earlier_checkpoint_has_its_row_once(tmp_path, monkeypatch, whole):
    """`previous.ckpt` is from before the validation of the same step."""
    with monkeypatch.context() as patch:
        patch.setattr(Validation, "_stop_if_asked", stop_at(16))
        with pytest.raises(InterruptedRunError):
            go(configured(tmp_path / "cut"))
    RunDirectory.of(configured(tmp_path / "cut")).last.write_bytes(b"")
    cut, text = go(configured(tmp_path / "cut"))
    assert "resuming after step 16 of 24" in text
    assert validations(cut) == validations(whole)


@pytest.mark.parametrize(
    ("step", "validated", "made_up"),
    [(0, -1, False), (3, -1, False), (4, -1, True), (8, 4, True), (8, 8, False), (9, 8, False)],
)
def test_a_resumed_run_validates_first_only_if_it_was_stopped_before(tmp_path, monkeypatch, step, validated, made_up):
    steps = []
    monkeypatch.setattr(Validation, "_validate", lambda self, trainer, module: steps.append(trainer.global_step))
    validation = Validation(lambda *_: None, tmp_path, every=4, checkpoint_every=3, stamp={})
    validation.load_state_dict({"best": 1.0, "best_step": validated, "validated_step": validated})
    trainer, handlers = SimpleNamespace(global_step=step), [*map(signal.getsignal, stopping.heard())]
    validation.on_train_start(trainer, None)
    validation.teardown(trainer, None, "fit")
    assert steps == [step] * made_up
    assert [*map(signal.getsignal, stopping.heard())] == handlers


def validations(run):
    with open(run.path / "metrics.csv", newline="") as file:
        return [row for row in csv.DictReader(file) if row["valid_nll"]]


def stop_at(step):
    """In place of `Validation._stop_if_asked`: stop after the validation at `step`."""

    def stop(self, trainer):
        if self.validated_step == trainer.global_step == step:
            self._stop(trainer)

    return stop


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


def test_a_validation_after_the_last_step_runs_where_the_model_was_trained(tmp_path, monkeypatch):
    """Lightning moves the model to the CPU before."""
    seen = []
    monkeypatch.setattr(Validation, "_validate", lambda self, trainer, module: seen.append(module.weight.device.type))
    place = SimpleNamespace(root_device=torch.device("meta"))
    validation = Validation(lambda *_: None, tmp_path, every=1, checkpoint_every=1, stamp={})
    validation.on_fit_end(SimpleNamespace(global_step=0, strategy=place), torch.nn.Linear(1, 1))
    assert seen == ["meta"]


def test_a_full_disk_is_reported_and_keeps_existing_checkpoints(tmp_path, monkeypatch):
    inner = CheckpointWriter.save_checkpoint

    class Full(io.FileIO):
        """A file on a disk that has room for a part of it."""

        def write(self, data):
            if self.tell() > 1000:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return super().write(data)

    def save(self, checkpoint, path, **options):
        if checkpoint["global_step"] >= 16:
            monkeypatch.setattr(checkpoints, "open", Full, raising=False)
        return inner(self, checkpoint, path, **options)

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
    assert run.manifest["diverged"] == 11
    monkeypatch.setattr(LanguageModel, "nats", inner)
    go(plain)
    assert [run.manifest[key] for key in ("failed", "diverged", "finished")] == [None, None, True]


def test_nan_before_the_first_update_is_not_blamed_on_the_learning_rate(tmp_path, monkeypatch):
    inner = LanguageModel.nats
    monkeypatch.setattr(LanguageModel, "nats", lambda self, batch: inner(self, batch) * float("nan"))
    with pytest.raises(UserError, match=r"not finite at step 0, before the first update .*: try trainer\.precision"):
        go(plain := configured(tmp_path))
    assert RunDirectory.of(plain).manifest["diverged"] is None  # so that a study trains it again


def test_a_run_without_a_finite_score_on_validation_has_diverged(tmp_path, monkeypatch):
    monkeypatch.setattr(Validation, "_validate", lambda *given: None)
    plain = configured(tmp_path, "trainer.steps=6")
    with pytest.raises(UserError, match=r"^no validation score was finite, so there is no checkpoint to test: lower"):
        go(plain)
    assert RunDirectory.of(plain).manifest["diverged"] == 6


def test_dropped_positions_restart_the_schedule_and_survive_resumption(tmp_path, monkeypatch, losses):
    given = ("encoding=rope", "encoding.drop_after=0.5", "trainer.steps=6", "trainer.validate_every=2")
    given += ("optimizer.warmup_steps=1", "optimizer.learning_rate=0.1", "task.samples=0")  # worse with each step
    whole, _ = go(configured(tmp_path / "whole", *given))
    with open(whole.path / "metrics.csv") as file:
        rates = {int(row["step"]): float(row["learning_rate"]) for row in csv.DictReader(file) if row["learning_rate"]}
    assert list(rates.values()) == pytest.approx([0.05, 0.1, 0.01] * 2)
    assert weights(whole)["transformer.blocks.0.attention.encoding.dropped"] == 1
    expected = dict(losses)
    losses.clear()
    for stop in (3, 4):  # the drop is at step 3
        with monkeypatch.context() as patch:
            interrupt_after(patch, stop)
            with pytest.raises(InterruptedRunError):
                go(configured(tmp_path / "cut", *given))
    cut, _ = go(configured(tmp_path / "cut", *given))
    assert losses == expected
    for key, tensor in weights(whole, "last").items():
        assert torch.equal(tensor, weights(cut, "last")[key]), key


def test_a_damaged_last_checkpoint_falls_back_to_the_one_before(tmp_path, monkeypatch, losses, expected):
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
    assert f"{run.last} is damaged: using the previous checkpoint\n" in text
    assert "resuming after step 10 of 24" in text
    assert losses == expected
    for path in (run.last, run.previous):
        path.write_bytes(b"")
    run.write_manifest(finished=False)
    with pytest.raises(UserError, match=r"previous\.ckpt is damaged"):
        go(configured(tmp_path / "cut"))
