"""KERPLE, power: a learned bias that falls with a power of the distance."""

import torch
from torch import Tensor

from ..core.about import About
from .kerple_log import PAPER, KerpleLog, draw_positive, positive


class KerplePower(KerpleLog):
    """KERPLE with the power kernel, with parameters for each layer and head.

    The kernel is conditionally positive definite for exponents in (0, 2]. The authors clamp them to [0.01, 2]; here the
    exponent is twice the sigmoid of the parameter, so that it always gets a gradient. Initial values are
    p ~ 0.01 + U(0, 1) and a ~ U(0, 2), as in the authors' code. See `KerpleLog` for p, the scale and the options.
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

    def reset_parameters(self) -> None:
        draw_positive(self.p, 1.0)
        with torch.no_grad():
            self.a.uniform_(1e-4, 1 - 1e-4).logit_()

    def bias(self, distances: Tensor) -> Tensor:
        # The gradient of 0^a is 0 * log(0): take the power of 1 at distance 0 and multiply it by 0.
        powers = distances.clamp(min=1).to(self.a.dtype) ** (2 * self.a.sigmoid())
        return -positive(self.p) * powers * (distances > 0)
