"""Legendre positions: a Legendre polynomial whose degree is the position, added to the embeddings."""

from typing import Any

import torch
from torch import Tensor

from ..core.about import About, Paper
from .base import Encoding
from .families.inputs import FixedTable, Scale
from .options import LegendreOptions


class Legendre(Encoding):
    """Legendre polynomials, added to the embeddings: the position is the degree, the channel the argument.

    The paper calls it PoPE, which is the name of another encoding here. It does not say whether positions start at 0 or
    at 1. Here the first token has degree 1, because degree 0 is the same in all channels. With 512 channels, the root
    mean square falls from 0.58 at the first token to 0.18 at the 16th and 0.05 at the 1,024th. By default one learned
    factor scales the polynomials. Initially it gives the first token's vector the root mean square of the embeddings.

    Args:
        options: fields of `LegendreOptions`.

    Raises:
        ValueError: an option is outside its range.
    """

    about = About(
        name="Legendre positions",
        mechanism="inputs",
        summary="adds Legendre polynomials, of a degree equal to the position, to the embeddings",
        equation=r"x_t = e_t + g\,p_t, \qquad p_{t,i} = P_{t+1}(-1 + 2i/C), \qquad \text{score}(t, s) = q_t^\top k_s",
        terms="$e_t$ is the embedding of the token at position $t$, $P_n$ the Legendre polynomial of degree $n$, $C$ "
        "the width of the model and $g$ a learned number.",
        cache="keys and values",
        paper=Paper(
            "Aggarwal",
            2024,
            "PoPE: Legendre Orthogonal Polynomials Based Position Encoding for Large Language Models",
            "2405.04585",
        ),
    )

    relative = False

    def __init__(self, width: int, heads: int, kv_heads: int, head_dim: int, **options: Any):
        given = LegendreOptions(**options)
        super().__init__(width, heads, kv_heads, head_dim, given.implementation, given.window)
        self.scale: Scale = given.scale

    def input_encoding(self) -> "LegendrePolynomials":
        return LegendrePolynomials(self.width, self.scale)


class LegendrePolynomials(FixedTable):
    """Row t holds the polynomial of degree t + 1 at -1, -1 + 2/C, ..., 1 - 2/C. For `scale` see `FixedTable`."""

    def __init__(self, width: int, scale: Scale):
        super().__init__(width, scale, rms=3**-0.5)

    def compute(self, count: int) -> Tensor:
        x = -1 + 2 * torch.arange(self.width, dtype=torch.float64, device="cpu") / self.width
        rows, before, now = x.new_empty(count, self.width), torch.ones_like(x), x
        for n in range(1, count + 1):
            rows[n - 1] = now
            before, now = now, ((2 * n + 1) * x * now - n * before) / (n + 1)
        return rows
