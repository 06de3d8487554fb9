"""Sinusoidal absolute positions: sines and cosines of the position, added to the embeddings."""

from typing import Any

import torch
from torch import Tensor

from ..core.about import About, Paper
from .base import Encoding
from .families.inputs import FixedTable, Scale
from .options import AbsoluteSinusoidalOptions


class AbsoluteSinusoidal(Encoding):
    """Sines and cosines of the position, added to the embeddings.

    The first half of the channels holds sines, the second half cosines; Vaswani et al. alternate them, which is a
    permutation of the channels. In their model, embeddings have a root mean square of 1 and sinusoids one of 0.71.
    Here embeddings start at 0.02, so by default one learned factor, initially 0.028, scales the sinusoids.

    Args:
        options: fields of `AbsoluteSinusoidalOptions`.

    Raises:
        ValueError: `width` is odd, or an option is outside its range.
    """

    about = About(
        name="Sinusoidal absolute positions",
        mechanism="inputs",
        summary="adds sines and cosines of the position to the embeddings",
        equation=r"x_t = e_t + g\,p_t, \qquad p_t = [\sin(t\,\theta_c), \cos(t\,\theta_c)]_c, "
        r"\qquad \theta_c = b^{-2c/C}, "
        r"\qquad \text{score}(t, s) = q_t^\top k_s",
        terms="$e_t$ is the embedding of the token at position $t$, $C$ the width of the model, $g$ a learned number "
        "and $b$ `encoding.base`.",
        cache="keys and values",
        paper=Paper("Vaswani et al.", 2017, "Attention Is All You Need", "1706.03762"),
    )

    relative = False

    def __init__(self, width: int, heads: int, kv_heads: int, head_dim: int, **options: Any):
        if width % 2:
            raise ValueError(f"width={width}: sinusoidal positions need pairs of channels: use an even width")
        given = AbsoluteSinusoidalOptions(**options)
        super().__init__(width, heads, kv_heads, head_dim, given.implementation, given.window)
        self.base = given.base
        self.scale: Scale = given.scale

    def input_encoding(self) -> "Sinusoids":
        return Sinusoids(self.width, self.scale, self.base)


class Sinusoids(FixedTable):
    """Sines of `t base^(-2c/C)` for c = 0, ..., C/2 - 1, then their cosines. For `scale` see `FixedTable`."""

    def __init__(self, width: int, scale: Scale, base: float):
        self.base = base
        super().__init__(width, scale, rms=0.5**0.5)

    def compute(self, count: int) -> Tensor:
        exponents = torch.arange(0, self.width, 2, dtype=torch.float64, device="cpu") / self.width
        phases = torch.arange(count, dtype=torch.float64, device="cpu")[:, None] * self.base**-exponents
        return torch.cat([phases.sin(), phases.cos()], 1)
