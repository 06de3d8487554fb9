"""What the launchers of PaTH's kernels are given: one call's inputs, and of its output what gradients start from."""

from typing import NamedTuple

import torch
from torch import Tensor

from .sizes import Sizes


class Call(NamedTuple):
    """Inputs as the kernels read them (`layout.in_rows`): some sequences and heads of what the caller has.

    Attributes:
        q: `[B, T, H, D]`; k, w: `[B, T, Hkv, D]`; v: `[B, T, Hkv, Dv]`; beta: `[B, T, Hkv]` float32.
        scale: of the scores.
        high, low: cumulative log-gates in powers of two as `gates.gates_of` has them, `[B, H, Tp]` each.
        first, end: `[B, Tp]` int32, the first token of each token's document and the one after its last.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    w: Tensor
    beta: Tensor
    scale: float
    sizes: Sizes
    high: Tensor | None = None
    low: Tensor | None = None
    first: Tensor | None = None
    end: Tensor | None = None

    @property
    def exact(self) -> bool:
        """Whether products and gates are as precise as float32."""
        return self.q.dtype == torch.float32

    def scored(self) -> dict:
        """Launch arguments of every kernel that forms scores."""
        given = {"V": self.v, "HIGH": self.high, "LOW": self.low, "FIRST": self.first}
        flags = {"GATED": self.high is not None, "EXACT": self.exact, "PACKED": self.first is not None}
        return given | flags | self.sizes.constants("DP", "DV", "DVP", "R")


class Upstream(NamedTuple):
    """Of the output.

    Attributes:
        dout: its gradient, `[B, T, H, Dv]`.
        lse: in powers of two, inf beyond the tokens; delta: the product of output and gradient. `[B H, Tp]` float32.
    """

    dout: Tensor
    lse: Tensor
    delta: Tensor

    def named(self) -> dict[str, Tensor]:
        """As launch arguments."""
        return {"DOUT": self.dout, "LSE": self.lse, "DELTA": self.delta}
