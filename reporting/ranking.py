"""Mean ranks of models over several data sets, and the difference of ranks that chance rarely reaches."""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import scipy
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from .drawing import BLUE, INK, QUIET, TINT, Plot, rows_of_names, styled, write_plot
from .naming import parenthesised
from .scores import ALPHA, Score
from .tables import Row, Table

DRAWS = 20_000  # up to this number of orders on all data sets but one, the test is exact
FEWEST_MODELS = 3
MOST = 8  # models in a sentence
KEY = "across-ranking"


@dataclass(frozen=True)
class Ranking:
    """The ranks of models on data sets, 1 for the lowest nats/token; models with equal scores share the mean rank.

    Attributes:
        models: labels, lowest mean rank first.
        sets: names of the data sets.
        ranks: `[M, D]`.
        absent: labels of models that some data set lacks, so they have no mean rank.
    """

    models: tuple[str, ...]
    sets: tuple[str, ...]
    ranks: np.ndarray
    absent: tuple[str, ...] = ()

    @property
    def means(self) -> np.ndarray:
        """Mean rank of each model, `[M]`."""
        return self.ranks.mean(1)

    @cached_property
    def critical(self) -> float | None:
        """The lowest difference of mean ranks that is significant at the 5 % level; None if none is.

        It is significant for all pairs of models together: under the hypothesis that all models are equal, so that
        every order is equally likely on each data set, the largest difference reaches it with a probability of at
        most 5 %. Nemenyi's test (Demšar, JMLR 7, 2006, section 3.2.2) has the limit of this distribution for many
        data sets; here all orders are tried or, if there are too many, drawn.
        """
        if len(self.sets) == 1:  # any order has the same largest difference
            return None
        widths, counts = np.unique(np.ptp(_sums(self.ranks), axis=1), return_counts=True)
        reached = np.cumsum(counts[::-1])[::-1] / counts.sum()
        found = widths[reached <= ALPHA]
        return float(found[0]) / len(self.sets) if len(found) else None

    @property
    def groups(self) -> list[tuple[int, int]]:
        """First and last place of each largest group of models whose mean ranks do not differ significantly."""
        critical = np.inf if self.critical is None else self.critical - 1e-9
        lasts = [int(np.searchsorted(self.means, mean + critical)) - 1 for mean in self.means]
        return [
            (first, last)
            for first, last in enumerate(lasts)
            if last > first and (first == 0 or last > lasts[first - 1])
        ]

    @property
    def finding(self) -> str:
        """What the plot shows, in a sentence."""
        last = next((last for first, last in self.groups if first == 0), 0)
        best, *others = map(parenthesised, self.models[: last + 1])
        shown = f"Lowest mean rank: {best}, {self.means[0]:.2f}."
        return f"{shown} Not significantly higher: {_some(others) or 'none'}."


def _some(models: Sequence[str]) -> str:
    """Models in a sentence; of many, the first few and how many follow."""
    more = len(models) - MOST
    return ", ".join(models) if more <= 1 else f"{', '.join(models[:MOST])} and {more} more"


def _shared_name(score: Score) -> str:
    """The name by which a model is found on other data sets, where other settings of its encoding may be compared.

    This is the encoding if the model is its only one on this data set, or the only one with the default options.
    """
    contestant = score.contestant
    alike = [each for each in score.comparison.chosen if each.encoding == contestant.encoding]
    if len(alike) > 1:
        alike = [each for each in alike if not each.model.get("options")]
    return contestant.encoding if alike == [contestant] else contestant.label


def _sums(ranks: np.ndarray) -> np.ndarray:
    """Sums of `ranks [M, D]` over data sets in random orders of the models, `[orders, M]`.

    The order on the first data set is fixed, because only differences between models are of interest.
    """
    first, *others = ranks.T
    sums, number = first[None], len(first)
    if math.factorial(number) ** len(others) <= DRAWS:
        orders = np.array([*itertools.permutations(range(number))])
        for column in others:
            sums = (sums[:, None] + column[orders]).reshape(-1, number)
        return sums
    random = np.random.default_rng(0)
    for column in others:
        sums = sums + random.permuted(np.broadcast_to(column, (DRAWS, number)), axis=1)
    return sums


