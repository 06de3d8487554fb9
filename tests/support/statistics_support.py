"""Thousands of simulated studies, with few resamples each."""

import pytest

from bearings.reporting import intervals
from bearings.reporting.intervals import Bootstrap

STUDIES = 2000


@pytest.fixture
def fewer_resamples(monkeypatch):
    """A twentieth of them, for thousands of studies."""
    monkeypatch.setattr(intervals, "RESAMPLES", 1000)


def cluster_interval(means, sizes):
    return Bootstrap.of(means, sizes).interval()
