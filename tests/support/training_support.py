"""Runs of a tiny model on the toy domain of conftest.py, in a few seconds."""

import io
import os
import shutil
import signal
import tempfile
from functools import cache
from pathlib import Path

import pytest
import torch
from conftest import Letters, composed

from bearings.core.terminal import PlainConsole
from bearings.domains.baseline_records import kept_baselines
from bearings.lightning_modules.callbacks import ProgressLine
from bearings.session.configuration import build
from bearings.session.run_directory import RunDirectory
from bearings.session.session import Session
from bearings.tasks import train

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
    "task.tokens=20",
]


@cache
def letters_with_baselines():
    """A folder of stores with that of the toy domain, and its baselines, as a run leaves them."""
    place = tempfile.TemporaryDirectory()
    letters, stores = Letters(), Path(place.name) / "data"
    kept_baselines(letters, letters.prepare(stores), "test", Path(place.name) / "baselines")
    return stores, place  # which would be deleted with the object


def configured(tmp_path, *overrides, task="train"):
    """A configuration with places in `tmp_path`; the store is there from the first call on."""
    if not (tmp_path / "data").exists() and not (tmp_path / "runs").exists():
        shutil.copytree(letters_with_baselines()[0], tmp_path / "data")
    plain = composed(*LETTERS, *overrides) if task == "train" else composed(f"task={task}")
    plain["domain"] = {"_target_": "conftest.Letters"}
    plain |= {"names": {"domain": "letters", "encoding": "any", "model": "tiny"}, "content": {}}
    return plain | {"runs": str(tmp_path / "runs"), "stores": str(tmp_path / "data")}


def without_drawing(metrics, stem, names):
    """`plot_losses` with empty files, because drawing takes a quarter of a short run."""
    stem.parent.mkdir(exist_ok=True)
    for ending in (".svg", ".png"):
        stem.with_suffix(ending).touch()


def go(plain, drawn=False):
    session = Session.of(plain)
    session.console = PlainConsole(file=io.StringIO(), width=200)
    with pytest.MonkeyPatch.context() as patch:
        if not drawn:
            patch.setattr(train, "plot_losses", without_drawing)
        build(plain["task"], "task")(session)
    return RunDirectory.of(plain), session.console.file.getvalue()


def interrupt_after(monkeypatch, step, number=signal.SIGINT):
    inner = ProgressLine.on_train_batch_end

    def end(self, trainer, *rest):
        inner(self, trainer, *rest)
        if trainer.global_step == step:
            os.kill(os.getpid(), number)

    monkeypatch.setattr(ProgressLine, "on_train_batch_end", end)


def weights(run, name="best"):
    return torch.load(run.path / "checkpoints" / f"{name}.ckpt", weights_only=True)["state_dict"]
