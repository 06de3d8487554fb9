"""CARoPE: rotations whose frequencies depend on the tokens."""

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..core.about import About, Paper
from ..core.legends import Legend
from .base import Portrait
from .contract.state import TailState
from .families.content import CumulativeRotary
from .options import CARoPEOptions


class CARoPE(CumulativeRotary):
    """Context-aware rotary position embedding: per key head, each token gives one frequency f, and pair c turns by f^c.

    The paper starts from RoPE, but its f has no bias: W = 0 gives f = 0.59, which is a base of about 2e7 at D = 64.
    Here the logits have a learned bias beta. Its initial value gives f = base^(-2/D) at W = 0, and W is drawn from
    N(0, 0.02). Powers start at c = 1, because with c = 0 the angle would not depend on the token. The model therefore
    starts near RoPE with the frequencies base^(-2c/D), c = 1..D/2.

    Args:
        options: fields of `CARoPEOptions`.

    Raises:
        ValueError: `head_dim` is odd, or an option is outside its range.
    """

    about = About(
        name="CARoPE",
        mechanism="rotation",
        summary="rotates like RoPE, with a frequency per head that each token computes",
        equation=r"\text{score}(t, s) = q_t^\top R(\phi_s - \phi_t)\, k_s, \qquad "
        r"\phi_{t,c} = \sum_{u \le t} f_u^c, \qquad f_u = \frac{1}{1 + \text{softplus}(w^\top x_u + \beta)}",
        terms=r"$R(\phi)$ rotates channel pair $c = 1, \dots, D/2$ by the angle $\phi_c$; $x_u$ is the hidden state of "
        r"token $u$; each key head has its own $w$ and $\beta$, initially near $f = b^{-2/D}$; $b$ is `encoding.base`.",
        cache="keys, values, and one vector of running angles",
        paper=Paper("Veisi et al.", 2025, "Context-aware Rotary Position Embedding", "2507.23083"),
    )

    def __init__(self, width: int, heads: int, kv_heads: int, head_dim: int, **options: Any):
        given = CARoPEOptions(**options)
        super().__init__(width, heads, kv_heads, head_dim, given.implementation, given.window)
        self.base = given.base
        self.projection = nn.Linear(width, kv_heads)
        CARoPE.reset_parameters(self)

    def reset_parameters(self) -> None:
        nn.init.normal_(self.projection.weight, std=0.02)
        wanted = self.base ** (2 / self.head_dim) - 1  # initial value of softplus; the next line inverts it
        nn.init.constant_(self.projection.bias, wanted + math.log(-math.expm1(-wanted)))

    def log_frequencies(self, x: Tensor) -> Tensor:
        """ln f of each token, `[B, T, Hkv]`, in float32 or wider."""
        with torch.autocast(x.device.type, enabled=False):
            return -F.softplus(self.projection(x.to(self.projection.weight.dtype))).log1p()

    def rates(self, x: Tensor, places: Tensor | None = None, state: TailState | None = None) -> Tensor:
        powers = torch.arange(1, self.head_dim // 2 + 1, device=x.device)
        return (self.log_frequencies(x).unsqueeze(-1) * powers).exp()

    def portrait(self, x: Tensor) -> dict[str, Portrait]:
        """`frequency` of each token: the angle in radians by which it advances the fastest pair."""
        legend = Legend("frequency of each token, radians: 1 turns the fastest pair most, 0 not at all")
        return {"frequency": Portrait(self.log_frequencies(x).exp().flatten(0, 1).T, legend)}
