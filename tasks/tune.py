"""task=tune: compare learning rates, and other settings, on the validation split."""

import itertools
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
from filelock import FileLock

from ..core.checked_files import DAMAGE, figure, read_csv, why
from ..core.errors import DivergedError, UserError, nearest_key
from ..core.options import as_path, checked, defaults_of, options_of
from ..domains.store import Store
from ..reporting.finished import RATE
from ..reporting.tables import Row, Table, by_value, write_csv
from ..session.identity import incidental
from ..session.matching import unmatched
from ..session.overrides import as_typed
from ..session.run_directory import RunDirectory
from ..session.session import Session
from ..session.settings import Settings, declared
from ..session.task import Task
from ..session.trust import KINDS
from .options import TuneOptions
from .train import Train

VARIED = "*"  # in the name of a table, for the settings of its grid; null may be the value of another search


class Search(Train):
    """A run of the search: trained like any other, but never tested. `point` holds the searched settings as text."""

    def __init__(self, point: str):
        super().__init__()
        self.point = point

    def scored(self, session: Session) -> Sequence[str]:
        return ["valid"]

    def _inspect(self, *_: object) -> None:
        """Nothing, because no report compares the runs of a search."""

    def _show(self, session: Session, run: RunDirectory, store: Store) -> None:
        score = self._records(session, run, store, "valid").nats_per_token
        session.console.print(f"{self.point}: {score:.4f} on validation")


class Tune(Task):
    """Train at each point of a grid and print which is best on validation; the test split is not used.

    A sweep gives every encoding the same grid: `python main.py -m task=tune encoding=rope,pope`. Finished runs are
    reused, and stopped runs are resumed. A point at which training diverges scores infinity, and is not trained again.
    The results are added to `<out>/<domain>/<encoding>/<model>-<hash>.csv`, and the best is chosen among all points
    with the same seeds.

    Args:
        options: fields of `TuneOptions`.
    """

    resumes = True

    def __init__(self, **options: Any):
        given = TuneOptions(**options)
        self.rates, self.seeds, self.out = given.rates, given.seeds, as_path(given.out)
        self.grid, self.numbers = given.grid or {}, given.points

    def configured(self, config: dict) -> dict:
        for key, default in (("run", None), ("runs", defaults_of(Settings)["runs"])):
            if config[key] != default:
                raise UserError(
                    f"{key}={config[key]}: a search creates its own runs in task.out={self.out}: leave out {key}=, or "
                    "set task.out"
                )
        return config

    def __call__(self, session: Session) -> None:
        path, points = self.check(session), self._points_to_train(session.config)
        seeds, each_seed = self._seeds(session.config), self.each_seed(session.config)
        scored = []
        for point in points:
            mean = float(np.mean([self._score(session, point, seed) for seed in seeds]))
            scored.append({**_texts(point), "valid_nll": mean, "seeds": len(seeds), "each_seed": each_seed})
        if self.numbers is None and all(row["valid_nll"] == float("inf") for row in scored):
            lowest = min(point[RATE] for point in points)
            raise UserError(f"task.rates: training diverged at all rates, down to {lowest:g}: give lower rates")
        rows = [row for row in _merge(path, scored) if row["each_seed"] == each_seed]
        best = next(row for row in rows if row["chosen"])
        names, keys = session.config["names"], [*points[0]]
        columns = {
            **{key: (key, str) for key in keys},
            "valid_nll": ("validation nats/token", lambda nats: "diverged" if nats == float("inf") else f"{nats:.4f}"),
            "chosen": ("", lambda chosen: "best" if chosen else ""),
        }
        title = f"{names['domain']}, {names['encoding']}: search"
        session.console.print(Table("tune", title, columns, rows, []).on_console())
        if self.numbers is not None:
            session.console.print(f"wrote {path}")
            return
        if _at_edge(best, rows):
            session.console.print(
                "the best rate is at the edge of the grid: widen it with task.rates, for all encodings"
            )
        chosen = " ".join(f"{key}={best[key]}" for key in keys)
        session.console.print(f"wrote {path}; to use the best, set {chosen}")

    def check(self, session: Session) -> Path:
        """The path of the table of results, named like the runs but without the settings that vary and the seed.

        With `match`, the size of the MLP varies with the point, so the name has the kind of cost instead.

        Raises:
            UserError: a point has invalid settings, `task.points` names one that the grid does not have, devices are
                several, or the table is damaged or of another kind.
        """
        if session.settings.ranks > 1:
            raise UserError("trainer.devices: it must be 1, as a search trains each run on one device")
        for point in self._points_to_train(session.config):
            self._session(session, point, 0)
        unset = _at(unmatched(session.config), {RATE: None, **dict.fromkeys(self.grid, VARIED)})
        run = RunDirectory.of({**unset, "runs": str(self.out), "run": None, "seed": 0})
        match = session.config.get("match")
        path = run.path.with_name(run.path.name.removesuffix("-s0") + (f"-{match}" if match else "") + ".csv")
        if any(key not in row for row in _read(path) for key in (RATE, *self.grid, "each_seed")):
            raise UserError(f"{path}: this table is of another search: move it away, or set task.out")
        return path

    def points(self, config: Mapping) -> list[dict[str, str]]:
        """The points of the grid, as in the table."""
        return [_texts(point) for point in self._points(config)]

    def each_seed(self, config: Mapping) -> str:
        """The seeds of each point, as in the table."""
        return " ".join(map(str, sorted(self._seeds(config))))

    def _seeds(self, config: Mapping) -> list[int]:
        return list(dict.fromkeys(self.seeds or [config["seed"]]))

    def _points(self, config: Mapping) -> list[dict[str, Any]]:
        """All combinations of the searched settings, by key."""
        given = config["optimizer"]["learning_rate"]
        rates = sorted({*map(float, self.rates or [given * factor for factor in (0.25, 0.5, 1, 2, 4)])})
        grid = [_as_declared(config, key, values) for key, values in self.grid.items()]
        return [dict(zip([RATE, *self.grid], values, strict=True)) for values in itertools.product(rates, *grid)]

    def _points_to_train(self, config: Mapping) -> list[dict[str, Any]]:
        points = self._points(config)
        if self.numbers is None:
            return points
        if unknown := [number for number in self.numbers if number not in range(len(points))]:
            given, last = [*self.numbers], len(points) - 1
            raise UserError(f"task.points={given}: the grid has no point {unknown[0]}: give points from 0 to {last}")
        return [points[number] for number in sorted(set(self.numbers))]

    def _session(self, session: Session, point: Mapping[str, Any], seed: int) -> Session:
        config = _at(unmatched(session.config), point)
        if config["domain"] != session.config["domain"]:  # `Session.of` then identifies the data again
            del config["content"]
        here = Session.of({**config, "seed": seed, "runs": str(self.out), "run": None})
        here.console = session.console
        return here

    def _score(self, session: Session, point: Mapping[str, Any], seed: int) -> float:
        """Nats per token of the best checkpoint on the validation split; infinity if training diverged."""
        text = " ".join(f"{key}={value}" for key, value in _texts(point).items())
        here = self._session(session, point, seed)
        run = RunDirectory.of(here.config)
        try:
            if (step := run.manifest.get("diverged")) is not None:
                raise DivergedError(f"training diverged at step {step:,}: to train it again, delete {run.path}")
            return cast("float", Search(text)(here))  # the only rank
        except DivergedError as error:
            session.console.print(f"{text}: {error}")
            return float("inf")


