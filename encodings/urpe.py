"""URPE: attention weights multiplied by a learned function of the distance."""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from ..core.about import About, Paper
from ..kernels.attention.rows import Rows, attend_rows
from .base import Context, KeyValueState, Portrait
from .families.distance import DistanceBias
from .families.rows import RowEncoding
from .options import URPEOptions
from .t5 import bucket_of


class URPE(RowEncoding, DistanceBias):
    """Universal relative positional encoding on top of T5's bias, or without a bias.

    The weights of a query do not sum to 1 after the multiplication, so the output can depend on the position even where
    all values are equal. The authors' multiplier is any real number and starts at 1. Here it is exp(c), which starts at
    1 and stays positive. It has T5's buckets, as in the authors' experiments on language.

    Args:
        options: fields of `URPEOptions`.

    Raises:
        ValueError: an option is outside its range.
    """

    about = About(
        name="URPE",
        mechanism="distance",
        summary="multiplies attention weights by a learned function of the distance, after the softmax",
        equation=r"\text{weight}(t, s) = \frac{\exp\left(q_t^\top k_s + b_{h,\,\beta(t-s)}\right)}"
        r"{\sum_{u \le t} \exp\left(q_t^\top k_u + b_{h,\,\beta(t-u)}\right)}\, \exp\left(c_{h,\,\beta(t-s)}\right)",
        terms="$b$ is T5's bias with its buckets $\\beta$, or 0 with `encoding.bias=false`. $c$ is a second learned "
        "table.",
        cache="keys and values",
        paper=Paper("Luo et al.", 2022, "Your Transformer May Not be as Powerful as You Expect", "2205.13401"),
    )

    no_weight_decay = keep_float32 = ("biases", "multipliers")

    def __init__(self, width: int, heads: int, kv_heads: int, head_dim: int, **options: Any):
        given = URPEOptions(**options)
        super().__init__(width, heads, kv_heads, head_dim, given.implementation, given.window)
        self.buckets, self.max_distance = given.buckets, given.max_distance
        shape = heads, given.buckets
        self.biases = nn.Parameter(torch.empty(shape, dtype=torch.float32)) if given.bias else None
        self.multipliers = nn.Parameter(torch.empty(shape, dtype=torch.float32))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.zeros_(self.multipliers)
        if self.biases is not None:
            nn.init.normal_(self.biases, std=self.width**-0.5)

    def bias(self, distances: Tensor) -> Tensor:
        if self.biases is None:
            return self.multipliers.new_zeros(self.heads, len(distances))
        return self.biases[:, bucket_of(distances, self.buckets, self.max_distance)]

    def log_multiplier(self, distances: Tensor) -> Tensor:
        """c `[H, n]` at `distances [n]`."""
        return self.multipliers[:, bucket_of(distances, self.buckets, self.max_distance)]

    def forward(
        self, x: Tensor, q: Tensor, k: Tensor, v: Tensor, context: Context, state: KeyValueState | None = None
    ) -> Tensor:
        if state is not None:
            state.append(k, v)
            k, v = state.read()
        distances, scale = torch.arange(k.shape[1], device=k.device), self.head_dim**-0.5

        def scores(block: Rows, bias: Tensor, _: Tensor) -> Tensor:
            return block.dots() * scale + block.by_distance(bias)

        def reweigh(weights: Tensor, block: Rows, _: Tensor, log_multiplier: Tensor) -> Tensor:
            return weights * block.by_distance(log_multiplier).exp()

        tables = self.bias(distances).unsqueeze(1), self.log_multiplier(distances).unsqueeze(1)
        return attend_rows(q, k, v, scores, tables, context.documents, reweigh)

    def portrait(self, x: Tensor) -> dict[str, Portrait]:
        """`bias`, and `log_multiplier` at the same distances."""
        by_distance = super().portrait(x)
        legend = replace(by_distance["bias"].legend, axis="log of the multiplier", caption="The multiplier by distance")
        multiplier = Portrait(self.log_multiplier(torch.arange(x.shape[1], device=x.device)), legend)
        return {**by_distance, "log_multiplier": multiplier}
