"""Axial RoPE: half of the pairs of channels turn with the row of a raster, half with the column."""

from typing import Any

import torch
from torch import Tensor

from ..core.about import About, Paper
from ..kernels.attention.rope import cos_sin, phases, rotate_by
from ..kernels.precision import wide
from .families.positional import PositionalEncoding
from .options import AxialRoPEOptions


class AxialRoPE(PositionalEncoding):
    """Rotary position embedding on two axes, for rasters such as the time steps and voices of chorales.

    Pairs c = 0..D/4-1 turn with the row and the other D/4 with the column, both with the frequencies base^(-4c/D). The
    paper has base 100, for images, and alternates the axes, which is the same up to the order of channels. 2D-TPE
    (arXiv 2409.19700) instead mixes two attentions, by the row-wise and by the column-wise index.

    With clock=index, the token at position t is in row (t - 1) // columns and column (t - 1) % columns; the start token
    is in the last column of row -1. With clock=medium the domain gives the axes. Scores do not change if all rows, or
    all columns, are shifted.

    Args:
        options: fields of `AxialRoPEOptions`.

    Raises:
        ValueError: `head_dim` is not a multiple of 4, or an option is outside its range.
    """

    about = About(
        name="Axial RoPE",
        mechanism="rotation",
        summary="rotates half of the pairs of channels by the row of a raster, half by the column",
        equation=r"\text{score}(t, s) = q_t^\top R(y_s - y_t,\, x_s - x_t)\, k_s, \qquad \theta_c = b^{-4c/D}",
        terms=r"$R(y, x)$ rotates channel pair $c = 0, \dots, D/4-1$ by the angle $y\theta_c$ and pair $c + D/4$ by "
        r"$x\theta_c$; $y$ is the row of a token and $x$ its column, of `encoding.columns`; $b$ is `encoding.base`.",
        cache="keys and values",
        paper=Paper("Heo et al.", 2024, "Rotary Position Embedding for Vision Transformer", "2403.13298"),
    )

    relative = False  # shifting the index moves tokens to other rows and columns
    axes = 2
    channels_multiple = 4

    def __init__(self, width: int, heads: int, kv_heads: int, head_dim: int, **options: Any):
        given = AxialRoPEOptions(**options)
        super().__init__(width, heads, kv_heads, head_dim, given)
        self.base, self.columns = given.base, given.columns

    def encode_query(self, q: Tensor, positions: Tensor) -> Tensor:
        return self._turned(q, positions)

    def encode_key(self, k: Tensor, positions: Tensor) -> Tensor:
        return self._turned(k, positions)

    def _turned(self, x: Tensor, positions: Tensor) -> Tensor:
        if self.clock == "index":
            cells = positions - 1
            rows = cells.div(self.columns, rounding_mode="floor")
            positions = torch.stack([rows, cells % self.columns], -1)
        angles = phases(positions, self.head_dim // 4, self.base).flatten(-2).unsqueeze(-2)
        return rotate_by(x, *cos_sin(angles, wide(x)))