def _as_declared(config: Mapping, key: str, values: Sequence[Any]) -> list[Any]:
    """Values of the setting `key`, each once: 1 is 1.0 where a float is declared. Invalid ones are refused later."""
    group, _, name = key.partition(".")
    options = options_of(declared(config[group]["_target_"], group)) if group in KINDS and group in config else {}
    if name not in options or any(options[name].problems(value) for value in values):
        return [*values]
    found = [checked(value, options[name].kind) for value in values]
    return [value for place, value in enumerate(found) if value not in found[:place]]


def _texts(point: Mapping[str, Any]) -> dict[str, str]:
    return {key: as_typed(value) for key, value in point.items()}


def _at_edge(best: Row, rows: Sequence[Row]) -> bool:
    """Whether the best learning rate is the lowest or the highest of several."""
    rates = sorted({float(row[RATE]) for row in rows})
    return len(rates) > 1 and float(best[RATE]) in (rates[0], rates[-1])


def _at(config: Mapping, point: Mapping[str, Any]) -> dict:
    """A configuration with other values for the keys of `point`, each GROUP.KEY."""
    changed = dict(config)
    for key, value in point.items():
        group, _, name = key.partition(".")
        if key == "model.mlp_hidden" and config.get("match") is not None:
            raise UserError(f"task.grid: match={config['match']} sets {key}: leave out one of them")
        block = changed.get(group)
        if not isinstance(block, Mapping) or name not in block:
            known = [f"{each}.{of}" for each in ("model", "encoding", "optimizer") for of in config[each]]
            raise UserError(f"task.grid: {key} is not a setting of this run: {nearest_key(key, known)}use GROUP.KEY")
        if incidental(key):
            raise UserError(f"task.grid: {key} does not distinguish runs, so it cannot be searched: leave it out")
        changed[group] = {**block, name: value}
    return changed


def _merge(path: Path, scored: Sequence[Row]) -> list[Row]:
    """Add rows with the same seeds to the table at `path`, replacing those of the same points; returns all rows."""
    keys = [key for key in scored[0] if "." in key]
    each_seed, again = scored[0]["each_seed"], [[row[key] for key in keys] for row in scored]
    with FileLock(path.with_suffix(".lock")):
        rows = [row for row in _read(path) if row["each_seed"] != each_seed or [row[key] for key in keys] not in again]
        rows = sorted([*rows, *scored], key=lambda row: (row["each_seed"], [by_value(row[key]) for key in keys]))
        same = [row for row in rows if row["each_seed"] == each_seed]
        best = min(same, key=lambda row: row["valid_nll"])
        for row in same:
            row["chosen"] = row is best
        write_csv(path, rows)
    return rows


def _read(path: Path) -> list[Row]:
    """The rows of the table at `path`; none if there is none. Raises UserError if it is damaged."""
    if not path.exists():
        return []
    try:
        rows: list[Row] = [{**row, "valid_nll": float(row["valid_nll"])} for row in read_csv(path, ("valid_nll",))]
        for row in rows:
            if math.isnan(row["valid_nll"]):  # infinity: training diverged
                raise ValueError("valid_nll: nan is not a score")
            if RATE in row:
                figure(row[RATE])
        return rows
    except DAMAGE as error:
        raise UserError(
            f"{path}: not a table of a search ({why(error)}): restore it, or delete it and rerun the same command"
        ) from error
