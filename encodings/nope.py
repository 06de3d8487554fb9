"""NoPE: no positional encoding."""

import math
from typing import Any

import torch
from torch import Tensor

from ..core.about import About, Paper
from ..kernels.precision import wide
from .families.positional import PositionalEncoding
from .options import NoPEOptions


class NoPE(PositionalEncoding):
    """Causal attention on unchanged queries and keys. Only the causal mask carries information about order.

    With `length_scaling`, queries are multiplied by a factor that grows with their position.

    Args:
        options: fields of `NoPEOptions`.

    Raises:
        ValueError: an option is outside its range.
    """

    about = About(
        name="NoPE",
        mechanism="causal mask only",
        summary="no encoding: order is known from the causal mask only",
        equation=r"\text{score}(t, s) = q_t^\top k_s",
        terms="$q_t$ is the query at position $t$, $k_s$ the key at position $s \\le t$.",
        cache="keys and values",
        paper=Paper(
            "Kazemnejad et al.",
            2023,
            "The Impact of Positional Encoding on Length Generalization in Transformers",
            "2305.19466",
        ),
    )

    stretches = ("lm_infinite",)
    starts_exactly = True

    def __init__(self, width: int, heads: int, kv_heads: int, head_dim: int, **options: Any):
        given = NoPEOptions(**options)
        super().__init__(width, heads, kv_heads, head_dim, given)
        self.length_scaling, self.scaling_length = given.length_scaling, given.scaling_length
        self.relative = given.length_scaling == "none"
        self.starts_exactly = self.relative
        if not self.relative:
            self.stretches = ()  # LM-Infinite moves queries to other positions

    def encode_query(self, q: Tensor, positions: Tensor) -> Tensor:
        if self.length_scaling == "none":
            return q
        return (q * self.length_factor(positions.to(wide(q)))[..., None, None]).to(q.dtype)

    def length_factor(self, positions: Tensor) -> Tensor:
        """The factor on scores of queries at floating-point `positions`, with their shape."""
        a = self.scaling_length
        if self.length_scaling == "log":  # Puvvada et al., arXiv 2504.08719
            return (a + positions).log() / math.log(a)
        return 1 + 0.1 * torch.floor((positions + 1) / a).log1p()  # Llama 4's attn_temperature_tuning
