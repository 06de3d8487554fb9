"""FoX: scores decay by data-dependent forget gates."""

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from ..core.legends import Legend
from ..kernels.attention.fox import cumulative_log_gates, fox_attention
from ..kernels.choice import Needs
from ..kernels.precision import widest
from .base import Context, Encoding, KeyValueState, Portrait, State
from .options import FoXOptions


@dataclass(kw_only=True)
class GatedState(State):
    """Of the tokens seen so far the cumulative log-gates `sums [B, capacity, H]`, in float64; None without gates."""

    sums: Tensor | None = None


@dataclass
class FoXState(KeyValueState, GatedState):
    """Keys, values and gates."""

    sums: Tensor = field(kw_only=True)


class ForgetGate(nn.Module):
    """Cumulative log-gates c `[B, T, H]` of `x [B, T, C]`.

    Starts as the paper's code does: weights N(0, 0.02), bias 0, so every gate is near 1/2.
    """

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.projection = nn.Linear(width, heads)

    def reset_parameters(self) -> None:
        nn.init.normal_(self.projection.weight, std=0.02)
        nn.init.zeros_(self.projection.bias)

    def portrait(self, x: Tensor) -> dict[str, Portrait]:
        """`forget_gate` in (0, 1) of each token: the share of the score's exponential that it keeps."""
        legend = Legend("forget gate of each token: 1 forgets nothing, 0 all")
        return {"forget_gate": Portrait(self.projection(x).sigmoid().flatten(0, 1).T, legend)}

    def forward(self, x: Tensor, state: GatedState | None = None) -> Tensor:
        """Going on from the tokens in `state`, if any."""
        before = None if state is None or state.sums is None or not state.length else state.sums[:, state.length - 1]
        return cumulative_log_gates(self.projection(x), before)


def new_sums(batch: int, capacity: int, heads: int, like: Tensor) -> Tensor:
    """Room for the cumulative log-gates of `capacity` tokens, `[B, capacity, H]`; a head's lie side by side."""
    return torch.zeros(batch, heads, capacity, dtype=widest(like.device), device=like.device).transpose(1, 2)


class FoX(Encoding):
    """The forgetting transformer's attention, without RoPE, as its paper has it.

    The equation is in `kernels/attention/fox.py`.

    Args:
        options: fields of `FoXOptions`.
    """

    no_weight_decay = ("gate.projection.bias",)

    def __init__(self, width: int, heads: int, kv_heads: int, head_dim: int, **options: Any):
        super().__init__(width, heads, kv_heads, head_dim, FoXOptions(**options).implementation)
        self.gate = ForgetGate(width, heads)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        self.gate.reset_parameters()

    def forward(
        self, x: Tensor, q: Tensor, k: Tensor, v: Tensor, context: Context, state: FoXState | None = None
    ) -> Tensor:
        sums = self.gate(x, state)
        if state is not None:
            state.append(k, v)
            k, v = state.read()
            state.sums[:, state.length - q.shape[1] : state.length] = sums
            sums = state.sums[:, : state.length]
        return fox_attention(q, k, v, sums, context.documents, implementation=context.plan)

    @property
    def needs(self) -> Needs:
        return super().needs._replace(gates=True)

    def portrait(self, x: Tensor) -> dict[str, Portrait]:
        return self.gate.portrait(x)

    def new_state(self, batch: int, capacity: int, like: Tensor) -> FoXState:
        plain = self.key_value_state(batch, capacity, like)
        return FoXState(plain.keys, plain.values, sums=new_sums(batch, capacity, self.heads, like))
