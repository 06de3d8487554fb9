"""The Encoding contract: attention with positions, for training, prefill and decoding."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import torch
from torch import Tensor

from ..core.about import About
from ..core.legends import Legend
from ..kernels.attention.lm_infinite import nearest_and_first
from ..kernels.attention.nope import nope_attention
from ..kernels.choice import Needs, Plan, check_implementation, choose
from ..kernels.implementations import Implementation
from ..kernels.stretching import Stretch
from .contract.context import Context
from .contract.module import PositionModule
from .contract.state import KeyValueState, State
from .families.positions import positions_used
from .options import EncodingOptions, PositionOptions, ScalingOptions

if TYPE_CHECKING:
    from .families.inputs import InputEncoding

INDEPENDENT = ("interpolation", "lm_infinite")  # stretches that do not depend on the trained positions


@dataclass(frozen=True)
class Portrait:
    """A learnt quantity to plot.

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

    Args:
        width: hidden size C of `x`.
        heads: number of attention heads H.
        kv_heads: number of key and value heads Hkv; must divide H.
        head_dim: channels D of each head; independent of the width.
        implementation: see `EncodingOptions`.
        window: number of tokens that a query sees, itself included; None for all.
        clock: where positions come from, see `ClockOptions`.

    Class attributes:
        about: entry in the documentation. Required for encodings in this repository, optional for yours.
        relative: whether shifting all positions leaves the output unchanged. A test verifies this.
        longest: largest number of positions that can be encoded; None for any number.
        no_weight_decay, keep_float32: see `PositionModule`.
        windowed: whether `window` is supported.
        heads_per_query: attention heads that each head of `q` serves; the model projects q to `query_heads` heads.
        axes: number of axes of the medium's positions that are used.
        stretches: forms of `kernels/stretching.py` that extend this encoding beyond its training length.
        form: transformation that kernels apply to q and k as they read them. It must match `encode_query` and
            `encode_key`. A class that overrides either of them and declares no form gets "plain", and kernels then
            read q and k as these methods return them.

    Attributes:
        score_dim: number of channels that `encode_query` and `encode_key` return; D by default.
        drop_after: share of the training steps after which training calls `drop`; None for never.
    """

    about: ClassVar[About | None] = None

    relative: bool = True
    longest: int | None = None
    windowed: bool = True
    heads_per_query: int = 1
    axes: int = 1
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
        window: int | None = None,
        clock: Literal["index", "medium"] = "index",
    ):
        super().__init__()
        check_implementation(implementation)
        if window is not None and not self.windowed:
            raise ValueError(f"window={window}: {type(self).__name__} attends to all tokens; use window=null")
        self.implementation, self.clock = implementation, clock
        self.window = self.trained_window = window
        if clock == "medium":
            self.form = "plain"  # kernels encode by the index
        multiple = kv_heads * self.heads_per_query
        if heads % multiple:
            raise ValueError(f"heads={heads}, kv_heads={kv_heads}: heads must be a multiple of {multiple}")
        self.width, self.heads, self.kv_heads = width, heads, kv_heads
        self.head_dim = self.score_dim = head_dim
        self.query_heads = heads // self.heads_per_query
        self.stretching: Stretch | None = None
        self.trained_stretching: Stretch | None = None
        self.trained_form: Literal["plain", "rotary", "polar"] = self.form
        self.placing: Mapping[str, Any] = {}
        self.drop_after: float | None = None

    def scale(self, given: ScalingOptions) -> None:
        """Train with the scaled frequencies that the options describe. Call it in a constructor, before `place`.

        Raises:
            ValueError: the encoding's other options do not allow it.
        """
        if given.scaling != "none":
            self.trained_stretching = Stretch(given.scaling, given.scaling_factor or 1.0, given.scaling_length or 1)
            self.stretch(self.trained_stretching)
            self.stretches = ()

    def use_plain_form(self) -> None:
        """Have kernels read q and k as `encode_query` and `encode_key` return them."""
        self.form = self.trained_form = "plain"

    def drop(self) -> None:
        """Stop using positions, for the rest of training and afterwards. Called once if `drop_after` is set."""
        raise NotImplementedError

    def place(self, given: PositionOptions) -> None:
        """Use the positions that the options describe instead of indices. Call it in a constructor."""
        if given.randomise or given.random_steps or given.spacing != 1:
            self.placing = {
                "randomise": given.randomise,
                "random_steps": given.random_steps,
                "spacing": given.spacing,
            }
            self.use_plain_form()  # kernels count positions
            self.stretches = tuple(form for form in self.stretches if form in INDEPENDENT)

    def placed(self, index: Tensor) -> Tensor:
        """The positions of tokens with these indices in their documents, the same for all layers of a pass."""
        return positions_used(index, self.training, **self.placing) if self.placing else index

    def for_layer(self, layer: int) -> "Encoding":
        """The encoding of block number `layer`; a pattern over layers overrides this."""
        return self

    def input_encoding(self) -> "InputEncoding | None":
        """A module that adds positions to the embeddings. The model creates it once."""
        return None

    @property
    def kind(self) -> tuple:
        """Layers with the same kind share the `Context` of a pass."""
        return self.needs, self.window, self.implementation, self.clock, self.axes, tuple(self.placing.items())

    @property
    def supported_stretches(self) -> tuple[str, ...]:
        """The forms that `stretch` accepts: `stretches`, and a window if the encoding supports one."""
        return (*self.stretches, "window") if self.windowed else self.stretches

    def stretch(self, stretch: Stretch | None) -> None:
        """Change a trained encoding for longer contexts, without changing its weights; None restores it.

        Raises:
            ValueError: the encoding does not support the form.
        """
        form = None if stretch is None else stretch.form
        if stretch is not None and form not in self.supported_stretches:
            allowed = ", ".join(self.supported_stretches) or "none"
            raise ValueError(f"stretch={form}: {type(self).__name__} supports {allowed}")
        if stretch is not None and self.clock == "medium" and stretch.needs_raw_keys:
            raise ValueError(f"stretch={form} counts tokens: use clock=index")
        if form == "lm_infinite" and self.implementation not in ("auto", "torch"):
            raise ValueError(
                f"implementation={self.implementation}: lm_infinite is computed in PyTorch: use implementation=auto "
                "or torch"
            )
        if form == "lm_infinite" and self.trained_window is not None:
            raise ValueError(f"window={self.trained_window}: lm_infinite needs an encoding without a window")
        self.window = self.trained_window
        if stretch is not None and form == "window":
            self.window, stretch = min(stretch.length, self.window or stretch.length), None
        self.stretching = self.trained_stretching if stretch is None else stretch
        self.form = "plain" if form == "lm_infinite" else self.trained_form

    def encode_query(self, q: Tensor, positions: Tensor) -> Tensor:
        """Encode `q [B, T, query_heads, D]` at `positions`, see `Context`. Returns `[B, T, H, score_dim]`."""
        return q

    def encode_key(self, k: Tensor, positions: Tensor) -> Tensor:
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
            `[B, T, H, D]`.
        """
        if self.stretching is not None and self.stretching.form == "lm_infinite":
            return self._near_and_first(q, k, v, context, state, self.stretching)
        q = self.encode_query(q, context.positions)
        if state is None or state.encoded:
            k = self.encode_key(k, context.positions)
        if state is not None:
            state.append(k, v)
            k, v = state.read()
            if not state.encoded:
                k = self.encode_key(k, torch.arange(state.length - k.shape[1], state.length, device=k.device))
        return nope_attention(q, k, v, context.documents, self.head_dim**-0.5, context.plan)

    def _near_and_first(
        self, q: Tensor, k: Tensor, v: Tensor, context: Context, state: KeyValueState | None, stretch: Stretch
    ) -> Tensor:
        """`forward` with LM-Infinite. The state holds raw keys."""
        if context.documents is not None:
            raise ValueError("stretch=lm_infinite: rows with several documents are not supported")
        if state is not None:
            state.append(k, v)
            k, v = state.read()
        index, scale = torch.arange(k.shape[1], device=k.device), self.head_dim**-0.5
        near = self.encode_query(q, context.positions), self.encode_key(k, self.placed(index)), v
        if k.shape[1] <= stretch.length:
            return nope_attention(*near, scale=scale, implementation=context.plan)
        far_q = self.encode_query(q, self.placed(torch.full_like(index[-q.shape[1] :], stretch.length)))
        far_k = self.encode_key(k[:, : stretch.first], torch.zeros_like(index[: stretch.first]))
        return nearest_and_first(*near, far_q, far_k, stretch.length, scale)

    def new_state(self, batch: int, capacity: int, like: Tensor) -> State:
        """Create an empty state for `batch` sequences of up to `capacity` tokens, with `like`'s dtype and device."""
        return self.key_value_state(batch, capacity, like)

    def key_value_state(self, batch: int, capacity: int, like: Tensor) -> KeyValueState:
        """Create a state of keys and values.

        Keys are stored raw if a kernel encodes them as it reads them, or if later tokens change their encoding.
        """
        encoded = self.stretching is None or not self.stretching.needs_raw_keys
        if encoded and self.form != "plain":
            encoded = self.plan(like.device, like.dtype, 1, cached=1).implementation != "triton"
        widths = self.score_dim if encoded else self.head_dim, self.head_dim
        room = capacity if self.window is None else min(capacity, 2 * self.window)
        keys, values = (like.new_zeros(batch, room, self.kv_heads, width) for width in widths)
        return KeyValueState(keys, values, encoded, self.window, capacity)

    @property
    def needs(self) -> Needs:
        """What this encoding requires of its kernels."""
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
        """Choose the implementation for a pass over rows of `length` tokens.

        Args:
            device: device of q, k and v.
            dtype: dtype in which q, k and v are used in the computation.
            length: number of new tokens T.
            documents: whether rows are packed.
            cached: number of tokens in the state; None for a pass without a state.

        Raises:
            ValueError: the requested implementation does not support this pass, or it has too many positions.
        """
        if self.training and 0 < self.placing.get("randomise", 0) < length:
            raise ValueError(
                f"randomise={self.placing['randomise']}: rows have up to {length} tokens: use data.length or more"
            )
        if self.longest is not None and length + (cached or 0) > self.longest:
            raise ValueError(
                f"length={self.longest}: {type(self).__name__} has no positions for a context of "
                f"{length + (cached or 0)} tokens: use a larger length, or shorter contexts"
            )
        if cached is not None:
            # cuDNN supports whole sequences only.
            name = "triton" if self.implementation == "cudnn" else self.implementation
            return choose(name, device, dtype, self.needs, length, cached + length)
        limited = documents or (self.window is not None and length > self.window)
        plan = choose(self.implementation, device, dtype, self.needs, length, length, limited)
        if self.implementation != "cudnn":
            return plan
        return replace(plan, decoding="triton, because cuDNN's attention takes whole sequences only")

    def attention_flops(self, length: int) -> float:
        """Floating-point operations of this layer's attention in the forward pass of one sequence of `length` tokens.

        The encoding's weights are not included: callers count two operations per weight and token.
        """
        near = length if self.window is None else min(length, self.window)
        pairs = near * (near + 1) / 2 + (length - near) * near
        return 4.0 * self.heads * self.head_dim * pairs

    def scratch_bytes(self, rows: int, length: int) -> int:
        """Temporary memory of the backward pass in bytes, in addition to the tensors that forward saved."""
        return 0

    def portrait(self, x: Tensor) -> dict[str, Portrait]:
        """Learnt quantities to plot, by name.

        Args:
            x: hidden states `[B, T, C]` of this layer. Quantities that depend on them have values for all B * T tokens.
        """
        return {}
