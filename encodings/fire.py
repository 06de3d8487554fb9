"""FIRE: a learned function of the distance, relative to the position of the query."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..core.about import About, Paper
from ..kernels.attention.rows import Rows
from .contract.context import Context
from .families.distance import DistanceBias
from .families.rows import RowEncoding
from .options import FIREOptions

EPSILON = 1e-6


class FIRE(RowEncoding, DistanceBias):
    """Functional interpolation for relative positions, with one function per layer.

    The logarithm of the distance is divided by that of the query's position t, so that its argument stays within
    [0, 1] at any length. Below the learned threshold L the divisor is constant and the bias depends on the distance
    only. t is the position within the document. Initial values are c = 0.1, L = `threshold`, and PyTorch's defaults for
    the two linear layers, as in the implementations by the authors of DAPE and TAPE.

    Args:
        options: fields of `FIREOptions`.

    Raises:
        ValueError: an option is outside its range.
    """

    about = About(
        name="FIRE",
        mechanism="distance",
        summary="adds a learned function of the distance, relative to the query's position, to the score",
        equation=r"\text{score}(t, s) = q_t^\top k_s + f_h\!\left("
        r"\frac{\psi(t - s)}{\psi(\max(t, L)) + 10^{-6}}\right), \qquad \psi(d) = \ln(|c\,d| + 1)",
        terms="$f$ is a network with one hidden layer of ReLUs and one output per head $h$; $c$ and $L$ are learned. "
        "$L$ starts at `encoding.threshold`.",
        cache="keys and values",
        paper=Paper(
            "Li et al.",
            2023,
            "Functional Interpolation for Relative Positions Improves Long Context Transformers",
            "2310.04418",
        ),
    )

    relative = False
    no_weight_decay = keep_float32 = (
        *("c", "multiplier"),
        *("hidden_weight", "hidden_bias", "output_weight", "output_bias"),
    )

    def __init__(self, width: int, heads: int, kv_heads: int, head_dim: int, **options: Any):
        given = FIREOptions(**options)
        super().__init__(width, heads, kv_heads, head_dim, given.implementation, given.window)
        self.threshold = given.threshold
        self.c, self.multiplier = (nn.Parameter(torch.empty(1, dtype=torch.float32)) for _ in range(2))
        shapes = (given.hidden, 1), (given.hidden,), (heads, given.hidden), (heads,)
        parameters = [nn.Parameter(torch.empty(shape, dtype=torch.float32)) for shape in shapes]
        self.hidden_weight, self.hidden_bias, self.output_weight, self.output_bias = parameters
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.constant_(self.c, 0.1)
        nn.init.ones_(self.multiplier)
        for layer in ((self.hidden_weight, self.hidden_bias), (self.output_weight, self.output_bias)):
            for parameter in layer:
                bound = layer[0].shape[1] ** -0.5
                nn.init.uniform_(parameter, -bound, bound)

    def bias(self, distances: Tensor) -> Tensor:
        """The bias of queries before the threshold."""
        return interpolated(distances, self.threshold * self.multiplier.abs(), *self._parameters_of_f())

    def bias_tensors(self, k: Tensor, context: Context) -> tuple[Tensor, ...]:
        # [T, 1] or [B, T, 1]
        ends = torch.maximum(context.positions, self.threshold * self.multiplier.abs()).unsqueeze(-1)
        return (ends, *self._parameters_of_f())

    def bias_of(self, block: Rows, *tensors: Tensor) -> Tensor:
        ends, *parameters = tensors
        ends = ends.narrow(-2, block.begin, block.q.shape[1])
        bias = interpolated(block.distances().clamp(min=0), ends, *parameters)  # [H, (B,) R, S]
        return bias if bias.dim() == 3 else bias.transpose(0, 1)

    score_tensors = bias_tensors

    def scores(self, block: Rows, *tensors: Tensor) -> Tensor:
        return block.dots(self.head_dim**-0.5) + self.bias_of(block, *tensors)

    def block_values(self, rows: int) -> int:
        # Hidden units, which rows share unless they are packed: values, and gradients after and before the ReLU.
        return max(super().block_values(rows), 3 * self.hidden_bias.numel() + self.heads * (rows + 2))

    def bias_flops(self) -> float:
        return 2.0 * self.hidden_bias.numel() * (1 + self.heads)

    def _parameters_of_f(self) -> tuple[Tensor, ...]:
        return self.c, self.hidden_weight, self.hidden_bias, self.output_weight, self.output_bias


def interpolated(
    distances: Tensor,
    ends: Tensor,
    c: Tensor,
    hidden_weight: Tensor,
    hidden_bias: Tensor,
    output_weight: Tensor,
    output_bias: Tensor,
) -> Tensor:
    """f_h(psi(distance) / psi(end)), `[H, ...]`, where `...` is the common shape of distances and ends."""
    share = torch.log1p((c * distances).abs()) / (torch.log1p((c * ends).abs()) + EPSILON)
    hidden = F.linear(share.unsqueeze(-1), hidden_weight, hidden_bias).relu()
    return F.linear(hidden, output_weight, output_bias).movedim(-1, 0)
