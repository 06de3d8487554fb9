"""The Encoding contract: attention with a position in it, for training, prefill and decoding alike."""

from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Any, Literal

import torch
from torch import Tensor, nn

from ..core.legends import Legend
from ..kernels.attention.nope import nope_attention
from ..kernels.choice import Needs, Plan, check_implementation, choose
from ..kernels.documents import Documents
from ..kernels.implementations import Implementation
from ..kernels.precision import compute_dtype
from ..kernels.stretching import Stretch
from .options import EncodingOptions


@dataclass(kw_only=True)
class State:
    """What one layer keeps of the `length` tokens seen so far; each pass with it updates it in place."""

    length: int = 0


@dataclass
class KeyValueState(State):
    """Keys `[B, capacity, Hkv, D]` and values of the tokens seen so far.

    `encoded` keys are held as `encode_key` gives them, others raw, for a kernel that encodes them as it reads.
    """

    keys: Tensor
    values: Tensor
    encoded: bool = True

    def append(self, keys: Tensor, values: Tensor) -> None:
        """Write `[B, T, Hkv, D]` behind what is held. Raises ValueError when the capacity would be passed."""
        end = self.length + keys.shape[1]
        if end > self.keys.shape[1]:
            raise ValueError(
                f"the state holds {self.keys.shape[1]} tokens, {end} were given: make it with a larger capacity"
            )
        self.keys[:, self.length : end] = keys
        self.values[:, self.length : end] = values
        self.length = end

    def read(self) -> tuple[Tensor, Tensor]:
        """Keys and values `[B, length, Hkv, D]` of all tokens held."""
        return self.keys[:, : self.length], self.values[:, : self.length]


@dataclass(frozen=True)
class Portrait:
    """Something that an encoding has learnt.

    Attributes:
        values: `[heads, n]`: of n tokens, or of n elements of each head where the legend has `elements`.
        legend: what a plot of them says.
    """

    values: Tensor
    legend: Legend


@dataclass(frozen=True)
class Context:
    """What one forward pass is for all layers, made once where it begins.

    Attributes:
        positions: `[T]` integers, or `[B, T]`, counted anew within each of `documents`.
        documents: of packed rows; None where each row is one document.
        plan: what computes the attention.
    """

    positions: Tensor
    documents: Documents | None
    plan: Plan

    @classmethod
    def of(
        cls, encoding: "Encoding", like: Tensor, state: State | None = None, documents: Documents | None = None
    ) -> "Context":
        """Of a pass over T tokens that follow those in `state`, on the device of `like [B, T, ...]` and in its dtype.

        Raises:
            ValueError: the implementation that was asked for does not serve it.
        """
        cached, length = None if state is None else state.length, like.shape[1]
        plan = encoding.plan(like.device, compute_dtype(like), length, documents is not None, cached)
        if documents is not None:
            return cls(documents.positions, documents, plan)
        start = cached or 0
        return cls(torch.arange(start, start + length, device=like.device), None, plan)


