"""BAM: a bias by a learned power of the distance, the logarithm of a generalised Gaussian prior."""

from typing import Any

import torch
from torch import Tensor, nn

from ..core.about import About, Paper
from .families.distance import DistanceBias
from .options import BAMOptions

EPSILON = 1e-5  # the authors add this to the distance, so that its power and gradient are finite


class BAM(DistanceBias):
    """Bayesian attention mechanism with a generalised Gaussian prior (GGD-BAM), for each layer and head.

    The prior is proportional to exp(-e^alpha |s - t - mu|^beta). A power beta of 0 is NoPE, and 1 is ALiBi with the
    slope e^alpha. beta may be negative; far keys then weigh most. As in the authors' code (ArthurSBianchessi/BAM),
    alpha and beta start at 0, which is NoPE, without weight decay; mu = e^theta - e^-theta is 0 unless it is trained.
    That code can share one prior between all layers; here each layer has its own. The authors' best models also use
    Scalable-Softmax, which is not included.

    Args:
        options: fields of `BAMOptions`.

    Raises:
        ValueError: an option is outside its range.
    """

    about = About(
        name="BAM",
        mechanism="distance",
        summary="subtracts a learned multiple of a learned power of the distance from the score, a generalised "
        "Gaussian prior",
        equation=r"\text{score}(t, s) = q_t^\top k_s - e^{\alpha_h}\left(\left|s - t - \mu_h\right| + 10^{-5}\right)"
        r"^{\beta_h}",
        terms="$\\alpha_h$ and $\\beta_h$ are learned numbers of head $h$. $\\mu_h$ is 0, or learned with "
        "`encoding.location`. $\\beta_h = 0$ is NoPE and $\\beta_h = 1$ is ALiBi.",
        cache="keys and values",
        paper=Paper(
            "Bianchessi et al.",
            2025,
            "Bayesian Attention Mechanism: A Probabilistic Framework for Positional Encoding and Context Length "
            "Extrapolation",
            "2505.22842",
        ),
    )

    no_weight_decay = keep_float32 = ("alpha", "beta")

    def __init__(self, width: int, heads: int, kv_heads: int, head_dim: int, **options: Any):
        given = BAMOptions(**options)
        super().__init__(width, heads, kv_heads, head_dim, given.implementation, given.window)
        self.alpha, self.beta = (nn.Parameter(torch.empty(heads, 1, dtype=torch.float32)) for _ in range(2))
        self.theta = nn.Parameter(torch.empty(heads, 1, dtype=torch.float32)) if given.location else None
        if given.location:
            self.no_weight_decay = self.keep_float32 = (*self.keep_float32, "theta")
        self.reset_parameters()

    def reset_parameters(self) -> None:
        for parameter in self.parameters():
            nn.init.zeros_(parameter)

    def bias(self, distances: Tensor) -> Tensor:
        from_location = distances.to(self.alpha.dtype)
        if self.theta is not None:
            from_location = (from_location + self.theta.exp() - (-self.theta).exp()).abs()
        return -self.alpha.exp() * (from_location + EPSILON) ** self.beta
