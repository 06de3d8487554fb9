"""Base of encodings that transform q and k by position: other positions, kernels' own transforms, longer contexts."""

from collections.abc import Mapping
from typing import Any, Literal

import torch
from torch import Tensor

from ...kernels.attention.lm_infinite import nearest_and_first
from ...kernels.attention.nope import nope_attention
from ...kernels.attention.rope import frequencies_of
from ...kernels.choice import Needs, Plan
from ...kernels.stretching import COUNTING, Stretch
from ..base import Encoding
from ..contract.context import Context
from ..contract.state import KeyValueState, State, with_past
from ..options.base import ClockOptions, PositionOptions, ScalingOptions, WindowOptions
from .positions import positions_used

Form = Literal["plain", "rotary", "polar"]
INDEPENDENT = ("interpolation", "lm_infinite")  # stretches that do not depend on the trained positions


class PositionalEncoding(Encoding):
    """Base of encodings that transform q and k by position, with features that most of them share.

    - Positions can be those of the medium, drawn in training, or spaced (`place`).
    - A kernel can transform q and k as it reads them (`form`). The state then holds raw keys.
    - Trained frequencies can be changed for longer contexts (`stretch`), or be changed from the start (`scale`).
    - LM-Infinite moves queries and the first keys to fixed positions.

    An encoding that needs none of these overrides `encode_query` and `encode_key` of `Encoding`.

    Args:
        width, heads, kv_heads, head_dim: see `Encoding`.
        given: options of the encoding. Without the option `clock`, positions are indices.

    Class attributes:
        form: transformation that kernels apply to q and k as they read them. It must match `encode_query` and
            `encode_key`. A class that overrides either of them and declares no form gets "plain", and kernels then
            read q and k as these methods return them.
        axes: number of axes of the medium's positions that are used.

    Attributes:
        stretching: how frequencies differ from the trained ones or, if `scale` was called, from the plain ones; None
            if they do not.
    """

    form: Form = "plain"
    axes: int = 1

    def __init_subclass__(cls, **given: Any):
        super().__init_subclass__(**given)
        if "form" not in vars(cls) and {"encode_query", "encode_key"} & vars(cls).keys():
            cls.form = "plain"

    def __init__(self, width: int, heads: int, kv_heads: int, head_dim: int, given: WindowOptions):
        super().__init__(width, heads, kv_heads, head_dim, given.implementation, given.window)
        self.stretching: Stretch | None = None
        self.trained_stretching: Stretch | None = None
        self.trained_form: Form = self.form
        self.placing: Mapping[str, Any] = {}
        if isinstance(given, ClockOptions) and given.clock == "medium":
            self.clock = given.clock
            self.use_plain_form()  # kernels use indices as positions

    def use_plain_form(self) -> None:
        """Have kernels read q and k as `encode_query` and `encode_key` return them."""
        self.form = self.trained_form = "plain"

    def place(self, given: PositionOptions) -> None:
        """Use the positions that the options describe instead of indices. Call it in a constructor."""
        if given.randomise or given.random_steps or given.spacing != 1:
            self.placing = {
                "randomise": given.randomise,
                "random_steps": given.random_steps,
                "spacing": given.spacing,
            }
            self.use_plain_form()  # kernels use indices as positions
            self.stretches = tuple(form for form in self.stretches if form in INDEPENDENT)

    def scale(self, given: ScalingOptions) -> None:
        """Train with the scaled frequencies that the options describe. Call it in a constructor, before `place`.

        Raises:
            ValueError: the encoding's other options do not allow it.
        """
        if given.scaling != "none":
            self.trained_stretching = Stretch(given.scaling, given.scaling_factor or 1.0, given.scaling_length or 1)
            self.stretch(self.trained_stretching)
            self.stretches = ()

    @property
    def draws(self) -> bool:
        return bool(self.placing.get("randomise") or self.placing.get("random_steps"))

    @property
    def placement(self) -> tuple:
        return self.clock, self.axes, *self.placing.items()

    def placed(self, index: Tensor, medium: Tensor | None) -> Tensor:
        if self.clock == "medium":
            return self._in_medium(medium)
        return positions_used(index, self.training, **self.placing) if self.placing else index

    def _in_medium(self, medium: Tensor | None) -> Tensor:
        """The axes of `medium` that this encoding uses; the first if it uses one."""
        if medium is None:
            raise ValueError("clock=medium: this domain has no positions other than the index: use clock=index")
        axes = 1 if medium.ndim == 2 else medium.shape[2]
        if axes < self.axes:
            name = type(self).__name__
            raise ValueError(f"clock=medium: {name} needs {self.axes} axes, this domain has {axes}: use clock=index")
        return medium[..., 0] if axes > self.axes else medium

    def turning(self, table: float | tuple[float, ...], count: int) -> float | tuple[float, ...]:
        """A base or table of `count` frequencies, with 0 for those that `unturned` marks."""
        if self.unturned is None:
            return table
        marks = self.unturned[0].tolist()
        return tuple(0.0 if still else theta for theta, still in zip(frequencies_of(table, count), marks, strict=True))

    @property
    def supported_stretches(self) -> tuple[str, ...]:
        """The forms that `stretch` accepts. Times cannot be counted, and LM-Infinite has a window of its own."""
        counting = COUNTING if self.clock == "medium" else ()
        left_out = counting if self.trained_window is None else (*counting, "lm_infinite")
        return tuple(form for form in super().supported_stretches if form not in left_out)

    def stretch(self, stretch: Stretch | None) -> None:
        if stretch is not None and stretch.form in self.stretches:
            self._check_stretch(stretch)
        super().stretch(stretch)
        form = None if stretch is None else stretch.form
        self.stretching = self.trained_stretching if form in (None, "window") else stretch
        self.form = "plain" if form == "lm_infinite" else self.trained_form

    def _check_stretch(self, stretch: Stretch) -> None:
        """Raise ValueError if an option rules out a form that the class supports."""
        if stretch.form == "lm_infinite" and self.implementation not in ("auto", "torch"):
            raise ValueError(
                f"implementation={self.implementation}: lm_infinite is computed in PyTorch: use implementation=auto "
                "or torch"
            )

    def forward(
        self, x: Tensor, q: Tensor, k: Tensor, v: Tensor, context: Context, state: KeyValueState | None = None
    ) -> Tensor:
        if self.stretching is not None and self.stretching.form == "lm_infinite":
            return self._near_and_first(q, k, v, context, state, self.stretching)
        if state is None or state.encoded:
            return super().forward(x, q, k, v, context, state)
        k, v = with_past(k, v, state)
        positions = torch.arange(state.length - k.shape[1], state.length, device=k.device)
        q, k = self.encode_query(q, context.positions), self.encode_key(k, positions)
        return nope_attention(q, k, v, context.documents, self.head_dim**-0.5, context.plan)

    def _near_and_first(
        self, q: Tensor, k: Tensor, v: Tensor, context: Context, state: KeyValueState | None, stretch: Stretch
    ) -> Tensor:
        """`forward` with LM-Infinite. The state holds raw keys."""
        if context.documents is not None:
            raise ValueError("stretch=lm_infinite: rows with several documents are not supported")
        k, v = with_past(k, v, state)
        index, scale = torch.arange(k.shape[1], device=k.device), self.head_dim**-0.5
        near = self.encode_query(q, context.positions), self.encode_key(k, self.placed(index, None)), v
        if k.shape[1] <= stretch.length:
            return nope_attention(*near, scale=scale, implementation=context.plan)
        far_q = self.encode_query(q, self.placed(torch.full_like(index[-q.shape[1] :], stretch.length), None))
        far_k = self.encode_key(k[:, : stretch.first], torch.zeros_like(index[: stretch.first]))
        return nearest_and_first(*near, far_q, far_k, stretch.length, scale)

    def new_state(self, batch: int, capacity: int, like: Tensor) -> State:
        return self.key_value_state(batch, capacity, like, self._caches_encoded(like))

    def _caches_encoded(self, like: Tensor) -> bool:
        """Whether the state holds encoded keys.

        It holds raw keys if a kernel encodes them as it reads them, or if later tokens change how they are encoded.
        """
        if self.stretching is not None and self.stretching.needs_raw_keys:
            return False
        return self.form == "plain" or self.plan(like.device, like.dtype, 1, cached=1).implementation != "triton"

    @property
    def needs(self) -> Needs:
        return super().needs._replace(head_dim=self.score_dim if self.form == "plain" else self.head_dim)

    def plan(
        self,
        device: torch.device,
        dtype: torch.dtype,
        length: int,
        documents: bool = False,
        cached: int | None = None,
        bounded: bool = True,
    ) -> Plan:
        if self.training and 0 < self.placing.get("randomise", 0) < length:
            raise ValueError(
                f"randomise={self.placing['randomise']}: rows have up to {length} tokens: use data.length or more"
            )
        return super().plan(device, dtype, length, documents, cached, bounded)
