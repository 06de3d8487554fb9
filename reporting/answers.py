"""The results of a report in words: one clause for each encoding that is compared with the reference."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from ..core.words import plural
from .contestant import Contestant
from .naming import parenthesised
from .scores import FEW_SEEDS, Score
from .solving import Solving
from .statistics import FEWEST_CLUSTERS, FEWEST_SEEDS
from .study import Comparison
from .tables import at_least, p_value, percentages, with_sign, wrong

MOST = 8  # clauses of all results; of more encodings, those with the same verdict share one
APART = 2  # encodings with the same verdict that still have a clause each
LEGEND = "Differences are in % of the reference's nats/token; lower is better. 95 % intervals are in parentheses."


@dataclass(frozen=True)
class Answer:
    """The result of one comparison on one split.

    Attributes:
        name: short name of the comparison, with the split if the comparison has several.
        clauses: one for each encoding, best first; of many encodings, those with the same verdict share one.
    """

    name: str
    clauses: Sequence[str]

    @property
    def sentence(self) -> str:
        return f"{self.name}: {'; '.join(self.clauses)}."


def answers(found: Sequence[Score], reference: str) -> list[Answer]:
    """The results in `found`. Settings that are pooled into one test appear only in the pooled result.

    Args:
        reference: the encoding or label that the others are compared with.
    """
    places: dict[tuple[str, str], list[Score]] = {}
    for score in found:
        places.setdefault((score.comparison.name, score.split), []).append(score)
    compared = sum(each.chosen and not each.is_reference and not each.part for each in found)
    most = MOST if compared <= MOST or len(places) == 1 else APART
    results = [
        Answer(scores[0].place, [*_clauses(scores, reference, len(places), most), *_same_models(scores[0].comparison)])
        for scores in places.values()
    ]
    return [result for result in results if result.clauses]


def _clauses(scores: Sequence[Score], reference: str, places: int, most: int) -> list[str]:
    """The clauses of one of `places` comparisons and splits; of more than `most` encodings, some share one."""
    references = [each for each in scores if each.is_reference]
    compared = [each for each in scores if each.chosen and not each.is_reference]
    if compared and compared[0].against is None:
        models, named = _listed(compared), parenthesised(reference)
        if any(each.contestant.label == reference for each in scores):
            return [f"no differences, because the rate of {named} is not the chosen one: {models} cannot be compared"]
        solved = [(each, each.solving) for each in compared if each.solving is not None]
        if len(solved) == len(compared) <= MOST:
            return [_solved(*each) for each in sorted(solved, key=lambda each: each[0].nats.value)]
        return [f"no differences, because there is no run of {named} to compare {models} with"]
    if references and not compared:
        solved = [_solved(each, each.solving) for each in references if each.solving is not None]
        them = "it" if len(references) == 1 else "them"
        return solved or [f"only {_listed(references)}, nothing to compare {them} with"]
    best_first = [each for each in sorted(compared, key=lambda each: each.nats.value) if not each.part]
    undecided = [each for each in best_first if not _decided(each)]
    few = len(best_first) <= most
    if all(each.solving for each in scores) and ((len(undecided) > 1 and not few) or (undecided and places > 1)):
        solvers = _solvers([*references, *best_first], undecided)
        return [solvers, *(_clause(each) for each in best_first if _decided(each))]
    if few:
        return _of_few(best_first)
    alike: dict[tuple[str, ...], list[Score]] = {}
    for each in best_first:
        kind = (each.verdict, name_of(each, each.against)) if _decided(each) else ("undecided",)
        alike.setdefault(kind, []).append(each)
    return [clause for group in alike.values() for clause in _shared(group)]


def _same_models(comparison: Comparison) -> list[str]:
    """A clause for each model that is compared under several names."""
    groups: dict[str, list[str]] = {}
    for copy, original in comparison.copies.items():
        groups.setdefault(original, []).append(parenthesised(copy))
    return [
        f"{_joined(sorted(copies))} {'are' if len(copies) > 1 else 'is'} the same model as {parenthesised(original)} "
        "with this number of layers: their differences are chance"
        for original, copies in groups.items()
    ]


def _of_few(best_first: Sequence[Score]) -> list[str]:
    """A clause for each model; those with too few seeds share one if others are tested."""
    tested: list[Score] = []
    too_few: dict[tuple[str, str], list[Score]] = {}
    for each in best_first:
        if each.verdict == FEW_SEEDS and each.compared is not None:
            too_few.setdefault((_needed(each), name_of(each, each.against)), []).append(each)
        else:
            tested.append(each)
    if not tested:
        return [_clause(each) for each in best_first]
    clauses = [_clause(each) for each in tested]
    for (needed, reference), scores in too_few.items():
        if len(scores) == 1:
            clauses.append(_clause(scores[0]))
            continue
        models = [f"{name_of(each, each.contestant)} ({_amount(each, signed=True, alone=True)})" for each in scores]
        clauses.append(f"{_joined(models)} cannot be compared with {reference} ({needed})")
    return clauses


def _shared(alike: Sequence[Score]) -> list[str]:
    """The clauses of models with the same verdict, best first."""
    first, last, number = alike[0], alike[-1], len(alike)
    if not _decided(first) and number > 1:
        return [f"{number} are not decided; the lowest is {name_of(first, first.contestant)}{_seen(first)}"]
    if number <= APART or first.verdict.startswith("solves"):
        return [_clause(each) for each in alike]
    reference, verdict = name_of(first, first.against), first.verdict
    if verdict == "equivalent":
        what = f"equivalent to {reference}{_within(first)}"
        ends = [name_of(each, each.contestant) + _observed(each).replace(":", ",") for each in (first, last)]
    else:
        what = f"{verdict.partition(',')[0]} than {reference}{_also_within(first)}"
        ends = [f"{name_of(each, each.contestant)}, by {_amount(each)}" for each in (first, last)]
    return [f"{number} are {what}: from {ends[0]}, to {ends[1]}"]


def _listed(scores: Sequence[Score]) -> str:
    return _joined([parenthesised(each.contestant.label) for each in scores])


def _joined(names: Sequence[str]) -> str:
    *others, last = names
    return f"{', '.join(others)} and {last}" if others else last


def _solvers(scores: Sequence[Score], undecided: Sequence[Score]) -> str:
    """Which models solve a task, and how many of their differences are undecided, with the lowest p."""
    found = {name_of(each, each.contestant): each.solving for each in scores if each.solving is not None}
    every, some, none = {}, {}, {}
    for model, solving in found.items():
        solved, seeds = solving.rate
        (every if solved == seeds else some if solved else none)[model] = solving
    parts = []
    if every:
        parts.append(f"with every seed by {_joined([*every])}{_widest(every.values())}")
    if some:
        rates = [
            f"{model} ({each.rate[0]} of {each.rate[1]}, {percentages(each.interval)})" for model, each in some.items()
        ]
        parts.append(f"with some seeds by {_joined(rates) if len(some) <= MOST else f'{len(some)} encodings'}")
    if none:
        models = _joined([*none]) if len(none) <= MOST else f"{len(none)} encodings"
        parts.append(f"with no seed by {models}{_widest(none.values())}")
    tested = [each for each in undecided if each.holm_p is not None]
    untested = [each for each in undecided if each.holm_p is None]
    if tested:
        what = f"{plural(len(tested), 'difference')} from {_references(tested)} {'is' if len(tested) == 1 else 'are'}"
        lowest = min(each.holm_p for each in tested if each.holm_p is not None)
        parts.append(f"{what} undecided (adjusted p {at_least(lowest)})")
    if untested:
        parts.append(f"{len(untested)} cannot be compared with {_references(untested)} (too few seeds)")
    return f"solved {'; '.join(parts)}"


def _references(scores: Sequence[Score]) -> str:
    """The references of `scores`: several if they differ in compared settings or in the size of their MLP."""
    return _joined([*dict.fromkeys(name_of(each, each.against) for each in scores)])


def _decided(score: Score) -> bool:
    return score.verdict.startswith(("lower", "higher", "solves", "equivalent"))


def _clause(score: Score) -> str:
    """One model compared with its reference, worded to match the verdict."""
    model, reference, verdict = name_of(score, score.contestant), name_of(score, score.against), score.verdict
    if verdict == FEW_SEEDS:
        return f"{model} and {reference} cannot be compared ({_needed(score)})" + _observed(score)
    if verdict == "not enough clusters":
        needed = f"a test needs {FEWEST_CLUSTERS} clusters of similar size"
        return f"{model} and {reference} cannot be compared ({needed})" + _observed(score)
    if verdict.startswith("solves"):
        return f"{model} {verdict} than {reference}" + _observed(score)
    if verdict.startswith(("lower", "higher")) and score.compared is not None:
        return f"{model} is {verdict.partition(',')[0]} than {reference} by {_amount(score)}{_also_within(score)}"
    if verdict == "equivalent":
        return f"{model} and {reference} are equivalent{_within(score)}" + _observed(score)
    because = ", because one test cluster dominates" if verdict == "one cluster dominates" else ""
    return f"{model} against {reference} is undecided{because}" + _seen(score)


def _needed(score: Score) -> str:
    """Which seeds a test would need."""
    apart = score.against is not None and min(len(score.contestant.runs), len(score.against.runs)) >= FEWEST_SEEDS
    return f"a test needs {FEWEST_SEEDS} seeds {'that both have' if apart else 'of each'}"


def _solved(score: Score, solving: Solving) -> str:
    """How a model does on a task with right answers, without a comparison."""
    solved, seeds = solving.rate
    errors = " to ".join(dict.fromkeys(map(wrong, (max(solving.accuracies), min(solving.accuracies)))))
    reported = score.contestant.any_run.published.get(score.split)
    published = "" if reported is None else f" (published: {reported})"
    return (
        f"{name_of(score, score.contestant)} gives {errors} % wrong answers{published} and solves the task with "
        f"{solved} of {plural(seeds, 'seed')} (95 % interval {percentages(solving.interval)})"
    )


def _widest(alike: Collection[Solving]) -> str:
    """The interval of the model with the fewest seeds, if all solve the task with every seed, or all with none."""
    if not alike:
        return ""
    each = "each: " if len(alike) > 1 else ""
    return f" ({each}95 % interval {percentages(min(alike, key=lambda solving: solving.rate[1]).interval)})"


def _within(score: Score) -> str:
    return f" within the margin of {score.difference.margin:g} nats/token" if score.difference else ""


def _also_within(score: Score) -> str:
    return f",{_within(score)}" if score.verdict.endswith("margin") else ""


def name_of(score: Score, contestant: Contestant | None) -> str:
    """The encoding, with settings if the comparison has several models with this encoding."""
    if contestant is None:
        return "the reference"
    alike = [each for each in score.comparison.chosen if each.encoding == contestant.encoding]
    return contestant.encoding if len(alike) == 1 else parenthesised(contestant.label)


def _observed(score: Score) -> str:
    """What was measured, without a conclusion."""
    if score.solving is not None and score.theirs is not None:
        (mine, seeds), (theirs, others) = score.solving.rate, score.theirs.rate
        other = name_of(score, score.against)
        return (
            f": it solves the task with {mine} of {plural(seeds, 'seed')} (95 % interval "
            f"{percentages(score.solving.interval)}), {other} with {theirs} of {others} "
            f"({percentages(score.theirs.interval)})"
        )
    return "" if score.compared is None else f": measured difference {_amount(score, signed=True)}"


def _seen(score: Score) -> str:
    """What was measured, and its adjusted p."""
    return _observed(score) + ("" if score.holm_p is None else f", adjusted p {p_value(score.holm_p)}")


def _amount(score: Score, signed: bool = False, alone: bool = False) -> str:
    """The difference in per cent and, unless `alone`, its interval and number of seeds; positive unless `signed`."""
    if score.compared is None:
        raise ValueError(f"{score.contestant.label} has no difference")
    difference = score.compared[1]
    unit = 100 / difference.level
    scale = unit if signed or difference.value > 0 else -unit
    ends = difference.both or difference.clusters
    low, high = sorted(scale * end for end in ends) if ends else (0.0, 0.0)
    digits = 1 if abs(scale * difference.value) >= 1 else 2
    form = with_sign(digits) if signed else f"{{:z.{digits}f}}".format
    if alone:
        return f"{form(scale * difference.value)} %"
    interval = f" ({form(low)} to {form(high)})" if ends else ""
    basis = ", over clusters only" if ends and not difference.both else ""
    return f"{form(scale * difference.value)} %{interval}{basis}, {plural(difference.pairs, 'seed')}"
