"""ComRoPE: RoPE with learned frequencies."""

from typing import Any

import torch
from torch import Tensor, nn

from ..core.about import About, Paper
from ..kernels.attention.rope import cos_sin, geometric
from ..kernels.precision import widest
from .families.rotary import HeadRotary
from .options import ComRoPEOptions


class ComRoPE(HeadRotary):
    """Rotation by trainable angle matrices, for one axis.

    ComRoPE rotates by exp(t A) with block-diagonal A = P - P^T. A skew-symmetric matrix is U diag(omega J) U^T with an
    orthogonal U, and U is absorbed by the projections of q and k of the same head. So for one axis ComRoPE is RoPE with
    learned frequencies omega for any block size, and its two variants (AP and LD) coincide. The logarithms of
    omega are learned, so that a step changes high and low frequencies by the same share. Their gradient grows with the
    distance, and they have no weight decay.

    The authors draw P from N(0, 1) for positions scaled to [0, 1]. Here positions are integers, and omega starts at
    RoPE's table in each head.

    Args:
        options: fields of `ComRoPEOptions`.

    Raises:
        ValueError: `head_dim` is odd, or an option is outside its range.
    """

    about = About(
        name="ComRoPE",
        mechanism="rotation",
        summary="RoPE with learned frequencies in each head",
        equation=r"\text{score}(t, s) = q_t^\top e^{(s-t) A_h}\, k_s, \qquad A_h = P_h - P_h^\top",
        terms="$A_h$ is a learned skew-symmetric matrix of head $h$. It is stored as its frequencies; its basis is "
        "part of the projections of $q$ and $k$.",
        cache="keys and values",
        paper=Paper(
            "Yu et al.",
            2025,
            "ComRoPE: Scalable and Robust Rotary Position Embedding Parameterized by Trainable Commuting Angle "
            "Matrices",
            "2506.03737",
        ),
    )

    no_weight_decay = keep_float32 = ("log_frequencies",)
    stretches = ("lm_infinite",)

    def __init__(self, width: int, heads: int, kv_heads: int, head_dim: int, **options: Any):
        given = ComRoPEOptions(**options)
        super().__init__(width, heads, kv_heads, head_dim, given)
        self.base = given.base
        self.log_frequencies = nn.Parameter(torch.empty(kv_heads, head_dim // 2, dtype=torch.float32))
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        table = geometric(self.base, self.head_dim // 2)
        self.log_frequencies.copy_(torch.tensor(table, dtype=torch.float64).log())

    def spectrum(self) -> Tensor:
        return self.log_frequencies.to(widest(self.log_frequencies.device)).exp()

    def circle(self, positions: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        return cos_sin(positions[..., None, None] * self.spectrum(), dtype)
