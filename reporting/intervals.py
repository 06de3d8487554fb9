"""Intervals of a ratio over seeds, over test clusters, and over both."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
import scipy

CONFIDENCE = 0.95
TAIL = (1 - CONFIDENCE) / 2  # probability beyond each end of an interval
RESAMPLES = 20_000
ROUNDING = 1e-12  # share of a sum below which a difference of its terms is rounding
DRAWN_AT_ONCE = 1 << 23  # resampled clusters per block; four blocks are cached


def effective(sizes: np.ndarray) -> float:
    """The effective number of clusters of `sizes [G]` (Kish, Survey Sampling, 1965), at most G."""
    return float(sizes.sum() ** 2 / (sizes**2).sum())


def t_quantile(tail: Any, freedom: Any) -> Any:
    """What Student's t exceeds with probability `tail`: scipy.stats.t.isf without its slow checks."""
    return -scipy.special.stdtrit(freedom, tail)


def seed_interval(sums: np.ndarray, sizes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Student's t interval over the seeds of `sums [..., S, G]`: low and high, `[...]`."""
    ratios = sums.sum(-1) / sizes.sum()
    count = ratios.shape[-1]
    reach = t_quantile(TAIL, count - 1) * ratios.std(-1, ddof=1) / np.sqrt(count)
    return ratios.mean(-1) - reach, ratios.mean(-1) + reach


def mean_interval(values: Sequence[float] | np.ndarray) -> tuple[float, float]:
    """Student's t interval of the mean of `values`, such as one per seed."""
    low, high = seed_interval(np.asarray(values)[:, None], np.ones(1))
    return float(low), float(high)


def studentised(scale: tuple[np.ndarray, np.ndarray]) -> np.ndarray:
    """Bootstrap draws of (resampled ratio - ratio) / its standard error, `[..., RESAMPLES]`.

    Args:
        scale: the clusters' residuals from the ratio, `[..., G]`, and their sizes, `[G]`.
    """
    residuals, sizes = scale
    groups = len(sizes)
    rows = min(RESAMPLES, max(1, DRAWN_AT_ONCE // groups))
    drawn = []
    for block in range(-(-RESAMPLES // rows)):
        weights = _resamples(groups, rows, block)
        first, around, crossed = _weighted(np.stack([residuals, residuals**2, residuals * sizes]), weights)
        size, squared = _weighted(np.stack([sizes, sizes**2]), weights)
        ratio = first / size
        # Sum of squared residuals from each resample's own ratio.
        own = ratio**2 * squared
        squares = around - 2 * ratio * crossed + own
        squares[squares < ROUNDING * (around + own)] = 0
        error = np.sqrt(squares * groups / (groups - 1)) / size
        drawn.append(np.divide(ratio, error, out=np.zeros_like(ratio), where=error > 0))
    return np.concatenate(drawn, -1)[..., :RESAMPLES]


def _weighted(figures: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Sums `[..., R]` of `figures [..., G]` with `weights [G, R]`.

    Not `@`: for so few rows, the threads of BLAS take longer, and their number would decide the last digits.
    """
    return np.einsum("...g,gr->...r", figures, weights)


@lru_cache(maxsize=4)
def _resamples(groups: int, rows: int, block: int) -> np.ndarray:
    """How often each resample of a block contains each cluster, `[G, rows]`; the same for all models of a table."""
    drawn = np.random.default_rng([groups, block]).integers(groups, size=(rows, groups))
    places = rows * drawn + np.arange(rows)[:, None]
    return np.bincount(places.ravel(), minlength=groups * rows).reshape(groups, rows).astype(np.float64)


def cluster_errors(means: np.ndarray, sizes: np.ndarray):
    """The ratio `[...]` of `means [..., G]` to `sizes`, its linearised variance, and (residuals, sizes)."""
    value = means.sum(-1) / sizes.sum()
    residuals = means - value[..., None] * sizes
    return value, (residuals**2 * _unbiasing(sizes)).sum(-1), (residuals, sizes)


def _unbiasing(sizes: np.ndarray) -> np.ndarray:
    """Weights `[G]` of squared residuals in the variance of a ratio; 1 / (G (G - 1)) / size^2 for equal sizes.

    They make the variance unbiased if clusters of all sizes vary alike (Bell and McCaffrey, Survey Methodology 28(2),
    2002). Without them it is too small, because a large cluster pulls the ratio towards itself.
    """
    share = sizes / sizes.sum()
    return 1 / (1 - 2 * share + (share**2).sum()) / sizes.sum() ** 2


@dataclass(frozen=True)
class Bootstrap:
    """Bootstrap-t over clusters, which are resampled whole.

    Efron and Tibshirani, An Introduction to the Bootstrap, 1993, ch. 12.

    Attributes:
        value: the ratio, `[...]`.
        error: its standard error, `[...]`.
        drawn: distance of each draw from the ratio, in the draw's own standard errors, `[..., RESAMPLES]`.
    """

    value: np.ndarray
    error: np.ndarray
    drawn: np.ndarray

    @classmethod
    def of(cls, means: np.ndarray, sizes: np.ndarray) -> "Bootstrap":
        """The bootstrap of `means [..., G]` over `sizes [G]`."""
        value, variance, scale = cluster_errors(means, sizes)
        return cls(value, np.sqrt(variance), studentised(scale))

    @cached_property
    def reach(self) -> tuple[np.ndarray, np.ndarray]:
        """How many standard errors the interval extends below and above the ratio."""
        low, high = np.quantile(self.drawn, (TAIL, 1 - TAIL), axis=-1)
        return high, -low

    def interval(self) -> tuple[np.ndarray, np.ndarray]:
        down, up = self.reach
        return self.value - down * self.error, self.value + up * self.error


@dataclass(frozen=True)
class Spread:
    """Variance of a ratio over new seeds and new clusters, which are crossed factors.

    The total is seeds + clusters - interaction (Cameron, Gelbach and Miller, J. Bus. Econ. Stat. 29(2), 2011). Both
    parts contain the interaction once. It is subtracted from the clusters, which are more numerous and so estimated
    more precisely.

    An interval for the total is half-way between two known ones, and at least as wide as the interval over seeds:

    - one t with Satterthwaite's degrees of freedom (Biometrics Bull. 2(6), 1946) covers as little as 92 % with three
      seeds;
    - a t for each part (Howe, J. Am. Stat. Assoc. 69(347), 1974) covers as much as 98 %.

    The result covers 93 to 97 % for any share of the interaction, with at least 20 clusters of similar size, or with
    the 40 clusters of studies/jsb_length_small, of which the largest is 8 times the median. The degrees of freedom of
    clusters follow from `effective`; with the plain number, the interval over such unequal clusters covers as little as
    92 %. The variance of clusters is scaled separately below and above the ratio, by how much farther the bootstrap
    extends than a t. With one scale for both sides, the interval covers as little as 91 % for exponentially distributed
    clusters. With log-normal ones (sigma 1), whose tails are heavier, it covers as little as 92 % with 30 clusters, and
    89 % with twelve.

    Attributes:
        value: the ratio.
        seeds: variance over seeds, with the interaction.
        clusters: variance over clusters, without the interaction.
        freedom: degrees of freedom of seeds and of clusters.
        skew: how far the bootstrap over clusters extends below and above the ratio, relative to a t.
    """

    value: np.ndarray
    seeds: np.ndarray
    clusters: np.ndarray
    freedom: tuple[float, float]
    skew: tuple[np.ndarray, np.ndarray]

    @classmethod
    def of(cls, sums: np.ndarray, sizes: np.ndarray, bootstrap: Bootstrap) -> "Spread":
        """The variances of `sums [..., S, G]` over `sizes [G]`; `bootstrap` is that of their means over seeds."""
        seeds, ratios = sums.shape[-2], sums.sum(-1) / sizes.sum()
        _, clusters, (residuals, _) = cluster_errors(sums.mean(-2), sizes)
        rest = sums - ratios[..., None] * sizes - residuals[..., None, :]
        interaction = (rest**2 * _unbiasing(sizes)).sum((-2, -1)) / (seeds - 1) / seeds
        freedom = seeds - 1, effective(sizes) - 1
        skew = tuple(reach / t_quantile(TAIL, freedom[1]) for reach in bootstrap.reach)
        parts = ratios.var(-1, ddof=1) / seeds, np.maximum(clusters - interaction, 0)
        return cls(bootstrap.value, *parts, freedom, skew)

    def with_seeds(self, seeds: int) -> "Spread":
        """The spread if there were `seeds` seeds that vary alike."""
        return replace(self, seeds=self.seeds * (self.freedom[0] + 1) / seeds, freedom=(seeds - 1, self.freedom[1]))

    def interval(self) -> tuple[np.ndarray, np.ndarray]:
        return self.value - self.reach(TAIL, upwards=False), self.value + self.reach(TAIL, upwards=True)

    def reach(self, tail: float, upwards: bool) -> np.ndarray:
        """Distance from the ratio to the end of an interval that leaves probability `tail`, below 0.5, on that side."""
        parts, freedom = (self.seeds, self.clusters * self.skew[upwards] ** 2), self.freedom
        separate = [t_quantile(tail, each) ** 2 * part for part, each in zip(parts, freedom, strict=True)]
        squares = sum(part**2 / each for part, each in zip(parts, freedom, strict=True))
        total = sum(parts)
        joint = np.divide(total**2, squares, out=np.ones_like(total), where=squares > 0)
        satterthwaite = t_quantile(tail, joint) * np.sqrt(total)
        return np.maximum((np.sqrt(sum(separate)) + satterthwaite) / 2, np.sqrt(separate[0]))

    def tail(self, distance: float, upwards: bool) -> float:
        """Probability beyond `distance` from the ratio on that side: the inverse of `reach`."""
        if distance < 0:
            return 1 - self.tail(-distance, not upwards)
        least, most = -200.0, math.log(0.5)  # bounds of log(tail)
        if self.reach(math.exp(least), upwards) <= distance:
            return 0.0 if distance else 0.5
        return math.exp(
            scipy.optimize.brentq(lambda log: self.reach(math.exp(log), upwards) - distance, least, most, xtol=1e-10)
        )