class Encoding(nn.Module):
    """Causal attention with one positional encoding. A subclass in `encodings/NAME.py` is a new encoding.

    This base serves every encoding that merely transforms q and k by their positions: override `encode_query` and
    `encode_key`. Others override `forward` (and `new_state` when they hold more than keys and values). An encoding does
    not choose what computes it: it says in `needs` what it needs, and reads the plan in the context of each pass.

    Args:
        width: hidden size C of `x`.
        heads: query heads H.
        kv_heads: key and value heads Hkv; divides H.
        head_dim: D, free of the width.
        implementation: as in `EncodingOptions`.

    Class attributes:
        relative: shifting all positions changes nothing (a law then holds it to that).
        no_weight_decay: names of own parameters that the optimiser must not decay.
        stretches: forms of `kernels/stretching.py` that serve this encoding beyond the length it was trained at.
        form: what kernels make of q and k as they read them, which must equal `encode_query` and `encode_key`: those
            of a class that overrides either are called, unless it declares its form too. "plain": nothing.

    Attributes:
        score_dim: channels of what `encode_query` and `encode_key` return; D by default.
    """

    relative: bool = True
    no_weight_decay: tuple[str, ...] = ()
    stretches: tuple[str, ...] = ()
    form: Literal["plain", "rotary", "polar"] = "plain"

    def __init_subclass__(cls, **given: Any):
        super().__init_subclass__(**given)
        if "form" not in vars(cls) and {"encode_query", "encode_key"} & vars(cls).keys():
            cls.form = "plain"

    def __init__(
        self,
        width: int,
        heads: int,
        kv_heads: int,
        head_dim: int,
        implementation: Implementation = EncodingOptions.implementation,
    ):
        super().__init__()
        check_implementation(implementation)
        self.implementation = implementation
        if heads % kv_heads:
            raise ValueError(f"heads={heads}, kv_heads={kv_heads}: heads must be a multiple of kv_heads")
        self.width, self.heads, self.kv_heads = width, heads, kv_heads
        self.head_dim = self.score_dim = head_dim
        self.stretching: Stretch | None = None

    def stretch(self, stretch: Stretch | None) -> None:
        """Change the frequencies of a trained encoding for longer contexts; None undoes it. No weight changes.

        Raises:
            ValueError: a form that does not serve this encoding, or an implementation that does not serve the form.
        """
        if stretch is not None and stretch.form not in self.stretches:
            allowed = ", ".join(self.stretches) or "none"
            raise ValueError(f"stretch={stretch.form}: {type(self).__name__} takes {allowed}")
        self.stretching = stretch
        self.form = type(self).form if stretch is None else "plain"  # kernels have the trained frequencies only

    def encode_query(self, q: Tensor, positions: Tensor) -> Tensor:
        """`q [B, T, H, D]` at integer `positions [T]` or `[B, T]`, as the dot product shall see it."""
        return q

    def encode_key(self, k: Tensor, positions: Tensor) -> Tensor:
        """`k [B, T, Hkv, D]` at `positions`, as the dot product shall see it."""
        return k

    def forward(
        self, x: Tensor, q: Tensor, k: Tensor, v: Tensor, context: Context, state: KeyValueState | None = None
    ) -> Tensor:
        """Causal attention of T tokens, which follow those already in `state`.

        Args:
            x: `[B, T, C]` normalised hidden state, for encodings whose position depends on content.
            q: `[B, T, H, D]`; k, v: `[B, T, Hkv, D]`. They may be slices of one tensor.
            context: of this pass. There are no documents with a state.
            state: from `new_state`, updated in place; None is the training pass over a whole sequence.

        Returns:
            `[B, T, H, D]`.
        """
        q = self.encode_query(q, context.positions)
        if state is None or state.encoded:
            k = self.encode_key(k, context.positions)
        if state is not None:
            state.append(k, v)
            k, v = state.read()
            if not state.encoded:
                k = self.encode_key(k, torch.arange(k.shape[1], device=k.device))
        return nope_attention(q, k, v, context.documents, self.head_dim**-0.5, context.plan)

    def new_state(self, batch: int, capacity: int, like: Tensor) -> State:
        """An empty state for `batch` sequences of up to `capacity` tokens, with the dtype and device of `like`."""
        return self.key_value_state(batch, capacity, like)

    def key_value_state(self, batch: int, capacity: int, like: Tensor) -> KeyValueState:
        """`new_state` of keys and values: keys as `encode_key` gives them, where no kernel encodes them as it reads."""
        if self.form == "plain":
            encoded = self.stretching is None or not self.stretching.follows_length
        else:
            encoded = self.plan(like.device, like.dtype, 1, cached=1).implementation != "triton"
        widths = self.score_dim if encoded else self.head_dim, self.head_dim
        keys, values = (like.new_zeros(batch, capacity, self.kv_heads, width) for width in widths)
        return KeyValueState(keys, values, encoded)

    @property
    def needs(self) -> Needs:
        """What this encoding needs of its kernels."""
        given = self.score_dim if self.form == "plain" else self.head_dim
        return Needs(given, self.score_dim, self.head_dim)

    def plan(
        self,
        device: torch.device,
        dtype: torch.dtype,
        length: int,
        documents: bool = False,
        cached: int | None = None,
    ) -> Plan:
        """What computes a pass over rows of `length` tokens, packed with `documents` or not.

        Args:
            cached: tokens in the state of a pass that has one.

        Raises:
            ValueError: the implementation that was asked for does not serve it.
        """
        if cached is not None:
            # cuDNN takes whole sequences only.
            name = "triton" if self.implementation == "cudnn" else self.implementation
            return choose(name, device, dtype, self.needs, length, cached + length)
        plan = choose(self.implementation, device, dtype, self.needs, length, length, documents)
        if self.implementation != "cudnn":
            return plan
        return replace(plan, decoding="triton, because cuDNN's attention takes whole sequences only")

    def attention_flops(self, length: int) -> float:
        """Forward floating-point operations of one causal sequence of `length` tokens in this layer's attention.

        The encoding's own weights are left to whoever counts two operations per weight and token.
        """
        return 2.0 * self.heads * self.head_dim * length * (length + 1)

    def scratch_bytes(self, rows: int, length: int) -> int:
        """Bytes that the backward pass of rows of `length` tokens holds for a while, beside what forward saved."""
        return 0

    def undecayed(self) -> list[nn.Parameter]:
        """The parameters that `no_weight_decay` names, without those that these options leave out (None).

        Raises:
            ValueError: there is no such parameter.
        """
        found = []
        for name in self.no_weight_decay:
            try:
                found.append(attrgetter(name)(self))
            except AttributeError as error:
                names = ", ".join(dict(self.named_parameters())) or "none"
                raise ValueError(
                    f"no_weight_decay={name}: {type(self).__name__} has no such parameter; it has {names}"
                ) from error
        return [parameter for parameter in found if parameter is not None]

    def reset_parameters(self) -> None:
        """Draw the encoding's own parameters from the global generator (which the caller has seeded by name)."""

    def portrait(self, x: Tensor) -> dict[str, Portrait]:
        """What the encoding has learnt that is worth a plot, by name.

        Args:
            x: `[B, T, C]` that the layer has met; what depends on it has values for B T tokens.
        """
        return {}

    def diagnostics(self) -> dict[str, Tensor]:
        """Figures about the encoding's own parameters worth a column in the log, as tensors without dimensions."""
        return {}
