"""FoX: scores decay by data-dependent forget gates."""

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from ..core.about import About, Paper
from ..core.legends import Legend
from ..kernels.attention.fox import cumulative_log_gates, fox_attention
from ..kernels.choice import Needs
from ..kernels.precision import widest
from .base import Encoding, Portrait
from .contract.context import Context
from .contract.state import KeyValueState, State, with_past
from .options import FoXOptions


@dataclass(kw_only=True)
class GatedState(State):
    """Cumulative log-gates `sums [B, capacity, H]` of the tokens seen so far, in float64; None without gates."""

    sums: Tensor | None = None


@dataclass
class FoXState(KeyValueState, GatedState):
    """Keys, values and gates."""

    sums: Tensor = field(kw_only=True)

    def with_past_sums(self, sums: Tensor, seen: int) -> Tensor:
        """Append the cumulative log-gates of the newest tokens; returns those of the last `seen` tokens."""
        self.sums[:, self.length - sums.shape[1] : self.length] = sums
        return self.sums[:, self.length - seen : self.length]


class ForgetGate(nn.Module):
    """Cumulative log-gates c `[B, T, H]` of `x [B, T, C]`.

    Initialised as in the paper's code: weights N(0, 0.02) and bias 0, so that every gate starts near 1/2.
    """

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.projection = nn.Linear(width, heads)

    def reset_parameters(self) -> None:
        nn.init.normal_(self.projection.weight, std=0.02)
        nn.init.zeros_(self.projection.bias)

    def portrait(self, x: Tensor) -> dict[str, Portrait]:
        """`forget_gate` of each token, in (0, 1): the factor on the attention weights of all earlier keys."""
        legend = Legend("forget gate of each token: 1 keeps everything, 0 forgets everything")
        return {"forget_gate": Portrait(self.projection(x).sigmoid().flatten(0, 1).T, legend)}

    def forward(self, x: Tensor, state: GatedState | None = None) -> Tensor:
        """Cumulative log-gates of new tokens, which follow those in `state`."""
        before = None if state is None or state.sums is None or not state.length else state.sums[:, state.length - 1]
        return cumulative_log_gates(self.projection(x), before)


def new_sums(batch: int, capacity: int, heads: int, like: Tensor) -> Tensor:
    """Empty cumulative log-gates `[B, capacity, H]`, contiguous within each head."""
    return torch.zeros(batch, heads, capacity, dtype=widest(like.device), device=like.device).transpose(1, 2)


def weakened(sums: Tensor, strength: Tensor | None) -> Tensor:
    """Cumulative log-gates of gates that are raised to the power `strength`; 0 opens them."""
    return sums if strength is None else sums * strength.to(sums.dtype)


class FoX(Encoding):
    """Attention of the Forgetting Transformer, without RoPE, as in the paper.

    Args:
        options: fields of `FoXOptions`.

    Raises:
        ValueError: an option is outside its range.
    """

    about = About(
        name="FoX",
        mechanism="decay",
        summary="adds the log of each head's forget gates, accumulated from key to query, to the score",
        equation=r"\text{score}(t, s) = q_t^\top k_s + \sum_{u=s+1}^{t} \log f_u, \qquad "
        r"f_u = \sigma(w_h^\top x_u + b_h)",
        terms="$f_u$ is the forget gate of token $u$ with hidden state $x_u$; each head $h$ has weights $w_h$ "
        "and a bias $b_h$.",
        cache="keys, values, and one cumulative log-gate per query head in float64",
        paper=Paper("Lin et al.", 2025, "Forgetting Transformer: Softmax Attention with a Forget Gate", "2503.02130"),
    )

    no_weight_decay = ("gate.projection.bias",)
    starts_exactly = True

    def __init__(self, width: int, heads: int, kv_heads: int, head_dim: int, **options: Any):
        given = FoXOptions(**options)
        super().__init__(width, heads, kv_heads, head_dim, given.implementation, given.window)
        self.gate = ForgetGate(width, heads)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        self.gate.reset_parameters()

    def forward(
        self, x: Tensor, q: Tensor, k: Tensor, v: Tensor, context: Context, state: FoXState | None = None
    ) -> Tensor:
        sums = weakened(self.gate(x, state), self.strength)
        k, v = with_past(k, v, state)
        if state is not None:
            sums = state.with_past_sums(sums, k.shape[1])
        return fox_attention(q, k, v, sums, context.documents, implementation=context.plan)

    @property
    def needs(self) -> Needs:
        return super().needs._replace(gates=True)

    def portrait(self, x: Tensor) -> dict[str, Portrait]:
        return self.gate.portrait(x)

    def new_state(self, batch: int, capacity: int, like: Tensor) -> FoXState:
        plain = self.key_value_state(batch, capacity, like)
        sums = new_sums(batch, capacity, self.heads, like)
        return FoXState(plain.keys, plain.values, window=self.window, capacity=capacity, sums=sums)
