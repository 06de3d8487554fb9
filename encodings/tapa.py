"""TAPA: scores multiplied by the cosine of a phase that query, key and distance determine."""

import math
from typing import Any

from torch import Tensor

from ..core.about import About, Paper
from ..kernels.attention.rows import Rows
from .families.rows import RowEncoding
from .options import TAPAOptions


class TAPA(RowEncoding):
    """Token-aware phase attention with a quadratic phase, without parameters.

    The first channels of query and key give the amplitude of the score, the others its phase (equation 12 of the
    paper's first version, with its constants). The phase at distance 0 is 0.

    Args:
        options: fields of `TAPAOptions`.

    Raises:
        ValueError: `head_dim` is 1, or an option is outside its range.
    """

    about = About(
        name="TAPA",
        mechanism="content",
        summary="multiplies the score by the cosine of a phase that depends on query, key and distance",
        equation=r"\text{score}(t, s) = \frac{q_t^{A\top} k_s^A}{\sqrt{D_A}} \cos\left(2\pi\, (t - s)^\alpha\, "
        r"\frac{q_t^{P\top} k_s^P}{\sqrt{D_P}}\right)",
        terms="$A$ are the first $D_A$ channels and $P$ the other $D_P$; their share is `encoding.amplitude_share`. "
        "$\\alpha$ is `encoding.exponent`.",
        cache="keys and values",
        paper=Paper("Wang et al.", 2025, "Positional Encoding via Token-Aware Phase Attention", "2509.12635"),
    )

    def __init__(self, width: int, heads: int, kv_heads: int, head_dim: int, **options: Any):
        given = TAPAOptions(**options)
        super().__init__(width, heads, kv_heads, head_dim, given.implementation, given.window)
        if head_dim < 2:
            raise ValueError(f"head_dim={head_dim}: TAPA needs at least 2, one channel each for amplitude and phase")
        self.exponent = given.exponent
        self.amplitudes = min(max(round(given.amplitude_share * head_dim), 1), head_dim - 1)

    def scores(self, block: Rows, *tensors: Tensor) -> Tensor:
        at, phases = self.amplitudes, self.head_dim - self.amplitudes
        amplitude = block._replace(q=block.q[..., :at], k=block.k[..., :at]).dots(at**-0.5)
        phase = block._replace(q=block.q[..., at:], k=block.k[..., at:]).dots(phases**-0.5)
        powers = block.distances().clamp(min=0).to(phase.dtype) ** self.exponent
        return amplitude * (2 * math.pi * powers * phase).cos()
