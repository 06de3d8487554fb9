"""How many seeds an undecided difference would need."""

from collections.abc import Sequence

from ..core.words import plural
from .answers import name_of
from .scores import ALPHA, Score
from .statistics import Difference

MOST = 100  # seeds


def seeds_needed(found: Difference, tests: int) -> int | None:
    """Seeds of each model with which a difference as large as `found` would be significant; None if above MOST.

    The test is that over seeds and clusters together, at the level of Bonferroni's correction for `tests` tests. More
    seeds reduce the variance over seeds, but not the variance over clusters.
    """
    if found.spread is None:
        return None
    for seeds in range(found.pairs, MOST + 1):
        reach = found.spread.with_seeds(seeds).reach(ALPHA / tests / 2, upwards=found.value < 0)
        if abs(found.value) > reach:
            return seeds
    return None


def needed_sentence(found: Sequence[Score]) -> str | None:
    """The sentence about the seeds that the undecided differences of a study need; None if there are none."""
    several = len({score.place for score in found if score.difference is not None}) > 1
    needed = []
    for score in sorted(found, key=lambda score: score.nats.value):
        if score.verdict == "undecided" and score.difference is not None:
            name = name_of(score, score.contestant) + f" in {score.place}" * several
            needed.append((name, seeds_needed(score.difference, score.tests)))
    if not needed:
        return None
    few = [f"{seeds} for {name}" for name, seeds in needed if seeds is not None]
    rest = len(needed) - len(few)
    others = f"more than {MOST}, or a larger test set, for {plural(rest, 'difference')}"
    parts = [*([", ".join(few)] if few else []), *([others] if rest else [])]
    what = "Seeds with which the undecided differences would be significant if they stayed as measured"
    return f"{what}: {'; '.join(parts)}."
