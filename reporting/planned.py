"""The list of a study's runs, `study.yaml`: the runs it lists, and those without a record."""

import itertools
import math
import re
import shlex
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import scipy
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, RangeSweep
from hydra.errors import HydraException

from ..core.checked_files import DAMAGE, figure, read_csv, why
from ..core.errors import UserError, nearest_key, one_line, suggestions
from ..core.plain_yaml import as_yaml, read_yaml
from ..session.explaining import explain
from ..session.identity import incidental
from ..session.overrides import choices_of
from ..session.run_config import GROUPS
from ..session.run_directory import PLACES, leaves, without_folders
from ..session.settings import known_keys
from ..session.trust import trusted
from .claims import read_claims
from .finished import RATE, Run
from .statistics import FEWEST_SEEDS
from .study import MISSING, Trouble

LIST = "study.yaml"
EXAMPLE = "such as - encoding=rope,pope seed=0,1,2"  # of a line
TUNED = "tuning.csv"  # results of the search: columns `run` and `search`, and a column for each setting
KEYS = (
    "question",
    "would_change",
    "search",
    "runs",
    "then",
    "published",
    "claims",
    "reference",
    "outcome",
    "margin",
    "variants",
    "compare",
)
OUTCOMES = ("scores", "lengths", "take-off")
# Paths, of which kept records hold only the file names.
PLACED = {f"{group}.{key}" for group, keys in PLACES.items() for key in keys}
NO_RECORD = f"listed in {LIST}, but there is no record"
LARGEST = 1 << 16  # bytes per list
MOST_RUNS = 10_000  # per list
CHOSEN = ("domain", "encoding", "model", "experiment", "task")  # keys whose values name files in configs/
ALLOWED = (*GROUPS, "task", "seed", "match", "experiment", "encodings")
PLACE = re.compile(r"\w[\w.-]*(/\w[\w.-]*)*")  # without hidden files, which shells and editors may execute
SETTING = re.compile(rf"({'|'.join(GROUPS)})(\.\w+)+")
SEED = re.compile(r"seed=(0|[1-9]\d{0,17})")
OWN = ("run", "runs", "stores", "task")  # set by the command that trains a run, not by a line


