"""Which positional encoding models my sequences best, and at what cost?

`bearings.load` opens a trained model, which scores and samples. `bearings.Transformer` and the classes in
`bearings.encodings` build one. Nothing slow is imported before it is used.
"""

import re
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bearings import encodings  # absolute, because pytest also imports this file under another name
from bearings.core.errors import nearest

if TYPE_CHECKING:
    from .lightning_modules.transformer import Transformer
    from .tasks.bundle import Bundle, Score, load

__version__ = "0.2.0"
__all__ = ["Bundle", "Score", "Transformer", "encodings", "load"]

_HOMES = {"Transformer": "lightning_modules.transformer"} | dict.fromkeys(("Bundle", "Score", "load"), "tasks.bundle")
_TARGET = re.compile(r"^_target_: (bearings\.encodings\.\w+)\.(\w+)\s*$", re.MULTILINE)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


@cache
def _encodings() -> dict[str, str]:
    """The module of each class in `bearings.encodings`, as the files in configs/encoding name them."""
    files = (Path(__file__).parent / "configs" / "encoding").glob("*.yaml")
    found = (_TARGET.search(file.read_text(encoding="utf-8")) for file in files)
    return {"Encoding": f"{encodings.__name__}.base"} | {each[2]: each[1] for each in found if each}


def _encoding(name: str) -> Any:
    if name not in _encodings():
        near = "" if name.startswith("_") else nearest(name, _encodings())
        raise AttributeError(f"module {encodings.__name__!r} has no attribute {name!r}: {near}".rstrip(": "))
    return getattr(import_module(_encodings()[name]), name)


# That folder cannot have an __init__.py, because Python has a package `encodings` (see docs/architecture.md). Type
# checkers read encodings/__init__.pyi.
for _name, _function in {"__getattr__": _encoding, "__dir__": lambda: [*vars(encodings), *_encodings()]}.items():
    setattr(encodings, _name, _function)
