"""DAPE: a small network that corrects the scores of all heads together."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..core.about import About, Paper
from ..kernels.attention.rows import Rows, queries_in_block
from .alibi import ALiBi
from .base import Portrait
from .contract.context import Context
from .families.distance import DistanceBias
from .families.rows import RowEncoding
from .fire import FIRE
from .kerple_log import KerpleLog
from .kerple_power import KerplePower
from .learned_distance import LearnedDistance
from .options import DAPEOptions
from .sandwich import Sandwich
from .t5 import T5

BIASES: dict[str, type[DistanceBias]] = {
    "kerple_log": KerpleLog,
    "kerple_power": KerplePower,
    "alibi": ALiBi,
    "fire": FIRE,
    "t5": T5,
    "sandwich": Sandwich,
    "learned_distance": LearnedDistance,
}


class DAPE(RowEncoding):
    """Data-adaptive positional encoding, version 2, or version 1 with `kernel=1` (arXiv 2405.14722).

    The network has two convolutions along the keys, with a LeakyReLU between them. It reads the products and the biases
    of all heads, and its output is added to both. Scores of keys that the query does not see are 0 in its input, as
    with `torch.tril` in the authors' code. Hidden units are 0 before the first key that the query sees, so that other
    documents of a packed row change nothing. Hidden units at keys after the query are computed, as in the authors'
    code. That code has zeros after the last token of a row, so the output for a token depends on whether another token
    follows, and differs with a cache. Here hidden units are also computed there.

    Initial values are PyTorch's defaults, as in that code. Without `bias`, the network reads only the products. The
    bias of the last convolution changes no attention weight; the authors' code has it too.

    Args:
        options: fields of `DAPEOptions`.

    Raises:
        ValueError: an option is outside its range.
    """

    about = About(
        name="DAPE",
        mechanism="content",
        summary="adds a correction that a small network computes from the scores and biases of all heads",
        equation=r"\text{score}_h(t, s) = q_t^\top k_s + b_h(t - s) + f_h\left(\left\{q_t^\top k_u,\ b(t - u)\right\}_"
        r"{|u - s| < w}\right)",
        terms="$b$ is a bias of the distance, selected by `encoding.bias`. $f$ is a network of two convolutions along "
        "the keys, from the products and biases of all heads to a correction for each head; each convolution reads "
        "$w$ keys, which is `encoding.kernel`.",
        cache="keys and values",
        paper=Paper(
            "Zheng et al.",
            2024,
            "DAPE V2: Process Attention Score as Feature Map for Length Extrapolation",
            "2410.04798",
        ),
    )

    def __init__(self, width: int, heads: int, kv_heads: int, head_dim: int, **options: Any):
        given = DAPEOptions(**options)
        super().__init__(width, heads, kv_heads, head_dim, given.implementation, given.window)
        self.bias = None if given.bias == "none" else BIASES[given.bias](width, heads, kv_heads, head_dim)
        self.relative = self.bias is None or self.bias.relative
        self.kernel, self.hidden = given.kernel, given.hidden
        self.inputs = heads if self.bias is None else 2 * heads
        shapes = (
            (given.kernel, given.hidden, self.inputs),
            (given.hidden,),
            (given.kernel, heads, given.hidden),
            (heads,),
        )
        parameters = [nn.Parameter(torch.empty(shape, dtype=torch.float32)) for shape in shapes]
        self.hidden_weight, self.hidden_bias, self.output_weight, self.output_bias = parameters
        self.reset_parameters()

    @property
    def no_weight_decay(self) -> tuple[str, ...]:
        of_bias = () if self.bias is None else (f"bias.{name}" for name in self.bias.no_weight_decay)
        return ("hidden_bias", "output_bias", *of_bias)

    @property
    def keep_float32(self) -> tuple[str, ...]:
        return tuple(name for name, _ in self.named_parameters())

    def reset_parameters(self) -> None:
        if self.bias is not None:
            self.bias.reset_parameters()
        for layer in ((self.hidden_weight, self.hidden_bias), (self.output_weight, self.output_bias)):
            kernel, _, inputs = layer[0].shape
            for parameter in layer:
                bound = (kernel * inputs) ** -0.5
                nn.init.uniform_(parameter, -bound, bound)

    def score_tensors(self, k: Tensor, context: Context) -> tuple[Tensor | None, ...]:
        of_network = self.hidden_weight, self.hidden_bias, self.output_weight, self.output_bias
        return of_network if self.bias is None else (*of_network, *self.bias.bias_tensors(k, context))

    def scores(self, block: Rows, *tensors: Tensor) -> Tensor:
        hidden_weight, hidden_bias, output_weight, output_bias, *of_bias = tensors
        side = self.kernel // 2
        found = dots = block.dots(self.head_dim**-0.5)
        given = [dots]
        if self.bias is not None:
            bias = self.bias.bias_of(block, *of_bias).to(dots.dtype)
            found = dots + bias
            given.append(bias.expand_as(dots))
        seen = torch.cat(given, 1).masked_fill(~block.visible, 0.0)
        # The second convolution also reads hidden units at `side` places after the last key.
        hidden = F.leaky_relu(convolved(seen, side, 2 * side, hidden_weight, hidden_bias))
        before = ~block.visible & (block.distances() >= 0)
        hidden = hidden.masked_fill(F.pad(before, (0, side)), 0.0)
        return found + convolved(hidden, side, 0, output_weight, output_bias)

    def block_queries(self, batch: int, keys: int) -> int:
        return queries_in_block(batch, max(self.inputs, self.hidden), keys)

    def block_values(self, rows: int) -> int:
        # The larger of two peaks in the backward pass, measured on a CPU.
        taps = 5 * self.hidden + self.inputs + 3 * self.heads if self.kernel > 1 else 0
        return rows * max(4 * (self.hidden + self.inputs), taps)

    def attention_flops(self, length: int) -> float:
        weights = self.hidden_weight.numel() + self.output_weight.numel()
        of_bias = 0.0 if self.bias is None else self.bias.bias_flops()
        return super().attention_flops(length) + (2.0 * weights + of_bias) * self.pairs_seen(length)

    def portrait(self, x: Tensor) -> dict[str, Portrait]:
        """The bias by distance."""
        return {} if self.bias is None else self.bias.portrait(x)


def convolved(x: Tensor, left: int, right: int, weight: Tensor, bias: Tensor) -> Tensor:
    """Convolution of `x [B, inputs, R, S]` along the keys.

    It is a sum of matrix products, one for each element of the kernel. By default PyTorch does not round these to TF32,
    and their gradients are deterministic.

    Args:
        left, right: number of zeros to pad before and after the keys.
        weight: `[kernel, outputs, inputs]`.
        bias: `[outputs]`.
    """
    rows = F.pad(x.transpose(1, 2), (left, right)).flatten(0, 1)
    width = rows.shape[-1] - len(weight) + 1
    found = bias.to(x.dtype).unsqueeze(1).expand(len(rows), -1, width)
    for tap, each in enumerate(weight.to(x.dtype)):
        found = torch.baddbmm(found, each.expand(len(rows), -1, -1), rows[..., tap : tap + width])
    return found.unflatten(0, (x.shape[0], x.shape[2])).transpose(1, 2)
