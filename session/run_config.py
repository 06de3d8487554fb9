"""A run's or an export's config.yaml: plain data, whose classes follow from the names of files in configs/."""

import re
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Annotated, Any

from omegaconf import OmegaConf
from pydantic import Field

from ..core.errors import several, shortened
from ..core.options import options_of, type_problem
from ..core.plain_yaml import read_yaml
from .configuration import NAMED, choices_of
from .settings import CHOSEN, CONFIGS, Settings
from .trust import KINDS

GROUPS = ("domain", "encoding", "model", "data", "optimizer", "trainer", "evaluation")
NAME = re.compile(r"\w[\w.-]*")
# What else a configuration holds, by key; those of REQUIRED are in each.
OTHERS = {
    **{name: option.kind for name, option in options_of(Settings).items() if name != "trust"},
    "content": dict,
    "names": dict,
    "unmatched_hidden": int | None,
    "vocabulary": Annotated[int, Field(ge=1, lt=2**31)],
    "store": str,
    "files": dict[str, str],
}
REQUIRED = ("seed", "content", "names")
# Entries of kept configurations that decide nothing. Names of runs are a hash of them too, and so stay the same.
IDLE = {
    "encoding": {"_partial_": True},
    "optimizer": {"_target_": "bearings.lightning_modules.language_model.LanguageModel"},
}


def read_config(file: Path, groups: Sequence[str] = GROUPS) -> dict:
    """The configuration in `file`, of `groups`, each with the `_target_` that its name in configs/ has if it lacks one.

    Nothing that it names is imported.

    Raises:
        OSError: it cannot be read.
        KeyError: it lacks a group or a key.
        ValueError: it holds something else than a configuration; says so in one line.
    """
    config = read_yaml(file)
    if not isinstance(config, dict):
        raise ValueError("it should hold settings by group, as task=train writes them")
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
            raise ValueError(f"{group}={shortened(config[group])}: it should hold settings")
        idle = IDLE.get(group, {}).items()
        given = {key: value for key, value in config[group].items() if (key, value) not in idle}
        config[group] = {**_named_by(group, config["names"]), **given}
        if "_target_" not in config[group]:
            raise ValueError(f"{group}: there is no configs/{group}/{config['names'][group]}.yaml that names its class")
    return config


def written(config: Mapping) -> dict:
    """`config` as its file holds it: without a `_target_` that follows from its names."""
    names = config["names"]
    return {
        key: {name: value for name, value in block.items() if (name, value) not in _named_by(key, names).items()}
        if key in GROUPS
        else block
        for key, block in config.items()
    }


def as_hashed(group: str, block: Mapping) -> dict:
    """A group's block as names of runs are a hash of it, with the entries in IDLE."""
    idle = IDLE.get(group, {})
    return {**idle, **{key: value for key, value in block.items() if key not in idle or value != KINDS[group][1]}}


def _named_by(group: str, names: Mapping[str, str]) -> dict[str, str]:
    """The `_target_` of a group's file in configs/."""
    found = {} if group in CHOSEN else {"_target_": KINDS[group][1]}
    return {**found, **_target_in(group, names[group])} if group in NAMED else found


@cache
def _target_in(group: str, name: str) -> dict[str, str]:
    if name not in choices_of(group):
        return {}
    block: Any = OmegaConf.load(CONFIGS / group / f"{name}.yaml")
    return {"_target_": str(block["_target_"])} if "_target_" in block else {}
