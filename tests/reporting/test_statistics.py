"""Statistics of a study against hand-computed figures, scipy, and thousands of simulated studies."""

import numpy as np
import pytest
from conftest import REPOSITORY
from scipy import stats
from statistics_support import STUDIES, both_interval, cluster_interval, fewer_resamples  # noqa: F401

from bearings.domains.records import Records
from bearings.reporting import intervals
from bearings.reporting.intervals import Bootstrap, Spread, effective, seed_interval, studentised
from bearings.reporting.packed import read_packed
from bearings.reporting.statistics import (
    FEWEST_CLUSTERS,
    by_cluster,
    difference,
    estimate,
)

pytestmark = pytest.mark.usefixtures("fewer_resamples")

TRUTH = 0.02


def study(seeds, clusters, seed_sd, cluster_sd, rest_sd, studies=None, sizes=None):
    """Summed nats and tokens of a simulated study whose true nats a token is TRUTH; `sizes` of clusters where given."""
    random = np.random.default_rng([seeds, clusters])
    if sizes is None:
        sizes = random.integers(200, 900, clusters).astype(float)
    shape = () if studies is None else (studies,)
    each = (
        TRUTH
        + seed_sd * random.normal(size=(*shape, seeds, 1))
        + cluster_sd * random.normal(size=(*shape, 1, clusters))
    )
    return (each + rest_sd * random.normal(size=(*shape, seeds, clusters))) * sizes, sizes


def coverage(interval):
    low, high = interval
    return 100 * np.mean((low <= TRUTH) & (high >= TRUTH))


# Standard deviations of seeds, clusters and their interaction: each on its own, two, all, and each dominating.
CROSSED = [
    *((0.01, 0, 0), (0, 0.05, 0), (0, 0, 0.05)),
    *((0.01, 0.05, 0), (0.005, 0.05, 0), (0.01, 0, 0.05), (0.003, 0, 0.05), (0, 0.03, 0.05), (0, 0.05, 0.01)),
    *((0.01, 0.05, 0.05), (0.005, 0.02, 0.05), (0.002, 0.03, 0.03), (0.02, 0.05, 0.01), (0.005, 0.05, 0.1)),
]


@pytest.mark.parametrize(("seeds", "clusters"), [(3, 20), (3, 300), (5, 40), (10, 20), (10, 77)])
def test_95_percent_intervals_cover_93_to_97_percent(seeds, clusters):
    sums, sizes = study(seeds, clusters, 0.01, 0, 0.01, STUDIES)
    assert 93 <= coverage(seed_interval(sums, sizes)) <= 97
    sums, sizes = study(seeds, clusters, 0, 0.05, 0.05, STUDIES)
    assert 93 <= coverage(cluster_interval(sums.mean(-2), sizes)) <= 97
    for spreads in CROSSED:
        sums, sizes = study(seeds, clusters, *spreads, STUDIES)
        assert 93 <= coverage(both_interval(sums, sizes)) <= 97, spreads


@pytest.fixture(scope="module")
def unequal():
    """Tokens of the test clusters of studies/jsb_length_small: the largest holds 8 times what the median does."""
    run = next(iter(read_packed(REPOSITORY / "studies" / "jsb_length_small").values()))
    records = Records.load(run / "nll" / "test.npz")
    return by_cluster(records.tokens.astype(float), records.clusters)


@pytest.mark.parametrize("seeds", [3, 10])
def test_coverage_with_unequal_clusters(seeds, unequal):
    groups = len(unequal)
    assert (groups, round(effective(unequal))) == (40, 21)
    sums, _ = study(seeds, groups, 0, 0.05, 0.05, STUDIES, unequal)
    spread = Spread.of(sums[0], unequal, Bootstrap.of(sums[0].mean(0), unequal))
    assert spread.freedom == (seeds - 1, effective(unequal) - 1)
    assert 93 <= coverage(cluster_interval(sums.mean(-2), unequal)) <= 97
    for spreads in CROSSED:
        sums, _ = study(seeds, groups, *spreads, 2 * STUDIES, unequal)
        assert 93 <= coverage(both_interval(sums, unequal)) <= 97, spreads


