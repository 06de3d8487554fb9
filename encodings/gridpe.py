"""GridPE: RoPE with a fixed ratio between neighbouring frequencies."""

from typing import Any

from ..core.about import About, Paper
from .families.rotary import Rotary
from .options import GridPEOptions


class GridPE(Rotary):
    """The one-dimensional form of GridPE: frequencies 1, 1/r, 1/r^2, ...

    GridPE sums plane waves whose scales have a fixed ratio r, in any number of dimensions. In one dimension it is RoPE
    with another table. The economy principle of grid cells gives r = e for one dimension and sqrt(e) for two; the
    authors' code for images uses 200^(1/D). RoPE is r = base^(2/D), 1.33 for a base of 10000 and D = 64. With r = e and
    many pairs most frequencies are so low that their channels carry no position.

    Args:
        options: fields of `GridPEOptions`.

    Raises:
        ValueError: `head_dim` is odd, or an option is outside its range.
    """

    about = About(
        name="GridPE",
        mechanism="rotation",
        summary="RoPE with a fixed ratio between neighbouring frequencies, as the scales of grid cells have",
        equation=r"\text{score}(t, s) = q_t^\top R_{s-t}\, k_s, \qquad \theta_c = r^{-c}",
        terms="$R_n$ rotates channel pair $c = 0, \\dots, D/2-1$ by the angle $n\\theta_c$; $r$ is `encoding.ratio`.",
        cache="keys and values",
        paper=Paper(
            "Li et al.",
            2024,
            "GridPE: Unifying Positional Encoding in Transformers with a Grid Cell-Inspired Framework",
            "2406.07049",
        ),
    )

    def __init__(self, width: int, heads: int, kv_heads: int, head_dim: int, **options: Any):
        given = GridPEOptions(**options)
        super().__init__(width, heads, kv_heads, head_dim, given, given.ratio ** (head_dim // 2))
