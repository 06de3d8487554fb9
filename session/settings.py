"""Finds the declared options of each part of a configuration, and gives Hydra their defaults. Imports no PyTorch."""

import ast
import importlib
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib.util import resolve_name
from pathlib import Path
from typing import Any, Literal, cast

from hydra.core.config_store import ConfigStore
from omegaconf import DictConfig, OmegaConf

from ..core.errors import UserError
from ..core.options import Folder, Options, Seed, defaults_of, options_of
from ..lightning_modules.options import (
    DataOptions,
    EvaluationOptions,
    ModelOptions,
    OptimizerOptions,
    TrainerOptions,
)
from .trust import KINDS, located, refuse_untrusted

CONFIGS = Path(__file__).parent.parent / "configs"
CHOSEN = ("task", "domain", "encoding")  # groups whose configuration files name a class
# Constructor arguments that the session passes, by group; they are not configuration keys.
GIVEN = {
    "model": ("vocabulary", "encoding", "seed", "checkpointing", "clock"),
    "encoding": ("width", "heads", "kv_heads", "head_dim"),
    "data": ("domain", "seed"),
    "evaluation": ("length", "precision", "period"),
}


@dataclass(frozen=True)
class Settings(Options):
    """Settings that belong to no group.

    Attributes:
        seed: seed of the initial weights, the data order and dropout.
        match: resize the MLP so that the model has as many parameters or FLOPs as the same model without an encoding;
            null for no resizing.
        run: directory of a run, for tasks such as evaluate and generate; with null, task=train derives it from the
            configuration.
        runs: folder of all runs: runs/<domain>/<encoding>/<model>-<hash>-s<seed>.
        stores: folder of prepared data (token stores).
        trust: packages whose classes a configuration may name, NAME or [NAME,...]; only on the command line.
    """

    seed: Seed = 0
    match: Literal["params", "flops"] | None = None
    run: Folder | None = None
    runs: Folder = "runs"
    stores: Folder = "data"
    trust: str | Sequence[str] | None = None


OWN = {
    "model": ModelOptions,
    "data": DataOptions,
    "optimizer": OptimizerOptions,
    "trainer": TrainerOptions,
    "evaluation": EvaluationOptions,
}


@cache
def file_of(group: str, name: str, folder: str | Path = CONFIGS) -> DictConfig:
    """The contents of `FOLDER/GROUP/NAME.yaml`, which each run of a sweep or a study needs."""
    return cast("DictConfig", OmegaConf.load(Path(folder) / group / f"{name}.yaml"))


def target_of(group: str, name: str) -> str:
    """The class that `configs/GROUP/NAME.yaml` names."""
    block: Any = file_of(group, name)
    return block.get("_target_") or block[group]["_target_"]


def options_for(target: Any, group: str) -> type[Options] | None:
    """The options of a class of this project, `bearings.FOLDER.options.CLASSOptions`; None if it has none.

    Raises:
        UserError: see `refuse_untrusted`.
    """
    refuse_untrusted(target, group)
    folder, own = KINDS[group]
    if group in OWN:
        return OWN[group] if target == own else None
    if not target.startswith(f"{folder}."):
        return None
    return getattr(importlib.import_module(f"{folder}.options"), f"{target.rpartition('.')[2]}Options", None)


def declared(target: Any, group: str) -> type:
    """The type that declares the settings of a block: the options of its class, or the class with its signature.

    Options are inherited with the constructor.

    Raises:
        UserError: see `located`.
    """
    if options := options_for(target, group):
        return options
    found = located(target, group)
    owner = next(each for each in found.__mro__ if "__init__" in vars(each))
    inherited = owner not in (found, object) and options_for(f"{owner.__module__}.{owner.__qualname__}", group)
    return inherited or found


@cache
def known_keys() -> list[str]:
    """Every key `GROUP.NAME` that a run's configuration can have, with any of the files in configs/."""
    found = {f"{group}.{name}" for group, options in OWN.items() for name in options_of(options)}
    for group in ("domain", "encoding"):
        for file in (CONFIGS / group).glob("*.yaml"):
            with suppress(Exception):  # errors in a file are reported when it is chosen
                block: Any = file_of(group, file.stem)
                names = {*block, *options_of(declared(block["_target_"], group))} - {"_target_", *GIVEN.get(group, ())}
                found |= {f"{group}.{name}" for name in names}
    return sorted(found)


