"""Training: the schedule, the log, validation, checkpoints, and the ways to take a step."""

import csv
import gc
import io
import math
import os
import re
import shutil
import signal
import sys
import weakref
from importlib.machinery import ModuleSpec
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
import torch
from conftest import Letters, composed
from lightning.pytorch.loggers import wandb as wandb_logger
from rich.console import Console
from torch.nn.functional import cross_entropy
from training_support import STEPS, configured, go, weights

from bearings.core.checked_files import read_csv
from bearings.core.errors import DivergedError, UserError
from bearings.domains.records import Records
from bearings.lightning_modules import callbacks, data_module
from bearings.lightning_modules.checkpoints import CheckpointWriter
from bearings.lightning_modules.evaluation import Evaluation
from bearings.lightning_modules.language_model import LanguageModel
from bearings.lightning_modules.schedule import learning_rate_factor
from bearings.session.run_directory import RunDirectory
from bearings.session.session import Session
from bearings.tasks.check import Check
from bearings.tasks.train import Train


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


def test_training_equals_a_plain_loop(tmp_path, losses):
    """On batches with padding, of which some gradients are clipped and others not."""
    steps, rate, decay, betas, clip = 9, 0.02, 0.3, (0.7, 0.8), 1.5
    plain = configured(
        tmp_path,
        *(f"trainer.steps={steps}", "trainer.validate_every=9", "task.samples=0"),
        *("encoding=rope", "model.dropout=0.0", "optimizer.warmup_steps=3", f"optimizer.learning_rate={rate}"),
        *(f"optimizer.weight_decay={decay}", f"optimizer.betas={[*betas]}", f"optimizer.clip={clip}"),
    )
    run, _ = go(plain)
    session = Session.of(plain)
    store = session.store()
    model, rows = session.transformer(store.manifest["vocabulary"]).train(), session.data.use(store).rows
    matrices = [parameter for parameter in model.parameters() if parameter.ndim > 1]
    others = [parameter for parameter in model.parameters() if parameter.ndim <= 1]
    groups = [{"params": matrices, "weight_decay": decay}, {"params": others, "weight_decay": 0.0}]
    optimizer, expected, norms = torch.optim.AdamW(groups, betas=betas), [], []
    for step in range(steps):
        pieces = [piece for row in range(3 * step, 3 * step + 3) for piece in rows[row]]
        nats = [
            cross_entropy(model(torch.from_numpy(piece.inputs)[None])[0], torch.from_numpy(piece.targets))
            * len(piece.targets)
            for piece in pieces
        ]
        loss = sum(nats) / sum(len(piece.targets) for piece in pieces)
        optimizer.zero_grad()
        loss.backward()
        norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), clip).item())
        for group in optimizer.param_groups:
            group["lr"] = rate * learning_rate_factor(step, steps, 3, "cosine", 0.1)
        optimizer.step()
        expected.append(loss.item())
    assert min(norms) < clip < max(norms)
    assert list(losses.values()) == pytest.approx(expected, abs=1e-4)
    with open(run.path / "metrics.csv", newline="") as file:
        logged = [row for row in csv.DictReader(file) if row["train_nll"]]
    for name, values in (("train_nll", expected), ("gradient_norm", norms)):
        assert [float(row[name]) for row in logged] == pytest.approx(values, rel=1e-3)
    for key, tensor in weights(run, "last").items():
        torch.testing.assert_close(tensor, model.state_dict()[key.removeprefix("transformer.")], rtol=1e-3, atol=1e-4)


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
    plain = configured(tmp_path, *overrides)
    shutil.rmtree(tmp_path / "data")  # the run prepares the store and counts the baselines itself
    run, text = go(plain, drawn=True)
    assert len(losses) == 150
    assert Records.load(run.records("test")).nats_per_token < 1.3  # guessing costs log 11 = 2.4
    for made in ("config.yaml", "manifest.json", "metrics.csv", "samples/sample-0.txt", "plots/loss.png"):
        assert (run.path / made).stat().st_size
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
    plain = configured(tmp_path, "optimizer.learning_rate=3e-2", "trainer.validate_every=2")
    run, _ = go(plain)
    with open(run.path / "metrics.csv") as file:
        head, *lines = (line.strip().split(",") for line in file)
    column = head.index("valid_nll")
    scores = {int(line[0]): float(line[column]) for line in lines if line[column]}
    best = torch.load(run.best, weights_only=True)
    assert best["global_step"] == min(scores, key=scores.get)
    run.records("valid").unlink()
    assert Train()(Session.of(plain)) == pytest.approx(min(scores.values()), abs=1e-6)  # of the finished run


def test_validations_of_a_task_with_right_answers_log_the_accuracy_of_their_records(tmp_path):
    """From which reports take the step at which a run has solved the task."""
    few = [f"domain.{split}=4" for split in ("train", "valid", "test", "sparse", "dense")]
    given = ["trainer.steps=2", "trainer.validate_every=1", "domain.length=8", "data.length=8", "data.batch_size=2"]
    config = composed("experiment=debug", "domain=flip_flop", "task.samples=0", "encoding=nope", *few, *given)
    config["names"] = {"domain": "flip_flop", "encoding": "nope", "model": "small"}
    session = Session.of({**config, "runs": str(tmp_path / "runs"), "stores": str(tmp_path / "data")})
    run, _ = go(session.config)
    rows = [row for row in read_csv(run.path / "metrics.csv", ["valid_accuracy"]) if row["valid_accuracy"]]
    assert [row["step"] for row in rows] == ["1", "2"]
    best = torch.load(run.best, weights_only=True)["global_step"]
    assert float(rows[best - 1]["valid_accuracy"]) == pytest.approx(Records.load(run.records("valid")).accuracy)