@pytest.mark.parametrize("seeds", [3, 10])
@pytest.mark.parametrize("clusters", [21, 60])
def test_coverage_with_exponential_clusters(seeds, clusters):
    skewed = 0.05 * (np.random.default_rng([seeds, clusters]).exponential(size=(STUDIES, 1, clusters)) - 1)
    for seed_sd, rest_sd in ((0, 0), (0.002, 0.01), (0.01, 0.05)):
        sums, sizes = study(seeds, clusters, seed_sd, 0, rest_sd, STUDIES)
        assert 93 <= coverage(both_interval(sums + skewed * sizes, sizes)) <= 97, (seed_sd, rest_sd)


@pytest.mark.parametrize("seeds", [3, 5])
@pytest.mark.parametrize(("clusters", "least", "most"), [(12, 88, 93), (30, 91, 95), (60, 93, 97)])
def test_coverage_with_log_normal_clusters_is_lower_if_they_are_few(seeds, clusters, least, most):
    random = np.random.default_rng([seeds, clusters])
    skewed = 0.05 * (np.exp(random.normal(size=(STUDIES, 1, clusters))) - np.exp(0.5))
    for seed_sd, rest_sd in ((0, 0), (0.002, 0.01), (0.01, 0.05)):
        sums, sizes = study(seeds, clusters, seed_sd, 0, rest_sd, STUDIES)
        assert least <= coverage(both_interval(sums + skewed * sizes, sizes)) <= most, (seed_sd, rest_sd)


@pytest.mark.parametrize(
    ("draw", "mean", "clusters", "least", "most"),
    [("exponential", 1, 21, 1.2, 2.5), ("lognormal", np.exp(0.5), 12, 3.5, 5.5)],
)
def test_skewed_clusters_give_a_p_below_1_percent_more_often(draw, mean, clusters, least, most):
    random = np.random.default_rng(clusters)
    skewed = 0.05 * (getattr(random, draw)(size=(2 * STUDIES, 1, clusters)) - mean)
    sums, sizes = study(5, clusters, 0.002, 0, 0.01, 2 * STUDIES)
    sums += skewed * sizes
    spread = Spread.of(sums, sizes, Bootstrap.of(sums.mean(-2), sizes))
    low, high = (spread.value + sign * spread.reach(0.005, upwards=sign > 0) for sign in (-1, 1))
    assert least <= 100 - coverage((low, high)) <= most


def test_skewed_clusters_give_asymmetric_intervals():
    random = np.random.default_rng(0)
    for sign in (-1, 1):
        sums = np.tile(sign * random.exponential(size=40), (3, 1)) + 1e-6 * random.normal(size=(3, 1))
        found = difference(sums, np.zeros_like(sums), np.ones(40), 0.1)
        down, up = found.value - found.both[0], found.both[1] - found.value
        assert (up - down) * sign > 0.05
        assert found.both == pytest.approx(found.clusters, abs=1e-3)


@pytest.mark.parametrize("shift", [-0.3, -0.1, 0.0, 0.1, 0.3])
def test_p_matches_the_interval(shift):
    random = np.random.default_rng(1)
    sums = random.exponential(size=30) + 0.05 * random.normal(size=(4, 1)) + 0.1 * random.normal(size=(4, 30)) - 1
    found = difference(sums, np.zeros_like(sums), np.ones(30), 0.5)
    for end in found.both:
        moved = difference(sums - end, np.zeros_like(sums), np.ones(30), 0.5)
        assert moved.both_p == pytest.approx(0.05, abs=1e-6)
    found = difference(sums + shift, np.zeros_like(sums), np.ones(30), 0.5)
    assert (found.both_p < 0.05) == (found.both[0] > 0 or found.both[1] < 0)
    mirrored = difference(-sums - shift, np.zeros_like(sums), np.ones(30), 0.5)
    assert mirrored.equivalence_p == pytest.approx(found.equivalence_p, abs=2e-3)
    for each in (sums + shift, -sums - shift):
        farthest = max(map(abs, difference(each, np.zeros_like(sums), np.ones(30), 0.5).both))
        assert difference(each, np.zeros_like(sums), np.ones(30), farthest).equivalence_p == pytest.approx(0.025)
    beyond = difference(sums + 1, np.zeros_like(sums), np.ones(30), 0.5).both[0]
    assert difference(sums + 1, np.zeros_like(sums), np.ones(30), beyond).equivalence_p == pytest.approx(0.975)


