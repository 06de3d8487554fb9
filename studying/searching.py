"""The search of a study: `task=tune` chooses settings on the validation split before the runs are trained."""

import csv
from dataclasses import dataclass
from pathlib import Path

from ..core.errors import UserError
from ..reporting.planned import TUNED
from ..reporting.tables import Row, write_csv
from .packing import study_lock


@dataclass
class Searched:
    """The search for the settings of runs that differ only in their seeds.

    Attributes:
        run: settings of the runs as listed, without a seed.
        settings: settings of its command.
        path: the table that the command writes.
        each_seed: its seeds, as in that table.
        study: folder of the study, to whose `tuning.csv` the results are added.
        one_device: whether it trains on a single device.
    """

    run: str
    settings: list[str]
    path: Path
    each_seed: str
    study: Path
    one_device: bool = True

    then = ()
    seed = None
    finished = False

    @property
    def unseeded(self) -> tuple[str, ...]:
        """Its settings."""
        return tuple(self.settings)

    def keep(self, sharing: int, commit: str | None) -> None:
        """Add the results to the study's table, and replace those of an earlier search for the same runs."""
        found = [row for row in _rows(self.path) if row["each_seed"] == self.each_seed]
        if not found:
            raise UserError(f"{self.path}: no results with seeds {self.each_seed}: delete it to search again")
        with study_lock(self.study):
            path = self.study / TUNED
            others = [row for row in _rows(path) if row["run"] != self.run] if path.exists() else []
            rows = sorted([*others, *({"run": self.run, **row} for row in found)], key=lambda row: row["run"])
            write_csv(path, rows)


def _rows(path: Path) -> list[Row]:
    with open(path, newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))
