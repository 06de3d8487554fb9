"""PaTH-FoX: PaTH's reflections and FoX's forget gates in one score."""

from typing import Any

from torch import Tensor

from ..core.about import About
from .base import Portrait
from .fox import ForgetGate, new_sums, weakened
from .path import PAPER, PaTH, PaTHState


class PaTHFoX(PaTH):
    """PaTH with a forget gate per query head. It has the same options as PaTH."""

    about = About(
        name="PaTH-FoX",
        mechanism="reflections",
        summary="PaTH's reflections with FoX's forget gates",
        equation=r"\text{score}(t, s) = q_t^\top H_t H_{t-1} \cdots H_{s+1}\, k_s + \sum_{u=s+1}^{t} \log f_u",
        terms="$H_u$ is the reflection of PaTH, $f_u$ the forget gate of FoX.",
        cache="as PaTH, and one cumulative log-gate per query head in float64",
        paper=PAPER,
    )

    no_weight_decay = (*PaTH.no_weight_decay, "gate.projection.bias")

    def __init__(self, width: int, heads: int, kv_heads: int, head_dim: int, **options: Any):
        super().__init__(width, heads, kv_heads, head_dim, **options)
        self.gate = ForgetGate(width, heads)
        self.gate.reset_parameters()

    def reset_parameters(self) -> None:
        super().reset_parameters()
        self.gate.reset_parameters()

    def cumulative_gates(self, x: Tensor, state: PaTHState | None) -> Tensor:
        return weakened(self.gate(x, state), self.strength)

    def portrait(self, x: Tensor) -> dict[str, Portrait]:
        return super().portrait(x) | self.gate.portrait(x)

    def new_state(self, batch: int, capacity: int, like: Tensor) -> PaTHState:
        state = super().new_state(batch, capacity, like)
        state.sums = new_sums(batch, capacity, self.heads, like)
        return state
