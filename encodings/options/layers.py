"""Options of layers without positions, and of patterns over layers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Field

from .base import EncodingOptions, WindowOptions


@dataclass(frozen=True)
class NoPEOptions(WindowOptions):
    """No positional encoding: order is known from the causal mask only.

    Attributes:
        length_scaling: factor on the scores of the query at position t = 0, 1, ..., which keeps attention sharp among
            many keys. With a = `scaling_length`, log (SWAN) is log_a(a + t), and llama4 is
            1 + 0.1 ln(1 + floor((t + 1) / a)). SWAN scales trained models only; here training uses the factor too.
        scaling_length: a of `length_scaling`, in tokens. SWAN fits 362 to a model trained on 1,024 tokens; Llama 4 has
            8192.
    """

    length_scaling: Literal["none", "log", "llama4"] = "none"
    scaling_length: Annotated[int, Field(gt=1)] = 362


@dataclass(frozen=True)
class LayerPatternOptions(EncodingOptions):
    """Different encodings in different layers.

    Attributes:
        layers: encodings of the first layers, then repeated: a name, or a name with options, such as
            [{rope: {window: 512}}, nope].
    """

    layers: Annotated[Sequence[str | Mapping[str, Mapping[str, Any]]], Field(min_length=1)] = ("rope", "nope")

    def check_together(self) -> None:
        for entry in self.layers:
            if isinstance(entry, Mapping) and len(entry) != 1:
                raise ValueError(f"layers: {entry}: an entry has one encoding; give [{{rope: {{window: 512}}}}, nope]")
