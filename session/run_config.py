"""The config.yaml of a run or an export: plain data; the names of files in configs/ determine the classes."""

import re
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Annotated

from pydantic import Field

from ..core.errors import UserError, several, shortened
from ..core.options import options_of, type_problem
from ..core.plain_yaml import read_yaml
from ..lightning_modules.options import DataOptions, EvaluationOptions
from .configuration import NAMED
from .overrides import choices_of
from .settings import CHOSEN, Settings, file_of
from .trust import KINDS

GROUPS = ("domain", "encoding", "model", "data", "optimizer", "trainer", "evaluation")
NAME = re.compile(r"\w[\w.-]*")
# Types of the other keys of a configuration; REQUIRED are always present.
OTHERS = {
    **{name: option.kind for name, option in options_of(Settings).items() if name != "trust"},
    "content": dict,
    "names": dict,
    "unmatched_hidden": int | None,
    "pretrained": dict[str, str | int],
    "vocabulary": Annotated[int, Field(ge=1, lt=2**31)],
    "store": str,
    "length": options_of(DataOptions)["length"].kind,
    "overlap": options_of(EvaluationOptions)["overlap"].kind,
    "files": dict[str, str],
}
REQUIRED = ("seed", "content", "names")
# Entries of older configurations without effect. They stay part of the hash in the names of runs.
IDLE = {
    "encoding": {"_partial_": True},
    "optimizer": {"_target_": "bearings.lightning_modules.language_model.LanguageModel"},
}


def read_config(file: Path, groups: Sequence[str] = GROUPS) -> dict:
    """Read the configuration in `file`. A group without a `_target_` gets that of its named file in configs/.

    Nothing is imported.

    Raises:
        OSError: the file cannot be read.
        KeyError: a group or key is missing.
        ValueError: the file is not a configuration; the message is one line.
        UserError: the named file in configs/ of a group without a `_target_` does not exist.
    """
    config = read_yaml(file)
    if not isinstance(config, dict):
        raise ValueError("it should contain settings by group, as written by task=train")
    for key in (*groups, *REQUIRED):
        if key not in config:
            raise KeyError(key)
    if problems := [
        problem for key in OTHERS.keys() & config for problem in type_problem(key, config[key], OTHERS[key])
    ]:
        raise ValueError(several(sorted(problems)))
    for key in NAMED:
        name = config["names"][key]
        if not isinstance(name, str) or not NAME.fullmatch(name):
            raise ValueError(f"names.{key}={shortened(name)}: it should be the name of a file in configs/{key}")
    for group in groups:
        if not isinstance(config[group], dict):
            raise ValueError(f"{group}={shortened(config[group])}: it should contain settings")
        idle = IDLE.get(group, {}).items()
        given = {key: value for key, value in config[group].items() if (key, value) not in idle}
        config[group] = {**_named_by(group, config["names"]), **given}
        if "_target_" not in config[group]:
            lost = f"configs/{group}/{config['names'][group]}.yaml"
            raise UserError(f"{group}: {lost}, which names its class, does not exist: put it back")
    return config


def written(config: Mapping) -> dict:
    """`config` as written to its file, without each `_target_` that follows from its names."""
    names = config["names"]
    return {
        key: {name: value for name, value in block.items() if (name, value) not in _named_by(key, names).items()}
        if key in GROUPS
        else block
        for key, block in config.items()
    }


def as_hashed(group: str, block: Mapping) -> dict:
    """A group's block as it enters the hash in names of runs, with the entries in IDLE."""
    idle = IDLE.get(group, {})
    return {**idle, **{key: value for key, value in block.items() if key not in idle or value != KINDS[group][1]}}


def _named_by(group: str, names: Mapping[str, str]) -> dict[str, str]:
    """The `_target_` in a group's configuration file."""
    found = {} if group in CHOSEN else {"_target_": KINDS[group][1]}
    return {**found, **_target_in(group, names[group])} if group in NAMED else found


@cache
def _target_in(group: str, name: str) -> dict[str, str]:
    if name not in choices_of(group):
        return {}
    block = file_of(group, name)
    return {"_target_": str(block["_target_"])} if "_target_" in block else {}
