"""The encodings in configs/encoding, with their cost and properties, measured on a layer of one size."""

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

import torch
from omegaconf import OmegaConf
from torch import Tensor, nn

from ..core.about import MECHANISMS, About, Mechanism
from ..core.options import Option, options_of
from ..encodings.base import Encoding
from ..encodings.contract.state import tensors_of
from ..encodings.families.inputs import InputEncoding
from ..encodings.pattern import PATTERNS, LayerPattern
from ..session.configuration import build
from ..session.overrides import choices_of
from ..session.settings import declared, file_of, target_of

SIZE: dict[str, Any] = {"width": 512, "heads": 8, "kv_heads": 8, "head_dim": 64}
SIZE_TEXT = f"{SIZE['heads']} heads of {SIZE['head_dim']} channels and width {SIZE['width']}"


@dataclass(frozen=True, eq=False)
class Documented:
    """An encoding in configs/encoding: its class, its description and its configuration."""

    name: str
    kind: type[Encoding]
    about: About
    block: Mapping[str, Any]

    @property
    def is_pattern(self) -> bool:
        """Whether it is a named pattern of layers, which has no class."""
        return self.kind is LayerPattern and self.name != "pattern"

    @cached_property
    def options(self) -> Mapping[str, Option]:
        """Its options by name."""
        return options_of(declared(target_of("encoding", self.name), "encoding"))

    @cached_property
    def layers(self) -> list[Encoding]:
        """A layer of each kind, of the size `SIZE`."""
        made = build(self.block, "encoding", **SIZE)
        return [made.for_layer(layer) for layer in range(len(made.layers) if isinstance(made, LayerPattern) else 1)]

    @property
    def input(self) -> InputEncoding | None:
        """The module that changes the embeddings."""
        return next((module for layer in self.layers if (module := layer.input_encoding())), None)

    @property
    def parameters(self) -> float:
        """Number of parameters of a layer, without those that exist once per model."""
        return self.mean(parameters_of)

    @property
    def parameters_once(self) -> int:
        """Number of parameters that exist once per model: those of the input, and of modules that layers share."""
        shared = {name: layer.shared_module() for layer in self.layers if (name := layer.shared_name)}
        return parameters_of(self.input) + sum(map(parameters_of, shared.values()))

    @property
    def stretches(self) -> list[str]:
        """Methods for longer contexts that some layer supports."""
        return list(dict.fromkeys(form for layer in self.layers for form in layer.supported_stretches))

    @property
    def properties(self) -> list[str]:
        """The names in PROPERTIES that apply."""
        applies = {
            "relative": all(layer.relative for layer in self.layers),
            "window": all(layer.windowed for layer in self.layers),
            "medium": "clock" in self.options,
            "scaling": "interpolation" in self.stretches,
            "LM-Infinite": "lm_infinite" in self.stretches,
        }
        return [name for name in PROPERTIES if applies[name]]

    def mean(self, of: Callable[[Encoding], float]) -> float:
        """A quantity of a layer, averaged over the layers."""
        return sum(map(of, self.layers)) / len(self.layers)

    def mflops(self, length: int) -> float:
        """Millions of operations per token in the attention of a row of `length` tokens."""
        return self.mean(lambda layer: layer.attention_flops(length)) / length / 1e6

    def relative_flops(self, length: int) -> float:
        """`mflops` divided by those of attention without an encoding."""
        return self.mflops(length) / documented()["nope"].mflops(length)

    @property
    def cache_bytes(self) -> float:
        """Bytes by which each token enlarges the state of a layer, in bfloat16 on a CPU."""
        return self.mean(cache_bytes)


PROPERTIES = {
    "relative": "shifting all positions changes nothing",
    "window": "works with a sliding window",
    "medium": "positions can be the time of the data",
    "scaling": "the frequencies of a trained model can be scaled for longer contexts",
    "LM-Infinite": "can be used for longer contexts",
}


@cache
def documented() -> dict[str, Documented]:
    """The encodings in configs/encoding, by name, ordered by mechanism.

    Raises:
        ValueError: an encoding of this repository has no description.
    """
    found = []
    for name in choices_of("encoding"):
        block: Any = OmegaConf.to_container(file_of("encoding", name), resolve=True)
        module, _, kind_name = block["_target_"].rpartition(".")
        kind = getattr(importlib.import_module(module), kind_name)
        about = PATTERNS.get(name) if kind is LayerPattern else vars(kind).get("about")
        if about is None:
            where = "PATTERNS in encodings/pattern.py" if kind is LayerPattern else f"the class {kind_name}"
            raise ValueError(f"encoding={name} has no description: add `About(...)` to {where}")
        found.append(Documented(name, kind, about, block))
    return {each.name: each for each in sorted(found, key=lambda each: MECHANISMS.index(each.about.mechanism))}


def by_mechanism() -> dict[Mechanism, list[Documented]]:
    """The encodings of each mechanism."""
    found: dict[Mechanism, list[Documented]] = {mechanism: [] for mechanism in MECHANISMS}
    for each in documented().values():
        found[each.about.mechanism].append(each)
    return found


def parameters_of(module: nn.Module | None) -> int:
    """Number of parameters; 0 without a module."""
    return 0 if module is None else sum(parameter.numel() for parameter in module.parameters())


def cache_bytes(layer: Encoding) -> int:
    """Bytes by which each token of its capacity enlarges a state, in bfloat16."""
    like, capacities = torch.zeros(1, dtype=torch.bfloat16), (4096, 8192)
    small, large = (sum(map(_bytes, tensors_of(layer.new_state(1, size, like)))) for size in capacities)
    return (large - small) // (capacities[1] - capacities[0])


def _bytes(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()
