"""RoPE: rotate pairs of channels of q and k by an angle proportional to the position."""

from typing import Any

from ..core.about import About, Paper
from .families.rotary import Rotary
from .options import RoPEOptions


class RoPE(Rotary):
    """Rotary position embedding. `kernels/attention/rope.py` describes how channels are paired.

    Args:
        options: fields of `RoPEOptions`.

    Raises:
        ValueError: `head_dim` is odd, or an option is outside its range.
    """

    about = About(
        name="RoPE",
        mechanism="rotation",
        summary="rotates pairs of channels of q and k by an angle proportional to the position",
        equation=r"\text{score}(t, s) = q_t^\top R_{s-t}\, k_s, \qquad \theta_c = b^{-2c/D}",
        terms="$R_n$ rotates channel pair $c = 0, \\dots, D/2-1$ by the angle $n\\theta_c$; $b$ is `encoding.base`.",
        cache="keys and values",
        paper=Paper("Su et al.", 2021, "RoFormer: Enhanced Transformer with Rotary Position Embedding", "2104.09864"),
    )

    def __init__(self, width: int, heads: int, kv_heads: int, head_dim: int, **options: Any):
        given = RoPEOptions(**options)
        super().__init__(width, heads, kv_heads, head_dim, given, given.base)
