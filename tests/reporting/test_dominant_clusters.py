"""Differences that one cluster dominates: how they are found, and what is decided without it."""

import numpy as np
import pytest
from statistics_support import STUDIES, cluster_interval, fewer_resamples  # noqa: F401

from bearings.reporting.statistics import (
    DOMINANT,
    FEWEST_CLUSTERS,
    difference,
)

pytestmark = pytest.mark.usefixtures("fewer_resamples")


def far_off(clusters, chance, kind="normal"):
    """Clusters of one seed's differences, of which each is far off with a probability of `chance`: `[STUDIES, G]`."""
    random = np.random.default_rng([clusters, 7])
    each = getattr(random, "standard_normal" if kind == "normal" else "standard_exponential")((STUDIES, clusters))
    return each + 10 * (random.random((STUDIES, clusters)) < chance)


def shares(sums):
    squares = (sums - sums.mean(-1, keepdims=True)) ** 2
    return squares.max(-1) / squares.sum(-1)


@pytest.mark.parametrize("clusters", [20, 40])
def test_dominant_cluster_is_detected(clusters):
    sums = far_off(clusters, 0)
    assert np.mean(shares(sums) > DOMINANT) < 0.02
    sums[:, 0] += 10
    assert np.mean(shares(sums) > DOMINANT) > 0.99
    found = difference(np.tile(sums[0], (3, 1)), np.zeros((3, clusters)), np.ones(clusters), 0.1)
    assert found.largest_share == pytest.approx(shares(sums[:1])[0])


def test_only_a_dominant_cluster_is_left_out():
    found = [difference(np.tile(each, (3, 1)), np.zeros((3, 20)), np.ones(20), 0.1) for each in far_off(20, 0.05)[:40]]
    left_out = [each.without is not None for each in found]
    assert left_out == [each.largest_share > DOMINANT for each in found]
    assert 10 < sum(left_out) < 30


def test_a_difference_that_all_clusters_share_makes_no_large_one_dominant():
    sums, sizes = np.random.default_rng(0).normal(size=(3, 30)), np.array([20.0] + [1.0] * 29)
    found = [difference(sums + shift * sizes, 0 * sums, sizes, 0.1).largest_share for shift in (0, 5)]
    assert found[1] == pytest.approx(found[0])


def test_one_cluster_has_no_share():
    found = difference(np.array([[0.3]]), np.array([[0.1]]), np.array([7.0]), 0.1)
    assert found.largest_share is None


def test_coverage_with_rare_outlying_clusters():
    """Why a dominating cluster is named: what it stands for is one that other studies would lack."""
    sums = far_off(20, 1 / 20)
    low, high = cluster_interval(sums, np.ones(20))
    covered, seen = (low <= 0.5) & (high >= 0.5), shares(sums) > DOMINANT
    assert covered[seen].mean() > 0.95
    assert covered.mean() < 0.85
    assert 0.3 < seen.mean() < 0.5


def test_decisions_must_hold_without_a_dominant_cluster():
    random = np.random.default_rng(0)
    sums = np.tile(0.01 * random.normal(size=20), (3, 1)) + 0.0001 * random.normal(size=(3, 20))
    zeros, sizes = np.zeros_like(sums), np.linspace(0.9, 1.1, 20)
    plain = difference(sums, zeros, sizes, 0.02)
    assert plain.without is None
    sums[:, 5] = 0.3
    found = difference(sums, zeros, sizes, 0.04)
    kept = np.arange(20) != 5
    without = difference(sums[:, kept], zeros[:, kept], sizes[kept], 0.04)
    assert without.equivalence_p < 0.001
    assert found.without == pytest.approx((without.both_p, without.equivalence_p))
    assert found.deciding == (max(found.both_p, found.without[0]), found.equivalence_p)
    assert found.lenient == (min(found.both_p, found.without[0]), found.without[1])
    assert plain.deciding == plain.lenient == (plain.both_p, plain.equivalence_p)


def test_nothing_is_decided_if_too_few_clusters_remain_without_a_dominant_one():
    sums = 0.01 * np.random.default_rng(0).normal(size=(3, FEWEST_CLUSTERS))
    sums[:, 5] = 0.3
    found = difference(sums, sums * 0, np.ones(FEWEST_CLUSTERS), 0.5)
    assert found.both_p is not None
    assert found.deciding == found.lenient == (None, None)
