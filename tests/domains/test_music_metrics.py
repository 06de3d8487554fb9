"""Metrics of music: small cases by hand, and the values of MuSPy."""

import math

import numpy as np
import pytest

from bearings.domains import music_metrics as metrics
from bearings.domains import remi
from bearings.domains.jsb import JSB
from bearings.domains.maestro import Maestro
from bearings.domains.remi import Notes


def test_entropy_and_scale():
    assert metrics.pitch_class_entropy(np.array([60, 64, 67, 72])) == pytest.approx(1.5)
    assert metrics.pitch_class_entropy(np.arange(48, 60)) == pytest.approx(math.log2(12))
    assert str(metrics.pitch_class_entropy(np.array([60]))) == "0.0"  # not -0.0, which tables would show
    assert metrics.scale_consistency(np.array([57, 59, 60, 62, 64, 65, 67])) == 1  # A minor
    assert metrics.scale_consistency(np.array([60, 61, 62, 63])) == 0.75
    assert math.isnan(metrics.pitch_class_entropy(np.array([], int)))
    assert math.isnan(metrics.scale_consistency(np.array([], int)))


def test_polyphony_counts_each_pitch_once_and_ignores_silence():
    start, end, pitch = np.array([[0, 4, 60], [2, 4, 64], [2, 3, 60], [10, 12, 60]]).T
    assert metrics.polyphony(start, end, pitch, 16) == pytest.approx((2 * 1 + 2 * 2 + 2 * 1) / 6)
    assert math.isnan(metrics.polyphony(start[:0], end[:0], pitch[:0], 16))


def test_groove_compares_adjacent_bars():
    assert metrics.groove_consistency(np.array([0, 2, 4, 6]), 2, 4) == 1
    assert metrics.groove_consistency(np.array([0, 1, 4, 6]), 2, 4) == 0.5
    assert metrics.groove_consistency(np.array([0, 8]), 3, 4) == pytest.approx(1 - 2 / 8)
    assert math.isnan(metrics.groove_consistency(np.array([0]), 1, 4))


def test_voices_cross_where_a_lower_one_is_higher():
    grid = np.array([[70, 60, 50, 40], [60, 61, 50, 40], [60, -1, 61, 40], [60, -1, -1, -1], [60, 60, 60, 60]])
    assert metrics.voice_crossing(grid) == 2 / 4
    assert math.isnan(metrics.voice_crossing(grid[3:4]))


def test_segments_of_a_chorale():
    domain, grid = JSB(), np.full((150, 4), 60)
    grid[:, 0] = 60 + np.arange(150) // 4 % 2  # a new note in each quarter
    grid[64:, 1:] = -1
    ids = [*domain.encode(grid), 0, 999, -5]
    first, second = (dict(zip(domain.measures.headings, each, strict=True)) for each in domain.measure(ids))
    assert first["note_density"] == (16 + 3) / 16
    assert first["groove_consistency"] == 1  # sustained voices begin with the first quarter
    assert (first["polyphony"], second["polyphony"]) == (1.5, 1)
    assert second["note_density"] == 1
    assert math.isnan(second["voice_crossing"])
    assert domain.measure([0]).shape == (0, 6)


@pytest.mark.parametrize("tokenizer", ["fine", "pope"])
def test_segments_of_a_performance(tokenizer):
    domain = Maestro(tokenizer=tokenizer)
    start = np.arange(0, 25, 0.5)
    notes = Notes(start, start + 0.25, 60 + np.arange(50) // 15, np.full(50, 80))
    ids = [*domain.codec.encode(notes), remi.END, 9, 9, 10**6, -3]
    found = domain.measure(ids)
    assert found.shape == (2, 4)  # 24.5 seconds
    assert found[:, 1:].tolist() == [[1, 1, 2], [1, 1, 2]]
    share = np.array([15, 5]) / 20
    assert found[:, 0] == pytest.approx([-(share * np.log2(share)).sum(), 1])
    assert domain.measure([]).shape == (0, 4)


def test_values_are_those_of_muspy():
    """Recorded from MuSPy 0.5.0, for a piece that ends within its last bar: otherwise MuSPy counts one bar more."""
    place = np.arange(80)
    start = place * 37 % 62
    end = np.minimum(start + 1 + place * 11 % 8, 63)
    pitch = 48 + place * 29 % 24 // 2 * 2 - place % 7 // 5
    found = (
        metrics.pitch_class_entropy(pitch),
        metrics.scale_consistency(pitch),
        metrics.polyphony(start, end, pitch, 64),
        metrics.groove_consistency(start, 4, 16),
    )
    assert found == pytest.approx((3.428858734565074, 0.6375, 4.523809523809524, 0.9583333333333334))
