"""Options of biases and embeddings of the distance between query and key."""

from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field

from ...core.options import Count, Positive, Share
from .base import WindowOptions


@dataclass(frozen=True)
class ALiBiOptions(WindowOptions):
    """Attention with linear biases: a bias that falls linearly with the distance.

    Attributes:
        heads_share: share of the heads with a bias, at least one head unless it is 0; the others have no encoding.
    """

    heads_share: Share = 1.0


@dataclass(frozen=True)
class T5Options(WindowOptions):
    """T5's relative bias: a learned bias for each head and bucket of distances.

    Attributes:
        buckets: number of buckets; half of them hold one distance each.
        max_distance: distance from which all distances share the last bucket.
    """

    buckets: Annotated[int, Field(ge=2)] = 32
    max_distance: Count = 128

    def check_together(self) -> None:
        if self.max_distance <= self.buckets // 2:
            raise ValueError(
                f"max_distance={self.max_distance}, buckets={self.buckets}: max_distance must be above buckets // 2"
            )


@dataclass(frozen=True)
class URPEOptions(T5Options):
    """Attention weights multiplied by a learned function of the distance.

    Attributes:
        bias: whether to add T5's bias to the scores.
    """

    bias: bool = True


@dataclass(frozen=True)
class KerpleLogOptions(WindowOptions):
    """KERPLE: a learned bias that falls with the logarithm of the distance."""


@dataclass(frozen=True)
class KerplePowerOptions(WindowOptions):
    """KERPLE: a learned bias that falls with a learned power of the distance."""


@dataclass(frozen=True)
class BAMOptions(WindowOptions):
    """A generalised Gaussian prior over the distance.

    Attributes:
        location: whether the distance with the largest prior is learned. It is 0 otherwise, as in the paper.
    """

    location: bool = False


@dataclass(frozen=True)
class SandwichOptions(WindowOptions):
    """Dot products of sinusoidal position embeddings as a bias.

    Attributes:
        sinusoids: number of frequencies, half the channels of the sinusoidal embedding.
    """

    sinusoids: Count = 64


@dataclass(frozen=True)
class LearnedDistanceOptions(WindowOptions):
    """A learned bias for each head and distance.

    Attributes:
        max_distance: distance from which all distances share one bias.
    """

    max_distance: Count = 128


@dataclass(frozen=True)
class FIREOptions(WindowOptions):
    """A learned function of the distance, relative to the position of the query.

    Attributes:
        threshold: initial value of L, the position below which the bias depends on the distance only.
        hidden: hidden units of the function.
    """

    threshold: Positive = 512.0
    hidden: Count = 32


@dataclass(frozen=True)
class ShawOptions(WindowOptions):
    """Learned embeddings of clipped distances, added to the keys.

    Attributes:
        max_distance: distance from which all distances share one embedding.
    """

    max_distance: Count = 16


@dataclass(frozen=True)
class IRPEOptions(WindowOptions):
    """Learned embeddings of piecewise buckets of distances, added to keys or queries.

    Attributes:
        on: what the embeddings are added to: keys, queries, or both with a table for each.
        exact: largest distance with a bucket of one distance.
        last_bucket: index of the last bucket.
        max_distance: distance from which all distances share the last bucket.
    """

    on: Literal["keys", "queries", "both"] = "keys"
    exact: Count = 16
    last_bucket: Count = 32
    max_distance: Count = 128

    def check_together(self) -> None:
        if not self.exact < self.last_bucket <= self.max_distance:
            raise ValueError(
                f"exact={self.exact}, last_bucket={self.last_bucket}, max_distance={self.max_distance}: "
                "they must increase"
            )


@dataclass(frozen=True)
class WaveletOptions(WindowOptions):
    """Wavelets of the distance, added to the keys.

    Attributes:
        wavelet: function of the distance: ricker, gaussian, haar or morlet.
        scales: number of scales. Each has an equal share of the channels, which differ in their shifts: 0, 1, ...
        first_scale: logarithm to base 2 of the smallest scale in tokens; each scale is twice the one before. The paper
            has 0 for contexts up to 1,024, and 2 for 4,096.
    """

    wavelet: Literal["ricker", "gaussian", "haar", "morlet"] = "ricker"
    scales: Annotated[int, Field(ge=1, le=16)] = 8
    first_scale: Annotated[int, Field(ge=0, le=16)] = 0
