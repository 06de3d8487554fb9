"""The runs that a study lists, what its search has chosen for them, and those without a record."""

import itertools
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import scipy
from hydra.errors import HydraException

from ..core.checked_files import DAMAGE, figure, read_csv, why
from ..core.errors import UserError
from ..session.identity import incidental
from ..session.run_directory import PLACES, leaves, without_folders
from .finished import RATE, Run
from .lines import expanded, parsed, refuse_foreign, searched_run, words_of
from .naming import short
from .statistics import FEWEST_SEEDS
from .study import MISSING, Trouble
from .study_list import LIST, read_list

TUNED = "tuning.csv"  # results of the search: columns `run` and `search`, and a column for each setting
# Paths, of which kept records hold only the file names.
PLACED = {f"{group}.{key}" for group, keys in PLACES.items() for key in keys}
NO_RECORD = f"listed in {LIST}, but there is no usable record"


def chosen_settings(folder: Path, search: str) -> dict[str, list[str]]:
    """What the `search` of the study in `folder` has chosen so far, by `searched_run`.

    Raises:
        UserError: the table of the search cannot be read.
    """
    best = [row for row in searched_rows(folder) if (row["chosen"], row.get("search")) == ("True", search)]
    found = {row["run"]: [f"{key}={value}" for key, value in row.items() if "." in key and value] for row in best}
    for setting in itertools.chain(*found.values()):
        try:
            refuse_foreign(parsed(setting), setting, "runs")
        except (UserError, HydraException) as error:
            raise UserError(f"{folder / TUNED}: {error}") from error
    return found


def searched_rows(folder: Path) -> list[dict[str, str]]:
    """The results of the searches of the study in `folder`; none if it has no table.

    Raises:
        UserError: the table cannot be read, a learning rate is not a number, or `chosen` is not True or False.
    """
    path = folder / TUNED
    if not path.exists():
        return []
    try:
        rows = read_csv(path, ("run", "chosen"))
        for row in rows:
            if row.get(RATE):
                figure(row[RATE])
            if (chosen := row["chosen"].capitalize()) not in ("True", "False"):  # spreadsheets write TRUE
                raise ValueError(f"chosen: {row['chosen']} must be True or False")
            row["chosen"] = chosen
        return rows
    except DAMAGE as error:
        raise UserError(f"{path}: not a table of a search ({why(error)}): restore or delete it") from error


def searched_keys(entries: Mapping[str, Any]) -> list[str]:
    """Settings that the search of a study's list varies, besides the learning rate."""
    words = map(parsed, words_of(entries.get("search", "")))
    grids = [word.value() for word in words if word.key_or_group == "task.grid"]
    return [str(key) for grid in grids if isinstance(grid, Mapping) for key in grid]


def listed(folder: Path) -> list[tuple[list[str], list[str] | None]]:
    """The settings of each run of a study, and those that its search has chosen for it; None if it has not yet."""
    study = read_list(folder)
    given = [each for line in study["runs"] for each in expanded(line)]
    if "search" not in study:
        return [(each, []) for each in given]
    chosen = chosen_settings(folder, study["search"])
    return [(each, chosen.get(searched_run(each))) for each in given]


@dataclass(frozen=True)
class Absent:
    """A run that a study lists but that has no record.

    Attributes:
        line: its line in the list.
        asked: its settings by dotted key.
    """

    line: str
    asked: Mapping[str, Any]

    @property
    def trouble(self) -> Trouble:
        return Trouble(self.line, MISSING, NO_RECORD)

    def is_like(self, run: Run, seed: int) -> bool:
        """Whether it is `run` with another seed, `seed`."""
        return "seed" in self.asked and _fits(self.asked, {**_settings(run), "seed": seed})


def absent(folder: Path, runs: Sequence[Run]) -> tuple[list[Absent], list[Run]]:
    """Runs that the study in `folder` lists but `runs` lacks, and those of `runs` that it does not list.

    Each of `runs` accounts for one line. A record can fit several lines, because a line leaves out settings of its
    experiment. Records are assigned such that as many lines as possible have one, those with more settings first.
    """
    lines = [[*given, *(chosen or ())] for given, chosen in listed(folder)]
    wanted = [_asked(line) for line in lines]
    recorded = _recorded(wanted, [*map(len, lines)], runs)
    lacking = [Absent(" ".join(line), wanted[row]) for row, line in enumerate(lines) if row not in recorded]
    used = {*recorded.values()}
    return lacking, [run for column, run in enumerate(runs) if column not in used]


