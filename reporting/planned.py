"""A study's list of runs, `study.yaml`: what it asks for, and what of that has left no record."""

import itertools
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, RangeSweep
from hydra.errors import HydraException

from ..core.errors import UserError, nearest, one_line
from ..core.plain_yaml import read_yaml
from ..session.configuration import explain
from ..session.run_config import GROUPS
from ..session.run_directory import PLACES, leaves, without_folders
from .study import Run, Trouble

LIST = "study.yaml"
KEYS = ("question", "runs", "then", "published", "reference", "variants")
PLACED = {f"domain.{key}" for key in PLACES}  # kept records hold the names of these files alone
LARGEST = 1 << 16  # bytes of a list
MOST_RUNS = 10_000  # of a list
CHOSEN = ("domain", "encoding", "model", "experiment", "task")  # keys whose values are files in configs/
ALLOWED = (*GROUPS, "task", "seed", "match", "experiment", "encodings")
PLACE = re.compile(r"\w[\w.-]*(/\w[\w.-]*)*")  # no hidden ones, which shells and editors may run
OWN = ("run", "runs", "stores", "task")  # of the command that trains a run, and so no part of a line


def read_list(folder: Path) -> Mapping[str, Any]:
    """Read a study's list. Its `runs` are lines as `python main.py -m` takes them, the most important first.

    `published` holds figures by split and encoding. `variants` names settings under which one hypothesis is tested
    again. `question` is what the study asks, in prose. A key without a value counts as absent.

    Raises:
        UserError: it cannot be read, holds no list of runs or another key, or what is behind one is something else; or
            a line sets something else than a key of a run's configuration, or all ask for more than MOST_RUNS runs.
    """
    try:
        found = read_yaml(folder / LIST, LARGEST)
        if not isinstance(found, Mapping) or "runs" not in found:
            raise TypeError("it lacks runs: [LINE, ...]")
        if not (isinstance(found["runs"], list) and all(isinstance(line, str) for line in found["runs"])):
            raise TypeError("runs is not a list of lines")
        if unknown := [key for key in found if key not in KEYS]:
            raise TypeError(f"{unknown[0]} is unknown; it may hold {', '.join(KEYS)}")
        found = {key: value for key, value in found.items() if value is not None}
        for key, of in (("then", "lines"), ("variants", "keys")):
            if not (isinstance(lines := found.get(key, []), list) and all(isinstance(line, str) for line in lines)):
                raise TypeError(f"{key} is not a list of {of}")
        if not isinstance(found.get("question", ""), str):
            raise TypeError("question is not a text")
        if "published" in found:
            published = found["published"]
            if not isinstance(published, Mapping) or not all(
                figures is None
                or (isinstance(figures, Mapping) and all(isinstance(figure, str) for figure in figures.values()))
                for figures in published.values()
            ):
                raise TypeError("published is to hold figures by encoding under each split")
            found["published"] = {split: figures for split, figures in published.items() if figures}
    except (OSError, ValueError, TypeError) as error:
        raise UserError(f"{folder / LIST} is not a list of runs ({one_line(error)})") from error
    runs = 0
    for key in ("runs", "then"):
        for line in found.get(key, ()):
            try:
                choices = _choices(line, then=key == "then")
            except UserError as error:
                raise UserError(f"{folder / LIST}, {line[:200]}: {error}") from error
            runs += math.prod(map(len, choices))
            if runs > MOST_RUNS:
                raise UserError(f"{folder / LIST}, {line[:200]}: a list may ask for {MOST_RUNS:,} runs at most")
    return found


def expanded(line: str) -> Iterator[list[str]]:
    """The runs that a line of settings sweeps over, the last key fastest.

    Raises:
        UserError: as `read_list`.
    """
    yield from map(list, itertools.product(*_choices(line)))


