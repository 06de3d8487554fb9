"""URPE: attention weights multiplied by a learned function of the distance."""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from ..core.about import About, Paper
from ..kernels.attention.merge import attention_lse
from ..kernels.choice import Needs
from .base import Portrait
from .contract.context import Context
from .contract.state import KeyValueState, with_past
from .options import URPEOptions
from .t5 import T5


class URPE(T5):
    """Universal relative positional encoding on top of T5's bias, or without a bias.

    The weights of a query do not sum to 1 after the multiplication, so the output can depend on the position even where
    all values are equal. The authors' multiplier is any real number and starts at 1. Here it is exp(c), which starts at
    1 and stays positive, with T5's buckets, as in the authors' code without `--ur-attn-unique`. Attention is computed
    twice, as softmax(a) exp(c) is softmax(a + c) times the ratio of their sums, exp(lse(a + c) - lse(a)).

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

    def __init__(
        self, width: int, heads: int, kv_heads: int, head_dim: int, bias: bool = URPEOptions.bias, **options: Any
    ):
        given = URPEOptions(bias=bias, **options)
        super().__init__(width, heads, kv_heads, head_dim, **options)
        if not given.bias:
            self.register_parameter("biases", None)
        self.multipliers = nn.Parameter(torch.zeros(heads, self.buckets, dtype=torch.float32))

    def reset_parameters(self) -> None:
        nn.init.zeros_(self.multipliers)
        if self.biases is not None:
            super().reset_parameters()

    def bias(self, distances: Tensor) -> Tensor:
        if self.biases is None:
            return self.multipliers.new_zeros(self.heads, len(distances))
        return super().bias(distances)

    def log_multiplier(self, distances: Tensor) -> Tensor:
        """c `[H, n]` at `distances [n]`."""
        return self.multipliers[:, self.buckets_of(distances)]

    def forward(
        self, x: Tensor, q: Tensor, k: Tensor, v: Tensor, context: Context, state: KeyValueState | None = None
    ) -> Tensor:
        k, v = with_past(k, v, state)
        bias = self.table(k)
        multiplied = bias + self.log_multiplier(torch.arange(bias.shape[1], device=k.device)).to(bias.dtype)
        limits = {"documents": context.documents, "implementation": context.plan}
        _, plain = attention_lse(q, k, v, bias, **limits)
        out, larger = attention_lse(q, k, v, multiplied, **limits)
        return (out * (larger - plain).exp().unsqueeze(-1)).to(out.dtype)

    @property
    def needs(self) -> Needs:
        return super().needs._replace(lse=True)

    def attention_flops(self, length: int) -> float:
        return 2 * super().attention_flops(length)

    def portrait(self, x: Tensor) -> dict[str, Portrait]:
        """`bias`, and `log_multiplier` at the same distances."""
        by_distance = super().portrait(x)
        legend = replace(by_distance["bias"].legend, axis="log of the multiplier", caption="The multiplier by distance")
        multiplier = Portrait(self.log_multiplier(torch.arange(x.shape[1], device=x.device)), legend)
        return {**by_distance, "log_multiplier": multiplier}
