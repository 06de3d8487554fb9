"""Which of a study's comparisons is nearest to the losses that others report."""

import re
from collections.abc import Sequence

from .naming import parenthesised
from .scores import Score
from .tables import interval

NATS = re.compile(r"(\d+(?:\.\d+)?) nats")


def nearest_published(found: Sequence[Score]) -> str | None:
    """A sentence about the comparison whose nats/token are nearest to the published ones, on average over its models.

    Comparisons that lack one of the models with published nats/token do not count. None with fewer than two others, or
    if they are on different splits.
    """
    reported: dict[tuple[str, str], list[tuple[Score, float]]] = {}  # by split and comparison
    for score in found:
        figure = NATS.fullmatch(score.contestant.any_run.published.get(score.split, ""))
        if score.chosen and not score.pooled and figure:
            reported.setdefault((score.split, score.comparison.name), []).append((score, float(figure[1])))
    most = max(map(len, reported.values()), default=0)
    complete = {name: models for (_, name), models in reported.items() if len(models) == most}
    if len(complete) < 2 or len({split for split, _ in reported}) > 1:
        return None
    name, models = min(complete.items(), key=lambda each: sum(abs(s.nats.value - figure) for s, figure in each[1]))
    told = [
        f"{parenthesised(score.contestant.label)} {score.nats.value:.4f} ({_seeds(score)}published: {figure:.4f})"
        for score, figure in sorted(models, key=lambda each: each[0].nats.value)
    ]
    return f"Of {len(complete)} settings, {name} is nearest to the published nats/token: {', '.join(told)}"


def _seeds(score: Score) -> str:
    return f"{interval('{:.4f}'.format)(score.nats.seeds)}; " if score.nats.seeds else ""
