"""Options of encodings whose layers share a module."""

from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field

from ...core.options import Below1, Count, Layers, NonNegative, Positive, Share
from .base import WindowOptions


@dataclass(frozen=True)
class SeqPEOptions(WindowOptions):
    """Positions that an encoder reads digit by digit.

    Attributes:
        length: number of positions that training draws from, and so the longest context. Positions are written with
            as many decimal digits as the largest of them has.
        encoder_layers: number of Transformer layers in the encoder.
        dropout: dropout probability in the encoder.
        shift_rate: share of the training passes whose positions begin at a random number instead of 0.
        contrastive: weight of the loss that makes close positions similar; 0 for none.
        transfer: weight of the loss that makes shifted positions resemble each other as unshifted ones do; 0 for none.
    """

    length: Annotated[int, Field(ge=2, le=10**9)] = 20000
    encoder_layers: Layers = 2
    dropout: Below1 = 0.1
    shift_rate: Share = 0.1
    contrastive: NonNegative = 0.1
    transfer: NonNegative = 0.1


@dataclass(frozen=True)
class PositionalAttentionOptions(WindowOptions):
    """Attention whose weights depend on positions only.

    Attributes:
        positions: vectors of positions from which each layer computes queries and keys: sinusoidal; learned, the same
            in all layers; or one_hot, which is a learned query and key for each position in each layer.
        length: number of positions, and so the longest context, for learned and one_hot.
        base: base of the frequencies, for sinusoidal.
    """

    positions: Literal["sinusoidal", "learned", "one_hot"] = "sinusoidal"
    length: Count = 2048
    base: Positive = 10000.0
