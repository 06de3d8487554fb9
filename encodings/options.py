"""The options of this folder's encodings: `RoPEOptions` are those of `RoPE`. Imports no PyTorch."""

from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field

from ..core.options import Natural, Options, Positive
from ..kernels.implementations import Implementation


@dataclass(frozen=True)
class EncodingOptions(Options):
    """What every encoding takes.

    Attributes:
        implementation: of the attention; auto, or triton, cudnn (decodes with triton) or torch by name, which raises
            where it cannot serve: it is never replaced by another. PaTH and PaTH-FoX have none by cudnn.
    """

    implementation: Implementation = "auto"


@dataclass(frozen=True)
class NoPEOptions(EncodingOptions):
    """No positional encoding: order is known from the causal mask only."""


@dataclass(frozen=True)
class RoPEOptions(EncodingOptions):
    """Rotary position embedding.

    Attributes:
        base: of the frequencies; a larger one turns the slow pairs more slowly. 10000 is usual.
    """

    base: Positive = 10000.0


@dataclass(frozen=True)
class PoPEOptions(EncodingOptions):
    """Polar coordinate position embedding.

    Attributes:
        delta_init: zero (the paper's for text, best for length extrapolation) or uniform over [-2 pi, 0) (its other
            tasks).
        clamp: of delta to [-2 pi, 0]. clamp is the paper's: an element that has left the range gets no gradient.
            straight_through clamps but passes the gradient. periodic does not clamp, a cosine being periodic.
        base: of the frequencies; 10000 is usual.
    """

    delta_init: Literal["zero", "uniform"] = "uniform"
    clamp: Literal["clamp", "straight_through", "periodic"] = "clamp"
    base: Positive = 10000.0


@dataclass(frozen=True)
class FoXOptions(EncodingOptions):
    """Forgetting attention: scores decay by data-dependent forget gates."""


@dataclass(frozen=True)
class PaTHOptions(EncodingOptions):
    """Position as a product of data-dependent reflections.

    Attributes:
        rank: of the projection to the reflections' direction w; 0 for full rank.
        convolution: width in tokens of the causal depthwise convolution before w; 0 for none.
        silu: whether a SiLU precedes the normalisation of w.
        beta_max: what beta approaches: up to 1 keys are at most projected, at 2 they are reflected. In 16 bits,
            autocast included, at most 1.984 (bfloat16) or 1.998 (float16), so that rounding lets no key grow.
    """

    rank: Natural = 32
    convolution: Natural = 3
    silu: bool = True
    beta_max: Annotated[float, Field(gt=0, le=2)] = 2.0


@dataclass(frozen=True)
class PaTHFoXOptions(PaTHOptions):
    """PaTH's reflections with FoX's forget gates."""