def _choices(line: str, then: bool = False) -> list[list[str]]:
    """The settings that a line sweeps over, key by key; of a line under `then`, which tells of a task.

    Raises:
        UserError: one cannot be read, or sets something else than a key of a run's configuration.
    """
    choices = []
    for word in line.split():
        try:
            setting = _parsed(word)
            _refuse_foreign(setting, word, then)
            if not setting.is_sweep_override():
                values = [setting.get_value_element_as_str()]
            elif isinstance(sweep := setting.value(), RangeSweep) and sweep.shuffle:
                raise UserError(f"{word}: a list has its runs in order: leave shuffle out")
            else:
                values = [*itertools.islice(setting.sweep_string_iterator(), MOST_RUNS + 1)]
        except (HydraException, ValueError, ArithmeticError, RecursionError) as error:
            raise UserError(explain(error) or f"{word[:80]}: it cannot be read") from error
        choices.append([f"{setting.get_key_element()}={value}" for value in values])
    for values in choices:
        for setting in values:
            key, _, value = setting.lstrip("+").partition("=")
            if key in CHOSEN and not re.fullmatch(r"[\w-]+", value):
                raise UserError(f"{setting}: it should be the name of a file in configs/{key}")
    return choices


def _refuse_foreign(setting: Override, word: str, then: bool) -> None:
    """Raise UserError for a setting that is no key of a run's configuration: some would have other code run."""
    key = setting.key_or_group
    if key in OWN and not (then and key == "task"):
        raise UserError(f"{word}: lines are runs to train, what follows them is under then: leave it out")
    parts = key.split(".")
    if parts[0] not in ALLOWED:
        raise UserError(f"{parts[0]}: unknown key; {nearest(parts[0], ALLOWED)}a list may set {', '.join(ALLOWED)}")
    if key == "task.out" and not PLACE.fullmatch(str(setting.value())):
        raise UserError(f"{word}: a list may only name a place below the current folder, as task.out=folder/file.csv")
    if setting.is_delete() or setting.package is not None or any(part.startswith("_") for part in parts):
        raise UserError(f"{word}: a list may only set keys, as encoding.base=1000, and none that begins with _")


@lru_cache(4 * MOST_RUNS)
def _parsed(setting: str) -> Override:
    (parsed,) = OverridesParser.create().parse_overrides([setting])
    return parsed


@dataclass(frozen=True)
class Absent:
    """A run that a study lists as `line` and that has left no record; `asked`: its settings, by dotted key."""

    line: str
    asked: Mapping[str, Any]

    @property
    def trouble(self) -> Trouble:
        return Trouble(self.line, "missing", f"listed in {LIST}, no record is kept")

    def is_like(self, run: Run, seed: int) -> bool:
        """Whether it would be `run` with that seed."""
        return "seed" in self.asked and _fits(self.asked, {**_settings(run), "seed": seed})


def absent(folder: Path, runs: Sequence[Run]) -> list[Absent]:
    """Runs that the study in `folder` lists and that are not among `runs`, of which each stands for one alone."""
    left = [_settings(run) for run in runs]
    listed = [given for line in read_list(folder)["runs"] for given in expanded(line)]
    missing = {}
    for given in sorted(listed, key=len, reverse=True):  # a variant's record satisfies the plain run's settings too
        asked = {each.key_or_group: each.value() for each in map(_parsed, given)}
        asked |= {key: without_folders(asked[key]) for key in PLACED & asked.keys()}
        asked.pop("experiment", None)  # whose settings a run does not tell apart from its own
        if (record := next((each for each in left if _fits(asked, each)), None)) is None:
            missing[" ".join(given)] = asked
        else:
            left.remove(record)
    return [Absent(line, missing[line]) for line in map(" ".join, listed) if line in missing]


def _fits(asked: Mapping[str, Any], settings: Mapping[str, Any]) -> bool:
    return all(settings.get(key) == value for key, value in asked.items())


def _settings(run: Run) -> dict[str, Any]:
    found = {**dict(leaves(run.config)), **run.config["names"], "seed": run.seed}
    return found | {key: without_folders(found[key]) for key in PLACED & found.keys()}
