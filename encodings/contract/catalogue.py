"""Finds an encoding by the name of its file."""

import importlib
import inspect
from functools import cache
from pathlib import Path

from ..base import Encoding


@cache
def class_of(name: str) -> type[Encoding]:
    """The encoding in the file `name`. Raises ValueError if there is none."""
    names = {path.stem for path in Path(__file__).parents[1].glob("*.py")} - {"base", "pattern"}
    if name not in names:
        raise ValueError(f"unknown encoding; allowed: {', '.join(sorted(names))}")
    module = importlib.import_module(f"...{name}", __name__)
    members = inspect.getmembers(module, inspect.isclass)
    return next(kind for _, kind in members if issubclass(kind, Encoding) and kind.__module__ == module.__name__)
