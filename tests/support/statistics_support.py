"""Thousands of simulated studies, with few resamples each."""

import numpy as np
import pytest

from bearings.reporting import intervals
from bearings.reporting.intervals import Bootstrap, Spread

STUDIES = 2000
AT_ONCE = 200  # studies, whose resamples fit in the cache


@pytest.fixture
def fewer_resamples(monkeypatch):
    """A twentieth of them, for thousands of studies, which are enough rows for BLAS."""
    monkeypatch.setattr(intervals, "RESAMPLES", 1000)
    monkeypatch.setattr(intervals, "_weighted", np.matmul)


def cluster_interval(means, sizes):
    """The interval of `means [..., G]` over clusters."""
    return _in_parts(lambda part: Bootstrap.of(part, sizes).interval(), means, 1)


def both_interval(sums, sizes):
    """The interval of `sums [..., S, G]` over seeds and clusters."""
    return _in_parts(lambda part: Spread.of(part, sizes, Bootstrap.of(part.mean(-2), sizes)).interval(), sums, 2)


def _in_parts(interval, figures, own):
    """The interval of all studies in `figures`, each of which has `own` dimensions."""
    if figures.ndim == own:
        return interval(figures)
    parts = [interval(figures[begin : begin + AT_ONCE]) for begin in range(0, len(figures), AT_ONCE)]
    return np.concatenate(parts, -1)
