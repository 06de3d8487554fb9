"""Runs of a tiny model on the toy domain of conftest.py, in a few seconds."""

import io
import os
import signal

import torch
from conftest import composed
from rich.console import Console

from bearings.lightning_modules.callbacks import ProgressLine
from bearings.session.configuration import build
from bearings.session.run_directory import RunDirectory
from bearings.session.session import Session

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
    plain = composed(*LETTERS, *overrides) if task == "train" else composed(f"task={task}")
    plain["domain"] = {"_target_": "conftest.Letters"}
    plain |= {"names": {"domain": "letters", "encoding": "any", "model": "tiny"}, "content": {}}
    return plain | {"runs": str(tmp_path / "runs"), "stores": str(tmp_path / "data")}


def go(plain):
    session = Session.of(plain)
    session.console = Console(file=io.StringIO(), width=200)
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