@pytest.mark.parametrize("spreads", CROSSED)
def test_joint_interval_is_at_least_as_wide_as_that_over_seeds(spreads):
    sums, sizes = study(3, 40, *spreads, STUDIES)
    (low, high), seeds_only = both_interval(sums, sizes), seed_interval(sums, sizes)
    assert (low <= seeds_only[0] + 1e-12).all()
    assert (high >= seeds_only[1] - 1e-12).all()


def test_intervals_over_seeds_or_clusters_only_are_too_narrow():
    """Why both are shown together as well."""
    sums, sizes = study(5, 40, 0.01, 0.05, 0, STUDIES)
    assert coverage(seed_interval(sums, sizes)) < 90
    assert coverage(cluster_interval(sums.mean(-2), sizes)) < 95 < 1 + coverage(both_interval(sums, sizes))


def test_false_positives_are_5_percent():
    random = np.random.default_rng(0)
    below = 0
    for _ in range(400):
        sizes = random.integers(200, 900, 30).astype(float)
        both = [
            (4 + 0.02 * random.normal(size=(4, 1)) + 0.3 * random.normal(size=30) + 0.1 * random.normal(size=(4, 30)))
            * sizes
            for _ in range(2)
        ]
        shared = 0.3 * random.normal(size=30) * sizes
        below += difference(both[0] + shared, both[1] + shared, sizes, 0.1).both_p < 0.05
    assert 0.025 <= below / 400 <= 0.08


def test_estimate_by_hand():
    # Two clusters are too few for an interval over clusters; three seeds are enough for one over seeds.
    sums, sizes = np.array([[1.0, 3.0], [2.0, 4.0], [3.0, 5.0]]), np.array([1.0, 3.0])
    found = estimate(sums, sizes)
    assert found.value == pytest.approx((4 + 6 + 8) / 3 / 4)  # figures 1, 1.5, 2
    assert found.seeds == pytest.approx((1.5 - 4.302653 * 0.5 / 3**0.5, 1.5 + 4.302653 * 0.5 / 3**0.5))
    assert estimate(sums[:2], sizes).seeds is None


def test_intervals_of_scores_end_at_0():
    sums = np.zeros((3, 20))
    sums[0] = np.arange(20.0)  # one seed in three fails
    found = estimate(sums, np.full(20, 100.0))
    assert found.seeds[0] == 0
    assert found.seeds[1] > found.value > 0
    assert difference(sums, sums * 0, np.full(20, 100.0), 0.01).seeds[0] < 0


def test_clusters_are_summed_by_label():
    figures = np.array([[1.0, 2.0, 4.0, 8.0], [1.0, 1.0, 1.0, 1.0]])
    assert by_cluster(figures, np.array([7, 3, 7, 9])).tolist() == [[2, 5, 8], [1, 2, 1]]