def unrecorded_values(folder: Path, missing: Container[str]) -> list[str]:
    """Settings that the study in `folder` lists with values of which no run has a record, and these values.

    Options of encodings and seeds are left out, because tables show them.

    Args:
        missing: the lines of `absent`.
    """
    recorded: dict[str, dict[str, bool]] = {}  # by setting and value
    for given, chosen in listed(folder):
        made = " ".join([*given, *(chosen or ())]) not in missing
        for key, value in _asked(given).items():
            if key == "encoding" or ("." in key and not key.startswith("encoding.")):
                values = recorded.setdefault(key, {})
                values[short(value)] = values.get(short(value), False) or made
    lost = {key: [value for value, there in values.items() if not there] for key, values in recorded.items()}
    return [f"{key}={', '.join(values)}" for key, values in lost.items() if values]


def unmade_models(folder: Path, tested: Sequence[Run], but: Container[str]) -> int:
    """Number of models that the study in `folder` lists with enough seeds for a test, and that `tested` lacks.

    Runs are of one model if they differ at most in the seed and in settings whose keys are in `but`. A run can fit
    several models, because a line leaves out settings of its experiment. It accounts for one of them.

    Args:
        tested: a run of each model that has enough seeds.
        but: keys of settings.
    """
    models: dict[str, tuple[dict[str, Any], int, set[Any]]] = {}
    for given, chosen in listed(folder):
        asked = _asked([*given, *(chosen or ())])
        seed = asked.pop("seed", None)
        model = {key: value for key, value in asked.items() if key not in but}
        name = repr([*sorted(model.items()), *(each for each in given if each.startswith("experiment="))])
        models.setdefault(name, (model, len(given), set()))[2].add(seed)
    testable = [each for each in models.values() if len(each[2]) >= FEWEST_SEEDS]
    return len(testable) - len(_recorded([each[0] for each in testable], [each[1] for each in testable], tested))


def _recorded(wanted: Sequence[Mapping[str, Any]], worth: Sequence[int], runs: Sequence[Run]) -> dict[int, int]:
    """For each index of the `wanted` settings that one of `runs` has, the index of that run.

    Each run accounts for one of them, to most `worth`.
    """
    records = [_settings(run) for run in runs]
    gain = np.zeros((len(wanted), len(records)))
    of_seed: dict[int, list[int]] = {}  # few records have the seed of a line
    for column, run in enumerate(runs):
        of_seed.setdefault(run.seed, []).append(column)
    for row, (asked, each) in enumerate(zip(wanted, worth, strict=True)):
        seed = asked.get("seed")
        for column in of_seed.get(seed, ()) if isinstance(seed, int) else range(len(records)):
            gain[row, column] = each * _fits(asked, records[column])
    rows, columns = scipy.optimize.linear_sum_assignment(gain, maximize=True)
    return {int(row): int(column) for row, column in zip(rows, columns, strict=True) if gain[row, column] > 0}


def _asked(line: Sequence[str]) -> dict[str, Any]:
    """The settings of a line that distinguish runs; the seed, in which most runs differ, first."""
    asked = {each.key_or_group: each.value() for each in map(parsed, line)}
    asked |= {key: without_folders(asked[key]) for key in PLACED & asked.keys()}
    order = sorted(asked, key=lambda key: (key != "seed", key != "encoding"))
    return {key: asked[key] for key in order if _distinguishes(key, asked[key])}


def _distinguishes(key: str, value: Any) -> bool:
    """Whether a setting of a line distinguishes runs; a run that was made with other settings is reused."""
    if (key, value) == ("trainer.precision", "auto"):  # runs record what it meant on their machine
        return False
    if key.split(".")[0] in ("experiment", "task"):  # runs record an experiment's settings, not its name
        return False
    return key in PLACED or not incidental(key)


def _fits(asked: Mapping[str, Any], settings: Mapping[str, Any]) -> bool:
    return all(settings.get(key) == value for key, value in asked.items())


def _settings(run: Run) -> dict[str, Any]:
    found = {**dict(leaves(run.config)), **run.config["names"], "seed": run.seed}
    if "unmatched_hidden" in found:  # the size before `match` changed it
        found["model.mlp_hidden"] = found["unmatched_hidden"]
    return found | {key: without_folders(found[key]) for key in PLACED & found.keys()}
