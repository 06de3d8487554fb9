"""What a contestant scores on a split, how far it is from the reference, and what that difference says."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from .intervals import CONFIDENCE
from .solving import Solving, rates_p, solving
from .statistics import (
    FEWEST_SEEDS,
    Difference,
    Estimate,
    by_cluster,
    difference,
    estimate,
    holm,
)
from .study import Comparison, Contestant, Study

ALPHA = 1 - CONFIDENCE


@dataclass(frozen=True)
class Score:
    """One contestant on one split.

    Attributes:
        nats: nats a token. bits: bits a unit, by unit.
        against: the reference; the contestant itself where it is the reference, None where there is none.
        difference: in nats a token, None where nothing is compared and where the solve rate decides.
        solving: what it has solved, None where answers are not right or wrong; theirs: what the reference has, where
            the two are compared.
        chosen: whether no other learning rate of it is better on validation.
        pooled: how many settings its difference is the mean of, 0 for one; part: whether it is one of those.
        holm_p, holm_equivalence_p: adjusted over the differences of its study.
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

    @property
    def is_reference(self) -> bool:
        return self.chosen and self.against is self.contestant

    @property
    def compared(self) -> tuple[Contestant, Difference] | None:
        """The reference and the difference from it; None where there is no difference."""
        return None if self.against is None or self.difference is None else (self.against, self.difference)

    @property
    def p(self) -> float | None:
        """Of the test that decides, not adjusted; None where there is none."""
        if self.difference is not None:
            return self.difference.deciding[0]
        return None if self.solving is None or self.theirs is None else rates_p(self.solving.rate, self.theirs.rate)

    @property
    def equivalence_p(self) -> float | None:
        """Of the test of equivalence, not adjusted; None where there is none."""
        return self.difference and self.difference.deciding[1]

    @property
    def verdict(self) -> str:
        """What the difference says at 5 %, adjusted; nats, so that lower is better."""
        if not self.chosen:
            return "rate not chosen"
        if self.is_reference:
            return "reference"
        if self.against is None:
            return "no reference"
        if len(self.contestant.runs.keys() & self.against.runs.keys()) < FEWEST_SEEDS:
            return "not enough seeds"
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
            return "no difference"
        return "one cluster dominates" if self.difference.dominated else "undecided"


def study_scores(study: Study, reference: str, margin: float | None = None) -> list[Score]:
    """Every contestant of every comparison on every split that is tested; p is adjusted by study.

    Args:
        reference: encoding that the others are compared with.
        margin: of equivalence, in nats a token; None for the domain's own.
    """
    found = []
    for each in study.comparisons:
        for split in each.splits:
            found += scores(each, split, reference, each.margin if margin is None else margin)
    return adjusted(with_pooled(found))


def scores(comparison: Comparison, split: str, reference: str, margin: float) -> list[Score]:
    """Every contestant of a comparison on one split, not adjusted; see `study_scores`."""
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
            elif len(seeds) >= FEWEST_SEEDS:
                score = replace(score, theirs=solving(comparison, split, against))
        found.append(score)
    return found


def with_pooled(found: Sequence[Score]) -> list[Score]:
    """The scores, followed by one for each group of a study's variants: their mean difference.

    Variants share their test set and their seeds: the mean over them is taken within each seed and cluster, so that the
    seed remains the unit.
    """
    groups: dict[tuple, list[tuple[int, Contestant, Difference]]] = {}
    for i, score in enumerate(found):
        listed = score.comparison.listed
        if listed.variants and score.compared is not None:
            against, paired = score.compared
            shared = {key: value for key, value in score.comparison.facts.items() if key not in listed.variants}
            labels = score.contestant.label, against.label
            key = (listed.place, score.split, *labels, repr(sorted(shared.items())))
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
    title = replace(first.comparison, different={"pooled": f"{len(members)} settings"})
    paired = difference(one, other, tokens, margin)
    return replace(first, comparison=title, nats=estimate(one, tokens), bits={}, difference=paired, pooled=len(members))


def _sums(contestant: Contestant, split: str, seeds) -> np.ndarray:
    """Nats of each seed and cluster, `[S, G]`."""
    return by_cluster(contestant.nats(split, sorted(seeds)), contestant.any_run.records[split].clusters)


def adjusted(found: Sequence[Score]) -> list[Score]:
    """The scores with Holm's p: over all that are of one study, or of none. Parts of what is pooled are not tested."""
    result = list(found)
    families: dict = {}
    for i, score in enumerate(found):
        if not score.part:
            families.setdefault(score.comparison.listed.place, []).append(i)
    for places in families.values():
        for name, of in (("holm_p", "p"), ("holm_equivalence_p", "equivalence_p")):
            tested = [i for i in places if getattr(result[i], of) is not None]
            for i, p in zip(tested, holm([getattr(result[i], of) for i in tested]), strict=True):
                result[i] = replace(result[i], **{name: p})
    return result
