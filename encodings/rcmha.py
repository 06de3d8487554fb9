"""RCMHA: a causal depthwise convolution of q, k and v before Transformer-XL's relative attention."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ..core.about import About, Paper
from ..kernels.layers.convolution import causal_convolution
from .contract.context import Context
from .contract.state import KeyValueState, TailState
from .options import RCMHAOptions
from .transformer_xl import TransformerXL


@dataclass(kw_only=True)
class ConvolvedState(KeyValueState, TailState):
    """Encoded keys and values, and a tail of `[B, convolution - 1, (H + 2 Hkv) D]`."""


class RCMHA(TransformerXL):
    """Relative convolutional multi-head attention.

    As in the authors' code, q, k and v have a convolution each, whose weights and bias the heads share, with PyTorch's
    initial values U(-1/sqrt(width), 1/sqrt(width)). The relative attention is that of Transformer-XL, as in the paper.
    The code has a learned vector for each head and distance up to 4096 instead of a projected sinusoid.

    Args:
        options: fields of `RCMHAOptions`.

    Raises:
        ValueError: `head_dim` is odd, or an option is outside its range.
    """

    about = About(
        name="RCMHA",
        mechanism="channels",
        summary="convolves q, k and v over the tokens, then attends as Transformer-XL",
        equation=r"\text{score}(t, s) = (\tilde{q}_t + u)^\top \tilde{k}_s + (\tilde{q}_t + w)^\top W\, r_{t-s}, "
        r"\qquad \tilde{q}_t = c + \sum_{i=0}^{n-1} a_i \odot q_{t-i}",
        terms="$\\tilde{k}$ and $\\tilde{v}$ are convolved with weights $a_i$ and bias $c$ in the same way, and $n$ is "
        "`encoding.convolution`. $u$, $w$, $W$ and $r$ are those of Transformer-XL.",
        cache="keys with twice as many channels, values, and the last inputs of the convolution",
        paper=Paper(
            "Sugiharto et al.",
            2023,
            "RCMHA: Relative Convolutional Multi-Head Attention for Natural Language Modelling",
            "2308.03429",
        ),
    )

    no_weight_decay = (*TransformerXL.no_weight_decay, "taps", "biases")
    keep_float32 = (*TransformerXL.keep_float32, "taps", "biases")
    windowed = False  # the convolution reads tokens before the window

    def __init__(
        self,
        width: int,
        heads: int,
        kv_heads: int,
        head_dim: int,
        convolution: int = RCMHAOptions.convolution,
        **options: Any,
    ):
        given = RCMHAOptions(convolution=convolution, **options)
        super().__init__(width, heads, kv_heads, head_dim, **options)
        # Of q, k and v. Row 0 of the taps weighs the newest token.
        self.taps = nn.Parameter(torch.empty(3, given.convolution, head_dim, dtype=torch.float32))
        self.biases = nn.Parameter(torch.empty(3, head_dim, dtype=torch.float32))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        super().reset_parameters()
        for parameter in (self.taps, self.biases):
            nn.init.uniform_(parameter, -(self.taps.shape[1] ** -0.5), self.taps.shape[1] ** -0.5)

    def convolved(
        self, q: Tensor, k: Tensor, v: Tensor, context: Context, state: TailState | None = None
    ) -> Sequence[Tensor]:
        """The convolutions of q, k and v. The tail in `state` is updated in place."""
        heads = [x.shape[2] for x in (q, k, v)]
        taps, biases = (
            torch.cat(
                [part.repeat(*[1] * (part.ndim - 1), count) for part, count in zip(of_all, heads, strict=True)], -1
            )
            for of_all in (self.taps, self.biases)
        )
        places = None if context.documents is None else context.documents.positions
        u = torch.cat([q, k, v], 2).flatten(2)
        out, tail = causal_convolution(u, taps, None if state is None else state.before(u), places)
        if state is not None:
            state.tail = tail
        return (out + biases).to(q.dtype).unflatten(-1, (sum(heads), -1)).split(heads, 2)

    def forward(
        self, x: Tensor, q: Tensor, k: Tensor, v: Tensor, context: Context, state: ConvolvedState | None = None
    ) -> Tensor:
        q, k, v = self.convolved(q, k, v, context, state)
        return super().forward(x, q, k, v, context, state)

    def average(self, x: Tensor, q: Tensor, k: Tensor, v: Tensor, context: Context) -> Tensor:
        q, k, _ = self.convolved(q, k, v, context)
        return super().forward(x, q, k, v, context)

    def new_state(self, batch: int, capacity: int, like: Tensor) -> ConvolvedState:
        plain = self.key_value_state(batch, capacity, like, self._caches_encoded(like))
        channels = (self.heads + 2 * self.kv_heads) * self.head_dim
        tail = like.new_zeros(batch, self.taps.shape[1] - 1, channels)
        return ConvolvedState(plain.keys, plain.values, plain.encoded, capacity=capacity, tail=tail)