def read_list(folder: Path) -> Mapping[str, Any]:
    """Read a study's list.

    Its `runs` are lines in the form that `python main.py -m` takes, highest priority first. `search` is a line with
    options of `task=tune`, which chooses further settings of the runs. `then` has lines for tasks that follow.
    `published` has results of others by split and encoding, `claims` what they conclude. `reference` is the encoding,
    or the model of the tables, to compare with, and `margin` the margin of equivalence in nats/token. `outcome`, one of
    OUTCOMES, is what the study's page begins with. `variants` has setting keys under which one hypothesis is tested
    repeatedly, and `compare` those whose values are compared as encodings are. `question` and `would_change`, what
    would change the answer, are text. Keys without a value are ignored.

    Raises:
        UserError: the file cannot be read, lacks `runs`, has an unknown key or a value of the wrong type; `published`
            names an unknown encoding; `variants` or `compare` names a setting that no run can have; a line sets a key
            that is not part of a run's configuration; or the lines list more than MOST_RUNS runs.
    """
    try:
        found = read_yaml(folder / LIST, LARGEST)
        if not isinstance(found, Mapping) or "runs" not in found:
            raise TypeError(f"runs is missing: list lines under it, {EXAMPLE}")
        if not isinstance(found["runs"], list):
            raise TypeError(f"runs is not a list: write each line after a dash, {EXAMPLE}")
        if others := [each for each in found["runs"] if not isinstance(each, str)]:
            given = " ".join(as_yaml(others[0]).removesuffix("...\n").split())[:80]
            raise TypeError(f"runs: {given} is not a line of settings: write each line after a dash, {EXAMPLE}")
        if unknown := [key for key in found if key not in KEYS]:
            raise TypeError(f"unknown key {unknown[0]}; allowed: {', '.join(KEYS)}")
        found = {key: value for key, value in found.items() if value is not None}
        if isinstance(found.get("search"), str):
            found["search"] = " ".join(found["search"].split())
        for key, of in (("then", "lines"), ("variants", "keys"), ("compare", "keys")):
            if not (isinstance(lines := found.get(key, []), list) and all(isinstance(line, str) for line in lines)):
                raise TypeError(f"{key} must be a list of {of}")
        for key in ("variants", "compare"):
            for each in found.get(key, []):
                if not SETTING.fullmatch(each):
                    raise TypeError(f"{key}: {each} must be GROUP.KEY, such as trainer.precision")
                if each not in known_keys() and not trusted():  # classes of trusted packages have other keys
                    near = nearest_key(each, known_keys()).strip() or "`python main.py --cfg job` lists all keys"
                    raise TypeError(f"{key}: {each}: unknown key; {near}")
        for key in ("question", "would_change", "search", "reference"):
            if not isinstance(found.get(key, ""), str):
                raise TypeError(f"{key} must be text")
        if (outcome := found.get("outcome", OUTCOMES[0])) not in OUTCOMES:
            raise TypeError(f"outcome: {outcome} must be one of {', '.join(OUTCOMES)}")
        if not (type(margin := found.get("margin", 1.0)) in (int, float) and 0 < margin < math.inf):
            raise TypeError(f"margin: {margin} must be a number of nats/token above 0")
        if "published" in found:
            published = found["published"]
            if not isinstance(published, Mapping) or not all(
                figures is None
                or (isinstance(figures, Mapping) and all(isinstance(figure, str) for figure in figures.values()))
                for figures in published.values()
            ):
                raise TypeError("published must have results by encoding for each split: {test: {rope: 1.501 nats}}")
            found["published"] = {split: figures for split, figures in published.items() if figures}
            encodings = choices_of("encoding")
            for each in itertools.chain(*found["published"].values()):
                if each not in encodings:
                    raise UserError(
                        f"{folder / LIST}, published: {each} is not an encoding; {suggestions(each, encodings)}"
                    )
        if "claims" in found:
            found["claims"] = read_claims(found["claims"])
    except (OSError, ValueError, TypeError) as error:
        raise UserError(f"{folder / LIST}: {one_line(error)}") from error
    runs, search = 0, [found["search"]] if "search" in found else []
    for key, lines in (("runs", found["runs"]), ("then", found.get("then", [])), ("search", search)):
        for line in lines:
            try:
                choices = _choices(line, key)
            except UserError as error:
                raise UserError(f"{folder / LIST}, {line[:200]}: {error}") from error
            runs += math.prod(map(len, choices))
            if runs > MOST_RUNS:
                raise UserError(f"{folder / LIST}, {line[:200]}: a list may have at most {MOST_RUNS:,} runs")
    return found


def chosen_settings(folder: Path, search: str) -> dict[str, list[str]]:
    """What the `search` of the study in `folder` has chosen so far, by `searched_run`.

    Raises:
        UserError: the table of the search cannot be read.
    """
    best = [row for row in searched_rows(folder) if (row["chosen"], row.get("search")) == ("True", search)]
    found = {row["run"]: [f"{key}={value}" for key, value in row.items() if "." in key and value] for row in best}
    for setting in itertools.chain(*found.values()):
        try:
            _refuse_foreign(_parsed(setting), setting, "runs")
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
    words = map(_parsed, words_of(entries.get("search", "")))
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


def searched_run(settings: Sequence[str]) -> str:
    """The settings of a run that determine its search."""
    return " ".join(setting.lstrip("+") for setting in without_seed(settings) if not setting.startswith("task."))


def without_seed(settings: Sequence[str]) -> tuple[str, ...]:
    """Settings without a seed."""
    return tuple(setting for setting in settings if not SEED.fullmatch(setting))


def expanded(line: str) -> Iterator[list[str]]:
    """The runs that a line of settings sweeps over; the last key varies fastest.

    Raises:
        UserError: as in `read_list`.
    """
    yield from map(list, itertools.product(*_choices(line)))


def as_written(line: str, run: Sequence[str]) -> str:
    """The settings of a `run` of a line, with those that the line does not sweep over as they are in the line."""
    words = zip(words_of(line), run, strict=True)
    settings = [setting if _parsed(word).is_sweep_override() else word for word, setting in words]
    quotes = ["" if " " not in each else '"' if "'" in each else "'" for each in settings]
    return " ".join(f"{quote}{each}{quote}" for quote, each in zip(quotes, settings, strict=True))


def words_of(line: str) -> list[str]:
    """The settings in a line, which may have quotes as on a command line. Raises UserError if a quote is not closed."""
    try:
        return shlex.split(line)
    except ValueError as error:
        how = "quote settings as on a command line, such as 'domain.path=my music/a.mid'"
        raise UserError(f"{one_line(error)}: {how}") from error


