"""ALiBi: a bias that falls linearly with the distance, with a fixed slope for each head."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..core.about import About, Paper
from ..kernels.precision import widest
from .families.distance import DistanceBias
from .options import ALiBiOptions


class ALiBi(DistanceBias):
    """Attention with linear biases.

    ALiBi is FoX with the constant gate exp(-m_h). Its kernels are those of biases by distance, which are faster. The
    slopes are constants: in the authors' trials, learned slopes extrapolated worse.

    With `heads_share` below 1, the first heads have the slopes of a layer with that many heads, and the others have no
    encoding.

    Args:
        options: fields of `ALiBiOptions`.

    Raises:
        ValueError: an option is outside its range.
    """

    about = About(
        name="ALiBi",
        mechanism="distance",
        summary="subtracts a multiple of the distance from the score, with a fixed slope for each head",
        equation=r"\text{score}(t, s) = q_t^\top k_s - m_h\,(t - s), \qquad m_h = 2^{-8h/H}",
        terms="$m_h$ is the slope of head $h = 1, \\dots, H$. If $H$ is not a power of 2, the slopes are those of the "
        "next smaller power of 2, then every other slope of the next larger one.",
        cache="keys and values",
        paper=Paper(
            "Press et al.",
            2021,
            "Train Short, Test Long: Attention with Linear Biases Enables Input Length Extrapolation",
            "2108.12409",
        ),
    )

    def __init__(self, width: int, heads: int, kv_heads: int, head_dim: int, **options: Any):
        given = ALiBiOptions(**options)
        super().__init__(width, heads, kv_heads, head_dim, given.implementation, given.window)
        self.biased = max(round(given.heads_share * heads), int(given.heads_share > 0))

    def slopes(self, device: torch.device) -> Tensor:
        """m_h `[H]` of each head in float64 (float32 on mps); 0 for heads without a bias."""
        return F.pad(slopes_of(self.biased, device), (0, self.heads - self.biased))

    def bias(self, distances: Tensor) -> Tensor:
        return -self.slopes(distances.device).unsqueeze(1) * distances


def slopes_of(heads: int, device: torch.device) -> Tensor:
    """The slopes `[heads]` of a layer, as in the authors' code, in float64 (float32 on mps)."""
    power = 2 ** max(heads.bit_length() - 1, 0)
    h = torch.arange(1, heads + 1, dtype=widest(device), device=device)
    return torch.where(h <= power, 2 ** (-8 * h / power), 2 ** (-4 * (2 * (h - power) - 1) / power))
