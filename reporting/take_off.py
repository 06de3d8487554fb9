"""When models take off on tasks with right answers: survival curves and log-rank tests over seeds."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import scipy
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, MaxNLocator, PercentFormatter

from .contestant import Contestant
from .drawing import Plot, legend_above, styled, wrapped, write_plot
from .naming import parenthesised
from .scores import ALPHA
from .solving import take_off
from .statistics import FEWEST_SEEDS, holm
from .study import Comparison, Study, coming, joined
from .tables import Row, Table, at_least, p_value

HALF = 0.5 + 1e-9  # a share of exactly 1/2, as a product of shares, can exceed it by rounding
DIGITS = 9  # of a log-rank statistic: equal sums of scores in another order differ by rounding
RESAMPLES = 20_000  # up to this number of assignments of seeds to models, the test is exact
NEVER = "not reached"


@dataclass(frozen=True)
class TakeOff:
    """The take-off of each seed of a model: its first validation with enough right answers.

    Attributes:
        steps: step of the take-off or, if there was none, of the last validation, `[S]`.
        reached: whether the seed took off, `[S]`.
    """

    steps: np.ndarray
    reached: np.ndarray

    @classmethod
    def of(cls, contestant: Contestant, accuracy: float) -> "TakeOff | None":
        """The first validation of each seed with at least this `accuracy`; None if a seed has no validation."""
        steps, reached = [], []
        for seed in sorted(contestant.runs):
            curve = contestant.runs[seed].curve
            if "valid_accuracy" not in curve:
                return None
            found = take_off(curve, accuracy)
            steps.append(curve["valid_accuracy"].steps[-1] if found is None else found)
            reached.append(found is not None)
        return cls(np.array(steps), np.array(reached))

    @property
    def survival(self) -> tuple[np.ndarray, np.ndarray]:
        """The Kaplan-Meier estimate: steps, and the share of seeds that have not taken off after each."""
        found = scipy.stats.ecdf(scipy.stats.CensoredData.right_censored(self.steps, ~self.reached)).sf
        return found.quantiles, found.probabilities

    @property
    def median(self) -> int | None:
        """The first step after which at most half of the seeds have not taken off; None if there is none."""
        steps, shares = self.survival
        return next((int(step) for step, share in zip(steps, shares, strict=True) if share <= HALF), None)


def log_rank_scores(one: TakeOff, other: TakeOff) -> tuple[np.ndarray, np.ndarray]:
    """Log-rank scores of the seeds of two models, higher for those that take off earlier; all of them sum to 0."""
    steps, reached = (np.concatenate(pair) for pair in ((one.steps, other.steps), (one.reached, other.reached)))
    at, place = np.unique(steps, return_inverse=True)
    waiting = (steps >= at[:, None]).sum(1)
    hazard = np.cumsum(np.bincount(place, reached, len(at)) / waiting)
    scores = reached - hazard[place]
    return scores[: len(one.steps)], scores[len(one.steps) :]


def log_rank_p(one: TakeOff, other: TakeOff) -> float | None:
    """Two-sided p of equal take-off: a permutation test of log-rank scores (Peto and Peto, JRSS A 135(2), 1972).

    The log-rank statistic is the sum of one model's scores. With few seeds its usual chi-squared distribution is a poor
    approximation. None if one model has fewer than FEWEST_SEEDS.
    """
    if min(len(one.steps), len(other.steps)) < FEWEST_SEEDS:
        return None
    found = scipy.stats.permutation_test(
        log_rank_scores(one, other),
        lambda mine, theirs, axis: mine.sum(axis).round(DIGITS),
        vectorized=True,
        n_resamples=RESAMPLES,
        rng=np.random.default_rng(0),
    )
    return float(found.pvalue)


def take_offs(comparison: Comparison) -> dict[str, TakeOff]:
    """The take-off of every model with validations, by label; empty without right answers."""
    if comparison.solved is None:
        return {}
    found = {each.label: TakeOff.of(each, comparison.half_way) for each in comparison.contestants}
    return {label: each for label, each in found.items() if each is not None}


def take_off_tables(study: Study, reference: str) -> dict[str, Table]:
    """When each chosen model takes off, first the earliest, and log-rank tests against `reference`.

    P-values are adjusted as those of scores are (see `scores.adjusted`).

    Returns:
        A table for each comparison in which a model takes off, by the name of the comparison.
    """
    found = {here.name: _rows(here, reference) for here in study.comparisons}
    for studies in joined(here.studies for here in study.comparisons):
        family = [row for here in study.comparisons if here.studies <= studies for row in found[here.name]]
        tested = [row for row in family if row["p"] is not None]
        tests = [*(row["p"] for row in tested), *[1.0] * coming(study.unmade, studies)]
        for row, p in zip(tested, holm(tests), strict=False):
            row["holm_p"] = p
    return {
        here.name: _table(here, reference, found[here.name])
        for here in study.comparisons
        if any(np.isfinite(row["steps"]).any() for row in found[here.name])
    }


def _rows(comparison: Comparison, reference: str) -> list[Row]:
    """The rows of the table of one comparison, without adjusted p-values."""
    found = take_offs(comparison)
    rows: list[Row] = []
    for contestant in comparison.chosen:
        if (mine := found.get(contestant.label)) is None:
            continue
        against = comparison.reference(contestant, reference)
        theirs = None if against is None or against is contestant else found.get(against.label)
        rows.append(
            {
                "model": contestant.label,
                "against": None if against is None or theirs is None else against.label,
                "earlier": None if theirs is None else bool(log_rank_scores(mine, theirs)[0].sum() > 0),
                "seeds": len(mine.steps),
                "steps": np.sort(np.where(mine.reached, mine.steps, np.inf)),
                "reached": f"{mine.reached.sum()} of {len(mine.steps)}",
                "median": NEVER if mine.median is None else f"{mine.median:,}",
                "p": None if theirs is None else log_rank_p(mine, theirs),
            }
        )
    return sorted(rows, key=lambda row: (row["median"] == NEVER, row["steps"].tolist()))


def _table(comparison: Comparison, reference: str, rows: list[Row]) -> Table:
    columns = {
        "model": ("model", str),
        "seeds": ("seeds", str),
        "reached": ("took off", str),
        "median": ("median step", str),
        "p": (f"p against {reference}", p_value),
        "holm_p": ("Holm p", p_value),
    }
    notes = [
        f"Take-off: the first validation with at least {100 * comparison.half_way:.3g} % right. Median: of the "
        "Kaplan-Meier estimate, in which a seed that has not taken off is censored at its last validation.",
    ]
    if any(row["p"] is not None for row in rows):
        notes.append(
            "p: log-rank test over seeds, by permutation (Peto and Peto, JRSS A 135(2), 1972). Holm p: adjusted for "
            "all such tests of the study, and for those that it still plans."
        )
    return Table(f"{comparison.slug}-take-off", f"{comparison.name}: take-off", columns, rows, notes)


def take_off_sentence(table: Table) -> str | None:
    """The results of the tests in one of `take_off_tables`; None if nothing was tested."""
    rows = {row["model"]: row for row in table.rows}
    decided, undecided = [], []
    for row in table.rows:
        if (p := row.get("holm_p")) is None:
            continue
        other, model, reference = rows[row["against"]], parenthesised(row["model"]), parenthesised(row["against"])
        steps = f"median step {row['median']} against {other['median']}"
        if row["median"] == other["median"] == NEVER:
            steps = "median step not reached by either"
        seen = f"{row['reached']} seeds against {other['reached']}, {steps}, adjusted p {p_value(p)}"
        if p < ALPHA:
            decided.append(f"{model} takes off {'earlier' if row['earlier'] else 'later'} than {reference} ({seen})")
        else:
            undecided.append(f"{model} against {reference} is undecided ({seen})")
    if len(undecided) > 1:
        least = min(row["holm_p"] for row in table.rows if (row.get("holm_p") or 0.0) >= ALPHA)
        undecided = [f"{len(undecided)} differences are undecided (adjusted p {at_least(least)})"]
    return f"Take-off: {'; '.join([*decided, *undecided])}" if decided or undecided else None


@styled
def take_off_plot(comparison: Comparison, styles: Mapping[str, dict], folder: Path) -> Plot | None:
    """The share of seeds that have taken off, by optimiser step; None if all seeds have or none has."""
    found = take_offs(comparison)
    if len({reached for each in found.values() for reached in each.reached.tolist()}) < 2:
        return None
    last = max(int(each.steps.max()) for each in found.values())
    figure = Figure(figsize=(7.2, 3.6), layout="constrained")
    axes, named, rows = figure.add_subplot(), {}, []
    for label, each in found.items():
        points = [(0, 1.0), *((int(step), float(share)) for step, share in zip(*each.survival, strict=True))]
        if points[-1][0] < last:
            points.append((last, points[-1][1]))
        at, taken = [step for step, _ in points], [100 * (1 - share) for _, share in points]
        name = wrapped(label)
        (named[name],) = axes.step(at, taken, where="post", label=name, **styles[label])
        rows += [
            {"model": label, "step": step, "percent": share, "seeds": len(each.steps)}
            for step, share in zip(at, taken, strict=True)
        ]
    axes.set(xlabel="optimiser step", ylabel="seeds that have taken off")
    axes.set_ylim(-4, 104)
    axes.yaxis.set_major_formatter(PercentFormatter(symbol=" %"))
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    legend_above(figure, named)
    stem = folder / f"{comparison.slug}-take-off"
    caption = (
        f"Share of seeds with at least {100 * comparison.half_way:.3g} % right on the validation split by that step "
        "(Kaplan-Meier estimate)."
    )
    return write_plot(figure, stem, rows, f"{comparison.name}: take-off", caption)
