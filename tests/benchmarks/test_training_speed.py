"""The benchmark of training: contenders are timed in turns with the first, and slow ones only once."""

import argparse
from types import SimpleNamespace

import pytest

from bearings.benchmarks import training
from bearings.benchmarks.training import SLOW, Size, Timed


class Running:
    """Steps that take given seconds."""

    batch = 4

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
    return Timed((name, Size(length=100)), Running(*seconds), ["graph"], 2**20)


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
