"""xPos: RoPE whose scores decay exponentially with the distance, at a rate for each pair of channels."""

import math
from typing import Any

import torch
from torch import Tensor

from ..core.about import About, Paper
from ..kernels.compiling import once
from ..kernels.precision import compute_dtype, wide, widest
from .contract.context import Context
from .contract.state import KeyValueState, State, with_past
from .families.rotary import Rotary
from .options import XPosOptions

GAMMA = 0.4  # sets the fastest decay, GAMMA / (1 + GAMMA) per scale_base tokens
HEADROOM = 8.0  # natural logarithm of the largest |q| and |k| that the limit of positions leaves room for


class XPos(Rotary):
    """Extrapolatable position embedding.

    Queries are multiplied by zeta_c^(t / scale_base) and keys by zeta_c^(-s / scale_base), with zeta_c =
    (2c/D + 0.4) / 1.4, then both are rotated as in RoPE. One of the factors grows with the position, so positions
    are measured from the middle of the row: the products are the same, and float32 and bfloat16 hold about 66,000
    positions instead of 36,000. A longer row raises an error. The authors' code measures from the middle of the
    sequence too.

    The state holds raw keys, which are scaled again in each pass. The paper's results far beyond the trained length
    also need attention in blocks, which is not part of this encoding.

    Args:
        options: fields of `XPosOptions`.

    Raises:
        ValueError: `head_dim` is odd, or an option is outside its range.
    """

    about = About(
        name="xPos",
        mechanism="rotation",
        summary="RoPE whose scores decay with the distance, fastest in channels of high frequency",
        equation=r"\text{score}(t, s) = \sum_{c=0}^{D/2-1} \zeta_c^{(t-s)/B}\, "
        r"q_{t,c}^\top R_{(s-t)\theta_c}\, k_{s,c}, \qquad \zeta_c = \frac{2c/D + 0.4}{1.4}, \quad "
        r"\theta_c = b^{-2c/D}",
        terms="$q_{t,c}$ is channel pair $c$ of the query, $R_\\phi$ a rotation by $\\phi$; $B$ is "
        "`encoding.scale_base`, $b$ `encoding.base`.",
        cache="keys and values",
        paper=Paper("Sun et al.", 2022, "A Length-Extrapolatable Transformer", "2212.10554"),
    )

    form = "rotary"
    stretches = tuple(form for form in Rotary.stretches if form != "lm_infinite")  # factors depend on all positions

    def __init__(self, width: int, heads: int, kv_heads: int, head_dim: int, **options: Any):
        given = XPosOptions(**options)
        super().__init__(width, heads, kv_heads, head_dim, given, given.base)
        self.scale_base = given.scale_base
        self.longest = self._longest(torch.bfloat16)  # in float32, the limit is the same or higher

    def encode_query(self, q: Tensor, positions: Tensor) -> Tensor:
        return super().encode_query(self._scaled(q, positions, middle(positions)), positions)

    def encode_key(self, k: Tensor, positions: Tensor) -> Tensor:
        return super().encode_key(self._scaled(k, middle(positions), positions), positions)

    def _scaled(self, x: Tensor, later: Tensor, earlier: Tensor) -> Tensor:
        """`x [B, T, H, D]` times zeta^((later - earlier) / scale_base)."""
        c = torch.arange(self.pairs, dtype=widest(x.device), device=x.device)
        decay = torch.log((c / self.pairs + GAMMA) / (1 + GAMMA)) / self.scale_base
        factor = once(((later - earlier).unsqueeze(-1) * decay).exp().to(wide(x)))
        return (x * torch.cat([factor, factor], -1).unsqueeze(-2)).to(x.dtype)

    def forward(
        self, x: Tensor, q: Tensor, k: Tensor, v: Tensor, context: Context, state: KeyValueState | None = None
    ) -> Tensor:
        k, v = with_past(k, v, state)
        positions = context.positions
        if state is not None:
            positions = torch.arange(state.length - k.shape[1], state.length, device=k.device)
        if k.shape[1] > (longest := self._longest(compute_dtype(q))):
            raise ValueError(self._overflow(longest, k.shape[1]))
        centre = middle(positions)
        q, k = self._scaled(q, context.positions, centre), self._scaled(k, centre, positions)
        return self.attend(q, k, v, context)

    def too_long(self, context: int) -> str:
        return self._overflow(self._longest(torch.bfloat16), context)

    def _overflow(self, longest: int, context: int) -> str:
        return (
            f"scale_base={self.scale_base:g}: the factors of xPos overflow beyond {longest:,} tokens, and the "
            f"context has {context:,}: use a larger scale_base, or shorter contexts"
        )

    def _longest(self, dtype: torch.dtype) -> int:
        """Number of positions whose factors `dtype` can hold."""
        room = math.log(torch.finfo(dtype).max) - HEADROOM
        return int(2 * room * self.scale_base / math.log((1 + GAMMA) / GAMMA))

    def new_state(self, batch: int, capacity: int, like: Tensor) -> State:
        return self.key_value_state(batch, capacity, like, encoded=False)


def middle(positions: Tensor) -> Tensor:
    """Halfway between the smallest and the largest position, in float64; 0 without positions."""
    low, high = positions.aminmax() if positions.numel() else positions.new_zeros(2)
    return (low + high).to(widest(positions.device)) / 2
