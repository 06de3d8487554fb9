"""Options that several encodings share."""

from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field

from ...core.options import Count, Natural, Options, Positive
from ...kernels.implementations import Implementation

Scaling = Literal["none", "interpolation", "ntk", "yarn", "llama3", "power", "truncated"]


@dataclass(frozen=True)
class EncodingOptions(Options):
    """Options of every encoding.

    Attributes:
        implementation: attention kernels: auto, triton, cudnn, fa4 (FlashAttention-4, needs the package flash-attn-4)
            or torch; cudnn and fa4 decode with triton. A named implementation that does not support the encoding or
            its inputs raises an error; it is never replaced by another.
    """

    implementation: Implementation = "auto"


@dataclass(frozen=True)
class WindowOptions(EncodingOptions):
    """Options of every encoding that can attend to a sliding window.

    Attributes:
        window: number of tokens that a query attends to, itself included; null for all.
    """

    window: Count | None = None


@dataclass(frozen=True)
class ClockOptions(WindowOptions):
    """Options of every encoding that transforms q and k by their positions.

    Attributes:
        clock: what positions count: index, the tokens; or medium, the time of the data: grid points of maestro, letters
            of genome, bytes of text and openwebtext, 16ths of jsb (where axial_rope also uses the voice).
    """

    clock: Literal["index", "medium"] = "index"


@dataclass(frozen=True)
class PositionOptions(ClockOptions):
    """Options of encodings whose positions need not be the tokens' indices.

    Attributes:
        randomise: in training, the positions of a row are drawn in order from 0 to this number minus 1 (Ruoss et al.);
            choose the longest context to evaluate. 0 uses indices.
        random_steps: in training, the distances between neighbouring tokens are drawn from 0 to 2 (Giraffe).
        spacing: distance between neighbouring tokens in evaluation, which draws nothing. With `randomise`,
            `randomise / data.length` is the mean distance in training.
    """

    randomise: Natural = 0
    random_steps: bool = False
    spacing: Positive = 1.0

    def check_together(self) -> None:
        if self.randomise and self.random_steps:
            raise ValueError(f"randomise={self.randomise}, random_steps=true: choose one of them")
        if self.clock == "medium" and (self.randomise or self.random_steps or self.spacing != 1):
            raise ValueError("clock=medium: randomise, random_steps and spacing change indices; use clock=index")


@dataclass(frozen=True)
class ScalingOptions(PositionOptions):
    """Options of encodings that can be trained with scaled frequencies, as with `rope_scaling` in transformers.

    Attributes:
        scaling: change of the frequencies, in training and afterwards; see `kernels/stretching.py`. task=extrapolate
            cannot change them again.
        scaling_factor: longest context divided by `scaling_length`, for interpolation, ntk, yarn and llama3.
        scaling_length: context length in tokens before scaling, for yarn, llama3 and truncated.
    """

    scaling: Scaling = "none"
    scaling_factor: Annotated[float, Field(ge=1)] | None = None
    scaling_length: Count | None = None

    def check_together(self) -> None:
        super().check_together()
        takes = {
            "scaling_factor": self.scaling in ("interpolation", "ntk", "yarn", "llama3"),
            "scaling_length": self.scaling in ("yarn", "llama3", "truncated"),
        }
        if lacking := [name for name, taken in takes.items() if taken and getattr(self, name) is None]:
            raise ValueError(f"scaling={self.scaling}: give {' and '.join(lacking)}")
        for name, taken in takes.items():
            value = getattr(self, name)
            if not taken and value is not None:
                raise ValueError(f"{name}={value}: scaling={self.scaling} does not use it; use null")
