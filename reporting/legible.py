"""Which models plots show when a comparison has more than there are distinct line styles."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from .drawing import STYLES, Plot
from .lengths import PLAIN, forms_of_all, longest_context, nats_by_context
from .scores import Score
from .study import Comparison
from .tables import Row

MOST = len(STYLES)
MOST_CURVES = 2 * MOST  # of models and their extensions in a plot of context lengths


def legible(comparison: Comparison, found: Sequence[Score]) -> Comparison:
    """The comparison with at most MOST contestants: the reference and those with the lowest loss on the first split."""
    if len(comparison.contestants) <= MOST:
        return comparison
    here = [score for score in found if score.comparison is comparison and score.split == comparison.splits[0]]
    best = sorted(here, key=lambda score: (not score.is_reference, score.nats.value))[:MOST]
    kept = {score.contestant.label for score in best}
    return replace(comparison, contestants=[each for each in comparison.contestants if each.label in kept])


def references_of(comparison: Comparison, found: Sequence[Score]) -> list[str]:
    """Labels of the contestants with which others are compared."""
    return [score.contestant.label for score in found if score.comparison is comparison and score.is_reference]


def legible_lengths(
    found: Mapping[str, Sequence[Sequence[Row]]], references: Sequence[str]
) -> Mapping[str, Sequence[Sequence[Row]]]:
    """At most MOST models: `references` and those with the lowest loss in the longest context, without extensions.

    `found` is as in `lengths_table`, and returned unchanged if it has no more models and at most MOST_CURVES curves.
    """
    if sum(len(forms_of_all(seeds)) for seeds in found.values()) <= MOST_CURVES and len(found) <= MOST:
        return found
    every = plain(found)
    if len(every) <= MOST:
        return every
    longest = longest_context(every)

    def loss(model: str) -> float:
        return float(np.mean([nats_by_context(rows, PLAIN).get(longest, np.inf) for rows in every[model]]))

    best = sorted(every, key=lambda model: (model not in references, loss(model)))[:MOST]
    return {model: every[model] for model in best}


def plain(found: Mapping[str, Sequence[Sequence[Row]]]) -> dict[str, list[list[Row]]]:
    """The rows without extensions."""
    return {
        model: [[row for row in rows if row["stretch"] == PLAIN] for rows in seeds] for model, seeds in found.items()
    }


def noted(plot: Plot | None, shown: Comparison, comparison: Comparison) -> Plot | None:
    """`plot` of `shown`, whose caption says that `comparison` has more models."""
    if plot is None or shown is comparison:
        return plot
    return replace(plot, caption=f"{plot.caption} {which(len(shown.contestants), len(comparison.contestants))}")


def which(shown: int, models: int, claimed: bool = False) -> str:
    """The sentence about models that are left out. `claimed`: those in the claims of a study are not."""
    kept = "the reference, the models in claims" if claimed else "the reference"
    return f"Shown: {kept} and the lowest losses, {shown} of {models} models."
