"""GRAPE-M: rotations by learned frequencies at positions that sum a step per token."""

import math
from typing import Any

import torch
from torch import Tensor, nn

from ..core.about import About
from ..core.legends import Legend
from ..kernels.attention.rope import geometric
from ..kernels.precision import widest
from .base import Portrait
from .contract.state import TailState
from .families.content import CumulativeRotary
from .grape_additive import PAPER
from .options import GRAPEMultiplicativeOptions

SCALE = 16.0  # of the logits of the steps, in the authors' code


class GRAPEMultiplicative(CumulativeRotary):
    """Multiplicative GRAPE, contextual by default (GRAPE-M-ctx), with the frequencies shared by the heads.

    GRAPE-M rotates by exp(t L), where L is a sum of rank-2 skew-symmetric generators omega (a b^T - b a^T). If the
    position t is the index, any such L is U diag(omega J) U^T with an orthogonal U that the projections of q and k
    absorb, also if the generators do not commute (appendix D of the paper). This is RoPE with learned frequencies:
    `contextual=false`, or `comrope` with frequencies for each head. In the contextual form each token computes a
    step between 0 and 1, and its position is the sum of the steps before it.

    Follows the authors' code (model-architectures/GRAPE at f5b539f): the logarithms of the frequencies are learned and
    start at RoPE's; a step is the sigmoid of 1/16 of a linear function, whose weights start at 0 and whose bias starts
    at ln(e^0.001 - 1). All steps therefore start at 0.394.

    Args:
        options: fields of `GRAPEMultiplicativeOptions`.

    Raises:
        ValueError: `head_dim` is odd, or an option is outside its range.
    """

    about = About(
        name="GRAPE-M",
        mechanism="rotation",
        summary="rotates like RoPE with learned frequencies, at positions that sum a step per token",
        equation=r"\text{score}(t, s) = q_t^\top e^{(\Phi_s - \Phi_t) L}\, k_s, \qquad "
        r"L = \sum_c \omega_c \left(a_c b_c^\top - b_c a_c^\top\right), \qquad "
        r"\Phi_t = \sum_{u<t} \sigma\!\left((w^\top x_u + \beta) / 16\right)",
        terms="$a_c$ and $b_c$ are the unit vectors of channel pair $c$; the frequencies $\\omega_c$ are learned and "
        "start at $b^{-2c/D}$, where $b$ is `encoding.base`; $x_u$ is the hidden state of token $u$. With "
        "`encoding.contextual=false`, $\\Phi_t = t$.",
        cache="keys, values, and one vector of running angles",
        paper=PAPER,
    )

    before_token = True
    no_weight_decay = ("log_frequencies", "step.bias")

    def __init__(self, width: int, heads: int, kv_heads: int, head_dim: int, **options: Any):
        given = GRAPEMultiplicativeOptions(**options)
        super().__init__(width, heads, kv_heads, head_dim, given.implementation, given.window)
        self.base = given.base
        self.log_frequencies = nn.Parameter(torch.empty(head_dim // 2, dtype=torch.float32))
        self.step = nn.Linear(width, 1) if given.contextual else None
        if not given.contextual:
            self.no_weight_decay = ("log_frequencies",)
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        table = geometric(self.base, self.head_dim // 2)
        self.log_frequencies.copy_(torch.tensor(table, dtype=torch.float64).log())
        if self.step is not None:
            nn.init.zeros_(self.step.weight)
            nn.init.constant_(self.step.bias, math.log(math.expm1(0.001)))

    def steps(self, x: Tensor) -> Tensor:
        """The step of each token, `[B, T, 1]`, in float32 or wider."""
        if self.step is None:
            return self.log_frequencies.new_ones(*x.shape[:2], 1)
        with torch.autocast(x.device.type, enabled=False):
            return (self.step(x.to(self.step.weight.dtype)) / SCALE).sigmoid()

    def rates(self, x: Tensor, places: Tensor | None = None, state: TailState | None = None) -> Tensor:
        frequencies = self.log_frequencies.to(widest(x.device)).exp()
        return (self.steps(x).unsqueeze(-1) * frequencies).expand(-1, -1, self.kv_heads, -1)

    def portrait(self, x: Tensor) -> dict[str, Portrait]:
        """`step` of each token, shared by the heads."""
        if self.step is None:
            return {}
        legend = Legend("step of each token: by how much the position grows after it")
        return {"step": Portrait(self.steps(x).flatten(0, 1).T, legend)}
