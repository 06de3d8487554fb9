"""KERPLE, logarithmic: a learned bias that falls with the logarithm of the distance."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..core.about import About, Paper
from .families.distance import DistanceBias
from .options import KerpleLogOptions

LEAST = 0.01  # the authors clamp their parameters to this
PAPER = Paper(
    "Chi et al.", 2022, "KERPLE: Kernelized Relative Positional Embedding for Length Extrapolation", "2205.09921"
)


class KerpleLog(DistanceBias):
    """KERPLE with the logarithmic kernel, with parameters for each layer and head.

    In the authors' code (chijames/KERPLE) all layers share the parameters; in that of DAPE each layer has its own, as
    here. The authors' code adds the bias to the scaled dot products, which is done here; the paper's formula scales
    both. The code clamps p and a to at least 0.01. Here they are 0.01 + softplus of the parameter, so that they always
    get a gradient. Initial values are p ~ 0.01 + U(0, 2) and a ~ 0.01 + U(0, 1).

    Args:
        options: fields of `KerpleLogOptions`.

    Raises:
        ValueError: an option is outside its range.
    """

    about = About(
        name="KERPLE (log)",
        mechanism="distance",
        summary="subtracts a learned multiple of the logarithm of the distance from the score",
        equation=r"\text{score}(t, s) = q_t^\top k_s - p_h \ln\left(1 + a_h\,(t - s)\right)",
        terms="$p_h$ and $a_h$ are learned positive numbers of head $h$.",
        cache="keys and values",
        paper=PAPER,
    )

    no_weight_decay = keep_float32 = ("p", "a")

    def __init__(self, width: int, heads: int, kv_heads: int, head_dim: int, **options: Any):
        given = KerpleLogOptions(**options)
        super().__init__(width, heads, kv_heads, head_dim, given.implementation, given.window)
        self.p, self.a = (nn.Parameter(torch.empty(heads, 1, dtype=torch.float32)) for _ in range(2))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        draw_positive(self.p, 2.0)
        draw_positive(self.a, 1.0)

    def bias(self, distances: Tensor) -> Tensor:
        return -positive(self.p) * torch.log1p(positive(self.a) * distances)


def positive(parameter: Tensor) -> Tensor:
    """The positive number that an unbounded parameter represents."""
    return LEAST + F.softplus(parameter)


@torch.no_grad()
def draw_positive(parameter: Tensor, high: float) -> None:
    """Draw a parameter for which `positive` is uniform in [LEAST, LEAST + high]."""
    parameter.uniform_(1e-4, high).expm1_().log_()
