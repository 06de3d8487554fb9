"""HoPE (high-frequency): RoPE without the frequencies that make no full turn within the trained length."""

from typing import Any

from ..core.about import About, Paper
from .families.rotary import Rotary, full_turns
from .options import HoPEHighFrequencyOptions


class HoPEHighFrequency(Rotary):
    """High-frequency rotary position encoding.

    Frequencies of less than one turn within the trained length are replaced by 0, so that their channels carry content
    only. The others are RoPE's. With a stretch, the same pairs stay unrotated. Another HoPE (arXiv 2509.05218,
    `hope_hyperbolic`) is unrelated.

    Args:
        options: fields of `HoPEHighFrequencyOptions`.

    Raises:
        ValueError: `head_dim` is odd, an option is outside its range, or no frequency is kept.
    """

    about = About(
        name="HoPE (high-frequency)",
        mechanism="rotation",
        summary="RoPE without the frequencies that make less than one turn within the trained length",
        equation=r"\text{score}(t, s) = q_t^\top R_{s-t}\, k_s, \qquad \theta_c = b^{-2c/D} \text{ if } "
        r"b^{-2c/D} \ge 2\pi/L, \text{ else } 0",
        terms="$R_n$ rotates channel pair $c$ by the angle $n\\theta_c$; $L$ is `encoding.trained_length`; $b$ "
        "is `encoding.base`.",
        cache="keys and values",
        paper=Paper(
            "Chen et al.",
            2024,
            "HoPE: A Novel Positional Encoding Without Long-Term Decay for Enhanced Context Awareness and "
            "Extrapolation",
            "2410.21216",
        ),
    )

    def __init__(self, width: int, heads: int, kv_heads: int, head_dim: int, **options: Any):
        given = HoPEHighFrequencyOptions(**options)
        super().__init__(width, heads, kv_heads, head_dim, given, given.base)
        self.turned = full_turns(given.base, self.pairs, given.trained_length)