def test_t_tests_match_scipy():
    one, other = study(5, 20, 0.02, 0.05, 0.05)[0], study(5, 20, 0.01, 0.04, 0.02)[0]
    sizes = np.full(20, 500.0)
    found = difference(one, other, sizes, 0.01)
    figures, references = one.sum(1) / sizes.sum(), other.sum(1) / sizes.sum()
    theirs = stats.ttest_rel(figures, references)
    assert found.value == pytest.approx((figures - references).mean())
    assert found.t_p == pytest.approx(theirs.pvalue)
    assert found.seeds == pytest.approx(tuple(theirs.confidence_interval(0.95)))
    assert found.pairs == 5
    theirs = stats.ttest_ind(figures, references, equal_var=False)
    assert found.welch_p == pytest.approx(theirs.pvalue)
    assert found.welch == pytest.approx(tuple(theirs.confidence_interval(0.95)))


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("spread", [0.0, 0.01])
def test_rounding_of_equal_seeds_is_no_spread(spread):
    """As of a pretrained model that is scored as it is: 0.1 three times has a standard deviation of 1e-17."""
    sizes = np.full(20, 1000.0)
    other = np.tile(np.random.default_rng(0).normal(0.1, 0.01, 20) * sizes, (3, 1))
    one = other + sizes * (0.001 + spread * np.arange(3)[:, None])
    assert (other.sum(1) / sizes.sum()).std() > 0
    found = difference(one, other, sizes, 0.01)
    if not spread:
        assert (found.welch, found.welch_p) == (None, None)
    else:
        assert found.welch == pytest.approx(found.seeds)
        assert found.welch_p == pytest.approx(found.t_p)


def test_without_cluster_variance_the_joint_tests_match_scipy():
    each, sizes, margin = np.array([0.004, 0.001, -0.002, 0.003, 0.0]), np.full(12, 100.0), 0.006
    found = difference(4 * sizes + each[:, None] * sizes, np.tile(4 * sizes, (5, 1)), sizes, margin)
    assert found.both_p == pytest.approx(found.t_p)
    assert found.both == pytest.approx(found.seeds)
    below = stats.ttest_1samp(each, margin, alternative="less").pvalue
    above = stats.ttest_1samp(each, -margin, alternative="greater").pvalue
    assert found.equivalence_p == pytest.approx(max(below, above))
    assert found.equivalence_p < 0.05 < found.both_p
    # The usual other form: the 90 % interval is within the margin.
    low, high = stats.ttest_1samp(each, 0).confidence_interval(0.90)
    assert -margin < low < high < margin


def test_bootstrap_matches_scipy_for_many_clusters():
    sums, sizes = study(3, 400, 0, 0.05, 0.05)
    means = sums.mean(0)
    theirs = stats.bootstrap(
        (means, sizes),
        lambda a, b, axis: a.sum(axis) / b.sum(axis),
        paired=True,
        vectorized=True,
        method="BCa",
        rng=np.random.default_rng(0),
    ).confidence_interval
    low, high = cluster_interval(means, sizes)
    width = theirs.high - theirs.low
    assert low == pytest.approx(theirs.low, abs=0.05 * width)
    assert high == pytest.approx(theirs.high, abs=0.05 * width)


def test_many_clusters_are_resampled_in_blocks(monkeypatch):
    sums, sizes = study(3, 400, 0, 0.05, 0.05)
    whole = cluster_interval(sums.mean(0), sizes)
    monkeypatch.setattr(intervals, "DRAWN_AT_ONCE", 300 * 400)
    drawn = studentised((sums.mean(0), sizes))
    assert drawn.shape == np.unique(drawn).shape == (intervals.RESAMPLES,)
    blocks = cluster_interval(sums.mean(0), sizes)
    assert blocks == pytest.approx(whole, abs=0.05 * (whole[1] - whole[0]))


@pytest.mark.parametrize("seeds", [1, 2])
def test_fewer_than_three_seeds_give_no_p_value(seeds):
    one, sizes = study(seeds, 20, 0.01, 0.05, 0.05)
    found = difference(one, one - 1, sizes, 0.1)
    assert found.value == pytest.approx(20 / sizes.sum())
    assert found.clusters is not None
    assert found.seeds is found.both is None
    tests = (found.t_p, found.welch_p, found.sign_flip_p, found.sign_flip_floor, found.cluster_p, found.both_p)
    assert {found.welch, found.equivalence_p, *tests} == {None}


