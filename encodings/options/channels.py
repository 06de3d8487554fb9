"""Options of encodings that add channels to q and k."""

from dataclasses import dataclass

from ...core.options import Count, Positive
from .base import PositionOptions


@dataclass(frozen=True)
class TransformerXLOptions(PositionOptions):
    """Relative attention of Transformer-XL.

    Attributes:
        base: base of the frequencies; 10000 is common.
    """

    base: Positive = 10000.0


@dataclass(frozen=True)
class RCMHAOptions(TransformerXLOptions):
    """Relative attention of Transformer-XL, after a convolution of q, k and v over the tokens.

    Attributes:
        convolution: width in tokens of the causal depthwise convolutions.
    """

    convolution: Count = 3


@dataclass(frozen=True)
class SPEOptions(PositionOptions):
    """Stochastic positional encoding with sinusoids, in expectation.

    Attributes:
        sines: number of cosines K whose sum multiplies each channel. Scores have 2K times as many channels, or
            2K + 1 times with the gate. The authors' models of music use 5 or 8.
        gated: whether a learned share of each channel's product does not depend on the distance.
    """

    sines: Count = 1
    gated: bool = True
