"""Different encodings in different layers, such as three layers of RoPE with a window and then one of NoPE."""

import importlib
import inspect
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .base import Encoding
from .options import LayerPatternOptions


class LayerPattern(Encoding):
    """Layer i uses `layers[i % len(layers)]`, the name of an encoding in this folder, alone or with its options.

    Args:
        options: fields of `LayerPatternOptions`.

    Raises:
        ValueError: a name or one of its options is unknown.
    """

    def __init__(self, width: int, heads: int, kv_heads: int, head_dim: int, **options: Any):
        given = LayerPatternOptions(**options)
        super().__init__(width, heads, kv_heads, head_dim, given.implementation)
        self.layers = [entry if isinstance(entry, Mapping) else {entry: {}} for entry in given.layers]

    def for_layer(self, layer: int) -> Encoding:
        ((name, options),) = self.layers[layer % len(self.layers)].items()
        shared = {"implementation": self.implementation}
        try:
            return class_of(name)(self.width, self.heads, self.kv_heads, self.head_dim, **{**shared, **options})
        except (TypeError, ValueError) as error:
            raise ValueError(f"layers: {name}: {error}") from error


def class_of(name: str) -> type[Encoding]:
    """The encoding in the file `name`. Raises ValueError if there is none."""
    names = {path.stem for path in Path(__file__).parent.glob("*.py")} - {"base", "options", "pattern"}
    if name not in names:
        raise ValueError(f"unknown encoding; allowed: {', '.join(sorted(names))}")
    module = importlib.import_module(f"..{name}", __name__)
    members = inspect.getmembers(module, inspect.isclass)
    return next(kind for _, kind in members if issubclass(kind, Encoding) and kind.__module__ == module.__name__)
