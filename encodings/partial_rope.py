"""Partial RoPE: rotate only a share of the channels of each head."""

from typing import Any

from ..core.about import About, Paper
from .families.rotary import Rotary
from .options import PartialRoPEOptions


class PartialRoPE(Rotary):
    """RoPE on a share of the channels, as in GPT-NeoX.

    RoPE's table is spread over the rotated channels: with n pairs it is `base^(-c/n)`, from 1 to nearly 1/base.
    GPT-NeoX rotates the first `int(share D)` channels of a head. Here pair c is channels c and c + D/2, as for RoPE,
    which differs only by an order of channels that the projections of q and k can learn. At least one pair is rotated.
    p-RoPE in contrast keeps the frequencies of RoPE's full table.

    With a share of 0.5 this is the half-channel RoPE of PoPE's paper (Table 9 of arXiv 2509.10534). That paper does not
    say which channels and frequencies it means; this follows GPT-NeoX.

    Args:
        options: fields of `PartialRoPEOptions`.

    Raises:
        ValueError: `head_dim` is odd, or an option is outside its range.
    """

    about = About(
        name="Partial RoPE",
        mechanism="rotation",
        summary="RoPE on a share of the channels; the others carry no position",
        equation=r"\text{score}(t, s) = q_t^\top R_{s-t}\, k_s, \qquad \theta_c = b^{-c/n} \text{ for } c < n, "
        r"\text{ else } 0",
        terms="$R_n$ rotates channel pair $c$ by the angle $n\\theta_c$; $n$ pairs are rotated, `encoding.share` of "
        "all; $b$ is `encoding.base`.",
        cache="keys and values",
        paper=Paper("Black et al.", 2022, "GPT-NeoX-20B: An Open-Source Autoregressive Language Model", "2204.06745"),
    )

    def __init__(self, width: int, heads: int, kv_heads: int, head_dim: int, **options: Any):
        given = PartialRoPEOptions(**options)
        count = max(int(given.share * head_dim) // 2, 1)
        super().__init__(width, heads, kv_heads, head_dim, given, given.base, count)
