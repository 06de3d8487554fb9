"""p-RoPE: RoPE without its lowest frequencies."""

from typing import Any

from ..core.about import About, Paper
from .families.rotary import Rotary
from .options import PRoPEOptions


class PRoPE(Rotary):
    """RoPE whose lowest frequencies are replaced by 0, so that their channels carry content only.

    The `int(share D / 2)` highest of the D/2 frequencies are kept, at least one, and equal RoPE's, as in section 6.1 of
    the paper and the `proportional` type of `transformers`. A share of 1 is RoPE. Partial RoPE in contrast spreads
    RoPE's whole range of frequencies over the rotated channels. The paper's best share for Gemma 2B is 0.75.

    Args:
        options: fields of `PRoPEOptions`.

    Raises:
        ValueError: `head_dim` is odd, or an option is outside its range.
    """

    about = About(
        name="p-RoPE",
        mechanism="rotation",
        summary="RoPE without its lowest frequencies, whose channels carry no position",
        equation=r"\text{score}(t, s) = q_t^\top R_{s-t}\, k_s, \qquad \theta_c = b^{-2c/D} \text{ for } c < p D/2, "
        r"\text{ else } 0",
        terms="$R_n$ rotates channel pair $c$ by the angle $n\\theta_c$; $p$ is `encoding.share`, $b$ `encoding.base`.",
        cache="keys and values",
        paper=Paper(
            "Barbero et al.",
            2024,
            "Round and Round We Go! What Makes Rotary Positional Encodings Useful?",
            "2410.06205",
        ),
    )

    def __init__(self, width: int, heads: int, kv_heads: int, head_dim: int, **options: Any):
        given = PRoPEOptions(**options)
        kept = max(int(given.share * head_dim / 2), 1)
        super().__init__(width, heads, kv_heads, head_dim, given, given.base, turned=kept)
