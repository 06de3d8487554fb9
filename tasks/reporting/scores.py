"""What a contestant scores on a split, how far it is from the reference, and what that difference says."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from bearings.tasks.reporting.statistics import (
    CONFIDENCE,
    FEWEST_SEEDS,
    Difference,
    Estimate,
    by_cluster,
    difference,
    estimate,
    holm,
)
from bearings.tasks.reporting.study import Comparison, Contestant

ALPHA = 1 - CONFIDENCE


@dataclass(frozen=True)
class Score:
    """One contestant on one split.

    Attributes:
        nats: nats a token. bits: bits a unit, by unit.
        against: label of the reference; None for the reference itself and where there is none.
        difference: in nats a token, None with `against`.
        holm_p, holm_equivalence_p: adjusted over the scores that are shown together.
        accuracy: mean over seeds, and solved: how many seeds reached the task's bar; None where answers are not right
            or wrong.
    """

    comparison: Comparison
    split: str
    contestant: Contestant
    nats: Estimate
    bits: Mapping[str, Estimate]
    against: Contestant | None
    difference: Difference | None
    accuracy: float | None
    solved: int | None
    holm_p: float | None = None
    holm_equivalence_p: float | None = None

    @property
    def is_reference(self) -> bool:
        return self.against is self.contestant

    @property
    def verdict(self) -> str:
        """What the difference says at 5 %, adjusted; nats, so that lower is better."""
        if self.is_reference:
            return "reference"
        if self.difference is None:
            return "no reference"
        if self.difference.pairs < FEWEST_SEEDS:
            return "not enough seeds"
        if self.holm_p is None:
            return "not enough clusters"
        alike = self.holm_equivalence_p < ALPHA
        if self.holm_p < ALPHA:
            return ("lower" if self.difference.value < 0 else "higher") + (", within the margin" if alike else "")
        return "no difference" if alike else "undecided"


def scores(comparison: Comparison, split: str, reference: str, margin: float) -> list[Score]:
    """Every contestant of a comparison on one split.

    Args:
        reference: encoding that the others are compared with. margin: of equivalence, as a share of its nats a token.
    """
    found = []
    for contestant in comparison.contestants:
        records = contestant.any_run.records[split]
        tokens = by_cluster(records.tokens, records.clusters)
        units = by_cluster(records.units.T, records.clusters)
        sums = by_cluster(contestant.nats(split, sorted(contestant.runs)), records.clusters)
        bits = {
            unit: estimate(sums / math.log(2), units[i])
            for i, unit in enumerate(records.unit_names)
            if units[i].sum() > 0
        }
        against = comparison.reference(contestant, reference)
        paired = None
        if against is not None and against is not contestant:
            seeds = sorted(contestant.runs.keys() & against.runs.keys())
            if seeds:
                one, other = (by_cluster(each.nats(split, seeds), records.clusters) for each in (contestant, against))
                level = other.mean(0).sum() / tokens.sum()
                paired = difference(one, other, tokens, margin * level)
        accuracies = [run.records[split].accuracy for run in contestant.runs.values()]
        known = comparison.solved is not None and None not in accuracies
        found.append(
            Score(
                comparison,
                split,
                contestant,
                estimate(sums, tokens),
                bits,
                against,
                paired,
                float(np.mean(accuracies)) if known else None,
                sum(accuracy >= comparison.solved for accuracy in accuracies) if known else None,
            )
        )
    return adjusted(found)


def adjusted(family: Sequence[Score]) -> list[Score]:
    """The scores with Holm's p over all of them."""
    result = list(family)
    for name, of in (("holm_p", "both_p"), ("holm_equivalence_p", "equivalence_p")):
        tested = [i for i, score in enumerate(result) if score.difference and getattr(score.difference, of) is not None]
        for i, p in zip(tested, holm([getattr(result[i].difference, of) for i in tested]), strict=True):
            result[i] = replace(result[i], **{name: p})
    return result
