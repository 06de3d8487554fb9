"""benchmarks/beginnings.py: its parts add up to the score, and crossed voices are counted where they are."""

import io
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from conftest import Bigram
from report_support import make_run
from rich.console import Console

from bearings.benchmarks import beginnings
from bearings.domains.jsb import FIRST, SILENT
from bearings.lightning_modules.evaluation import Evaluation


def test_the_first_targets_and_the_rest_add_up_to_the_score(store, monkeypatch):
    monkeypatch.setattr(beginnings, "FIRST_TARGETS", 10)
    evaluation, model = Evaluation(16, "32-true"), Bigram()
    session = SimpleNamespace(
        evaluation=evaluation,
        data=SimpleNamespace(length=16),
        settings=SimpleNamespace(device=torch.device("cpu"), precision="32-true"),
        console=Console(file=io.StringIO()),
    )
    first, rest = beginnings.beginnings(session, model, store)
    records = evaluation.score(model, store, "test")
    assert first["count"] == sum(min(10, size) for size in records.tokens)
    assert first["count"] + rest["count"] == records.tokens.sum()
    total = first["count"] * first["value"] + rest["count"] * rest["value"]
    assert total == pytest.approx(records.nats.sum(), rel=1e-6)


def test_crossings_are_counted_by_place():
    spread, crossed, resting = [FIRST + 9, 5, 5, FIRST], [FIRST, 5, 5, FIRST + 1], [SILENT, 5, 5, FIRST + 9]
    pieces = [np.array(spread * 32 + crossed * 8 + resting * 8), np.array(crossed * 32)]
    assert [(row["first"], row["count"], row["value"]) for row in beginnings.crossings(pieces)] == [
        (0, 64, 0.5),
        (32, 16, 0.5),
    ]


def test_a_run_of_several_devices_is_opened_on_one(tmp_path):
    path = make_run(tmp_path, "rope", 0, "trainer.devices=2", "trainer.context_parallel=2")
    assert beginnings.opened(path, None)[1].settings.ranks == 1
