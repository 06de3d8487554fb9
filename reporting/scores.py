"""Scores of contestants on a split, their differences from the reference, and the verdicts."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from .contestant import Contestant
from .intervals import CONFIDENCE
from .naming import settings_of
from .solving import Solving, rates_p, solving, trained_seeds
from .statistics import (
    FEWEST_SEEDS,
    Difference,
    Estimate,
    by_cluster,
    difference,
    estimate,
    holm,
)
from .study import MOST_SETTINGS, Comparison, Study, coming, differing, joined

ALPHA = 1 - CONFIDENCE
FEW_SEEDS = "not enough seeds"  # verdict


@dataclass(frozen=True)
class Score:
    """One contestant on one split.

    Attributes:
        nats: nats/token.
        bits: bits per unit, by unit.
        against: the reference; the contestant itself if it is the reference, None if there is none.
        difference: in nats/token; None if nothing is compared, or if solve rates are compared instead.
        solving: what it solved; None if the domain has no right answers.
        theirs: what the reference solved, if the two are compared.
        chosen: whether its learning rate is the best on validation.
        pooled: number of settings that its difference is averaged over, 0 if it is not pooled.
        part: whether it is one of the settings of a pooled difference.
        holm_p: p of a difference of 0, adjusted over the differences of its study; see `adjusted`.
        holm_equivalence_p: p of a difference outside the margin, adjusted likewise.
        tests: number of tests that `holm_p` is adjusted for.
        hinges: whether a dominating cluster decides: nothing is shown, but it would be with it alone or without it.
    """

    comparison: Comparison
    split: str
    contestant: Contestant
    nats: Estimate
    bits: Mapping[str, Estimate]
    against: Contestant | None
    difference: Difference | None
    solving: Solving | None = None
    theirs: Solving | None = None
    chosen: bool = True
    pooled: int = 0
    part: bool = False
    holm_p: float | None = None
    holm_equivalence_p: float | None = None
    tests: int = 1
    hinges: bool = False

    @property
    def place(self) -> str:
        """The short name of its comparison, with the split if the comparison has several."""
        several = len(self.comparison.splits) > 1
        return f"{self.comparison.name}, {self.split}" if several else self.comparison.name

    @property
    def is_reference(self) -> bool:
        return self.against is self.contestant

    @property
    def compared(self) -> tuple[Contestant, Difference] | None:
        """The reference and the difference from it; None if there is no difference."""
        return None if self.against is None or self.difference is None else (self.against, self.difference)

    @property
    def tested_against(self) -> Contestant | None:
        """The reference whose score or solve rate it is compared with; None if nothing is compared."""
        return None if self.difference is None and self.theirs is None else self.against

    @property
    def p(self) -> float | None:
        """Unadjusted p of the deciding test; None if there is none."""
        if self.difference is not None:
            return self.difference.deciding[0]
        return None if self.solving is None or self.theirs is None else rates_p(self.solving.rate, self.theirs.rate)

    @property
    def equivalence_p(self) -> float | None:
        """Unadjusted p of the equivalence test; None if there is none."""
        return self.difference and self.difference.deciding[1]

    @property
    def lenient(self) -> tuple[float | None, float | None]:
        """`p` and `equivalence_p`; if one cluster dominates, the smaller of each with and without it."""
        return (self.p, None) if self.difference is None else self.difference.lenient

    @property
    def verdict(self) -> str:
        """The conclusion at the 5 % level after adjustment; lower nats are better."""
        if not self.chosen:
            return "rate not chosen"
        if self.is_reference:
            return "reference"
        if self.against is None:
            return "no reference"
        common = self.contestant.runs.keys() & self.against.runs.keys()
        if self.theirs is None and (self.difference.pairs if self.difference else len(common)) < FEWEST_SEEDS:
            return FEW_SEEDS
        if self.part:
            return "pooled"
        different, alike = (p is not None and p < ALPHA for p in (self.holm_p, self.holm_equivalence_p))
        if self.solving is not None and self.theirs is not None:
            (mine, seeds), (theirs, others) = self.solving.rate, self.theirs.rate
            more = "more" if mine / seeds > theirs / others else "less"
            return f"solves {more} often" if different else "undecided"
        if self.holm_p is None or self.difference is None:
            return "not enough clusters"
        if different:
            return ("lower" if self.difference.value < 0 else "higher") + (", within the margin" if alike else "")
        if alike:
            return "equivalent"
        return "one cluster dominates" if self.hinges else "undecided"


def study_scores(study: Study, reference: str, margin: float | None = None) -> list[Score]:
    """Scores of all contestants of all comparisons on all test splits; p-values are adjusted within each study.

    Args:
        reference: the encoding or label that the others are compared with.
        margin: margin of equivalence in nats/token; None for that of each comparison.
    """
    found = []
    for each in study.comparisons:
        for split in each.splits:
            found += scores(each, split, reference, each.margin if margin is None else margin)
    return adjusted(with_pooled(found), study.unmade)


def scores(comparison: Comparison, split: str, reference: str, margin: float) -> list[Score]:
    """Unadjusted scores of all contestants of a comparison on one split; see `study_scores`."""
    found = []
    for contestant in comparison.contestants:
        records = contestant.any_run.records[split]
        tokens = by_cluster(records.tokens, records.clusters)
        units = by_cluster(records.units.T, records.clusters)
        sums = _sums(contestant, split, contestant.runs)
        bits = {
            unit: estimate(sums / math.log(2), units[i])
            for i, unit in enumerate(records.unit_names)
            if units[i].sum() > 0
        }
        nats, against = estimate(sums, tokens), comparison.reference(contestant, reference)
        chosen, solved = contestant in comparison.chosen, solving(comparison, split, contestant)
        score = Score(comparison, split, contestant, nats, bits, against, None, solved, chosen=chosen)
        if score.chosen and against is not None and not score.is_reference:
            seeds = sorted(contestant.runs.keys() & against.runs.keys())
            if solved is None and seeds:
                paired = difference(_sums(contestant, split, seeds), _sums(against, split, seeds), tokens, margin)
                score = replace(score, difference=paired)
            elif solved is not None:
                trained = trained_seeds(comparison, contestant) & trained_seeds(comparison, against)
                if len(trained) >= FEWEST_SEEDS:
                    score = replace(score, theirs=solving(comparison, split, against))
        found.append(score)
    return found


def with_pooled(found: Sequence[Score]) -> list[Score]:
    """The scores, followed by the mean difference of each group of a study's variants.

    Variants share their test set and seeds. They are averaged within each seed and cluster, so the seed remains the
    unit of analysis.
    """
    groups: dict[tuple, list[tuple[int, Contestant, Difference]]] = {}
    variants = {
        studies: {key for score in found if score.comparison.studies <= studies for key in score.comparison.variants}
        for studies in joined(score.comparison.studies for score in found)
    }
    for i, score in enumerate(found):
        studies = next(each for each in variants if score.comparison.studies <= each)
        if variants[studies] and score.compared is not None:
            against, paired = score.compared
            shared = {key: value for key, value in score.comparison.facts.items() if key not in variants[studies]}
            labels = score.contestant.label, against.label
            key = (studies, score.split, *labels, repr(sorted(shared.items())))
            groups.setdefault(key, []).append((i, against, paired))
    result = list(found)
    for group in groups.values():
        members = [found[i] for i, _, _ in group]
        references = [against for _, against, _ in group]
        sides = zip(members, references, strict=True)
        seeds = set.intersection(*({*one.contestant.runs} & {*other.runs} for one, other in sides))
        if len(members) > 1 and seeds:
            for i, _, _ in group:
                result[i] = replace(result[i], part=True)
            result.append(_pooled(members, references, sorted(seeds), group[0][2].margin))
    return result


def _pooled(members: Sequence[Score], references: Sequence[Contestant], seeds: Sequence[int], margin: float) -> Score:
    first = members[0]
    records = first.contestant.any_run.records[first.split]
    tokens = by_cluster(records.tokens, records.clusters)
    one, other = (
        np.mean([_sums(each, first.split, seeds) for each in side], 0)
        for side in ([each.contestant for each in members], references)
    )
    settings, shared = f"{len(members)} settings", dict(first.comparison.different)
    for key in {key for each in members for key in differing(first.comparison.facts, [each.comparison.facts])}:
        shared.pop(key, None)
    name = ", ".join([first.comparison.domain, settings, *settings_of(shared)[:MOST_SETTINGS]])
    comparison = replace(first.comparison, different={**shared, "pooled": settings}, name=name)
    paired, nats = difference(one, other, tokens, margin), estimate(one, tokens)
    return replace(first, comparison=comparison, nats=nats, bits={}, difference=paired, pooled=len(members))


def _sums(contestant: Contestant, split: str, seeds) -> np.ndarray:
    """Nats by seed and cluster, `[S, G]`."""
    return by_cluster(contestant.nats(split, sorted(seeds)), contestant.any_run.records[split].clusters)


def adjusted(found: Sequence[Score], unmade: Mapping[Path, int]) -> list[Score]:
    """The scores with p adjusted by Holm's method within each study. Parts of pooled differences are not tested.

    Studies with runs in the same comparison count as one. Models that a study lists and cannot test yet count as tests
    on each split, so that its p-values are not lower while it is unfinished.

    Args:
        unmade: number of such models by study, as in `Study`.
    """
    result = list(found)
    for studies in joined(score.comparison.studies for score in found):
        family = [i for i, score in enumerate(found) if not score.part and score.comparison.studies <= studies]
        splits = max(len(found[i].comparison.splits) for i in family)
        planned = splits * coming(unmade, studies)
        for name, of, lenient in (("holm_equivalence_p", "equivalence_p", 1), ("holm_p", "p", 0)):
            tested = [i for i in family if getattr(result[i], of) is not None]
            tests = [*(getattr(result[i], of) for i in tested), *[1.0] * planned]
            for place, (i, p) in enumerate(zip(tested, holm(tests), strict=False)):
                otherwise = [*tests[:place], result[i].lenient[lenient], *tests[place + 1 :]]
                hinges = result[i].hinges or holm(otherwise)[place] < ALPHA <= p
                result[i] = replace(result[i], **{name: p}, tests=len(tests), hinges=hinges)
    return result
