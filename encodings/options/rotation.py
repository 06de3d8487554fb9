"""Options of rotations by angles that depend on the position."""

from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field

from ...core.options import Count, NonNegative, Positive
from .base import ClockOptions, ScalingOptions, WindowOptions

AboveZero = Annotated[float, Field(gt=0, le=1)]


@dataclass(frozen=True)
class RotaryOptions(ClockOptions):
    """Options of rotary encodings.

    Attributes:
        base: base of the frequencies; a larger base makes the slow pairs slower. 10000 is common.
    """

    base: Positive = 10000.0


@dataclass(frozen=True)
class RoPEOptions(ScalingOptions):
    """Rotary position embedding.

    Attributes:
        base: base of the frequencies; a larger base makes the slow pairs slower. 10000 is common.
        drop_after: share of `trainer.steps` after which keys and queries are no longer rotated (DroPE); null for never.
            The rest recalibrates the model: AdamW starts afresh, and the learning rate repeats its warm-up and
            schedule. Only checkpoints from after the drop can be the best.
    """

    base: Positive = 10000.0
    drop_after: Annotated[float, Field(gt=0, lt=1)] | None = None


def drop_step(share: float, steps: int) -> int:
    """The first of `steps` training steps without rotation, for `RoPEOptions.drop_after=share`."""
    return min(round(share * steps), steps - 1)


@dataclass(frozen=True)
class PartialRoPEOptions(RotaryOptions):
    """RoPE on some of the channels of each head; the others carry no position.

    Attributes:
        share: share of the channels that are rotated.
    """

    share: AboveZero = 0.25


@dataclass(frozen=True)
class PRoPEOptions(RotaryOptions):
    """RoPE without its lowest frequencies (p-RoPE).

    Attributes:
        share: share of the frequencies that are kept, from the highest on; p in the paper.
    """

    share: AboveZero = 0.75


@dataclass(frozen=True)
class HoPEHighFrequencyOptions(RotaryOptions):
    """RoPE without the frequencies that make less than one turn within the trained length (HoPE, Chen et al.).

    Attributes:
        trained_length: number of tokens in a row of training; data.length by default, but 512 in encoding=pattern.
    """

    trained_length: Count = 512


@dataclass(frozen=True)
class GridPEOptions(ClockOptions):
    """RoPE with a fixed ratio between neighbouring frequencies.

    Attributes:
        ratio: ratio of each frequency to the next lower one; e is the paper's optimum for one dimension.
    """

    ratio: Annotated[float, Field(gt=1, le=16)] = 2.718281828459045


@dataclass(frozen=True)
class RoPEPPOptions(RotaryOptions):
    """RoPE whose complex score gives two attention heads, one by its real and one by its imaginary part.

    Attributes:
        base: base of the frequencies; 10000 is common.
        equal: which sizes match RoPE: cache, the number of query, key and value heads, with twice as many attention
            heads; or heads, the number of attention heads, with half as many query heads and at most as many key and
            value heads. If there are fewer key heads, the authors' code halves them too; here they stay.
    """

    equal: Literal["cache", "heads"] = "cache"


@dataclass(frozen=True)
class XPosOptions(WindowOptions):
    """RoPE whose scores decay with the distance, fastest in the channels of high frequency.

    Attributes:
        base: base of the frequencies; 10000 is common.
        scale_base: tokens over which the fastest channels decay by a factor of 3.5.
    """

    base: Positive = 10000.0
    scale_base: Positive = 512.0


@dataclass(frozen=True)
class ComRoPEOptions(RotaryOptions):
    """RoPE with learned frequencies for each key head.

    Attributes:
        base: base of the initial frequencies.
    """


@dataclass(frozen=True)
class FoPEOptions(RotaryOptions):
    """RoPE with a Fourier series instead of one frequency in each pair of channels.

    Attributes:
        sigma: scale of the random coefficients of the added frequencies; 0 for none.
        trained_length: number of tokens in a row of training; data.length by default, but 512 in encoding=pattern.
            Pairs whose frequency makes less than one turn within it are not rotated.
    """

    sigma: NonNegative = 0.3
    trained_length: Count = 512


@dataclass(frozen=True)
class AxialRoPEOptions(ClockOptions):
    """Rotary position embedding on two axes: half of the pairs turn with the row, half with the column.

    Attributes:
        base: base of the frequencies on each axis; 10000 is common.
        columns: tokens per row of the raster after the start token, with clock=index; 4 for the voices of jsb.
    """

    base: Positive = 10000.0
    columns: Count = 4


@dataclass(frozen=True)
class PoPEOptions(ScalingOptions):
    """Polar coordinate position embedding.

    Attributes:
        delta_init: initial phase offset: zero (the paper's choice for text, best for length extrapolation) or uniform
            over [-2 pi, 0) (its choice for other tasks).
        clamp: how delta is kept in [-2 pi, 0]. clamp is the paper's: an element outside the range gets no gradient.
            straight_through clamps but passes the gradient. periodic does not clamp, since the cosine is periodic.
        base: base of the frequencies; 10000 is common.
        scaling_factor: longest context divided by the one before scaling, for interpolation and ntk.
        scaling_length: context length in tokens before scaling, for truncated.
    """

    delta_init: Literal["zero", "uniform"] = "uniform"
    clamp: Literal["clamp", "straight_through", "periodic"] = "clamp"
    base: Positive = 10000.0
    scaling: Literal["none", "interpolation", "ntk", "power", "truncated"] = "none"


@dataclass(frozen=True)
class HoPEHyperbolicOptions(WindowOptions):
    """Lorentz boosts with damping instead of rotations (HoPE, Dai et al.).

    Attributes:
        base: base of the rates of the boosts; 10000 is common.
    """

    base: Positive = 10000.0
