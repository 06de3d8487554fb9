"""Rotations by angles that are computed from the tokens' content."""

from dataclasses import dataclass, field

from torch import Tensor

from ...kernels.attention.rope import cos_sin, rotate_by
from ...kernels.layers.running_sum import running_sum
from ...kernels.precision import wide, widest
from ..base import Encoding
from ..contract.context import Context
from ..contract.state import KeyValueState, TailState


class ContentRotary(Encoding):
    """Rotates pairs of channels of q and k by angles that depend on the hidden state. A subclass defines `phases`.

    Each key head has its own angles, which its query heads share. Channel c is paired with channel c + D/2, as in RoPE.
    The state holds rotated keys. All parameters stay float32 when the module is cast to a smaller dtype, because the
    rounding of a rate accumulates over the tokens.

    Raises:
        ValueError: `head_dim` is odd.
    """

    channels_multiple = 2

    @property
    def keep_float32(self) -> tuple[str, ...]:
        return tuple(name for name, _ in self.named_parameters())

    def phases(self, x: Tensor, context: Context, state: KeyValueState | None = None) -> Tensor:
        """Angles of the new tokens in radians, `[B, T, Hkv, D/2]` in float64 (float32 on mps).

        Args:
            x: hidden states `[B, T, C]`.
            context: see `Encoding.forward`.
            state: see `Encoding.forward`; updated in place except for keys and values.
        """
        raise NotImplementedError

    def forward(
        self, x: Tensor, q: Tensor, k: Tensor, v: Tensor, context: Context, state: KeyValueState | None = None
    ) -> Tensor:
        phases = self.phases(x, context, state)
        cos, sin = cos_sin(phases, wide(q))
        q = rotate_by(q.unflatten(2, (self.kv_heads, -1)), cos.unsqueeze(-2), sin.unsqueeze(-2)).flatten(2, 3)
        return super().forward(x, q, rotate_by(k, cos, sin), v, context, state)


@dataclass
class CumulativeState(KeyValueState, TailState):
    """Rotated keys, values, the running phases, and the tail of a convolution, which is empty without one.

    Attributes:
        phases: sums of the rates of all tokens seen so far, `[B, Hkv, D/2]` in float64 (float32 on mps).
    """

    phases: Tensor = field(kw_only=True)

    def advance(self, sums: Tensor) -> Tensor:
        """The phases of new tokens, from sums of their rates that start at 0, `[B, T, Hkv, D/2]`."""
        phases = self.phases.unsqueeze(1) + sums
        if sums.shape[1]:
            self.phases = phases[:, -1]
        return phases


class CumulativeRotary(ContentRotary):
    """Angles that are running sums of a rate per token. A subclass defines `rates`.

    The score depends only on the rates of the tokens after the key up to the query, so earlier documents in a packed
    row change nothing, and sums need no restart.

    Class attributes:
        before_token: whether the sum of a token excludes its own rate.
    """

    before_token = False

    def rates(self, x: Tensor, places: Tensor | None = None, state: TailState | None = None) -> Tensor:
        """Radians by which each token advances each pair, `[B, T, Hkv, D/2]`.

        Args:
            x: hidden states `[B, T, C]`.
            places: for a convolution, the position of each token in its document; see `causal_convolution`.
            state: the tail of a convolution, which is updated in place.
        """
        raise NotImplementedError

    def phases(self, x: Tensor, context: Context, state: CumulativeState | None = None) -> Tensor:
        places = None if state is not None or context.documents is None else context.documents.positions
        rates = self.rates(x, places, state).to(widest(x.device))
        phases = running_sum(rates)
        if state is not None:
            phases = state.advance(phases)
        return phases - rates if self.before_token else phases

    def new_state(self, batch: int, capacity: int, like: Tensor) -> CumulativeState:
        plain = self.key_value_state(batch, capacity, like)
        phases = like.new_zeros(batch, self.kv_heads, self.head_dim // 2, dtype=widest(like.device))
        tail = self.new_tail(batch, like)
        return CumulativeState(
            plain.keys, plain.values, window=self.window, capacity=capacity, phases=phases, tail=tail
        )

    def new_tail(self, batch: int, like: Tensor) -> Tensor:
        """The inputs of a convolution before the first token; none by default."""
        return like.new_zeros(batch, 0, 0)
