"""The progress line: what it costs and what it shows."""

import math
from functools import partial
from io import StringIO
from types import SimpleNamespace

import pytest
import torch
from rich.console import Console

from bearings.core.progress import duration
from bearings.encodings.pope import PoPE
from bearings.lightning_modules import callbacks
from bearings.lightning_modules.callbacks import ProgressLine
from bearings.lightning_modules.data_module import IGNORED
from bearings.lightning_modules.language_model import LanguageModel
from bearings.lightning_modules.transformer import Transformer


def logged(layers: int, monkeypatch) -> tuple[dict, int]:
    """What one log line writes to the loggers, and how many times it read a value from the device."""
    model = LanguageModel(Transformer(11, partial(PoPE), width=16, layers=layers, heads=2), seed=0, steps=1)
    model.loss, model.gradient_norm = torch.tensor(2.5), torch.tensor(0.75, dtype=torch.float64)
    written, reads = {}, []
    logger = SimpleNamespace(log_metrics=lambda metrics, step: written.update(metrics))
    optimizer = SimpleNamespace(param_groups=[{"lr": 0.1}])
    trainer = SimpleNamespace(
        global_step=1, max_steps=1, log_every_n_steps=1, optimizers=[optimizer], loggers=[logger], precision="32-true"
    )
    validation = SimpleNamespace(seconds=0.0, records=None)
    line = ProgressLine(validation, "note", 1.0, Console(quiet=True))
    line.on_train_start(trainer, model)
    for name in ("item", "tolist"):
        read = getattr(torch.Tensor, name)
        monkeypatch.setattr(torch.Tensor, name, lambda x, read=read: reads.append(x) or read(x))
    line.began = (line.began[0], 0)
    line._log(trainer, model, {"tokens": 12, "units": 3.0, "targets": torch.ones(1, 12)})
    monkeypatch.undo()
    line.teardown(trainer, model, "fit")
    return written, len(reads)


def test_a_log_line_reads_the_device_once_however_many_layers(monkeypatch):
    few, reads = logged(1, monkeypatch)
    assert reads == logged(5, monkeypatch)[1] == 1
    assert few["train_nll"] == 2.5
    assert few["gradient_norm"] == 0.75
    assert few["delta_frozen_share"] == 0.0
    assert few["tokens_per_s"] > 0
    assert pytest.approx(0.1) == few["learning_rate"]


def test_speed_waiting_and_mfu_leave_out_validation_but_the_time_left_does_not(monkeypatch):
    """Steps of 4 s, of which 1 s is waiting for the batch, and a validation of 100 s after the second step."""
    now, written = [0.0], {}
    monkeypatch.setattr(callbacks, "time", SimpleNamespace(perf_counter=lambda: now[0]))
    monkeypatch.setattr(callbacks, "peak_flops", lambda device: 60.0)
    model = LanguageModel(Transformer(11, partial(PoPE), width=16, layers=1, heads=2), seed=0, steps=8)
    model.loss, model.gradient_norm = torch.tensor(2.0), torch.tensor(1.0)
    trainer = SimpleNamespace(
        **{"global_step": 0, "max_steps": 8, "log_every_n_steps": 2, "precision": "bf16-mixed", "world_size": 2},
        loggers=[SimpleNamespace(log_metrics=lambda metrics, step: written.update({step: metrics}))],
        optimizers=[SimpleNamespace(param_groups=[{"lr": 0.1}])],
    )
    validation, console = SimpleNamespace(seconds=0.0), Console(file=StringIO(), width=200)
    line = ProgressLine(validation, "note", 10.0, console)
    batch = {"tokens": 12, "units": 3.0, "targets": torch.tensor([[1] * 6 + [IGNORED] * 6])}
    line.on_train_start(trainer, model)
    for step in range(1, 5):
        now[0] += 1
        line.on_train_batch_start(trainer, model, batch, step)
        now[0] += 3
        trainer.global_step = step
        line.on_train_batch_end(trainer, model, None, batch, step)
        if step == 2:
            now[0] += 100
            validation.seconds += 100
    line.teardown(trainer, model, "fit")
    assert list(written) == [2, 4]
    for metrics in written.values():
        assert metrics["tokens_per_s"] == 24 / 8
        assert metrics["data_wait"] == 1 / 4
        assert metrics["mfu"] == 3 * 10 / (60 * 2)
    bits = f"{2.0 * 6 / 3 / math.log(2):.3f} bits/note"
    assert console.file.getvalue() == f"step 4/8  loss 2.0000  {bits}  3 tokens/s  MFU 25 %  {duration(116)} left\n"
