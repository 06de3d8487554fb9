"""The Encoding contract: attention with positions, for training, prefill and decoding."""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, Literal

import torch
from torch import Tensor

from ..core.about import About
from ..core.legends import Legend
from ..kernels.attention.nope import nope_attention
from ..kernels.choice import LIBRARIES, Needs, Plan, check_implementation, choose
from ..kernels.implementations import Implementation
from ..kernels.stretching import Stretch
from .contract.context import Context
from .contract.module import PositionModule, SharedModule
from .contract.state import KeyValueState, State, with_past

if TYPE_CHECKING:
    from .families.inputs import InputEncoding


@dataclass(frozen=True)
class Portrait:
    """A learned quantity to plot.

    Attributes:
        values: `[heads, n]`, for n tokens, or for n elements of each head if the legend has `elements`.
        legend: labels and caption of the plot.
    """

    values: Tensor
    legend: Legend


class Encoding(PositionModule):
    """Causal attention with one positional encoding. To add an encoding, write a subclass in `encodings/NAME.py`.

    An encoding that only transforms q and k based on their positions overrides `encode_query` and `encode_key`. Other
    encodings override `forward`, and `new_state` if they cache more than keys and values. An encoding does not choose
    its implementation: it declares its requirements in `needs`, and reads the plan from the context of each pass.
    `families/` has bases for groups of encodings.

    Args:
        width: hidden size C of `x`.
        heads: number of query heads. The number of attention heads H is `heads * heads_per_query`.
        kv_heads: number of key and value heads Hkv; must divide `heads`.
        head_dim: channels D of each head; independent of the width.
        implementation: see `EncodingOptions`.
        window: number of tokens that a query sees, itself included; None for all.

    Class attributes:
        about: entry in the documentation. Required for encodings in this repository, optional for yours.
        relative: whether shifting all positions leaves the output unchanged. A test verifies this.
        longest: largest number of positions that can be encoded; None for any number.
        windowed: whether `window` is supported.
        stretches: forms of `kernels/stretching.py` that extend this encoding beyond its training length. A window is
            supported in addition if `windowed`.
        channels_multiple: number that must divide `head_dim`: 2 for encodings that rotate pairs of channels.
        heads_per_query: number of attention heads that each query head serves.
        clock: where positions come from: the index of the token, or the medium. See `ClockOptions`.
        reads_content: whether the attention weights depend on q and k. If not, the model has no projections to them.
        drop_after: share of the training steps after which training calls `drop`; None for never.
        starts_exactly: whether the encoding has no effect with `strength` 0, so that a RoPE model can be converted to
            it without a change at the first step.
        strength: scalar tensor by which the encoding's effect is multiplied during such a conversion; None for 1.
        unturned: marks elements of `spectrum` whose rotation is stopped to measure their use; None for none.
        no_weight_decay, keep_float32: see `PositionModule`.

    Attributes:
        heads: number of attention heads H.
        query_heads: number of query heads, to which the model projects q.
        score_dim: number of channels that `encode_query` and `encode_key` return; D by default.
        value_dim: number of channels of the values in a state, and of what `forward` returns; D by default.

    Raises:
        ValueError: an argument is invalid or not supported.
    """

    about: ClassVar[About | None] = None

    relative: bool = True
    longest: int | None = None
    windowed: bool = True
    stretches: tuple[str, ...] = ()
    channels_multiple: int = 1
    heads_per_query: int = 1
    clock: Literal["index", "medium"] = "index"
    reads_content: bool = True
    drop_after: float | None = None
    starts_exactly: bool = False
    strength: Tensor | None = None
    unturned: Tensor | None = None

    def __init__(
        self,
        width: int,
        heads: int,
        kv_heads: int,
        head_dim: int,
        implementation: Implementation = "auto",
        window: int | None = None,
    ):
        super().__init__()
        check_implementation(implementation)
        name = type(self).__name__
        if window is not None and not self.windowed:
            raise ValueError(f"window={window}: {name} attends to all tokens; use window=null")
        if head_dim % self.channels_multiple:
            raise ValueError(f"head_dim={head_dim}: {name} needs a multiple of {self.channels_multiple}")
        if heads % kv_heads:
            raise ValueError(f"heads={heads}, kv_heads={kv_heads}: heads must be a multiple of kv_heads")
        self.implementation = implementation
        self.window = self.trained_window = window
        self.width, self.query_heads, self.kv_heads = width, heads, kv_heads
        self.heads = heads * self.heads_per_query
        self.head_dim = self.score_dim = self.value_dim = head_dim

    def for_layer(self, layer: int) -> "Encoding":
        """The encoding of block number `layer`; a pattern over layers overrides this."""
        return self

    def input_encoding(self) -> "InputEncoding | None":
        """A module that adds positions to the embeddings. The model creates it once."""
        return None

    def shared_module(self) -> SharedModule | None:
        """A module that all layers with this encoding share. The model creates it once."""
        return None

    @property
    def shared_name(self) -> str | None:
        """Name of the shared module in the model; None without one."""
        kind = type(self)
        return None if kind.shared_module is Encoding.shared_module else kind.__name__

    def placed(self, index: Tensor, medium: Tensor | None) -> Tensor:
        """The positions of tokens, from their indices in their documents `[T]` or `[B, T]` and times in the medium."""
        return index

    @property
    def placement(self) -> tuple:
        """A key: layers with the same placement use the same positions."""
        return ()

    @property
    def kind(self) -> tuple:
        """A key: layers with the same kind share the `Context` of a pass."""
        plan = type(self).plan, self.needs, self.window, self.longest, self.implementation
        return *plan, self.placement, self.shared_name

    def drop(self) -> None:
        """Stop using positions, for the rest of training and afterwards. Called once if `drop_after` is set."""
        raise NotImplementedError

    @property
    def supported_stretches(self) -> tuple[str, ...]:
        """The forms that `stretch` accepts."""
        return (*self.stretches, "window") if self.windowed else self.stretches

    def stretch(self, stretch: Stretch | None) -> None:
        """Change a trained encoding for longer contexts, without changing its weights; None restores it.

        Raises:
            ValueError: the encoding does not support the form.
        """
        if stretch is not None and stretch.form not in self.supported_stretches:
            allowed = ", ".join(self.supported_stretches) or "none"
            raise ValueError(f"stretch={stretch.form}: {type(self).__name__} supports {allowed}")
        self.window = self.trained_window
        if stretch is not None and stretch.form == "window":
            self.window = min(stretch.length, self.window or stretch.length)

    def encode_query(self, q: Tensor, positions: Tensor, /) -> Tensor:
        """Encode `q [B, T, query_heads, D]` at `positions`, see `Context`. Returns `[B, T, H, score_dim]`."""
        return q

    def encode_key(self, k: Tensor, positions: Tensor, /) -> Tensor:
        """Encode `k [B, T, Hkv, D]` at `positions`. Returns `[B, T, Hkv, score_dim]`."""
        return k

    def forward(
        self, x: Tensor, q: Tensor, k: Tensor, v: Tensor, context: Context, state: KeyValueState | None = None
    ) -> Tensor:
        """Causal attention of T tokens that follow those in `state`.

        Args:
            x: normalised hidden state `[B, T, C]`, for encodings that depend on content.
            q: queries `[B, T, query_heads, D]`. q, k and v may be slices of one tensor.
            k: keys `[B, T, Hkv, D]`.
            v: values `[B, T, Hkv, D]`.
            context: shared data of this pass.
            state: from `new_state`, updated in place; None for a pass over whole sequences, as in training.

        Returns:
            `[B, T, H, value_dim]`.
        """
        length = q.shape[:2]
        q, k = self.encode_query(q, context.positions), self.encode_key(k, context.positions)
        for name, found, heads in (("encode_query", q, self.heads), ("encode_key", k, self.kv_heads)):
            if found.shape != (*length, heads, self.score_dim):
                raise ValueError(
                    f"{type(self).__name__}.{name} returned the shape {[*found.shape]}, but it should be "
                    f"{[*length, heads, self.score_dim]}, [B, T, heads, score_dim]"
                )
        k, v = with_past(k, v, state)
        return nope_attention(q, k, v, context.documents, self.head_dim**-0.5, context.plan)

    def average(self, x: Tensor, q: Tensor, k: Tensor, v: Tensor, context: Context) -> Tensor:
        """Average unchanged values with the attention weights, to measure these. Equals `forward` by default.

        Encodings that change values in `forward` override this.
        """
        return self.forward(x, q, k, v, context)

    def new_state(self, batch: int, capacity: int, like: Tensor) -> State:
        """Create an empty state for `batch` sequences of up to `capacity` tokens, with `like`'s dtype and device."""
        return self.key_value_state(batch, capacity, like)

    def key_value_state(self, batch: int, capacity: int, like: Tensor, encoded: bool = True) -> KeyValueState:
        """Create a state of keys, as `encode_key` returns them or raw, and values."""
        widths = self.score_dim if encoded else self.head_dim, self.value_dim
        room = capacity if self.window is None else min(capacity, 2 * self.window)
        keys, values = (like.new_zeros(batch, room, self.kv_heads, width) for width in widths)
        return KeyValueState(keys, values, encoded, self.window, capacity)

    @property
    def needs(self) -> Needs:
        """What this encoding requires of its kernels."""
        return Needs(self.score_dim, self.score_dim, self.value_dim)

    def plan(
        self,
        device: torch.device,
        dtype: torch.dtype,
        length: int,
        documents: bool = False,
        cached: int | None = None,
        bounded: bool = True,
    ) -> Plan:
        """Choose the implementation for a pass over rows of `length` tokens.

        Args:
            device: device of q, k and v.
            dtype: dtype in which q, k and v are used in the computation.
            length: number of new tokens T.
            documents: whether rows are packed.
            cached: number of tokens in the state; None for a pass without a state.
            bounded: whether the number of packed documents is bounded, as in training; see `Documents.of`.

        Raises:
            ValueError: the requested implementation does not support this pass, or it has too many positions.
        """
        context = length + (cached or 0)
        if self.longest is not None and context > self.longest:
            raise ValueError(self.too_long(context))
        limited = documents or (self.window is not None and context > self.window)
        name = "triton" if cached is not None and self.implementation in LIBRARIES else self.implementation
        plan = choose(name, device, dtype, self.needs, length, context, limited, bounded)
        if name not in LIBRARIES:
            return plan
        return replace(plan, decoding=f"triton, because {LIBRARIES[name]} needs whole sequences")

    def too_long(self, context: int) -> str:
        """The message about a context of so many tokens, more than `longest`."""
        return (
            f"length={self.longest}: {type(self).__name__} has no positions for a context of {context} tokens: use a "
            "larger length, or shorter contexts"
        )

    def attention_flops(self, length: int) -> float:
        """Floating-point operations of this layer's attention in the forward pass of one sequence of `length` tokens.

        The encoding's weights are not included: callers count two operations per weight and token.
        """
        return 2.0 * self.heads * (self.score_dim + self.value_dim) * self.pairs_seen(length)

    def pairs_seen(self, length: int, reach: int | None = None) -> float:
        """Number of pairs of a query and a visible key in a sequence; with `reach`, only at smaller distances."""
        near = min(length, self.window or length, reach or length)
        return near * (near + 1) / 2 + (length - near) * near

    def scratch_bytes(self, rows: int, queries: int, keys: int) -> int:
        """Temporary memory of the backward pass in bytes, in addition to the tensors that forward saved.

        Args:
            rows: number of rows B.
            queries: number of new tokens T in each.
            keys: number of tokens up to the last query.
        """
        return 0

    def block_queries(self, batch: int, keys: int) -> int | None:
        """Number of queries whose scores PyTorch holds at once where no kernel computes them; None if it holds none.

        Args:
            batch: number of rows B.
            keys: number of tokens up to the last query.
        """
        return None

    def spectrum(self) -> Tensor | None:
        """The frequencies in radians per position at which this encoding rotates channels.

        Returns:
            `[1 or Hkv, n]`, with a row per key head if they differ, for the n = D/2 pairs of channels (c, c + D/2), or
            for the n = D channels if each has its own; 0 where nothing rotates. None if the encoding does not rotate by
            frequencies. An encoding that returns a tensor must not rotate the elements that `unturned` marks.
        """
        return None

    def portrait(self, x: Tensor) -> dict[str, Portrait]:
        """Learned quantities to plot, by name.

        Args:
            x: hidden states `[B, T, C]` of this layer. Quantities that depend on them have values for all B * T tokens.
        """
        return {}