def validated(folder, monkeypatch, **model):
    """The callback after validations at steps 3, 6 and 9, each worse than the one before."""
    now, trainer = [0.0], SimpleNamespace(global_step=0, loggers=[], is_global_zero=True)

    def score(module, on_batch):
        now[0] += 100
        return SimpleNamespace(nats_per_token=float(trainer.global_step), bits_per_unit={}, accuracy=None)

    def save(path):
        now[0] += 10
        path.touch()

    monkeypatch.setattr(callbacks, "time", SimpleNamespace(perf_counter=lambda: now[0]))
    trainer.save_checkpoint, trainer.strategy = save, SimpleNamespace(barrier=lambda: None)
    validation = callbacks.Validation(score, folder, every=3, checkpoint_every=3, stamp={})
    for trainer.global_step in (3, 6, 9):
        validation._validate(trainer, SimpleNamespace(prepare=lambda step: None, **model))
    return validation


@pytest.mark.parametrize(
    ("drop_step", "final_from", "best"), [(9, 0, 3), (2, 0, 3), (3, 0, 6), (4, 0, 6), (6, 0, 9), (9, 3, 3), (9, 4, 6)]
)
def test_the_best_model_is_in_its_final_form(tmp_path, monkeypatch, drop_step, final_from, best):
    """A validation at `drop_step` is the last one with positions."""
    assert validated(tmp_path, monkeypatch, drop_step=drop_step, final_from=final_from).best_step == best


def test_validations_and_checkpoints_take_no_training_time(tmp_path, monkeypatch):
    assert validated(tmp_path, monkeypatch, drop_step=9, final_from=0).seconds == 3 * (100 + 10)


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


def test_a_login_node_of_slurm_causes_no_warning(tmp_path, monkeypatch, recwarn):
    (tmp_path / "srun").touch(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    go(configured(tmp_path, "trainer.steps=1", "task.samples=0"))
    assert [str(each.message) for each in recwarn] == []


def test_a_deterministic_run_plans_as_such_and_leaves_pytorch_as_it_was(tmp_path, monkeypatch):
    """Its banner and manifest would otherwise describe the plan of other runs, and later runs of a sweep its own."""
    modes, inner = [], Session.attention

    def attention(self, transformer):
        modes.append(torch.are_deterministic_algorithms_enabled())
        return inner(self, transformer)

    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", "")
    monkeypatch.setattr(Session, "attention", attention)
    plain = configured(tmp_path, "trainer.steps=2", "trainer.deterministic=true")
    Check()(Session.of(plain))
    go(plain)
    go(configured(tmp_path, "trainer.steps=2", "seed=1"))
    assert modes == [True, True, True, False, False]


def test_a_check_shows_the_cost_and_the_learning_rates_of_the_training(tmp_path):
    plain = configured(tmp_path, "trainer.steps=8", "optimizer.warmup_steps=3", "task.samples=0")
    session = Session.of(plain)
    printed = []
    for _ in range(2):
        session.console = Console(file=io.StringIO(), width=200)
        Check()(session)
        printed.append(session.console.file.getvalue())
        run, _ = go(plain)
    before, after = printed
    assert f"{run.path} (not started)" in before
    assert f"{run.path} (finished)" in after
    tokens = 8 * plain["data"]["batch_size"] * plain["data"]["length"]
    assert f" {run.manifest['model']['flops_per_token'] * tokens:.2g} FLOPs" in before
    shown = re.findall(r"(\S+) at step (\d+)", before)
    assert [int(step) for _, step in shown] == [0, 3, 4, 7]
    with open(run.path / "metrics.csv", newline="") as file:
        rates = [float(row["learning_rate"]) for row in csv.DictReader(file) if row["learning_rate"]]
    assert [rate for rate, _ in shown] == [f"{rates[int(step)]:.3g}" for _, step in shown]


class WandBRun:
    """The part of a W&B run that Lightning uses."""

    def __init__(self, name, config):
        self.id, self.config, self.steps, self.exit_code = name, config, [], None

    def log(self, metrics, step=None):
        self.steps.append(metrics["trainer/global_step"])


def test_every_run_of_a_sweep_has_its_own_wandb_run(tmp_path, monkeypatch):
    started, names = [], ("wandb", "wandb.sdk", "wandb.sdk.lib", "wandb.wandb_run")
    wandb, sdk, lib, run = (ModuleType(name) for name in names)
    wandb.__spec__, wandb.run, lib.RunDisabled, run.Run = ModuleSpec("wandb", None), None, type(None), WandBRun

    def init(**given):
        wandb.run = WandBRun(given["id"], given["config"])
        started.append(wandb.run)
        return wandb.run

    def finish(exit_code=None):
        wandb.run.exit_code, wandb.run = exit_code, None

    wandb.init, wandb.finish = init, finish
    for name, module in zip(names, (wandb, sdk, lib, run), strict=True):
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr(wandb_logger, "_WANDB_AVAILABLE", True)
    given = "trainer.wandb=true", "trainer.steps=2", "trainer.validate_every=2"
    finished, _ = go(configured(tmp_path, *given))
    monkeypatch.setattr(LanguageModel, "nats", lambda self, batch: self.transformer.norm.weight.sum() * float("nan"))
    with pytest.raises(DivergedError):
        go(configured(tmp_path, *given, "seed=1"))
    assert [(each.id[-2:], each.exit_code) for each in started] == [("s0", 0), ("s1", 1)]
    assert started[0].id == finished.path.name
    assert [each.config["seed"] for each in started] == [0, 1]
    assert started[0].steps[-1] == 2


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