def test_fewer_than_ten_clusters_give_tests_over_seeds_only():
    sizes = np.ones(FEWEST_CLUSTERS)
    one = np.random.default_rng(0).normal(size=(4, FEWEST_CLUSTERS))
    assert None not in difference(one, one * 0, sizes, 0.1).deciding
    found = difference(one[:, 1:], one[:, 1:] * 0, sizes[1:], 0.1)
    assert found.t_p is not None
    assert found.clusters is found.both is found.both_p is found.cluster_p is found.equivalence_p is None


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("seed", range(5))
def test_a_single_cluster_gives_tests_over_seeds_only(seed):
    sums = np.random.default_rng(seed).normal(300, 10, (2, 3, 1))
    found = difference(*sums, np.array([77.0]), 0.1)
    assert None not in (found.seeds, found.t_p)
    assert found.clusters is found.both is found.both_p is None
    assert found.deciding == (None, None)


def test_unequal_clusters_count_as_fewer():
    sizes = np.full(40, 10.0)
    assert effective(sizes) == 40
    sizes[:3] = 1000
    assert effective(sizes) == pytest.approx(3370**2 / (37 * 10**2 + 3 * 1000**2))  # 3.8
    sums = np.random.default_rng(0).normal(1, 0.1, (4, 40)) * sizes
    found = difference(sums, sums * 0, sizes, 0.1)
    assert found.t_p is not None
    assert found.clusters is found.both is found.both_p is found.cluster_p is found.equivalence_p is None


def test_equal_models_are_equivalent():
    one, sizes = study(3, 20, 0.01, 0.05, 0.05)
    found = difference(one, one, sizes, 0.1)
    assert found.value == found.largest_share == 0
    assert found.seeds == found.clusters == found.both == (0, 0)
    assert found.t_p == found.sign_flip_p == found.cluster_p == found.both_p == 1
    assert found.equivalence_p == 0


def test_models_that_differ_by_a_constant_are_different():
    found = difference(np.full((3, 20), 0.5), np.zeros((3, 20)), np.ones(20), 0.1)
    assert found.seeds == found.clusters == found.both == (0.5, 0.5)
    assert found.t_p == found.cluster_p == found.both_p == 0
    assert found.equivalence_p == 1


@pytest.mark.parametrize("sign", [-1, 1])
def test_bootstrap_p_has_two_sides(sign):
    clusters = np.random.default_rng(3).normal(size=200)
    clusters += 0.1 - clusters.mean()
    found = difference(np.tile(sign * clusters, (3, 1)), np.zeros((3, 200)), np.ones(200), 0.1)
    assert found.cluster_p == pytest.approx(stats.ttest_1samp(clusters, 0).pvalue, rel=0.2)


@pytest.mark.parametrize("sign", [-1, 1])
def test_bootstrap_p_is_below_5_percent_if_its_interval_leaves_out_0(sign):
    random = np.random.default_rng(0)
    for shift in np.linspace(0, 0.7, 15):
        clusters = random.exponential(size=21) - 1 + sign * shift
        found = difference(np.tile(clusters, (3, 1)), np.zeros((3, 21)), np.ones(21), 0.1)
        low, high = found.clusters
        assert (found.cluster_p < 0.05) == (low > 0 or high < 0)


def test_bootstrap_p_is_small_if_all_clusters_agree():
    random = np.random.default_rng(0)
    sizes = np.full(50, 300.0)
    change = (0.1 + 0.01 * random.normal(size=(3, 50))) * sizes
    found = difference(4 * sizes + change, np.tile(4 * sizes, (3, 1)), sizes, 0.01)
    assert found.cluster_p == pytest.approx(2 / (intervals.RESAMPLES + 1))
    assert found.equivalence_p > 0.99


@pytest.mark.parametrize("clusters", [16, 32, 64, 100])
@pytest.mark.parametrize("value", [0.1, 1 / 3, 1.0])
def test_resamples_without_spread_do_not_stretch_an_interval(clusters, value):
    sums = np.zeros(clusters)
    sums[5] = value  # absent from a third of the resamples, whose clusters are then all equal
    low, high = cluster_interval(np.stack([sums, 3 - sums]), np.ones(clusters))
    assert (np.abs([low, high] - np.array([value / clusters, 3 - value / clusters])) < value).all()
