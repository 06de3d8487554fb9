"""Arguments of the PaTH kernel launchers: the inputs of one call, and the gradient of its output.

Each launcher has a function that prepares its `Launch` from a `Form` and what else the launch depends on. Its results
are cached.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from .sizes import Sizes


class Form(NamedTuple):
    """The properties of a `Call` that determine its launches, without its tensors.

    Attributes:
        exact: whether products and gates have float32 precision.
        gated, packed: whether there are gates, and documents.
    """

    sizes: Sizes
    scale: float
    exact: bool
    gated: bool
    packed: bool

    def scored(self) -> dict:
        """Launch arguments of every kernel that computes scores."""
        flags = {"GATED": self.gated, "EXACT": self.exact, "PACKED": self.packed}
        return flags | self.sizes.constants("DP", "DV", "DVP", "R")


class Call(NamedTuple):
    """Inputs in the layout of `layout.in_rows`: all or some of the caller's sequences and heads.

    Attributes:
        q: queries, `[B, T, H, D]`.
        k, w: keys and directions, `[B, T, Hkv, D]`.
        v: values, `[B, T, Hkv, Dv]`.
        beta: strengths, `[B, T, Hkv]` float32.
        scale: factor of the scores.
        high, low: cumulative log-gates in base 2, `[B, H, Tp]` each; see `gates.gates_of`.
        first, end: start and end (exclusive) of each token's document, `[B, Tp]` int32.
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
        """As in `Form`."""
        return self.q.dtype == torch.float32

    @property
    def form(self) -> Form:
        """Its form."""
        return Form(self.sizes, self.scale, self.exact, self.high is not None, self.first is not None)

    def scored(self) -> dict[str, Tensor | None]:
        """Tensors that every kernel that computes scores reads."""
        return {"V": self.v, "HIGH": self.high, "LOW": self.low, "FIRST": self.first}


class Upstream(NamedTuple):
    """What the backward pass needs of the output.

    Attributes:
        dout: gradient of the output, `[B, T, H, Dv]`.
        lse: log-sum-exp in base 2, inf in the padding, `[B H, Tp]` float32.
        delta: dot product of each output row and its gradient, `[B H, Tp]` float32.
    """

    dout: Tensor
    lse: Tensor
    delta: Tensor

    def named(self) -> dict[str, Tensor]:
        """The fields as launch arguments."""
        return {"DOUT": self.dout, "LSE": self.lse, "DELTA": self.delta}
