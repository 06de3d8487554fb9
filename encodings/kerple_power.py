"""KERPLE, power: a learned bias that falls with a power of the distance."""

from typing import Any

import torch
from torch import Tensor, nn

from ..core.about import About
from .families.distance import DistanceBias
from .kerple_log import PAPER, draw_positive, positive
from .options import KerplePowerOptions


class KerplePower(DistanceBias):
    """KERPLE with the power kernel, with parameters for each layer and head.

    The kernel is conditionally positive definite for exponents in (0, 2]. The authors clamp them to [0.01, 2]; here the
    exponent is twice the sigmoid of the parameter, so that it always gets a gradient. Initial values are
    p ~ 0.01 + U(0, 1) and a ~ U(0, 2), as in the authors' code. See `KerpleLog` for p and the scale.

    Args:
        options: fields of `KerplePowerOptions`.

    Raises:
        ValueError: an option is outside its range.
    """

    about = About(
        name="KERPLE (power)",
        mechanism="distance",
        summary="subtracts a learned multiple of a learned power of the distance from the score",
        equation=r"\text{score}(t, s) = q_t^\top k_s - p_h\,(t - s)^{a_h}, \qquad 0 < a_h < 2",
        terms="$p_h > 0$ and $a_h$ are learned numbers of head $h$; $a_h = 1$ is ALiBi with learned slopes.",
        cache="keys and values",
        paper=PAPER,
    )

    no_weight_decay = keep_float32 = ("p", "a")

    def __init__(self, width: int, heads: int, kv_heads: int, head_dim: int, **options: Any):
        given = KerplePowerOptions(**options)
        super().__init__(width, heads, kv_heads, head_dim, given.implementation, given.window)
        self.p, self.a = (nn.Parameter(torch.empty(heads, 1, dtype=torch.float32)) for _ in range(2))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        draw_positive(self.p, 1.0)
        with torch.no_grad():
            self.a.uniform_(1e-4, 1 - 1e-4).logit_()

    def bias(self, distances: Tensor) -> Tensor:
        # The gradient of 0^a is 0 * log(0): take the power of 1 at distance 0 and multiply it by 0.
        powers = distances.clamp(min=1).to(self.a.dtype) ** (2 * self.a.sigmoid())
        return -positive(self.p) * powers * (distances > 0)
