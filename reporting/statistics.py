"""Statistics over per-document records: estimates, paired differences with their tests, Holm's method."""

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypedDict

import numpy as np
import scipy

from .intervals import (
    CONFIDENCE,
    ROUNDING,
    Bootstrap,
    Spread,
    effective,
    seed_interval,
)

FEWEST_SEEDS = 3
FEWEST_CLUSTERS = 10  # effective number
DOMINANT = 0.5  # share of the variance over clusters above which one cluster dominates a difference
MOST_EXACT = 15  # largest number of seeds for which all assignments of signs are tried
Interval = tuple[float, float]


@dataclass(frozen=True)
class Estimate:
    """A score of one model over all documents of a split.

    Attributes:
        value: mean over seeds.
        seeds: 95 % interval `(low, high)` for other seeds on the same documents, as in published results; None with
            fewer than three seeds.
    """

    value: float
    seeds: Interval | None


@dataclass(frozen=True)
class Difference:
    """A paired difference with its 95 % intervals and tests.

    Values that need at least three seeds or enough clusters are None if there are fewer.

    Attributes:
        value: mean over seeds.
        pairs: number of seeds that both models have.
        level: the reference's score over these seeds.
        margin: margin of equivalence, in the unit of the score.
        seeds: interval for other seeds on the same documents, paired.
        welch: as `seeds`, but unpaired.
        clusters: interval for other documents, for the models as trained.
        both: interval for other seeds and other documents.
        spread: the variances behind it.
        t_p: p of the paired t-test over seeds.
        welch_p: p of Welch's t-test over seeds.
        sign_flip_p: p of the exact sign-flip test over seeds.
        sign_flip_floor: the lowest p that this test can give with so many seeds.
        cluster_p: p of the studentised bootstrap over clusters.
        both_p: p over seeds and clusters together.
        equivalence_p: p of the two one-sided tests (TOST) within `margin`, over seeds and clusters together.
        largest_share: share of the cluster that deviates most in the sum of squared deviations; None for one cluster.
        without: both_p and equivalence_p without that cluster if it dominates; otherwise None.
    """

    value: float
    pairs: int
    level: float
    margin: float
    seeds: Interval | None
    welch: Interval | None
    clusters: Interval | None
    both: Interval | None
    spread: Spread | None
    t_p: float | None
    welch_p: float | None
    sign_flip_p: float | None
    sign_flip_floor: float | None
    cluster_p: float | None
    both_p: float | None
    equivalence_p: float | None
    largest_share: float | None
    without: tuple[float | None, float | None] | None

    @property
    def deciding(self) -> tuple[float | None, float | None]:
        """both_p and equivalence_p; if one cluster dominates, the larger of each with and without it."""
        return self._with_and_without(max)

    @property
    def lenient(self) -> tuple[float | None, float | None]:
        """As `deciding`, but the smaller of each."""
        return self._with_and_without(min)

    def _with_and_without(self, choose: Callable[[float, float], float]) -> tuple[float | None, float | None]:
        if self.without is None or self.both_p is None or self.equivalence_p is None:
            return self.both_p, self.equivalence_p
        both, equivalence = self.without
        if both is None or equivalence is None:  # too few other clusters
            return None, None
        return choose(self.both_p, both), choose(self.equivalence_p, equivalence)


def by_cluster(values: np.ndarray, clusters: np.ndarray) -> np.ndarray:
    """Sums of `values [..., documents]` over the documents of each cluster, `[..., G]`, by ascending label."""
    labels, place = np.unique(clusters, return_inverse=True)
    sums = np.zeros((*values.shape[:-1], len(labels)))
    np.add.at(sums.T, place, values.T)
    return sums


def estimate(sums: np.ndarray, sizes: np.ndarray) -> Estimate:
    """The ratio sum(sums) / sum(sizes), such as nats/token. Its interval is cut off at 0.

    Args:
        sums: `[S, G]`, sums by seed and cluster, not negative.
        sizes: `[G]`, size of each cluster.
    """
    seeds = _floats(seed_interval(sums, sizes)) if len(sums) >= FEWEST_SEEDS else None
    return Estimate(float(sums.mean(0).sum() / sizes.sum()), seeds and (max(seeds[0], 0.0), seeds[1]))


def difference(sums: np.ndarray, reference: np.ndarray, sizes: np.ndarray, margin: float) -> Difference:
    """The paired difference of two models, with all intervals and tests.

    Equivalence is tested by two one-sided tests (TOST: Schuirmann, J. Pharmacokinet. Biopharm. 15(6), 1987), one at
    each end of [-margin, margin]; their p is the larger of the two.

    Args:
        sums: `[S, G]`, sums by seed and cluster.
        reference: `[S, G]`, those of the reference for the same seeds.
        sizes: `[G]`, size of each cluster.
        margin: margin of equivalence in the unit of the ratio, above 0.
    """
    paired = sums - reference
    value, level = (float(each.mean(0).sum() / sizes.sum()) for each in (paired, reference))
    found = _Analysis.of(paired, sizes)
    squares = (paired.mean(0) - value * sizes) ** 2
    most, whole = int(squares.argmax()), float(squares.sum())
    share, without = float(squares[most] / whole) if whole else 0.0, None
    if share > DOMINANT and found.both is not None:
        rest, left = np.delete(paired, most, -1), np.delete(sizes, most)
        again = _Analysis.of(rest, left).tests(float(rest.mean(0).sum() / left.sum()), margin)
        without = again["both_p"], again["equivalence_p"]
    scores, references = (each.sum(-1) / sizes.sum() for each in (sums, reference))
    return Difference(
        value,
        len(paired),
        level,
        margin,
        **found.intervals(),
        spread=found.both,
        **_seed_tests(scores, references),
        **found.tests(value, margin),
        largest_share=share if len(sizes) > 1 else None,
        without=without,
    )


