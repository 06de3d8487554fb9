"""The benchmark of training: contenders are timed in turns with the first, and slow ones only once."""

import argparse
from types import SimpleNamespace

import pytest
import torch

from bearings.benchmarks import scaling, training
from bearings.benchmarks.training import SIZES, SLOW, Size, Timed, makers_of, measure, parsed, sizes_of


class Running:
    """Steps that take given seconds."""

    def __init__(self, *seconds):
        self.seconds = list(seconds)
        self.contender = SimpleNamespace(module=SimpleNamespace(parameters=list), flops_per_token=10.0, compiled=True)

    def steps(self, count, way):
        return self.seconds.pop(0)


GIVEN = argparse.Namespace(rounds=3, steps=2)


@pytest.fixture(autouse=True)
def _no_gpu(monkeypatch):
    monkeypatch.setattr(training, "peak_flops", lambda device: None)


def timed(name, *seconds):
    return Timed((name, Size(length=100, batch=4)), Running(*seconds), ["graph"], 2**20)


def test_ratios_are_of_adjacent_turns():
    rope, pope = timed("rope", 1.0, 0.1, 0.2, 0.4), timed("pope", 0.2, 0.2, 0.4)
    rope.take_turns(rope, GIVEN)
    pope.take_turns(rope, GIVEN)
    (row,) = pope.rows()
    assert row["ratio"] == 1.0  # of 0.1 / 0.2, 0.2 / 0.2 and 0.4 / 0.4
    assert (row["tokens_per_s"], row["slowest"], row["fastest"]) == (2000, 1000, 2000)
    (first,) = rope.rows()
    assert first["ratio"] == 1.0
    assert first["tokens_per_s"] == 1500  # the median of all its turns: 400, 4000, 2000 and 1000


def test_the_first_row_of_a_contender_has_its_peak_memory():
    found = Timed(("rope", SIZES["350M"]), Running(1.0, 1.0), ["graph", "launched"], 2**21)
    found.take_turns(found, GIVEN)
    assert [(row["steps"], row["size"], row["peak_mib"]) for row in found.rows()] == [
        ("graph", "350M", 2),
        ("launched", "350M", ""),
    ]


def test_a_slow_contender_has_one_turn():
    rope, slow = timed("rope", 1.0, 0.5), timed("dape", SLOW)
    rope.take_turns(rope, GIVEN)
    slow.take_turns(rope, GIVEN)
    assert slow.seconds == {"graph": [SLOW]}
    assert slow.rows()[0]["ratio"] == 0.25


def test_figures_stay_after_the_model_is_freed():
    rope = timed("rope", 1.0)
    rope.take_turns(rope, GIVEN)
    rope.free()
    assert not hasattr(rope, "running")
    assert rope.rows()[0]["tokens_per_s"] == 400


def test_sizes_are_asked_for_by_name_and_flags_change_their_fields(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    found = sizes_of(parsed(["--size", "124M", "1.3B", "--batch", "2", "--out", "x.csv"]))
    assert [(each.name, each.layers, each.width, each.batch) for each in found] == [
        ("124M", 12, 768, 2),
        ("1.3B", 24, 2048, 2),
    ]
    (small,) = sizes_of(parsed(["--layers", "3", "--out", "x.csv"]))
    assert (small.name, small.layers, small.width, small.batch) == ("", 3, 768, 32)


def test_other_implementations_get_the_padded_vocabulary_of_each_size(monkeypatch, tmp_path):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    arguments = parsed(["--encodings", "rope", "--nanogpt", str(tmp_path), "--peers", "--out", "x.csv"])
    assert [(name, size.vocabulary) for name, size in makers_of(SIZES["350M"], arguments)] == [
        ("rope", 50257),
        ("nanogpt", 50304),
    ]


def test_contenders_without_memory_are_left_out(monkeypatch, capsys):
    def ready(key, make, arguments, graphs=None):
        if key[0] in full:
            raise torch.OutOfMemoryError("CUDA out of memory.\nmore")
        found = timed(key[0], *[0.1] * 4)
        found.running.graphs = None
        return found

    monkeypatch.setattr(Timed, "ready", ready)
    keys = {(name, SIZES["1.3B"]): lambda: None for name in ("rope", "dape")}
    full = {"dape"}
    (rows,) = measure(keys, GIVEN)
    assert [row["contender"] for row in rows] == ["rope"]
    full = {"rope"}
    assert list(measure(keys, GIVEN)) == []
    assert capsys.readouterr().out.splitlines() == [
        "dape, 1.3B: left out, CUDA out of memory.",
        "rope, 1.3B: left out, CUDA out of memory.",
    ]


@pytest.mark.parametrize("warm", [0, 2])
def test_the_clock_of_scaling_leaves_out_the_first_steps(monkeypatch, warm):
    now = iter([1000.0, *([1100.0] if warm else []), 1130.0])
    monkeypatch.setattr(scaling, "time", SimpleNamespace(perf_counter=lambda: next(now)))
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    trainer, clock = SimpleNamespace(global_step=0, max_steps=warm + 10), scaling.Clock(warm)
    clock.on_train_start(trainer)
    for step in range(trainer.max_steps):
        trainer.global_step = step + 1
        clock.on_train_batch_end(trainer)
    assert clock.seconds == (3.0 if warm else 13.0)


def test_scaling_runs_every_strategy_on_the_first_number_of_gpus_too():
    assert scaling.runs_of([1, 2], ["ddp", "fsdp"]) == [(1, "ddp"), (2, "ddp"), (2, "fsdp")]
    assert scaling.runs_of([2, 4], ["ddp", "fsdp"]) == [(2, "ddp"), (2, "fsdp"), (4, "ddp"), (4, "fsdp")]
