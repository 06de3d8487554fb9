"""The Encoding contract: attention with a position in it, for training, prefill and decoding alike."""

from dataclasses import dataclass, replace
from operator import attrgetter

import torch
from torch import Tensor, nn

from ..core.legends import Legend
from ..kernels.attention.nope import nope_attention
from ..kernels.choice import Implementation, Plan, check_implementation, choose
from ..kernels.stretching import Stretch


@dataclass
class KeyValueState:
    """Keys `[B, capacity, Hkv, D]` and values of the `length` tokens seen so far.

    `encoded` keys are held as `encode_key` gives them, others raw, for a kernel that encodes them as it reads.
    """

    keys: Tensor
    values: Tensor
    length: int = 0
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


class Encoding(nn.Module):
    """Causal attention with one positional encoding. A subclass in `encodings/NAME.py` is a new encoding.

    This base serves every encoding that merely transforms q and k by their positions: override `encode_query` and
    `encode_key`. Others override `forward` (and `new_state` when they hold more than keys and values).

    Args:
        width: hidden size C of `x`.
        heads: query heads H.
        kv_heads: key and value heads Hkv; divides H.
        head_dim: D, free of the width.
        implementation: of the attention: auto, or triton, cudnn or torch by name, which raises where it cannot serve.

    Class attributes:
        relative: shifting all positions changes nothing (a law then holds it to that).
        no_weight_decay: names of own parameters that the optimiser must not decay.
        gated: whether FoX's gates are added to the scores. polar: whether they are PoPE's, of vectors 2D wide.
        stretches: forms of `kernels/stretching.py` that serve this encoding beyond the length it was trained at.
    """

    relative: bool = True
    no_weight_decay: tuple[str, ...] = ()
    gated: bool = False
    polar: bool = False
    stretches: tuple[str, ...] = ()

    def __init__(self, width: int, heads: int, kv_heads: int, head_dim: int, implementation: Implementation = "auto"):
        super().__init__()
        check_implementation(implementation)
        self.implementation = implementation
        if heads % kv_heads:
            raise ValueError(f"heads={heads}, kv_heads={kv_heads}: heads must be a multiple of kv_heads")
        self.width, self.heads, self.kv_heads, self.head_dim = width, heads, kv_heads, head_dim
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

    def encode_query(self, q: Tensor, positions: Tensor) -> Tensor:
        """`q [B, T, H, D]` at integer `positions [T]` or `[B, T]`, as the dot product shall see it."""
        return q

    def encode_key(self, k: Tensor, positions: Tensor) -> Tensor:
        """`k [B, T, Hkv, D]` at `positions`, as the dot product shall see it."""
        return k

    def forward(self, x: Tensor, q: Tensor, k: Tensor, v: Tensor, state=None, documents: Tensor | None = None):
        """Causal attention of T tokens that follow those already in `state`.

        Args:
            x: `[B, T, C]` normalised hidden state, for encodings whose position depends on content.
            q: `[B, T, H, D]`; k, v: `[B, T, Hkv, D]`. They may be slices of one tensor.
            state: from `new_state`, updated in place; None is the training pass over a whole sequence.
            documents: `[B, T]` integers, a document is a run of one; attention stays inside each. Not with a state.

        Returns:
            `[B, T, H, D]` and the state.
        """
        start = 0 if state is None else state.length
        positions = positions_of(q, start, documents)
        q = self.encode_query(q, positions)
        if state is None or state.encoded:
            k = self.encode_key(k, positions)
        if state is not None:
            state.append(k, v)
            k, v = state.read()
            if not state.encoded:
                k = self.encode_key(k, positions_of(k, 0, None))
        implementation = self.implementation_for(state)
        return nope_attention(q, k, v, documents, self.head_dim**-0.5, implementation), state

    def implementation_for(self, state) -> str:
        """The implementation asked for; with a state Triton's instead of cuDNN's, which takes whole sequences only."""
        return "triton" if state is not None and self.implementation == "cudnn" else self.implementation

    def by_transforms(self, of: type) -> bool:
        """Whether `encode_query` and `encode_key` must be called, as the kernels of class `of` compute something else.

        They are a subclass's own, or stretched.
        """
        kind = type(self)
        own = kind.encode_query is not of.encode_query or kind.encode_key is not of.encode_key
        return own or self.stretching is not None

    def new_state(self, batch: int, capacity: int, like: Tensor):
        """An empty state for `batch` sequences of up to `capacity` tokens, with the dtype and device of `like`."""
        encoded = self.caches_encoded(like)
        widths = 2 * self.head_dim if self.polar and encoded else self.head_dim, self.head_dim
        keys, values = (like.new_zeros(batch, capacity, self.kv_heads, width) for width in widths)
        return KeyValueState(keys, values, encoded=encoded)

    def caches_encoded(self, like: Tensor) -> bool:
        """Whether a state like `like` holds encoded keys, so that none is encoded again for each new token."""
        return self.stretching is None or not self.stretching.follows_length

    def plan(self, device: torch.device, dtype: torch.dtype, length: int, documents: bool) -> Plan:
        """What computes training on rows of `length` tokens, packed with `documents` or not, and decoding.

        Raises:
            ValueError: the implementation that was asked for does not serve it.
        """
        kind = {"documents": documents, "gates": self.gated, "polar": self.polar}
        plan = choose(self.implementation, device, dtype, self.head_dim, length, length, **kind)
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


def reads_raw_keys(encoding: Encoding, like: Tensor) -> bool:
    """Whether a kernel serves `encoding` that encodes the keys of a cache like `like` as it reads them."""
    implementation = "auto" if encoding.implementation == "cudnn" else encoding.implementation
    return choose(implementation, like.device, like.dtype, encoding.head_dim, 1, 2).implementation == "triton"


def positions_of(q: Tensor, start: int, documents: Tensor | None) -> Tensor:
    """Positions of `q [B, T, ...]`: `start..start+T-1`, or counted anew within each document, `[B, T]`."""
    index = torch.arange(q.shape[1], device=q.device)
    if documents is None:
        return index + start
    begins = torch.ones_like(documents, dtype=torch.bool)
    begins[:, 1:] = documents[:, 1:] != documents[:, :-1]
    return index - torch.where(begins, index, 0).cummax(1).values
