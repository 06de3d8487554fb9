"""RoPE++: the imaginary part of RoPE's complex score as the score of further heads."""

from typing import Any

import torch
from torch import Tensor

from ..core.about import About, Paper
from .contract.context import Context
from .families.rotary import Rotary
from .options import RoPEPPOptions


class RoPEPP(Rotary):
    """RoPE++ with as many heads as RoPE (RoPE++_EH).

    RoPE's score is the real part of a sum of complex products. Each query head serves two attention heads: head 2j has
    the real part as its score and head 2j + 1 the imaginary part, which is the score of the query rotated by -90
    degrees. Both read the same key head. So the model projects half as many query heads, and at most that many key and
    value heads: with the default `model.kv_heads`, the cache is half of RoPE's.

    With untied queries the imaginary heads would be RoPE, because the projection of q can learn the rotation.
    RoPE++_EC, with as many query heads as RoPE and twice as many attention heads, is this encoding with twice the
    `model.heads` and the same `model.head_dim`.

    Args:
        options: fields of `RoPEPPOptions`.

    Raises:
        ValueError: `heads` or `head_dim` is odd, or an option is outside its range.
    """

    about = About(
        name="RoPE++",
        mechanism="rotation",
        summary="half of the heads score by the real part of RoPE's complex product, the others by the imaginary part",
        equation=r"z_h(t, s) = \sum_{c=0}^{D/2-1} q_{t,c}\, \overline{k_{s,c}}\, e^{i (t-s) \theta_c}, \qquad "
        r"\text{score}_{2h} = \text{Re}\, z_h, \quad \text{score}_{2h+1} = \text{Im}\, z_h",
        terms="$q_{t,c}$ and $k_{s,c}$ are channel pairs as complex numbers, $\\theta_c = b^{-2c/D}$; $b$ is "
        "`encoding.base`.",
        cache="keys and values of half as many heads",
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
        super().__init__(width, heads, min(kv_heads, max(heads // 2, 1)), head_dim, given, given.base)

    def encode_query(self, q: Tensor, positions: Tensor) -> Tensor:
        return super().encode_query(with_imaginary(q), positions)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, context: Context) -> Tensor:
        return super().attend(with_imaginary(q), k, v, context)


def with_imaginary(q: Tensor) -> Tensor:
    """Each head of `q [B, T, H, D]`, followed by the same head times -i: `[B, T, 2H, D]`."""
    first, second = q.chunk(2, -1)
    return torch.stack([q, torch.cat([second, -first], -1)], 3).flatten(2, 3)
