"""The table of a study with many models on several tasks: a row per model, a column per task and split."""

from collections.abc import Sequence
from statistics import mean, median

from ..reporting.legible import MOST
from ..reporting.scores import Score
from ..reporting.solving import Solving
from ..reporting.tables import Row, Table, wrong
from ..session.settings import mechanism_of

NOTE = (
    "Cells: the number of seeds that solve the task, or, if none does, the median error. results.csv has all figures."
)
PUBLISHED = "In parentheses: the published error."


def solved_table(found: Sequence[Score]) -> Table | None:
    """What each model solves, those with the lowest mean error first; None for few models or a single task.

    A task without records counts as an error of 1.
    """
    cells: dict[str, dict[str, Solving]] = {}
    published: dict[tuple[str, str], str] = {}
    limits: dict[str, str] = {}
    encodings: dict[str, str] = {}
    for score in found:
        if score.solving is not None and not score.pooled:
            cells.setdefault(score.contestant.label, {})[score.place] = score.solving
            encodings[score.contestant.label] = score.contestant.encoding
            limits[score.comparison.name] = f"{100 * (score.comparison.solved or 0):g} % in {score.comparison.name}"
            if reported := score.contestant.any_run.published.get(score.split):
                published[score.contestant.label, score.place] = reported
    places = dict.fromkeys(place for row in cells.values() for place in row)
    if len(cells) <= MOST or len(places) < 2:
        return None
    order = sorted(cells, key=lambda label: -sum(mean(each.accuracies) for each in cells[label].values()))
    rows: list[Row] = [
        {"model": label, "mechanism": mechanism_of(encodings[label])}
        | {place: _cell(each, published.get((label, place))) for place, each in cells[label].items()}
        for label in order
    ]
    columns = {"model": ("encoding", str), "mechanism": ("mechanism", str), **{each: (each, str) for each in places}}
    notes = [
        NOTE,
        f"Solved: right answers are at least {', '.join(limits.values())}.",
        *([PUBLISHED] if published else []),
    ]
    return Table("solved", "", columns, rows, notes)


def _cell(solving: Solving, published: str | None) -> str:
    solved, seeds = solving.rate
    ours = f"{solved} of {seeds}" if solved else f"{wrong(median(solving.accuracies))} %"
    return f"{ours} ({published})" if published else ours
