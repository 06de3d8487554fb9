"""Training: a resumed run repeats the uninterrupted one bit for bit; NaN, signals and full disks end cleanly."""

import csv
import errno
import gc
import io
import math
import multiprocessing
import os
import re
import signal
import time
import weakref

import numpy as np
import pytest
import torch
import training_support
from conftest import Letters
from training_support import STEPS, configured, go, interrupt_after, weights

from bearings.core import stopping
from bearings.core.errors import InterruptedRunError, UserError
from bearings.domains.records import Records
from bearings.lightning_modules import callbacks, checkpoints, data_module
from bearings.lightning_modules.checkpoints import CheckpointWriter
from bearings.lightning_modules.evaluation import Evaluation
from bearings.lightning_modules.language_model import LanguageModel
from bearings.lightning_modules.schedule import learning_rate_factor
from bearings.session.run_directory import RunDirectory
from bearings.session.session import Session


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
    assert "already" not in go(configured(tmp_path))[1]


def test_sigterm_keeps_the_step_too(tmp_path, monkeypatch):
    interrupt_after(monkeypatch, 5, signal.SIGTERM)
    with pytest.raises(InterruptedRunError, match="after step 5"):
        go(configured(tmp_path))


def test_a_signal_to_the_whole_process_group_spares_the_workers_and_comes_twice(tmp_path, monkeypatch, losses):
    """As from SLURM and `timeout`, which signals the process and then its group."""

    def killed(number, pid, *, inner=os.kill):
        for child in multiprocessing.active_children():
            inner(child.pid, signal.SIGINT)
            inner(child.pid, signal.SIGTERM)
        time.sleep(0.1)
        assert len(multiprocessing.active_children()) == 2
        inner(number, pid)
        inner(number, pid)

    go(configured(tmp_path / "whole"))
    expected = dict(losses)
    losses.clear()
    for number in (signal.SIGINT, signal.SIGTERM):
        with monkeypatch.context() as patch:
            interrupt_after(patch, 5 if number == signal.SIGINT else 12, number)
            patch.setattr(training_support.os, "kill", killed)
            with pytest.raises(InterruptedRunError, match=r"after step (5|12) of 24"):
                go(configured(tmp_path / "cut", "data.workers=2"))
        assert not multiprocessing.active_children()
    go(configured(tmp_path / "cut"))
    assert losses == expected


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


def test_the_tokens_logged_are_those_since_the_last_time_without_padding(tmp_path, monkeypatch):
    given, counted = [], []
    inner = data_module.collate

    def collate(rows):
        given.append(sum(len(piece.inputs) for row in rows for piece in row))
        return inner(rows)

    monkeypatch.setattr(data_module, "collate", collate)
    monkeypatch.setattr(callbacks, "total", lambda counts: counted.append(counts[0].item()) or counts)
    go(configured(tmp_path, "trainer.log_every=10"))
    assert counted == [sum(given[:10]), sum(given[10:20]), sum(given[20:])]


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
    monkeypatch.setattr(LanguageModel, "nats", inner)
    go(plain)
    assert (run.manifest["failed"], run.manifest["finished"]) == (None, True)


def test_packed_rows_train(tmp_path, losses):
    run, _ = go(configured(tmp_path, "data.packed=true", "encoding=fox"))
    assert len(losses) == STEPS
    assert np.isfinite(Records.load(run.records("test")).nats).all()


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


def test_validation_may_be_capped_while_the_figures_at_the_end_are_complete(tmp_path, monkeypatch):
    sizes, inner = [], Evaluation.score

    def score(self, model, store, split, *rest, **options):
        records = inner(self, model, store, split, *rest, **options)
        sizes.append((split, int(records.tokens.sum())))
        return records

    monkeypatch.setattr(Evaluation, "score", score)
    go(configured(tmp_path, "evaluation.validation_tokens=40"))
    store = Session.of(configured(tmp_path)).store()
    assert sizes[-2:] == [(split, store.targets(split)) for split in ("valid", "test")]
    assert len(set(sizes[:-2])) == 1
    assert 20 < sizes[0][1] < store.targets("valid") / 2


def test_micro_batches_and_checkpointing_do_not_change_the_losses(tmp_path, losses):
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
    assert f"{run.last} is damaged: using the previous checkpoint\n" in text
    assert "resuming after step 10 of 24" in text
    assert losses == expected
    for path in (run.last, run.previous):
        path.write_bytes(b"")
    run.write_manifest(finished=False)
    with pytest.raises(UserError, match=r"previous\.ckpt is damaged"):
        go(configured(tmp_path / "cut"))


def test_a_run_that_has_ended_leaves_its_model_and_the_signals_as_they_were(tmp_path, monkeypatch):
    models, inner = [], LanguageModel.configure_optimizers

    def configure(self):
        models.append(weakref.ref(self))
        return inner(self)

    monkeypatch.setattr(LanguageModel, "configure_optimizers", configure)
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    go(configured(tmp_path))
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before
    gc.collect()
    assert [model() for model in models] == [None]


@pytest.mark.parametrize("letters_a_token", [2.0, 0.0])
def test_the_progress_line_shows_bits_per_unit_of_the_batch(tmp_path, monkeypatch, letters_a_token):
    monkeypatch.setattr(
        Letters, "unit_weights", lambda self, tokens: {"letter": letters_a_token * (np.arange(len(tokens)) > 0)}
    )
    _, printed = go(configured(tmp_path, "trainer.steps=2", "trainer.validate_every=2", "task.samples=0"))
    line = next(line for line in printed.splitlines() if line.startswith("step 2/2"))
    nats = float(re.search(r"loss ([\d.]+)", line)[1])
    bits = re.search(r"([\d.]+) bits/letter", line)
    if letters_a_token:
        assert float(bits[1]) == pytest.approx(nats / math.log(2) / 2, abs=1e-3)
    else:
        assert bits is None
