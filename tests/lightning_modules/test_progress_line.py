"""The progress line: what it costs and what it shows."""

from functools import partial
from types import SimpleNamespace

import pytest
import torch
from rich.console import Console

from bearings.encodings.pope import PoPE
from bearings.lightning_modules.callbacks import ProgressLine
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
