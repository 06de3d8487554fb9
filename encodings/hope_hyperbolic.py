"""HoPE (hyperbolic): damped hyperbolic rotations, so that scores decay with the distance."""

import math
from typing import Any

import torch
from torch import Tensor, nn

from ..core.about import About, Paper
from ..kernels.attention.rows import Rows
from ..kernels.precision import widest
from .contract.context import Context
from .families.rows import RowEncoding
from .options import HoPEHyperbolicOptions

# Queries per block. With more, the factors within a block leave the range of the dtype.
ROWS = {torch.float64: 128, torch.float32: 16}
# Largest exponent per token: the factors at the ends of a block, exp(63.5 * 11) or exp(7.5 * 11), do not overflow, and
# the factor of the previous key, e^-11, is almost 0.
FASTEST = 11.0


class HoPEHyperbolic(RowEncoding):
    """Hyperbolic rotary position encoding.

    Pair c of the query at t is multiplied by exp(-t theta') B(t theta_c) and the key at s by
    exp(s theta') B(-s theta_c), where B(x) has the rows (cosh x, sinh x) and (sinh x, cosh x). The paper requires
    theta' > theta_c for all c, so that scores decay, and says that theta' may be learned or fixed. It is learned here,
    one per layer, as the largest theta_c plus a positive margin. The paper does not state its initial value; here
    the margin starts at 0.1. As the largest theta_c is 1, most pairs decay within a few tokens.

    The sum and the difference of a pair's channels are eigenvectors of B. In this basis the two factors become
    exp(-(t - s) (theta' - theta_c)) and exp(-(t - s) (theta' + theta_c)). These cannot be split into a factor of the
    query and one of the key over long rows, because both overflow, so attention is computed by blocks of queries in
    float64, with positions measured from the middle of the block; exponents per token are limited to FASTEST. The
    state holds raw keys.

    Another HoPE (arXiv 2410.21216, `hope_high_frequency`) is unrelated.

    Args:
        options: fields of `HoPEHyperbolicOptions`.

    Raises:
        ValueError: `head_dim` is odd, or an option is outside its range.
    """

    about = About(
        name="HoPE (hyperbolic)",
        mechanism="rotation",
        summary="damped hyperbolic rotations (Lorentz boosts): scores decay with the distance without oscillation",
        equation=r"\text{score}(t, s) = e^{-(t-s)\theta'} \sum_{c=0}^{D/2-1} q_{t,c}^\top B_{(t-s)\theta_c}\, k_{s,c}, "
        r"\qquad B_x = \begin{pmatrix} \cosh x & \sinh x \\ \sinh x & \cosh x \end{pmatrix}",
        terms="$q_{t,c}$ is channel pair $c$ of the query, $\\theta_c = b^{-2c/D}$, and $\\theta'$ is learned and "
        "larger than all $\\theta_c$; $b$ is `encoding.base`.",
        cache="keys and values",
        paper=Paper(
            "Dai et al.",
            2025,
            "HoPE: Hyperbolic Rotary Positional Encoding for Stable Long-Range Dependency Modeling in Large Language "
            "Models",
            "2509.05218",
        ),
    )

    channels_multiple = 2
    no_weight_decay = keep_float32 = ("damping",)

    def __init__(self, width: int, heads: int, kv_heads: int, head_dim: int, **options: Any):
        given = HoPEHyperbolicOptions(**options)
        super().__init__(width, heads, kv_heads, head_dim, given.implementation, given.window)
        self.base = given.base
        self.damping = nn.Parameter(torch.empty(1, dtype=torch.float32))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.constant_(self.damping, math.log(math.expm1(0.1)))  # softplus of this is 0.1

    def score_tensors(self, k: Tensor, context: Context) -> tuple[Tensor | None, ...]:
        dtype = widest(k.device)
        theta = self.base ** (-torch.arange(self.head_dim // 2, dtype=dtype, device=k.device) / (self.head_dim // 2))
        prime = theta.max() + nn.functional.softplus(self.damping.to(dtype))
        return (torch.cat([prime - theta, prime + theta]).clamp(max=FASTEST),)

    def scores(self, block: Rows, *tensors: Tensor) -> Tensor:
        (rates,) = tensors
        rows, keys = block.q.shape[1], block.k.shape[1]
        place = torch.arange(keys, dtype=rates.dtype, device=rates.device) - (keys - (rows + 1) / 2)
        exponents = place[:, None, None] * rates
        q_part = eigenvectors(block.q) * (-exponents[-rows:]).exp()
        k_part = eigenvectors(block.k) * exponents.exp()
        return block._replace(q=q_part, k=k_part).dots(self.head_dim**-0.5).to(block.q.dtype)

    def block_queries(self, batch: int, keys: int) -> int:
        return ROWS[widest(self.damping.device)]


def eigenvectors(x: Tensor) -> Tensor:
    """`x [B, T, H, D]` in the eigenvectors of a boost: sums of the pairs' channels, then differences."""
    first, second = x.chunk(2, -1)
    return torch.cat([first + second, first - second], -1) * 0.5**0.5
