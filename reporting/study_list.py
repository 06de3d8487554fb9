"""The list of a study's runs, `study.yaml`: reads and checks it."""

import itertools
import math
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ..core.errors import UserError, nearest_key, one_line, shortened, suggestions
from ..core.plain_yaml import as_yaml, read_yaml
from ..session.overrides import choices_of, key_of
from ..session.run_config import GROUPS
from ..session.settings import known_keys
from ..session.trust import trusted
from .claims import read_claims
from .lines import MOST_RUNS, choices_in

LIST = "study.yaml"
EXAMPLE = "such as - encoding=rope,pope seed=0,1,2"  # of a line
TEXTS = ("question", "would_change", "search", "reference")
LISTS = {  # what each is a list of
    "then": "lines, such as [task=extrapolate]",
    **dict.fromkeys(("variants", "compare"), "keys, such as [model.mlp]"),
}
KEYS = (
    *("question", "would_change", "search", "runs", "then", "published", "claims", "reference", "outcome", "margin"),
    *("variants", "compare"),
)
OUTCOMES = ("scores", "lengths", "take-off")
LARGEST = 1 << 16  # bytes per list
SETTING = re.compile(rf"({'|'.join(GROUPS)})(\.\w+)+")


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
        _check_runs(found)
        if unknown := [key for key in found if key not in KEYS]:
            raise TypeError(f"unknown key {unknown[0]}; allowed: {', '.join(KEYS)}")
        found = {key: value for key, value in found.items() if value is not None}
        _check_types(found)
        for key in ("variants", "compare"):
            _check_keys(key, found.get(key, []))
        if "search" in found:
            found["search"] = " ".join(found["search"].split())
        if "published" in found:
            found["published"] = _read_published(found["published"])
        if "claims" in found:
            found["claims"] = read_claims(found["claims"])
    except (OSError, ValueError, TypeError) as error:
        raise UserError(f"{folder / LIST}: {one_line(error)}") from error
    _check_lines(folder, found)
    _check_encodings(folder, found)
    return found


def _check_runs(found: Any) -> None:
    if not isinstance(found, Mapping) or "runs" not in found:
        raise TypeError(f"runs is missing: list lines under it, {EXAMPLE}")
    if not isinstance(found["runs"], list):
        raise TypeError(f"runs is not a list: write each line after a dash, {EXAMPLE}")
    if others := [each for each in found["runs"] if not isinstance(each, str)]:
        given = " ".join(as_yaml(others[0]).removesuffix("...\n").split())[:80]
        raise TypeError(f"runs: {given} is not a line of settings: write each line after a dash, {EXAMPLE}")


def _check_types(found: Mapping[str, Any]) -> None:
    for key in TEXTS:
        if not isinstance(found.get(key, ""), str):
            raise TypeError(f"{key} must be text")
    for key, of in LISTS.items():
        if not (isinstance(lines := found.get(key, []), list) and all(isinstance(line, str) for line in lines)):
            raise TypeError(f"{key}: {shortened(lines)} must be a list of {of}")
    if (outcome := found.get("outcome", OUTCOMES[0])) not in OUTCOMES:
        raise TypeError(f"outcome: {outcome} must be one of {', '.join(OUTCOMES)}")
    if not (type(margin := found.get("margin", 1.0)) in (int, float) and 0 < margin < math.inf):
        raise TypeError(f"margin: {margin} must be a number of nats/token above 0")


def _check_keys(of: str, keys: list[str]) -> None:
    """Raise TypeError for keys that no run can have."""
    for each in keys:
        if not SETTING.fullmatch(each):
            raise TypeError(f"{of}: {each} must be GROUP.KEY, such as trainer.precision")
        if each not in known_keys() and not trusted():  # classes of trusted packages have other keys
            near = nearest_key(each, known_keys()).strip() or "`python main.py --cfg job` lists all keys"
            raise TypeError(f"{of}: {each}: unknown key; {near}")


def _read_published(given: Any) -> dict[str, Mapping[str, str]]:
    """Results by encoding for each split that has any."""
    by_split = given.values() if isinstance(given, Mapping) else [given]
    figures = [each for each in by_split if each is not None]
    if not all(isinstance(each, Mapping) and all(isinstance(text, str) for text in each.values()) for each in figures):
        raise TypeError("published must have results by encoding for each split: {test: {rope: 1.501 nats}}")
    return {split: named for split, named in given.items() if named}


def _check_encodings(folder: Path, found: Mapping[str, Any]) -> None:
    """Raise UserError for a published result of an encoding that neither configs/ nor a line of the list has."""
    given = settings_in(found["runs"]) if "published" in found else set()
    encodings = sorted({*choices_of("encoding"), *(value for key, value in given if key == "encoding")})
    for each in (encoding for figures in found.get("published", {}).values() for encoding in figures):
        if each not in encodings:
            raise UserError(f"{folder / LIST}, published: {each} is not an encoding; {suggestions(each, encodings)}")


def settings_in(lines: Iterable[str]) -> set[tuple[str, str]]:
    """The key and value of each setting in lines of runs."""
    settings = itertools.chain.from_iterable(values for line in lines for values in choices_in(line))
    return {(key_of(each), each.partition("=")[2]) for each in settings}


def _check_lines(folder: Path, found: Mapping[str, Any]) -> None:
    """Raise UserError for a line that cannot be read, and for too many runs."""
    runs, search = 0, [found["search"]] if "search" in found else []
    for key, lines in (("runs", found["runs"]), ("then", found.get("then", [])), ("search", search)):
        for line in lines:
            try:
                choices = choices_in(line, key)
            except UserError as error:
                raise UserError(f"{folder / LIST}, {line[:200]}: {error}") from error
            runs += math.prod(map(len, choices))
            if runs > MOST_RUNS:
                raise UserError(f"{folder / LIST}, {line[:200]}: a list may have at most {MOST_RUNS:,} runs")
