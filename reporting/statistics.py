"""Statistics over per-document records: estimates, paired differences with their tests, Holm's rule."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypedDict

import numpy as np
import scipy

from .intervals import (
    CONFIDENCE,
    Bootstrap,
    Spread,
    cluster_errors,
    effective,
    seed_interval,
)

FEWEST_SEEDS = 3
FEWEST_CLUSTERS = 10  # by `effective`
DOMINANT = 0.5  # share of the clusters' spread above which one cluster dominates a difference
MOST_EXACT = 15  # seeds up to which every assignment of signs is tried
Interval = tuple[float, float]


@dataclass(frozen=True)
class Estimate:
    """A figure of one model, over all documents of a split.

    Attributes:
        value: mean over seeds.
        seeds: 95 % interval `(low, high)` for other seeds on the same documents, which are the ones that a published
            figure is of; None under three seeds.
    """

    value: float
    seeds: Interval | None


@dataclass(frozen=True)
class Difference:
    """A paired difference with its 95 % intervals and tests.

    What needs three seeds or enough clusters is None where there are fewer.

    Attributes:
        value: mean over seeds. pairs: seeds on both sides. level: the reference's figure over these seeds.
        seeds: interval for other seeds on the same documents, paired; welch: the same, unpaired.
        clusters: interval for other documents, of the models as they were trained.
        both: interval for other seeds and other documents.
        t_p: paired t over seeds. welch_p: Welch's t over seeds.
        sign_flip_p: exact over seeds; sign_flip_floor: the least that so many seeds can give.
        cluster_p: studentised bootstrap over clusters. both_p: seeds and clusters together.
        equivalence_p: TOST within `margin` either way, seeds and clusters together.
        largest_share: of the clusters' squared deviations, the share of the cluster that deviates most.
        without: both_p and equivalence_p without that cluster, where it dominates; else None.
    """

    value: float
    pairs: int
    level: float
    margin: float
    seeds: Interval | None
    welch: Interval | None
    clusters: Interval | None
    both: Interval | None
    t_p: float | None
    welch_p: float | None
    sign_flip_p: float | None
    sign_flip_floor: float | None
    cluster_p: float | None
    both_p: float | None
    equivalence_p: float | None
    largest_share: float
    without: tuple[float | None, float | None] | None

    @property
    def dominated(self) -> bool:
        """Whether one cluster makes up most of the spread over clusters: a study without it would read otherwise."""
        return self.largest_share > DOMINANT

    @property
    def deciding(self) -> tuple[float | None, float | None]:
        """both_p and equivalence_p; where one cluster dominates, each the larger of those with and without it."""
        if self.without is None or self.both_p is None or self.equivalence_p is None:
            return self.both_p, self.equivalence_p
        both, equivalence = self.without
        if both is None or equivalence is None:  # the other clusters are too few
            return None, None
        return max(self.both_p, both), max(self.equivalence_p, equivalence)


def by_cluster(figures: np.ndarray, clusters: np.ndarray) -> np.ndarray:
    """Sums of `figures [..., documents]` over the documents of each cluster, `[..., G]`, by ascending label."""
    labels, place = np.unique(clusters, return_inverse=True)
    sums = np.zeros((*figures.shape[:-1], len(labels)))
    np.add.at(sums.T, place, figures.T)
    return sums


def estimate(sums: np.ndarray, sizes: np.ndarray) -> Estimate:
    """The figure sum(sums) / sum(sizes), such as nats a token; its interval ends at 0, which no such figure is below.

    Args:
        sums: `[S, G]`, of each seed over each cluster, none negative; sizes: `[G]`.
    """
    seeds = _floats(seed_interval(sums, sizes)) if len(sums) >= FEWEST_SEEDS else None
    return Estimate(float(sums.mean(0).sum() / sizes.sum()), seeds and (max(seeds[0], 0.0), seeds[1]))


def difference(sums: np.ndarray, reference: np.ndarray, sizes: np.ndarray, margin: float) -> Difference:
    """`sums` less `reference`, `[S, G]` both, row for row of one seed, over `sizes [G]`.

    `margin`, above 0, is in the figure's unit.

    TOST: Schuirmann, J. Pharmacokinet. Biopharm. 15(6), 1987: the figures are equivalent when a one-sided test at each
    end of [-margin, margin] says that the difference lies inside; its p is the greater of the two.
    """
    apart = sums - reference
    value, level = (float(each.mean(0).sum() / sizes.sum()) for each in (apart, reference))
    found = _Analysis.of(apart, sizes)
    squares = cluster_errors(apart.mean(-2), sizes)[2][0] ** 2
    most, whole = int(squares.argmax()), float(squares.sum())
    share, without = float(squares[most] / whole) if whole else 0.0, None
    if share > DOMINANT:
        rest, left = np.delete(apart, most, -1), np.delete(sizes, most)
        again = _Analysis.of(rest, left).tests(float(rest.mean(0).sum() / left.sum()), margin)
        without = again["both_p"], again["equivalence_p"]
    figures, references = (each.sum(-1) / sizes.sum() for each in (sums, reference))
    return Difference(
        value,
        len(apart),
        level,
        margin,
        **found.intervals(),
        **_seed_tests(figures, references),
        **found.tests(value, margin),
        largest_share=share,
        without=without,
    )


def _seed_tests(figures: np.ndarray, references: np.ndarray) -> dict:
    """The tests over seeds of `figures [S]` and `references [S]`, paired and unpaired."""
    names = ("t_p", "welch", "welch_p", "sign_flip_p", "sign_flip_floor")
    if len(figures) < FEWEST_SEEDS:
        return dict.fromkeys(names)
    apart = figures - references
    error = float(np.sqrt(apart.var(ddof=1) / len(apart)))
    welch, welch_p = None, None
    if figures.std() or references.std():
        found = scipy.stats.ttest_ind(figures, references, equal_var=False)
        welch, welch_p = _floats(found.confidence_interval(CONFIDENCE)), float(found.pvalue)
    t_p = _two_sided(float(apart.mean()), error, len(apart) - 1)
    return dict(zip(names, (t_p, welch, welch_p, *sign_flip(apart)), strict=True))


def sign_flip(figures: np.ndarray) -> tuple[float, float]:
    """Two-sided p of a mean of 0 when each of `figures [S]` was as likely of the other sign, and the least p possible.

    Exact, over all 2^S assignments, up to MOST_EXACT figures. All that is tried counts, so that no p is below 2 / 2^S.
    """
    exact = len(figures) <= MOST_EXACT
    tried = 2 ** len(figures) if exact else 100_000
    found = scipy.stats.permutation_test(
        (figures,),
        np.mean,
        permutation_type="samples",
        n_resamples=np.inf if exact else tried - 1,
        rng=np.random.default_rng(0),
    )
    return float(found.pvalue), 2 / tried


def holm(p: Sequence[float]) -> list[float]:
    """Adjusted p of a family of tests (Holm, Scand. J. Statist. 6(2), 1979), in the order given."""
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
    """Of `sums [S, G]` over `sizes [G]`, what intervals and tests need; None where seeds or clusters are too few."""

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
        """p of a ratio of 0, and of one outside the margin; `value` is the ratio."""
        if self.both is None or self.clusters is None:
            return {"cluster_p": None, "both_p": None, "equivalence_p": None}
        drawn, error = self.clusters.drawn, float(self.clusters.error)
        below, above = (self.both.tail(margin - sign * value, upwards=sign > 0) for sign in (-1, 1))
        return {
            "cluster_p": float((1 + (np.abs(drawn) >= abs(value / error)).sum()) / (1 + len(drawn)))
            if error
            else float(value == 0),
            "both_p": 2 * self.both.tail(abs(value), upwards=value < 0),
            "equivalence_p": max(below, above),
        }


def _floats(pair) -> Interval:
    return float(pair[0]), float(pair[1])


def _two_sided(value: float, error: float, freedom: float) -> float:
    return float(2 * scipy.stats.t.sf(abs(value) / error, freedom)) if error else float(value == 0)
