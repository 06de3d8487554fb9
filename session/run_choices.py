"""The configuration for using an existing run: its own, with the task of a command or the device of this machine."""

from collections.abc import Container, Mapping, Sequence

from hydra.core.override_parser.overrides_parser import OverridesParser

from ..core.errors import UserError
from ..core.options import as_path
from ..lightning_modules.options import TrainerOptions
from .configuration import NAMED, refuse_problems
from .identity import INCIDENTAL, identity, portable
from .overrides import as_typed, choices_of, key_of
from .run_config import read_config
from .run_directory import RunDirectory, leaves
from .settings import target_of
from .trust import located

SEVERAL = ("devices", "nodes", "context_parallel")
# Trainer settings that describe the machine which trained a run.
MACHINE = ("accelerator", *SEVERAL, "cuda_graphs")


def configuration_for(run: RunDirectory, asked: Mapping, overrides: list[str]) -> dict:
    """The run's own configuration, with the task and device of `asked` and the incidental settings in `overrides`.

    Raises:
        UserError: `overrides` contradict the run's configuration or ask for several devices, or the run's configuration
            file is invalid.
    """
    made = dict(leaves(run.config)) | run.config["names"]
    asked = {**asked, "content": run.config["content"]}
    there, here = (dict(leaves(identity(config))) | config["names"] for config in (run.config, asked))
    for override in overrides:
        key = key_of(override)
        group, _, name = key.partition(".")
        if name in INCIDENTAL.get(group, ()):
            continue
        for leaf in there.keys() | here.keys():
            # Choosing a configuration file only makes its keys known; the values come from the run.
            named = leaf == key or (leaf.startswith(f"{key}.") and key not in NAMED)
            if named and there.get(leaf) != here.get(leaf):
                raise UserError(
                    f"{override}: {run.path} was made with {leaf}={as_typed(made.get(leaf))}, and this task "
                    "uses the run's configuration: leave out this setting, or name another run"
                )
    given = {key_of(override) for override in overrides}
    for key in given & {"experiment", "match"}:
        raise UserError(f"{key}: this task uses the configuration of {run.path}: leave out this setting")
    for key in SEVERAL:
        if (number := asked["trainer"][key]) != 1:
            raise UserError(f"trainer.{key}={number}: tasks of an existing run use one device: leave out this setting")
    given |= {f"trainer.{key}" for key in MACHINE}
    merged = {**run.config, **{key: asked[key] for key in ("task", "run", *({"stores"} & given))}}
    for group, keys in INCIDENTAL.items():
        chosen = {key: asked[group][key] for key in keys if f"{group}.{key}" in given}
        merged[group] = {**merged[group], **chosen}
    try:
        refuse_problems(merged)
    except UserError as error:
        raise UserError(f"run={run.path}: config.yaml: {error}") from error
    return merged


def on_one_device(run: RunDirectory, accelerator: str) -> dict:
    """The run's configuration, for one device of this machine, which may lack the kernels that trained the run."""
    usual = {key: getattr(TrainerOptions, key) for key in MACHINE}
    return {
        **run.config,
        "run": str(run.path),
        "encoding": portable("encoding", run.config["encoding"]),
        "trainer": {**run.config["trainer"], **usual, "accelerator": accelerator},
    }


def choices_of_run(arguments: Sequence[str]) -> list[str]:
    """The run's configuration files as settings (`group=name`), except for groups that `arguments` set.

    Hydra then knows the keys of these files. Problems with the run or the task are reported later.
    """
    given = {key_of(each): each.partition("=")[2] for each in arguments if "=" in each}
    task = given.get("task", "")
    if "run" not in given or "experiment" in given or task not in choices_of("task"):
        return []
    try:
        if located(target_of("task", task), "task").needs != "run":
            return []
        run = OverridesParser.create().parse_override(f"run={given['run']}").value()
        names = read_config(as_path(str(run)) / "config.yaml")["names"]
    except Exception:
        return []
    return choices_for(names, given)


def choices_for(names: Mapping[str, str], given: Container[str]) -> list[str]:
    """The configuration files in a run's `names`, as settings (`group=name`), except for groups in `given`."""
    return [f"{group}={names[group]}" for group in NAMED if group not in given and names[group] in choices_of(group)]
