"""The search of a study: `task=tune` chooses settings on the validation split before the runs are trained."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

from ..core.checked_files import read_csv
from ..core.errors import UserError
from ..reporting.finished import RATE
from ..reporting.planned import TUNED, searched_rows
from ..reporting.tables import write_csv
from ..session.overrides import as_setting, as_typed, key_of
from .packing import study_lock


def edges_of_grids(folder: Path) -> str | None:
    """The sentence about encodings whose best learning rate is the lowest or highest that the study has searched.

    Raises:
        UserError: the table of the search cannot be read.
    """
    rates: dict[str, dict[float, bool]] = {}  # of each run: whether the rate was chosen
    for row in searched_rows(folder):
        if row.get(RATE):
            of, rate = rates.setdefault(row["run"], {}), float(row[RATE])
            of[rate] = of.get(rate, False) or row["chosen"] == "True"
    names = _names([*rates])
    found: dict[str, list[str]] = {"lowest": [], "highest": []}
    for run, of in rates.items():
        edges = {min(of): "lowest", max(of): "highest"}
        for rate, edge in edges.items():
            if len(edges) > 1 and of[rate]:
                found[edge].append(names[run])
    parts = [f"the {edge} for {', '.join(of)}" for edge, of in found.items() if of]
    return f"Best learning rates at the edge of the grid: {'; '.join(parts)}." if parts else None


def _names(runs: Sequence[str]) -> dict[str, str]:
    """The encoding of each of `runs`, and its values of the settings that tell runs with the same encoding apart."""
    alike: dict[str, list[list[str]]] = {}
    encodings = {}
    for run in runs:
        words = run.split()
        chosen = [word.partition("=")[2] for word in words if word.startswith("encoding=")]
        encodings[run] = chosen[-1] if chosen else "the default encoding"
        alike.setdefault(encodings[run], []).append([word for word in words if not word.startswith("encoding=")])
    keys = list(dict.fromkeys(key_of(word) for group in alike.values() for words in group for word in words))

    def told_apart(by: Sequence[str]) -> int:
        return sum(len({_values(words, by) for words in group}) for group in alike.values())

    needed, every = keys, told_apart(keys)
    for key in reversed(keys):  # of settings that differ together, the first is kept
        fewer = [each for each in needed if each != key]
        if told_apart(fewer) == every:
            needed = fewer
    names = {}
    for run, encoding in encodings.items():
        own = _values(run.split(), needed)
        names[run] = f"{encoding} ({', '.join(own)})" if own else encoding
    return names


def _values(words: Sequence[str], keys: Sequence[str]) -> tuple[str, ...]:
    """The settings among `words` of these `keys`."""
    return tuple(word for word in words if key_of(word) in keys)


@dataclass
class Searched:
    """The search for the settings of runs that differ only in their seeds.

    Attributes:
        run: settings of the runs, from `searched_run`.
        search: its line in the list.
        points: the points of its grid, as in the table.
        settings: settings of its command.
        path: the table that the command writes.
        each_seed: its seeds, as in that table.
        study: folder of the study, to whose `tuning.csv` the results are added.
        flags: flags of its command.
        waiting: number of runs whose settings it chooses.
        part: numbers of the points that one process trains; None for all.
    """

    run: str
    search: str
    points: list[dict[str, str]]
    settings: list[str]
    path: Path
    each_seed: str
    study: Path
    flags: Sequence[str] = ()
    waiting: int = 0
    part: Sequence[int] | None = None

    names: ClassVar[Mapping[str, str]] = {}
    then = ()
    seed = None
    finished = trained = False
    diverged = None
    one_device = True  # task=tune refuses several

    @property
    def unseeded(self) -> tuple[str, ...]:
        """Its settings."""
        return tuple(self.settings)

    @property
    def title(self) -> str:
        """Its table, and its points if it is a part."""
        return f"{self.path}{'' if self.part is None else f', task.points={as_typed(self.part)}'}"

    @property
    def suffix(self) -> str:
        """The end of the name of its log file, which distinguishes its parts."""
        return "" if self.part is None else f"-{self.part[0]}"

    def parts(self, most: int) -> list["Searched"]:
        """The search in parts of at most `most` points, for one process each."""
        numbers = range(len(self.points))
        if len(numbers) <= most:
            return [self]
        groups = [[*numbers[first : first + most]] for first in numbers[::most]]
        return [
            replace(self, part=group, settings=[*self.settings, as_setting("task.points", group)]) for group in groups
        ]

    def keep(self, commit: str | None) -> None:
        """Add the results to the study's table, and replace those of an earlier search for the same runs.

        Nothing is added until all points have results.

        Raises:
            UserError: there are no results, or training diverged at all points.
        """
        found = [row for row in read_csv(self.path) if row["each_seed"] == self.each_seed]
        found = [row for row in found if {key: row[key] for key in self.points[0]} in self.points]
        if not found:
            raise UserError(f"{self.path}: no results with seeds {self.each_seed}: delete it to search again")
        if len(found) < len(self.points) and self.part is not None:
            return
        best = min(found, key=lambda row: float(row["valid_nll"]))
        if best["valid_nll"] == "inf":
            raise UserError(f"{self.run}, {self.search}: training diverged at all points: give lower rates")
        named = {"run": self.run, "search": self.search}
        found = [{**named, **row, "chosen": row is best} for row in found]
        with study_lock(self.study):
            others = [row for row in searched_rows(self.study) if row["run"] != self.run]
            write_csv(self.study / TUNED, sorted([*others, *found], key=lambda row: row["run"]))