def _choices(line: str, of: str = "runs") -> list[list[str]]:
    """The settings that a line under the key `of` sweeps over, by key. Only lines of runs may not set a task.

    Raises:
        UserError: a setting cannot be read, or its key is not part of a run's configuration.
    """
    choices = []
    for word in words_of(line):
        try:
            setting = _parsed(word)
            _refuse_foreign(setting, word, of)
            if not setting.is_sweep_override():
                values = [setting.get_value_element_as_str()]
            elif isinstance(sweep := setting.value(), RangeSweep) and sweep.shuffle:
                raise UserError(f"{word}: remove shuffle, because the runs of a list are ordered")
            else:
                values = [*itertools.islice(setting.sweep_string_iterator(), MOST_RUNS + 1)]
        except (HydraException, ValueError, ArithmeticError, RecursionError) as error:
            raise UserError(explain(error) or f"{word[:80]}: not a valid setting") from error
        choices.append([f"{setting.get_key_element()}={value}" for value in values])
    if of == "search" and ["task=tune"] not in choices:
        raise UserError("a search is a line such as task=tune task.rates=[1e-3,2e-3] seed=5")
    for values in choices:
        for setting in values:
            key, _, value = setting.lstrip("+").partition("=")
            if key in CHOSEN and not re.fullmatch(r"[\w-]+", value):
                raise UserError(f"{setting}: must be the name of a file in configs/{key}")
    return choices


def _refuse_foreign(setting: Override, word: str, of: str) -> None:
    """Raise UserError for a setting outside a run's configuration, because some could execute other code."""
    key = setting.key_or_group
    if key in OWN and (of == "runs" or key != "task"):
        raise UserError(f"{word}: remove it, because each line is a run to train; put other tasks under then")
    if of == "search" and (
        key == "task.out" or setting.is_sweep_override() or key.split(".")[0] not in ("task", "seed")
    ):
        raise UserError(f"{word}: a search only has task=tune, its options without task.out, and seed=N")
    parts = key.split(".")
    if parts[0] not in ALLOWED:
        raise UserError(f"{parts[0]}: unknown key; {suggestions(parts[0], ALLOWED)}")
    if key == "task.out" and not PLACE.fullmatch(str(setting.value())):
        raise UserError(f"{word}: must be a path below the current folder, such as task.out=folder/file.csv")
    if setting.is_delete() or setting.package is not None or any(part.startswith("_") for part in parts):
        raise UserError(f"{word}: only settings such as encoding.base=1000 are allowed, without keys that begin with _")


@lru_cache(4 * MOST_RUNS)
def _parsed(setting: str) -> Override:
    (parsed,) = OverridesParser.create().parse_overrides([setting])
    return parsed


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


def absent(folder: Path, runs: Sequence[Run]) -> list[Absent]:
    """Runs that the study in `folder` lists but `runs` lacks; each of `runs` accounts for one.

    A record can fit several lines, because a line leaves out settings of its experiment. Records are assigned such that
    as many lines as possible have one, those with more settings first.
    """
    lines = [[*given, *(chosen or ())] for given, chosen in listed(folder)]
    wanted = [_asked(line) for line in lines]
    recorded = _recorded(wanted, [*map(len, lines)], runs)
    return [Absent(" ".join(line), wanted[row]) for row, line in enumerate(lines) if row not in recorded]


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


def _recorded(wanted: Sequence[Mapping[str, Any]], worth: Sequence[int], runs: Sequence[Run]) -> set[int]:
    """Indices of the `wanted` settings that one of `runs` has. Each run accounts for one of them, to most `worth`."""
    records = [_settings(run) for run in runs]
    gain = np.zeros((len(wanted), len(records)))
    for row, (asked, each) in enumerate(zip(wanted, worth, strict=True)):
        gain[row] = [each * _fits(asked, record) for record in records]
    rows, columns = scipy.optimize.linear_sum_assignment(gain, maximize=True)
    return set(rows[gain[rows, columns] > 0].tolist())


def _asked(line: Sequence[str]) -> dict[str, Any]:
    """The settings of a line that distinguish runs; the seed, in which most runs differ, first."""
    asked = {each.key_or_group: each.value() for each in map(_parsed, line)}
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
