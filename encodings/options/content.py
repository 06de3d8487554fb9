"""Options of encodings whose positions or decays are computed from the content of the tokens."""

from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field

from ...core.options import Count, Natural, Positive
from .base import EncodingOptions, ScalingOptions, WindowOptions


@dataclass(frozen=True)
class CARoPEOptions(WindowOptions):
    """Rotary position embedding with a frequency per head that each token computes.

    Attributes:
        base: base of the initial frequencies; 10000 is common.
    """

    base: Annotated[float, Field(gt=1)] = 10000.0


@dataclass(frozen=True)
class SelectiveRoPEOptions(EncodingOptions):
    """Rotary position embedding with angles that the tokens compute.

    Attributes:
        base: base of the temperatures, which scale the angle of each pair.
        rank: rank of the projection from the hidden state to the angles.
        convolution: width in tokens of the causal depthwise convolution after the projection; 1 weighs each channel.
        silu: whether to apply SiLU after the convolution.
        gate: whether a sigmoid of a linear function of the normalised hidden state scales the angles of each head.
        bias: whether to add a learned positive angle per pair to every token; it is initially that of RoPE.
    """

    base: Positive = 500000.0
    rank: Count = 32
    convolution: Count = 4
    silu: bool = False
    gate: bool = False
    bias: bool = False


@dataclass(frozen=True)
class RePoOptions(WindowOptions):
    """Rotary position embedding at real-valued positions that the tokens compute.

    Attributes:
        base: base of the frequencies; 10000 is common.
        hidden: hidden width of the module that computes positions; null for an eighth of the model's width.
    """

    base: Positive = 10000.0
    hidden: Count | None = None


@dataclass(frozen=True)
class TAPEOptions(ScalingOptions):
    """Rotary position embedding whose rotations each layer updates from the content.

    Attributes:
        base: base of the frequencies of the first layer; 10000 is common.
        hidden: hidden width of the update that follows the MLP; null for 4 per key head, as in the paper's code.
    """

    base: Positive = 10000.0
    hidden: Count | None = None


@dataclass(frozen=True)
class FoXOptions(WindowOptions):
    """Forgetting attention: scores decay by data-dependent forget gates."""


@dataclass(frozen=True)
class GRAPEAdditiveOptions(WindowOptions):
    """Linear biases whose slope depends on the content of the query, of the key, or of both (GRAPE-A).

    Attributes:
        gate: what the slope depends on: both (GRAPE-A-QK), query, key, or none (ALiBi with learned slopes).
    """

    gate: Literal["both", "query", "key", "none"] = "both"


@dataclass(frozen=True)
class GRAPEPathOptions(WindowOptions):
    """A bias that sums, over the tokens from the key to the query, a potential that the query computes (GRAPE-AP).

    Attributes:
        probe_channels: even number of channels of the vectors in each head from which potentials are computed.
    """

    probe_channels: Annotated[int, Field(ge=2, multiple_of=2)] = 8


@dataclass(frozen=True)
class GRAPEMultiplicativeOptions(WindowOptions):
    """Rotary position embedding with learned frequencies, at positions that sum a step per token (GRAPE-M).

    Attributes:
        contextual: whether each token computes its step, between 0 and 1. Without it, all steps are 1.
        base: base of the initial frequencies; 10000 is common.
    """

    contextual: bool = True
    base: Positive = 10000.0


@dataclass(frozen=True)
class StickBreakingOptions(WindowOptions):
    """Stick-breaking attention: each key takes a share of the attention that nearer keys have left."""


@dataclass(frozen=True)
class KernelizedRPEOptions(EncodingOptions):
    """Linear attention by random features, with a learned bias for each distance.

    Attributes:
        features: number of random features; more approximate the exponential better.
        max_distance: distance from which all distances share one bias.
    """

    features: Count = 64
    max_distance: Count = 128


@dataclass(frozen=True)
class PaTHOptions(EncodingOptions):
    """Position as a product of data-dependent reflections.

    Attributes:
        rank: rank of the projection to the reflections' direction w; 0 for full rank.
        convolution: width in tokens of the causal depthwise convolution before w; 0 for none.
        silu: whether to apply SiLU before w is normalised.
        beta_max: upper limit of beta: 1 allows projections of keys, 2 allows reflections. In 16 bits, including
            autocast, the limit is at most 1.984 (bfloat16) or 1.998 (float16), so that rounding never makes a key grow.
    """

    rank: Natural = 32
    convolution: Natural = 3
    silu: bool = True
    beta_max: Annotated[float, Field(gt=0, le=2)] = 2.0


@dataclass(frozen=True)
class PaTHFoXOptions(PaTHOptions):
    """PaTH's reflections with FoX's forget gates."""


@dataclass(frozen=True)
class CoPEOptions(WindowOptions):
    """Contextual position encoding: positions count the tokens that a query selects.

    Attributes:
        positions: number of positions with an embedding; larger counts have that of the last. The paper has 64.
    """

    positions: Annotated[int, Field(ge=2)] = 64


@dataclass(frozen=True)
class TAPAOptions(WindowOptions):
    """Token-aware phase attention: the cosine of a phase that query, key and distance determine multiplies the score.

    Attributes:
        amplitude_share: share of the channels that give the amplitude; the others give the phase.
        exponent: power of the distance that multiplies the phase.
    """

    amplitude_share: Annotated[float, Field(gt=0, lt=1)] = 0.5
    exponent: Annotated[float, Field(gt=0, le=1)] = 0.1


@dataclass(frozen=True)
class DAPEOptions(WindowOptions):
    """Data-adaptive positional encoding: a small network corrects the scores of all heads together.

    Attributes:
        kernel: number of neighbouring keys that each layer of the network reads, an odd number: 3 in DAPE V2, 1 in
            DAPE V1.
        hidden: hidden units of the network.
        bias: bias of the distance that the network reads and that is added to the scores: another encoding, with its
            default options, or none.
    """

    kernel: Count = 3
    hidden: Count = 32
    bias: Literal["kerple_log", "kerple_power", "alibi", "fire", "t5", "sandwich", "learned_distance", "none"] = (
        "kerple_log"
    )

    def check_together(self) -> None:
        if self.kernel % 2 == 0:
            raise ValueError(f"kernel={self.kernel}: it must be odd, such as 1 or 3")
