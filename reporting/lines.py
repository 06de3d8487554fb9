"""The lines of a study's list: settings in the form that `python main.py -m` takes, and the runs they sweep over."""

import itertools
import re
import shlex
from collections.abc import Iterator, Sequence
from functools import lru_cache

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, RangeSweep
from hydra.errors import HydraException

from ..core.errors import UserError, one_line, suggestions
from ..session.explaining import explain
from ..session.run_config import GROUPS

MOST_RUNS = 10_000  # per list
CHOSEN = ("domain", "encoding", "model", "experiment", "task")  # keys whose values name files in configs/
ALLOWED = (*GROUPS, "task", "seed", "match", "experiment", "encodings")
PLACE = re.compile(r"\w[\w.-]*(/\w[\w.-]*)*")  # without hidden files, which shells and editors may execute
SEED = re.compile(r"seed=(0|[1-9]\d{0,17})")
OWN = ("run", "runs", "stores", "task")  # set by the command that trains a run, not by a line


def expanded(line: str) -> Iterator[list[str]]:
    """The runs that a line of settings sweeps over; the last key varies fastest.

    Raises:
        UserError: as `choices_in`.
    """
    yield from map(list, itertools.product(*choices_in(line)))


def as_written(line: str, run: Sequence[str]) -> str:
    """The settings of a `run` of a line, with those that the line does not sweep over as they are in the line."""
    words = zip(words_of(line), run, strict=True)
    settings = [setting if parsed(word).is_sweep_override() else word for word, setting in words]
    quotes = ["" if " " not in each else '"' if "'" in each else "'" for each in settings]
    return " ".join(f"{quote}{each}{quote}" for quote, each in zip(quotes, settings, strict=True))


def words_of(line: str) -> list[str]:
    """The settings in a line, which may have quotes as on a command line. Raises UserError if a quote is not closed."""
    try:
        return shlex.split(line)
    except ValueError as error:
        how = "quote settings as on a command line, such as 'domain.path=my music/a.mid'"
        raise UserError(f"{one_line(error)}: {how}") from error


def without_seed(settings: Sequence[str]) -> tuple[str, ...]:
    """Settings without a seed."""
    return tuple(setting for setting in settings if not SEED.fullmatch(setting))


def searched_run(settings: Sequence[str]) -> str:
    """The settings of a run that determine its search."""
    return " ".join(setting.lstrip("+") for setting in without_seed(settings) if not setting.startswith("task."))


def choices_in(line: str, of: str = "runs") -> list[list[str]]:
    """The settings that a line under the key `of` sweeps over, by key. Only lines of runs may not set a task.

    Raises:
        UserError: a setting cannot be read, or its key is not part of a run's configuration.
    """
    choices = []
    for word in words_of(line):
        try:
            setting = parsed(word)
            refuse_foreign(setting, word, of)
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
                raise UserError(f"{setting}: must be the name of a file in configs/{key}, or in {key} of --config-dir")
    return choices


def refuse_foreign(setting: Override, word: str, of: str) -> None:
    """Raise UserError for a setting outside a run's configuration, because some could execute other code."""
    key = setting.key_or_group
    if key in OWN and (of == "runs" or key != "task"):
        raise UserError(f"{word}: remove it, because each line is a run to train; put other tasks under then")
    if of == "search" and (
        key in ("task.out", "task.points") or setting.is_sweep_override() or key.split(".")[0] not in ("task", "seed")
    ):
        raise UserError(
            f"{word}: a search only has task=tune, its options without task.out and task.points, and seed=N"
        )
    parts = key.split(".")
    if parts[0] not in ALLOWED:
        raise UserError(f"{parts[0]}: unknown key; {suggestions(parts[0], ALLOWED)}")
    if key == "task.out" and not PLACE.fullmatch(str(setting.value())):
        raise UserError(f"{word}: must be a path below the current folder, such as task.out=folder/file.csv")
    if setting.is_delete() or setting.package is not None or any(part.startswith("_") for part in parts):
        raise UserError(
            f"{word}: only settings such as encoding.base=1000 are allowed, without keys that begin with _: to use "
            "your class, name it in FOLDER/GROUP/FILE.yaml, write GROUP=FILE, and give the command --config-dir=FOLDER"
        )


@lru_cache(4 * MOST_RUNS)
def parsed(setting: str) -> Override:
    """A setting as Hydra reads it. Raises HydraException if it cannot."""
    (found,) = OverridesParser.create().parse_overrides([setting])
    return found