def _seed_tests(scores: np.ndarray, references: np.ndarray) -> dict:
    """Paired and unpaired tests over seeds of `scores [S]` and `references [S]`."""
    names = ("t_p", "welch", "welch_p", "sign_flip_p", "sign_flip_floor")
    if len(scores) < FEWEST_SEEDS:
        return dict.fromkeys(names)
    paired = scores - references
    error = float(np.sqrt(paired.var(ddof=1) / len(paired)))
    t_p = _two_sided(float(paired.mean()), error, len(paired) - 1)
    return dict(zip(names, (t_p, *_welch(scores, references), *sign_flip(paired)), strict=True))


def _welch(scores: np.ndarray, references: np.ndarray) -> tuple[Interval | None, float | None]:
    """Interval and two-sided p of Welch's t-test; None if neither sample varies by more than rounding."""
    error = float(np.sqrt((scores.var(ddof=1) + references.var(ddof=1)) / len(scores)))
    if error <= ROUNDING * np.abs([scores, references]).max():
        return None, None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # of rounding, if one of them does not vary
        found = scipy.stats.ttest_ind(scores, references, equal_var=False)
    return _floats(found.confidence_interval(CONFIDENCE)), float(found.pvalue)


def sign_flip(values: np.ndarray) -> tuple[float, float]:
    """Two-sided p of the sign-flip test of a mean of 0 over `values [S]`, and the lowest p that it can give.

    Exact over all 2^S assignments of signs for up to MOST_EXACT values. The observed assignment counts, so p is at
    least 2 / 2^S.
    """
    exact = len(values) <= MOST_EXACT
    tried = 2 ** len(values) if exact else 100_000
    found = scipy.stats.permutation_test(
        (values,),
        np.mean,
        permutation_type="samples",
        n_resamples=np.inf if exact else tried - 1,
        rng=np.random.default_rng(0),
    )
    return float(found.pvalue), 2 / tried


def holm(p: Sequence[float]) -> list[float]:
    """Adjusted p-values of a family of tests (Holm, Scand. J. Statist. 6(2), 1979), in the given order."""
    plain = np.asarray(p, float)
    order = np.argsort(plain)
    adjusted = np.empty(len(plain))
    adjusted[order] = np.minimum(1, np.maximum.accumulate(plain[order] * np.arange(len(plain), 0, -1)))
    return adjusted.tolist()


class _Intervals(TypedDict):
    seeds: Interval | None
    clusters: Interval | None
    both: Interval | None


class _Tests(TypedDict):
    cluster_p: float | None
    both_p: float | None
    equivalence_p: float | None


@dataclass(frozen=True)
class _Analysis:
    """What intervals and tests of `sums [S, G]` over `sizes [G]` need; None if there are too few seeds or clusters."""

    seeds: tuple[np.ndarray, np.ndarray] | None
    clusters: Bootstrap | None
    both: Spread | None

    @classmethod
    def of(cls, sums: np.ndarray, sizes: np.ndarray) -> "_Analysis":
        seeds = seed_interval(sums, sizes) if len(sums) >= FEWEST_SEEDS else None
        clusters = Bootstrap.of(sums.mean(-2), sizes) if effective(sizes) >= FEWEST_CLUSTERS else None
        return cls(seeds, clusters, Spread.of(sums, sizes, clusters) if seeds and clusters else None)

    def intervals(self) -> _Intervals:
        return {
            "seeds": self.seeds and _floats(self.seeds),
            "clusters": self.clusters and _floats(self.clusters.interval()),
            "both": self.both and _floats(self.both.interval()),
        }

    def tests(self, value: float, margin: float) -> _Tests:
        """p of a ratio of 0, and of a ratio outside the margin, for the observed ratio `value`."""
        if self.both is None or self.clusters is None:
            return {"cluster_p": None, "both_p": None, "equivalence_p": None}
        drawn, error = self.clusters.drawn, float(self.clusters.error)
        below, above = (self.both.tail(margin - sign * value, upwards=sign > 0) for sign in (-1, 1))
        return {
            "cluster_p": _beyond(drawn, value / error) if error else float(value == 0),
            "both_p": 2 * self.both.tail(abs(value), upwards=value < 0),
            "equivalence_p": max(below, above),
        }


def _beyond(drawn: np.ndarray, observed: float) -> float:
    """Two-sided p of `observed`: twice the smaller tail of `drawn`, because the interval is equal-tailed."""
    tails = (drawn >= observed).sum(), (drawn <= observed).sum()
    return float(min(1, 2 * (1 + min(tails)) / (1 + len(drawn))))


def _floats(pair) -> Interval:
    return float(pair[0]), float(pair[1])


def _two_sided(value: float, error: float, freedom: float) -> float:
    return float(2 * scipy.stats.t.sf(abs(value) / error, freedom)) if error else float(value == 0)
