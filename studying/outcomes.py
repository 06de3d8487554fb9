"""What a study found: the rows of its tables, where models fail beyond the trained length, and what it cost."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..core.checked_files import DAMAGE, figure, read_csv, why
from ..core.errors import UserError
from ..reporting.legible import plain
from ..reporting.lengths import lengths_of, lengths_table
from ..reporting.planned import NO_RECORD
from ..reporting.reading import read_study
from ..reporting.score_tables import CLUSTERS, across_table
from ..reporting.scores import Score, study_scores
from ..reporting.study import Study
from ..reporting.study_list import read_list
from ..reporting.tables import Row, Table, interval, with_sign
from .solved import solved_table

SPEEDS = "speed.csv"  # in a study's folder, from `benchmarks.training`
Measured = Mapping[str, Sequence[Sequence[Row]]]  # as `found` in `lengths_table`


@dataclass(frozen=True)
class Outcome:
    """What a study found.

    Attributes:
        rows: rows of its tables, best first; empty if no record can be read. The key "copy" marks those of models in
            `Comparison.copies`.
        fails: context at which the loss of each model exceeds that at the trained length, as in `lengths_table`, but
            without models in `Comparison.copies`.
        runs: number of runs with records.
        minutes: device time of training, estimated from speeds; shared devices count in proportion.
        reference: the encoding or model that others are compared with.
        missing: number of runs that the study lists and that have no record.
        diverged: number of runs whose training diverged.
        solved: the table of `solved_table`, which replaces `rows` on the study's page.
    """

    rows: Sequence[Row]
    fails: Mapping[str, str]
    runs: int
    minutes: float
    reference: str
    missing: int = 0
    diverged: int = 0
    solved: Table | None = None

    @property
    def models(self) -> list[Row]:
        """Its rows, without the copies of a model under other names."""
        return [row for row in self.rows if not row.get("copy")]


def read_outcome(folder: Path) -> Outcome:
    """The outcome of the study in `folder`."""
    study = read_study([folder])
    return outcome_of(folder, study, study_scores(study, reference_of(folder)), measured_of(study))


def measured_of(study: Study) -> list[Measured]:
    """What task=extrapolate has measured on the first split of each comparison."""
    return [lengths_of(comparison, comparison.splits[0]) for comparison in study.comparisons]


def largest(study: Study) -> int:
    """Index of the comparison that represents the study: the one with the most models, or the first of these."""
    sizes = [len(comparison.contestants) for comparison in study.comparisons]
    return sizes.index(max(sizes))


def outcome_of(folder: Path, study: Study, found: Sequence[Score], measured: Sequence[Measured]) -> Outcome:
    """The outcome of the `study` in `folder`, whose scores are `found`; `measured` is from `measured_of`."""
    contestants = [contestant for comparison in study.comparisons for contestant in comparison.contestants]
    minutes = sum(contestant.training_minutes for contestant in contestants)
    rows, speeds = rows_of(found), speeds_of(folder)
    if speeds:
        rows = [row | {"tokens_per_s": speeds.get(row["model"])} for row in rows]
    shown = measured[largest(study)] if measured else None
    table = lengths_table(plain(shown), "") if shown else None
    copies = study.comparisons[largest(study)].copies if study.comparisons else {}
    fails = {row["model"]: row["fails"] for row in table.rows if row["model"] not in copies} if table else {}
    missing = sum(each.why == NO_RECORD for each in study.troubles)
    runs, reference, solved = len(study.runs), reference_of(folder), solved_table(found)
    return Outcome(rows, fails, runs, minutes, reference, missing, study.diverged, solved)


def speeds_of(folder: Path) -> dict[str, float]:
    """Highest measured tokens/s of each encoding, in models of the study's size without other jobs on the GPU.

    Empty if `folder` has no file `SPEEDS`.

    Raises:
        UserError: the file cannot be read, or has speeds with several vocabularies.
    """
    path, found = folder / SPEEDS, {}
    if not path.exists():
        return {}
    try:
        rows = read_csv(path, ("contender", "tokens_per_s", "vocabulary"))
        if len({row["vocabulary"] for row in rows}) > 1:
            raise ValueError("several vocabularies")
        for row in rows:
            found[row["contender"]] = max(figure(row["tokens_per_s"]), found.get(row["contender"], 0.0))
        return found
    except DAMAGE as error:
        raise UserError(f"{path}: not a table of speeds ({why(error)}): restore or delete it") from error


def reference_of(folder: Path) -> str:
    """The encoding that others in the study in `folder` are compared with."""
    return read_list(folder).get("reference", "rope")


def rows_of(found: Sequence[Score]) -> list[Row]:
    """The rows of a table of `found` for a README: models only, with settings and split if a study has several."""
    comparisons = {score.comparison.title: score.comparison for score in found}
    several = len({comparison.domain for comparison in comparisons.values()}) > 1
    rows = []
    for row in across_table(found, {}).rows:
        comparison = comparisons[row["domain"]]
        called, _, own = row["domain"].partition(": ")
        split = row["split"] if len(comparison.splits) > 1 else ""
        parts = called if several or called != comparison.domain else "", own, split
        known = {key: value for key, value in row.items() if value is not None}
        if place := ", ".join(filter(None, parts)):
            known["comparison"] = place
        rows.append(known | {"margin": comparison.margin})
        if row["model"] in comparison.copies:
            rows[-1]["copy"] = True
        if (ends := row.get("difference_interval")) is not None:
            basis = f", {CLUSTERS}" if row["difference_interval_of"] == CLUSTERS else ""
            rows[-1]["difference_interval"] = interval(with_sign(4))(ends) + basis
    return rows
