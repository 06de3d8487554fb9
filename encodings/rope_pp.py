"""RoPE++: the imaginary part of RoPE's complex score as the score of further heads."""

from typing import Any

import torch
from torch import Tensor

from ..core.about import About, Paper
from .contract.context import Context
from .families.rotary import Rotary
from .options import RoPEPPOptions


class RoPEPP(Rotary):
    """RoPE++ (Liu et al., arXiv 2512.07525).

    RoPE's score is the real part of a sum of complex products. Each query head serves two attention heads: head 2j has
    the real part as its score and head 2j + 1 the imaginary part, which is the score of the query rotated by -90
    degrees. Both read the same key head. With separate queries, the imaginary heads would be RoPE, because the
    projection of q can learn the rotation.

    `encoding.equal` selects which sizes match RoPE. With `cache` (RoPE++_EC), these are the numbers of query, key and
    value heads; there are twice as many attention heads, and the output projection has twice the weights. With `heads`
    (RoPE++_EH), it is the number of attention heads; there are half as many query heads, and at most as many key and
    value heads. The authors' code also halves key and value heads that are fewer than that (grouped queries); here they
    keep their number.

    Args:
        options: fields of `RoPEPPOptions`.

    Raises:
        ValueError: `head_dim` is odd, `heads` is odd with equal=heads, or an option is outside its range.
    """

    about = About(
        name="RoPE++",
        mechanism="rotation",
        summary="each query serves two heads: one scores by the real part of RoPE's complex product, one by the "
        "imaginary part",
        equation=r"z_h(t, s) = \sum_{c=0}^{D/2-1} q_{t,c}\, \overline{k_{s,c}}\, e^{i (t-s) \theta_c}, \qquad "
        r"\text{score}_{2h} = \text{Re}\, z_h, \quad \text{score}_{2h+1} = \text{Im}\, z_h",
        terms="$q_{t,c}$ and $k_{s,c}$ are channel pairs as complex numbers, $\\theta_c = b^{-2c/D}$; $b$ is "
        "`encoding.base`.",
        cache="rotated keys, values; with `encoding.equal=heads`, of at most half as many heads as attention has",
        paper=Paper(
            "Liu et al.",
            2025,
            "Beyond Real: Imaginary Extension of Rotary Position Embeddings for Long-Context LLMs",
            "2512.07525",
        ),
    )

    form = "rotary"
    heads_per_query = 2

    def __init__(self, width: int, heads: int, kv_heads: int, head_dim: int, **options: Any):
        given = RoPEPPOptions(**options)
        if given.equal == "heads":
            if heads % 2:
                raise ValueError(f"equal=heads: needs an even number of heads, not {heads}; or use equal=cache")
            heads, kv_heads = heads // 2, min(kv_heads, heads // 2)
        super().__init__(width, heads, kv_heads, head_dim, given, given.base)

    def encode_query(self, q: Tensor, positions: Tensor) -> Tensor:
        return super().encode_query(with_imaginary(q), positions)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, context: Context) -> Tensor:
        return super().attend(with_imaginary(q), k, v, context)


def with_imaginary(q: Tensor) -> Tensor:
    """Each head of `q [B, T, H, D]`, followed by the same head times -i: `[B, T, 2H, D]`."""
    first, second = q.chunk(2, -1)
    return torch.stack([q, torch.cat([second, -first], -1)], 3).flatten(2, 3)
