"""Tasks with right answers: the error of each seed, the solve rate with its exact interval, and the take-off."""

from dataclasses import dataclass
from functools import lru_cache

import scipy

from .contestant import Contestant
from .intervals import CONFIDENCE
from .losses import Curve
from .study import Comparison

Rate = tuple[int, int]  # number of solved seeds, number of seeds


@dataclass(frozen=True)
class Solving:
    """What a contestant solved on a split. A mean over seeds would describe neither those that solve it nor the rest.

    Attributes:
        accuracies: accuracy of each seed whose training finished, seeds in ascending order.
        rate: how many seeds reach the domain's `solved`; those whose training diverged do not.
        interval: 95 % interval of the solve rate.
        take_off: for each seed of `accuracies`, the step that `take_off` finds.
    """

    accuracies: tuple[float, ...]
    rate: Rate
    interval: tuple[float, float]
    take_off: tuple[int | None, ...]


def solving(comparison: Comparison, split: str, contestant: Contestant) -> Solving | None:
    """What `contestant` solved; None if the domain has no right answers, or if they were not counted."""
    runs = [contestant.runs[seed] for seed in sorted(contestant.runs)]
    counted = [run.records[split].accuracy for run in runs]
    accuracies = tuple(accuracy for accuracy in counted if accuracy is not None)
    if comparison.solved is None or len(accuracies) < len(runs):
        return None
    rate = sum(accuracy >= comparison.solved for accuracy in accuracies), len(trained_seeds(comparison, contestant))
    steps = tuple(take_off(run.curve, comparison.half_way) for run in runs)
    return Solving(accuracies, rate, exact_interval(*rate), steps)


def trained_seeds(comparison: Comparison, contestant: Contestant) -> set[int]:
    """The seeds of a contestant, with those whose training diverged."""
    return {*contestant.runs, *(run.seed for run in comparison.diverged.get(contestant.label, ()))}


@lru_cache
def exact_interval(solved: int, seeds: int) -> tuple[float, float]:
    """95 % interval of a solve rate (Clopper and Pearson, Biometrika 26(4), 1934)."""
    found = scipy.stats.binomtest(solved, seeds).proportion_ci(CONFIDENCE, method="exact")
    return float(found.low), float(found.high)


@lru_cache
def rates_p(one: Rate, other: Rate) -> float:
    """Two-sided p of equal solve rates, unpaired and exact (Boschloo, Statistica Neerlandica 24(1), 1970)."""
    table = [[one[0], other[0]], [one[1] - one[0], other[1] - other[0]]]  # SciPy reads a sample in each column
    return float(scipy.stats.boschloo_exact(table).pvalue)


def take_off(curve: Curve, accuracy: float) -> int | None:
    """The first step at which validation reaches `accuracy`; None if it never does."""
    if (validated := curve.get("valid_accuracy")) is None:
        return None
    return next(iter(validated.steps[validated.values >= accuracy].tolist()), None)