def ranking_of(found: Sequence[Score]) -> Ranking | None:
    """The ranking of the models that all data sets have; None where no difference of ranks could be significant.

    A data set is the first test split of a comparison with at least three models. Domains with several comparisons are
    left out, because their ranks are not independent, and so are tasks with right answers, in which models share the
    first rank by solving them. A model with several names is ranked once.
    """
    usable = [score for score in found if score.chosen and not score.pooled and score.comparison.solved is None]
    usable = [score for score in usable if score.contestant.label not in score.comparison.copies]
    comparisons = {score.comparison.slug: score.comparison for score in usable}
    domains = [comparison.domain for comparison in comparisons.values()]
    nats: dict[str, dict[str, float]] = {}
    for score in usable:
        comparison = score.comparison
        if domains.count(comparison.domain) == 1 and score.split == comparison.splits[0]:
            nats.setdefault(comparison.name, {})[_shared_name(score)] = score.nats.value
    return ranked({name: each for name, each in nats.items() if len(each) >= FEWEST_MODELS})


def ranked(nats: Mapping[str, Mapping[str, float]]) -> Ranking | None:
    """The ranking by `nats` per data set and model of the models that all data sets have; None as in `ranking_of`."""
    models = sorted(set.intersection(*map(set, nats.values()))) if nats else []
    if len(models) < FEWEST_MODELS:
        return None
    ranks = np.stack([scipy.stats.rankdata([each[model] for model in models]) for each in nats.values()], 1)
    order = np.argsort(ranks.mean(1), kind="stable")
    absent = tuple(sorted(set().union(*nats.values()) - {*models}))
    ranking = Ranking(tuple(models[i] for i in order), tuple(nats), ranks[order], absent)
    return None if ranking.critical is None else ranking


def ranking_table(ranking: Ranking) -> Table:
    """The mean rank of each model and its rank on each data set."""
    rows: list[Row] = [
        {"model": model, "mean_rank": float(ranks.mean()), **dict(zip(ranking.sets, ranks.tolist(), strict=True))}
        for model, ranks in zip(ranking.models, ranking.ranks, strict=True)
    ]
    columns = {"model": ("model", str), "mean_rank": ("mean rank", "{:.2f}".format)}
    columns |= {name: (name, "{:g}".format) for name in ranking.sets}
    notes = [
        "Ranks by nats/token, 1 for the lowest. The difference of two mean ranks is significant from "
        f"{ranking.critical:.2f} on, for all pairs together (Nemenyi's test, by permutation; Demšar, JMLR 7, 2006). "
        f"Domains with several comparisons or fewer than {FEWEST_MODELS} models are left out, and so are tasks with "
        "right answers."
    ]
    if ranking.absent:
        notes.append(f"Not ranked, because some data set lacks them: {_some([*map(parenthesised, ranking.absent)])}.")
    return Table(KEY, "Mean ranks over data sets", columns, rows, notes)


@styled
def ranking_plot(ranking: Ranking, folder: Path) -> Plot:
    """The critical-difference diagram: ranks on each data set, their mean, and what is close to the lowest mean."""
    number, critical = len(ranking.models), ranking.critical or 0.0
    figure = Figure(figsize=(7.2, 1.4 + 0.3 * number), layout="constrained")
    axes = figure.add_subplot()
    heights = np.arange(number)[::-1]
    step = 0.5 / len(ranking.sets)  # between possible mean ranks: one that is significantly higher is not on the edge
    axes.axvspan(ranking.means[0], ranking.means[0] + critical - step / 2, color=TINT, linewidth=0, zorder=0)
    axes.hlines(heights, ranking.ranks.min(1), ranking.ranks.max(1), color=QUIET, linewidth=0.8, zorder=1)
    axes.plot(ranking.ranks, np.broadcast_to(heights[:, None], ranking.ranks.shape), "|", color=QUIET, markersize=8)
    axes.plot(ranking.means, heights, "o", color=BLUE, markersize=6, zorder=3)
    beside = {"transform": axes.get_yaxis_transform(), "clip_on": False}
    for at, (low, high) in enumerate(ranking.groups):
        ends = [heights[low] + 0.25, heights[high] - 0.25]
        axes.plot([1.02 + 0.015 * at] * 2, ends, color=INK, linewidth=2.5, solid_capstyle="butt", **beside)
    rows_of_names(axes, ranking.models)
    axes.set(xlim=(0.8, number + 0.2), xlabel="rank by nats/token (lower is better)")
    axes.xaxis.set_major_locator(MaxNLocator(8, integer=True))
    rows: list[Row] = [
        {"model": model, "mean": float(mean), "critical_difference": critical}
        for model, mean in zip(ranking.models, ranking.means, strict=True)
    ]
    caption = (
        f"Dot: mean over {', '.join(ranking.sets)}; small marks: rank on each. Shaded: mean ranks that do not differ "
        "significantly from the lowest. Bars at the right: groups in which no two differ significantly. Differences "
        f"are significant from {critical:.2f} on."
    )
    return write_plot(figure, folder / KEY, rows, "Mean ranks over data sets", caption)
