"""Intervals of a ratio over seeds, over test clusters, and over both."""

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import scipy

CONFIDENCE = 0.95
TAIL = (1 - CONFIDENCE) / 2  # beyond an interval on either side
RESAMPLES = 20_000
DRAWN_AT_ONCE = 1 << 23  # clusters of resamples in one block, of which four are held in memory


def effective(sizes: np.ndarray) -> float:
    """As how many clusters of one size those of `sizes [G]` count (Kish, Survey Sampling, 1965): never more."""
    return float(sizes.sum() ** 2 / (sizes**2).sum())


def seed_interval(sums: np.ndarray, sizes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Student's t interval over the seeds of `sums [..., S, G]`: low and high, `[...]`."""
    figures = sums.sum(-1) / sizes.sum()
    count = figures.shape[-1]
    reach = scipy.stats.t.isf(TAIL, count - 1) * figures.std(-1, ddof=1) / np.sqrt(count)
    return figures.mean(-1) - reach, figures.mean(-1) + reach


def studentised(scale: tuple[np.ndarray, np.ndarray]) -> np.ndarray:
    """Bootstrap draws of (ratio of a resample - ratio) / its standard error, `[..., RESAMPLES]`.

    Args:
        scale: residuals `[..., G]` of the clusters about the ratio, and sizes `[G]`.
    """
    residuals, sizes = scale
    groups = len(sizes)
    rows = min(RESAMPLES, max(1, DRAWN_AT_ONCE // groups))
    drawn = []
    for block in range(-(-RESAMPLES // rows)):
        weights = _resamples(groups, rows, block)
        size, first = weights @ sizes, residuals @ weights.T
        ratio = first / size
        # Sum of squares of the residuals about each resample's own ratio.
        squares = (residuals**2) @ weights.T - 2 * ratio * ((residuals * sizes) @ weights.T)
        squares += ratio**2 * (weights @ sizes**2)
        error = np.sqrt(np.maximum(squares, 0) * groups / (groups - 1)) / size
        drawn.append(np.divide(ratio, error, out=np.zeros_like(ratio), where=error > 0))
    return np.concatenate(drawn, -1)[..., :RESAMPLES]


@lru_cache(maxsize=4)
def _resamples(groups: int, rows: int, block: int) -> np.ndarray:
    """How often each resample of a block holds each cluster, `[rows, G]`: the same for every model of a table."""
    drawn = np.random.default_rng([groups, block]).integers(groups, size=(rows, groups))
    drawn += groups * np.arange(rows)[:, None]
    return np.bincount(drawn.ravel(), minlength=rows * groups).reshape(rows, groups).astype(np.float64)


def cluster_errors(means: np.ndarray, sizes: np.ndarray):
    """Ratio `[...]` of `means [..., G]` to `sizes`, its variance, linearised, and (residuals, sizes)."""
    value = means.sum(-1) / sizes.sum()
    residuals = means - value[..., None] * sizes
    return value, (residuals**2 * _unbiasing(sizes)).sum(-1), (residuals, sizes)


def _unbiasing(sizes: np.ndarray) -> np.ndarray:
    """Weights `[G]` of squared residuals in the variance of a ratio, 1 / (G (G - 1)) / size^2 where sizes are equal.

    They make it unbiased where clusters of every size spread alike, as of Bell and McCaffrey, Survey Methodology 28(2),
    2002: a large cluster draws the ratio to itself, and so its residual is too small.
    """
    share = sizes / sizes.sum()
    return 1 / (1 - 2 * share + (share**2).sum()) / sizes.sum() ** 2


@dataclass(frozen=True)
class Bootstrap:
    """Bootstrap-t over clusters, of which whole ones are drawn again.

    Efron and Tibshirani, An Introduction to the Bootstrap, 1993, ch. 12.

    Attributes:
        value: the ratio, `[...]`. error: its standard error.
        drawn: how many of its own standard errors each draw lies from the ratio, `[..., RESAMPLES]`.
    """

    value: np.ndarray
    error: np.ndarray
    drawn: np.ndarray

    @classmethod
    def of(cls, means: np.ndarray, sizes: np.ndarray) -> "Bootstrap":
        """Of `means [..., G]` over `sizes [G]`."""
        value, variance, scale = cluster_errors(means, sizes)
        return cls(value, np.sqrt(variance), studentised(scale))

    def reach(self) -> tuple[np.ndarray, np.ndarray]:
        """How many errors the interval goes down and up."""
        low, high = np.quantile(self.drawn, (TAIL, 1 - TAIL), axis=-1)
        return high, -low

    def interval(self) -> tuple[np.ndarray, np.ndarray]:
        down, up = self.reach()
        return self.value - down * self.error, self.value + up * self.error


@dataclass(frozen=True)
class Spread:
    """Variances `[...]` of a ratio over new seeds and new clusters, which are crossed; their sum is that over both.

    seeds + clusters - interaction, as of Cameron, Gelbach and Miller, J. Bus. Econ. Stat. 29(2), 2011. The interaction,
    which both hold once, is taken off the clusters: of more of them, theirs is the surer figure. A t for the sum, with
    Satterthwaite's degrees of freedom (Biometrics Bull. 2(6), 1946), covers as little as 92 % with three seeds; a t for
    either part (Howe, J. Am. Stat. Assoc. 69(347), 1974) as much as 98 %. The reach is half-way between the two, never
    less than that of the seeds alone. It covers 93 to 97 %, whatever the share of the interaction, from 20 clusters of
    similar size on, and with 40 whose largest is 8 times the median. Degrees of freedom of clusters are by `effective`:
    by their number, the reach over clusters so unequal covers as little as 92 %. Down and up, clusters count by as much
    as their bootstrap reaches farther there than a t does: where they are spread like an exponential, one reach for
    both sides covers as little as 91 %.

    Attributes:
        value: the ratio. seeds: with the interaction. clusters: without. freedom: degrees of freedom of either.
        skew: how far the bootstrap over clusters reaches down and up, as shares of what a t does.
    """

    value: np.ndarray
    seeds: np.ndarray
    clusters: np.ndarray
    freedom: tuple[float, float]
    skew: tuple[np.ndarray, np.ndarray]

    @classmethod
    def of(cls, sums: np.ndarray, sizes: np.ndarray, bootstrap: Bootstrap) -> "Spread":
        """Of `sums [..., S, G]` over `sizes [G]`; `bootstrap` is of their means over seeds."""
        seeds, figures = sums.shape[-2], sums.sum(-1) / sizes.sum()
        _, clusters, (residuals, _) = cluster_errors(sums.mean(-2), sizes)
        rest = sums - figures[..., None] * sizes - residuals[..., None, :]
        interaction = (rest**2 * _unbiasing(sizes)).sum((-2, -1)) / (seeds - 1) / seeds
        freedom = seeds - 1, effective(sizes) - 1
        skew = tuple(reach / scipy.stats.t.isf(TAIL, freedom[1]) for reach in bootstrap.reach())
        parts = figures.var(-1, ddof=1) / seeds, np.maximum(clusters - interaction, 0)
        return cls(bootstrap.value, *parts, freedom, skew)

    def interval(self) -> tuple[np.ndarray, np.ndarray]:
        return self.value - self.reach(TAIL, upwards=False), self.value + self.reach(TAIL, upwards=True)

    def reach(self, tail: float, upwards: bool) -> np.ndarray:
        """How far from the ratio an interval goes that leaves `tail`, under a half, on that side."""
        parts, freedom = (self.seeds, self.clusters * self.skew[upwards] ** 2), self.freedom
        alone = [scipy.stats.t.isf(tail, each) ** 2 * part for part, each in zip(parts, freedom, strict=True)]
        squares = sum(part**2 / each for part, each in zip(parts, freedom, strict=True))
        total = sum(parts)
        joint = np.divide(total**2, squares, out=np.ones_like(total), where=squares > 0)
        satterthwaite = scipy.stats.t.isf(tail, joint) * np.sqrt(total)
        return np.maximum((np.sqrt(sum(alone)) + satterthwaite) / 2, np.sqrt(alone[0]))

    def tail(self, distance: float, upwards: bool) -> float:
        """The share that is left beyond `distance` from the ratio on that side: the inverse of `reach`."""
        if distance < 0:
            return 1 - self.tail(-distance, not upwards)
        least, most = -200.0, math.log(0.5)  # of the logarithm
        if self.reach(math.exp(least), upwards) <= distance:
            return 0.0 if distance else 0.5
        return math.exp(
            scipy.optimize.brentq(lambda log: self.reach(math.exp(log), upwards) - distance, least, most, xtol=1e-10)
        )
