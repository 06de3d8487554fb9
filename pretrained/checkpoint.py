"""A Llama-type checkpoint of any file format: sizes, rotary settings and weights. Imports no PyTorch."""

import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from ..core.checked_files import digest_of
from ..core.errors import shortened

MOST_LAYERS = 1024
LAYER = ("attention_norm", "query", "key", "value", "output", "mlp_norm", "gate", "up", "down")
SCALING_KEYS = ("scaling", "scaling_factor", "scaling_length")


@dataclass(frozen=True)
class Checkpoint:
    """The weights of a decoder with RMSNorm, rotary attention and SwiGLU, and what is needed to build it.

    Attributes:
        path: the folder or file.
        files: the files that the digest covers.
        vocabulary: number of rows of the embedding.
        sizes: options of the model.
        rope: options of the encoding `rope`.
        adjacent: whether rotary pairs are neighbouring channels (2c, 2c + 1) instead of (c, c + D/2).
        names: name of each weight in the file by its role; `{}` stands for the layer.
        shapes: shape of each weight in the file.
        shards: the safetensors file of each weight; empty if `array` reads them.
        array: reads a weight in float32.

    Raises:
        ValueError: the file lacks weights, has other ones, or their shapes contradict the sizes.
    """

    path: Path
    files: Sequence[Path]
    vocabulary: int
    sizes: Mapping[str, Any]
    rope: Mapping[str, Any]
    adjacent: bool
    names: Mapping[str, str]
    shapes: Mapping[str, tuple[int, ...]]
    shards: Mapping[str, Path]
    array: Callable[[str], np.ndarray] | None = None

    def __post_init__(self):
        layers = self.sizes["layers"]
        if not 0 < layers <= min(MOST_LAYERS, len(self.shapes) / len(LAYER)):
            raise ValueError(f"it declares {layers:,} layers, but has {len(self.shapes):,} weights")
        expected = self.expected()
        for name, shape in expected.items():
            if name not in self.shapes:
                raise ValueError(f"the weight {name} is missing")
            if tuple(self.shapes[name]) != shape:
                raise ValueError(f"{name} has the shape {list(self.shapes[name])}, expected {list(shape)}")
        known = {*expected, self.names["head"]}
        if other := sorted(name for name in self.shapes if name not in known and "rotary_emb.inv_freq" not in name):
            raise ValueError(
                f"a Llama model has no weight {other[0]}: biases, mixtures of experts and other architectures are not "
                "supported"
            )

    @property
    def name(self) -> str:
        """A name for runs, from the file or folder."""
        stem = self.path.stem if self.path.is_file() else self.path.resolve().name
        return re.sub(r"[^\w.-]+", "-", stem, flags=re.ASCII).strip(".-")[:60] or "pretrained"

    def digest(self) -> str:
        """A sha256 of the contents of the files, which are read again only after a change."""
        states = [(file, file.stat()) for file in self.files]
        return _digest(*((file, state.st_size, state.st_mtime_ns) for file, state in states))

    def expected(self) -> dict[str, tuple[int, ...]]:
        """The shape that each weight should have, by its name in the file."""
        sizes = self.sizes
        width, hidden, head_dim = sizes["width"], sizes["mlp_hidden"], sizes["head_dim"]
        queries, keys = sizes["heads"] * head_dim, sizes["kv_heads"] * head_dim
        norm, table = (width,), (self.vocabulary, width)
        shapes = {
            **{"attention_norm": norm, "query": (queries, width), "key": (keys, width), "value": (keys, width)},
            **{"output": (width, queries), "mlp_norm": norm, "gate": (hidden, width), "up": (hidden, width)},
            "down": (width, hidden),
        }
        found = {self.names["embedding"]: table, self.names["norm"]: norm}
        if not sizes["tie_embeddings"]:
            found[self.names["head"]] = table
        return found | {
            self.names[role].format(layer): shapes[role] for layer in range(sizes["layers"]) for role in LAYER
        }


@lru_cache(maxsize=2)  # a run asks for it several times, and a sweep for each of its runs
def _digest(*files: tuple[Path, int, int]) -> str:
    """The digest of files, given with size and time of the last change."""
    return hashlib.sha256("".join(digest_of(file) for file, _, _ in files).encode()).hexdigest()


def taken(facts: Mapping, key: str, kind: type, default: Any = None) -> Any:
    """`facts[key]`, which must have the type `kind`; `default` if it is missing or null, unless that is None.

    Raises:
        ValueError: it has another type, or is missing without a default.
    """
    value = facts.get(key)
    if value is None and default is not None:
        return default
    if kind is float and type(value) is int:
        value = float(value)
    if type(value) is not kind:
        raise ValueError(f"{key}={shortened(value)}: it should be {kind.__name__}")
    return value


def scaled(kind: str, factor: float | None = None, length: int | None = None) -> dict[str, Any]:
    """Options of the encoding `rope` for scaled frequencies."""
    return dict(zip(SCALING_KEYS, (kind, factor, length), strict=True))
