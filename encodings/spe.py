"""SPE: sums of learned cosines of the distance multiply the products of channels."""

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..core.about import About, Paper
from ..core.legends import Elements, Legend
from ..kernels.attention.rope import cos_sin
from ..kernels.precision import wide, widest
from .base import Portrait
from .families.positional import PositionalEncoding
from .options import SPEOptions


class SPE(PositionalEncoding):
    """Sinusoidal stochastic positional encoding, in expectation.

    The paper draws random positional features, so that linear attention can use them. Softmax attention needs no
    features: their expected product is computed exactly, by 2K channels for each channel of q and k, and one more with
    the gate. Query heads that share a key head share its parameters.

    Initial values follow the authors' code (aliutkus/spe at 3aa364b): raw frequencies from N(-4, 1), offsets and gates
    from N(0, 1), and raw gains from N(0, 1), times 2 over the root of their norm. The factor 1/(2K) of the sum is the
    variance of the features in that code. With K = 1, without the gate and with a softplus of q and k, this is PoPE
    with learned frequencies and gains. All parameters stay float32 when the module is cast to a smaller dtype.

    Args:
        options: fields of `SPEOptions`.

    Raises:
        ValueError: an option is outside its range.
    """

    about = About(
        name="SPE (sine)",
        mechanism="channels",
        summary="multiplies the product of each channel by a learned function of the distance, a sum of cosines",
        equation=r"\text{score}(t, s) = \sum_{c=0}^{D-1} q_{t,c}\, k_{s,c} \left[(1 - \delta_c)\, P_c(t - s) + "
        r"\delta_c\right], \qquad P_c(d) = \frac{1}{2K} \sum_{k=1}^{K} g_{c,k}^2 \cos(\omega_{c,k}\, d + \phi_{c,k})",
        terms=r"The gains $g$, frequencies $\omega$ in $(0, \pi)$, offsets $\phi$ and gates $\delta$ in (0, 1) are "
        "learned for each key head; $K$ is `encoding.sines`. Without `encoding.gated`, $\\delta = 0$.",
        cache="encoded keys with 2K times as many channels, or 2K + 1 times with the gate, and values",
        paper=Paper(
            "Liutkus et al.", 2021, "Relative Positional Encoding for Transformers with Linear Complexity", "2105.08399"
        ),
    )

    no_weight_decay = keep_float32 = ("frequencies", "offsets", "gains", "gate")
    stretches = ("lm_infinite",)

    def __init__(self, width: int, heads: int, kv_heads: int, head_dim: int, **options: Any):
        given = SPEOptions(**options)
        super().__init__(width, heads, kv_heads, head_dim, given)
        self.score_dim = (2 * given.sines + given.gated) * head_dim
        self.place(given)
        self.frequencies, self.offsets, self.gains = (
            nn.Parameter(torch.empty(kv_heads, head_dim, given.sines, dtype=torch.float32)) for _ in range(3)
        )
        self.gate = nn.Parameter(torch.empty(kv_heads, head_dim, dtype=torch.float32)) if given.gated else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.normal_(self.frequencies, mean=-4.0)
        nn.init.normal_(self.offsets)
        with torch.no_grad():
            self.gains.normal_()
            self.gains.mul_(2 / self.gains.norm(dim=-1, keepdim=True).sqrt())
        if self.gate is not None:
            nn.init.normal_(self.gate)

    def encode_query(self, q: Tensor, positions: Tensor) -> Tensor:
        factors = self.factors(positions, self.offsets, wide(q)).unsqueeze(-3)
        return _spread(q.unflatten(2, (self.kv_heads, -1)), factors).flatten(2, 3)

    def encode_key(self, k: Tensor, positions: Tensor) -> Tensor:
        return _spread(k, self.factors(positions, None, wide(k)))

    def factors(self, positions: Tensor, offsets: Tensor | None, dtype: torch.dtype) -> Tensor:
        """What multiplies each channel of a query or key: cosines, sines and the gate, `[..., T, Hkv, D, 2K (+ 1)]`.

        Args:
            positions: `[T]` or `[B, T]`.
            offsets: phases to add, `[Hkv, D, K]`; None for keys.
            dtype: dtype of the result.
        """
        speed = math.pi * self.frequencies.to(widest(positions.device)).sigmoid()
        phases = positions.to(speed.dtype)[..., None, None, None] * speed
        cosines, sines = cos_sin(phases if offsets is None else phases + offsets.to(phases.dtype), dtype)
        # Query and key have the factor sqrt((1 - delta) g^2 / 2K) each, and sqrt(delta) for the gate.
        size = F.softplus(self.gains).to(dtype) * (2 * self.gains.shape[-1]) ** -0.5
        if self.gate is None:
            return torch.cat([size * cosines, size * sines], -1)
        gate = self.gate.to(dtype).unsqueeze(-1)
        size = size * (-gate).sigmoid().sqrt()
        passed = gate.sigmoid().sqrt().expand(*cosines.shape[:-1], 1)
        return torch.cat([size * cosines, size * sines, passed], -1)

    def portrait(self, x: Tensor) -> dict[str, Portrait]:
        """`frequency` of each cosine."""
        speeds = (math.pi * self.frequencies.sigmoid()).flatten(1).sort(-1, descending=True).values
        elements = Elements(
            "cosine of the head, from the highest frequency to the lowest",
            ticks={"0.001": -3.0, "0.01": -2.0, "0.1": -1.0, "1": 0.0},
            note="the largest possible frequency is pi",
        )
        legend = Legend("frequency, radians per token", "The learned frequencies", elements)
        return {"frequency": Portrait(speeds.log10(), legend)}


def _spread(x: Tensor, factors: Tensor) -> Tensor:
    """Each channel of `x [..., D]` times its `factors [..., D, n]`, as `[..., D n]`."""
    return (x.to(factors.dtype).unsqueeze(-1) * factors).flatten(-2).to(x.dtype)
