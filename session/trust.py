"""Which classes a configuration may import: this project's, and those of packages that the user trusts."""

import importlib
import inspect
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from ..core.errors import UserError, one_line, shortened

LIGHTNING = "bearings.lightning_modules"
# By group: the folder of its classes in this project, and the class that they are or derive from.
KINDS = {
    "domain": ("bearings.domains", "bearings.domains.base.Domain"),
    "encoding": ("bearings.encodings", "bearings.encodings.base.Encoding"),
    "task": ("bearings.tasks", "bearings.session.task.Task"),
    "model": (LIGHTNING, "bearings.lightning_modules.transformer.Transformer"),
    "data": (LIGHTNING, "bearings.lightning_modules.data_module.DataModule"),
    "optimizer": (LIGHTNING, "bearings.lightning_modules.options.OptimizerOptions"),
    "evaluation": (LIGHTNING, "bearings.lightning_modules.evaluation.Evaluation"),
    "trainer": (LIGHTNING, "bearings.lightning_modules.trainer.TrainerSettings"),
}
NAME = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*")

_trusted: ContextVar[tuple[str, ...]] = ContextVar("trusted", default=())


class GoneError(UserError):
    """A class is allowed, but cannot be imported."""


@contextmanager
def trusting(packages: str | Iterable[str] | None) -> Iterator[None]:
    """In this context, configurations may also name classes of `packages`. Importing a package runs its code.

    Raises:
        UserError: `packages` is neither a name nor a list of names.
    """
    names = [packages] if isinstance(packages, str) else [] if packages is None else packages
    if not isinstance(names, Iterable) or not all(isinstance(name, str) and NAME.fullmatch(name) for name in names):
        raise UserError(f"trust={packages}: it should be the name of a package, or a list of names: trust=mypackage")
    token = _trusted.set((*_trusted.get(), *names))
    try:
        yield
    finally:
        _trusted.reset(token)


def trusted() -> tuple[str, ...]:
    """The packages that are currently trusted."""
    return _trusted.get()


def refuse_untrusted(target: Any, group: str) -> None:
    """Raise UserError unless `target` is a class name allowed for `group`. Nothing is imported."""
    if not isinstance(target, str) or not NAME.fullmatch(target) or "." not in target:
        raise UserError(f"{group}._target_={shortened(target)}: it should be a class name, MODULE.CLASS")
    folder, kind = KINDS[group]
    if folder == LIGHTNING:
        own, allowed = target == kind, kind
    else:
        own, allowed = re.fullmatch(rf"{re.escape(folder)}\.\w+\.\w+", target), f"{folder}.MODULE.CLASS"
    if not own and not _is_trusted(target):
        raise UserError(
            f"{group}._target_={target}: refused, because importing it may run any code; allowed: {allowed}, and "
            f"packages that you trust: if you trust this one, set trust={target.split('.')[0]}"
        )


def located(target: Any, group: str) -> Any:
    """Import the class `target` for `group`, from this project's folder for the group or from a trusted package.

    Raises:
        UserError: the name is not allowed (nothing is imported then), or is not a class for `group`.
        GoneError: the class cannot be imported.
    """
    refuse_untrusted(target, group)
    module, _, name = target.rpartition(".")
    try:
        found = getattr(importlib.import_module(module), name)
    except Exception as error:
        why = f"{type(error).__name__}: {one_line(error)}"
        own = isinstance(error, ModuleNotFoundError) and not target.startswith("bearings.")
        hint = ": install its package, or add the folder of the package to PYTHONPATH" if own else ""
        raise GoneError(f"{group}._target_={target}: it cannot be imported ({why}){hint}") from error
    folder, wanted = KINDS[group]
    base_module, _, base = wanted.rpartition(".")
    kind = getattr(importlib.import_module(base_module), base)
    fits = inspect.isclass(found) and issubclass(found, kind) and (found is not kind or folder == LIGHTNING)
    at_home = inspect.isclass(found) and (found.__module__ == module or _is_trusted(found.__module__))
    if not fits or not at_home:
        raise UserError(f"{group}._target_={target}: it is not a class for {group} defined in that module")
    if missing := sorted(getattr(found, "__abstractmethods__", ())):
        raise UserError(f"{group}._target_={target}: it does not define {', '.join(missing)}, which the {group} needs")
    return found


def _is_trusted(name: str) -> bool:
    return any(name == package or name.startswith(f"{package}.") for package in _trusted.get())