def register() -> None:
    """Register all defaults with Hydra: `settings`, and `options/GROUP` for each file of the groups in CHOSEN."""
    store = ConfigStore.instance()
    groups = {group: {"_target_": KINDS[group][1], **defaults_of(options)} for group, options in OWN.items()}
    store.store("settings", {**defaults_of(Settings), **groups})
    for group in CHOSEN:
        for file in (CONFIGS / group).glob("*.yaml"):
            with suppress(Exception):  # errors in a file are reported when it is chosen
                store.store(file.stem, _defaults(target_of(group, file.stem), group), group=f"options/{group}")


def reads_of(task: str) -> tuple[str, ...] | None:
    """The keys that the class `task` reads in addition to its own, if it needs `nothing`; None for other tasks."""
    with suppress(Exception):  # a class of another package, or none
        given = _assigned(task)
        if ast.literal_eval(given["needs"]) == "nothing":
            return ast.literal_eval(given["reads"])
    return None


def mechanism_of(encoding: str) -> str | None:
    """The mechanism in the `about` of the encoding `configs/encoding/NAME.yaml`; None if it is not written there."""
    with suppress(Exception):  # errors in a file are reported when it is chosen
        about = cast("ast.Call", _assigned(target_of("encoding", encoding))["about"])
        given = {keyword.arg: keyword.value for keyword in about.keywords}
        return ast.literal_eval(given["mechanism"])
    return None


def _defaults(target: str, group: str) -> dict[str, Any]:
    """Defaults of the options of a class of this project, or of its constructor, which may be inherited."""
    with suppress(UserError):  # the class of a base class, which configurations cannot name
        if options := options_for(target, group):
            return defaults_of(options)
    try:
        tree, kind = _source(target)
    except (OSError, StopIteration):  # a class of another package
        return {}
    init = next((part for part in kind.body if isinstance(part, ast.FunctionDef) and part.name == "__init__"), None)
    if init is None:
        return _defaults(_imported(tree, ast.unparse(kind.bases[0]), target), group) if kind.bases else {}
    of = init.args
    pairs = [*zip(of.args[::-1], of.defaults[::-1], strict=False), *zip(of.kwonlyargs, of.kw_defaults, strict=True)]
    found = {}
    for argument, default in pairs:
        with suppress(ValueError):  # none, or not a literal
            value = ast.literal_eval(cast("ast.expr", default))
            found[argument.arg] = list(value) if isinstance(value, tuple) else value
    return {key: value for key, value in found.items() if key not in GIVEN.get(group, ())}


def _imported(tree: ast.Module, name: str, target: str) -> str:
    """The class that the module of the class `target`, with the source `tree`, calls `name`."""
    module = target.rpartition(".")[0]
    for each in (part for part in tree.body if isinstance(part, ast.ImportFrom)):
        for alias in each.names:
            if name == (alias.asname or alias.name):
                relative = "." * each.level + (each.module or "")
                return f"{resolve_name(relative, module.rpartition('.')[0])}.{alias.name}"
    return f"{module}.{name}"


@cache
def _assigned(target: str) -> dict[str, ast.expr]:
    """The values of the attributes of a class of this project, as expressions; every run asks for those of its task."""
    _, kind = _source(target)
    return {ast.unparse(part.targets[0]): part.value for part in kind.body if isinstance(part, ast.Assign)}


def _source(target: str) -> tuple[ast.Module, ast.ClassDef]:
    """A class of this project, and its module: read from the source, as importing it may take seconds."""
    module, _, name = target.removeprefix("bearings.").rpartition(".")
    tree = ast.parse((CONFIGS.parent / f"{module.replace('.', '/')}.py").read_text(encoding="utf-8"))
    return tree, next(each for each in tree.body if isinstance(each, ast.ClassDef) and each.name == name)


register()
