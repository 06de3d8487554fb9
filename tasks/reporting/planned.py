"""A study's list of runs, `study.yaml`: what it asks for, and what of that has left no record."""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from hydra.core.override_parser.overrides_parser import OverridesParser

from bearings.errors import UserError
from bearings.tasks.reporting.study import Run, Trouble
from bearings.tasks.run_directory import PLACES, leaves, without_folders

LIST = "study.yaml"
KEYS = ("runs", "then", "published", "reference", "variants")
PLACED = {f"domain.{key}" for key in PLACES}  # kept records hold the names of these files alone


def read_list(folder: Path) -> Mapping[str, Any]:
    """A study's list: `runs`, lines in order of worth as `python main.py -m` takes them, and what else it tells.

    `published` is by split and encoding; `variants` names settings under which one hypothesis is tested again. A key
    with nothing behind it counts as left out.

    Raises:
        UserError: it cannot be read, holds no list of runs or another key, or what is behind one is something else.
    """
    try:
        if not (folder / LIST).is_file():
            raise TypeError("it is no regular file")
        found = yaml.safe_load((folder / LIST).read_text(encoding="utf-8"))
        if not isinstance(found, Mapping) or "runs" not in found:
            raise TypeError("it lacks runs: [LINE, ...]")
        if not (isinstance(found["runs"], list) and all(isinstance(line, str) for line in found["runs"])):
            raise TypeError("runs is no list of lines")
        if unknown := [key for key in found if key not in KEYS]:
            raise TypeError(f"{unknown[0]} is unknown; it may hold {', '.join(KEYS)}")
        found = {key: value for key, value in found.items() if value is not None}
        for key, of in (("then", "lines"), ("variants", "keys")):
            if not (isinstance(lines := found.get(key, []), list) and all(isinstance(line, str) for line in lines)):
                raise TypeError(f"{key} is no list of {of}")
        if "published" in found:
            published = found["published"]
            if not isinstance(published, Mapping) or not all(
                isinstance(figures, Mapping | None) for figures in published.values()
            ):
                raise TypeError("published is to hold figures by encoding under each split")
            found["published"] = {split: figures for split, figures in published.items() if figures}
        return found
    except (OSError, yaml.YAMLError, TypeError) as error:
        raise UserError(f"{folder / LIST} is no list of runs ({' '.join(str(error).split())})") from error


def expanded(line: str) -> Iterator[list[str]]:
    """The runs that a line of settings sweeps over, the last key fastest."""
    choices = []
    for setting in OverridesParser.create().parse_overrides(line.split()):
        swept = setting.is_sweep_override()
        values = setting.sweep_string_iterator() if swept else [setting.get_value_element_as_str()]
        choices.append([f"{setting.get_key_element()}={value}" for value in values])
    yield from map(list, itertools.product(*choices))


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
        asked = {each.key_or_group: each.value() for each in OverridesParser.create().parse_overrides(given)}
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
