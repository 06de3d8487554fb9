"""task=tune: compare learning rates on the validation split."""

import csv
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock

from ..core.errors import DivergedError, UserError
from ..domains.records import Records
from ..reporting.tables import Row, Table, write_csv
from ..session.run_directory import RunDirectory
from ..session.session import Session
from ..session.task import Task
from .options import TuneOptions
from .train import Train


class Search(Train):
    """A run of the search: trained like any other, but never tested."""

    def scored(self, session: Session) -> Sequence[str]:
        return ["valid"]

    def _show(self, session: Session, run: RunDirectory, store) -> None:
        score = Records.load(run.records("valid")).nats_per_token
        session.console.print(
            f"learning rate {session.config['optimizer']['learning_rate']:g}: {score:.4f} on validation"
        )


class Tune(Task):
    """Train with each learning rate and print which is best on validation; the test split is not used.

    A sweep gives every encoding the same grid: `python main.py -m task=tune encoding=rope,pope`. Finished runs are
    reused, and stopped runs are resumed. A rate at which training diverges scores infinity. The results are added to
    `<out>/<domain>/<encoding>/<model>-<hash>.csv`, and the best is chosen among all rates with the same seeds.

    Args:
        options: fields of `TuneOptions`.
    """

    def __init__(self, **options: Any):
        given = TuneOptions(**options)
        self.rates, self.seeds, self.out = given.rates, given.seeds, Path(os.path.expanduser(given.out))

    def __call__(self, session: Session) -> None:
        if session.config["run"] is not None:
            raise UserError(
                f"run={session.config['run']}: a search creates its own runs: leave out run=, or set task.out"
            )
        if session.settings.ranks > 1:
            raise UserError("trainer.devices: it must be 1, as a search trains each run on one device")
        given = session.config["optimizer"]["learning_rate"]
        rates = sorted(set(self.rates or [given * factor for factor in (0.25, 0.5, 1, 2, 4)]))
        seeds, scored = list(dict.fromkeys(self.seeds or [session.config["seed"]])), []
        each_seed = " ".join(map(str, sorted(seeds)))
        for rate in rates:
            mean = float(np.mean([self._score(session, rate, seed) for seed in seeds]))
            scored.append({"learning_rate": rate, "valid_nll": mean, "seeds": len(seeds), "each_seed": each_seed})
        if all(row["valid_nll"] == float("inf") for row in scored):
            raise UserError(f"task.rates: training diverged at all rates, down to {rates[0]:g}: give lower rates")
        path = self._file(session)
        rows = [row for row in _merge(path, scored) if row["each_seed"] == each_seed]
        best = next(row for row in rows if row["chosen"])
        names = session.config["names"]
        columns = {
            "learning_rate": ("optimizer.learning_rate", "{:g}".format),
            "valid_nll": ("validation nats/token", lambda nats: "diverged" if nats == float("inf") else f"{nats:.4f}"),
            "chosen": ("", lambda chosen: "best" if chosen else ""),
        }
        title = f"{names['domain']}, {names['encoding']}: learning rates"
        session.console.print(Table("tune", title, columns, rows, []).on_console())
        if best in (rows[0], rows[-1]):
            session.console.print(
                "the best rate is at the edge of the grid: widen it with task.rates, for all encodings"
            )
        session.console.print(
            f"wrote {path}; to use the best rate, set optimizer.learning_rate={best['learning_rate']:g}",
            soft_wrap=True,
        )

    def _score(self, session: Session, rate: float, seed: int) -> float:
        """Nats per token of the best checkpoint on the validation split; infinity if training diverged."""
        optimizer = {**session.config["optimizer"], "learning_rate": rate}
        config = {**session.config, "optimizer": optimizer, "seed": seed, "runs": str(self.out), "run": None}
        here = Session.of(config)
        here.console = session.console
        try:
            Search(samples=0)(here)
        except DivergedError as error:
            session.console.print(f"learning rate {rate:g}: {error}")
            return float("inf")
        return Records.load(RunDirectory.of(here.config).records("valid")).nats_per_token

    def _file(self, session: Session) -> Path:
        """The results file, named like the runs but without rate and seed."""
        config = {**session.config, "runs": str(self.out), "run": None}
        run = RunDirectory.of({**config, "seed": 0, "optimizer": {**config["optimizer"], "learning_rate": None}})
        return run.path.with_name(run.path.name.removesuffix("-s0") + ".csv")


def _merge(path: Path, scored: Sequence[Row]) -> list[Row]:
    """Add rows with the same seeds to the table at `path`, replacing those of the same rates; returns all rows."""
    each_seed, again = scored[0]["each_seed"], {row["learning_rate"] for row in scored}
    with FileLock(path.with_suffix(".lock")):
        rows = [row for row in _read(path) if row["each_seed"] != each_seed or row["learning_rate"] not in again]
        rows = sorted([*rows, *scored], key=lambda row: (row["each_seed"], row["learning_rate"]))
        same = [row for row in rows if row["each_seed"] == each_seed]
        best = min(same, key=lambda row: row["valid_nll"])
        for row in same:
            row["chosen"] = row is best
        write_csv(path, rows)
    return rows


def _read(path: Path) -> list[Row]:
    if not path.exists():
        return []
    with open(path, newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    numbers = ("learning_rate", "valid_nll")
    return [{"each_seed": "", **row, **{key: float(row[key]) for key in numbers}} for row in rows]
