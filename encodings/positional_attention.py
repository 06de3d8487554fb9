"""Positional attention: weights are computed from positions only, and content passes through the values."""

from typing import Any

import torch
from torch import Tensor, nn

from ..core.about import About, Paper
from ..kernels.attention.rope import phases
from .base import Encoding
from .contract.context import Context
from .contract.module import INIT_STD, SharedModule
from .contract.state import KeyValueState
from .options import PositionalAttentionOptions


class PositionalAttention(Encoding):
    """Causal attention whose queries and keys are linear in vectors of positions that all layers share.

    The weights are the same for any input, so the model has no projections from the hidden state to queries and keys.
    The authors' code has one-hot vectors for their short inputs, and as many channels per head as positions. Here
    heads have D channels, and sinusoids are the default, because they have no longest context. As in the code, the
    linear layers have biases and start from Xavier's uniform distribution. Learned vectors start from N(0, 0.02).

    Args:
        options: fields of `PositionalAttentionOptions`.

    Raises:
        ValueError: `width` is odd with sinusoids, or an option is outside its range.
    """

    about = About(
        name="Positional attention",
        mechanism="channels",
        summary="attention weights depend on positions only, not on content",
        equation=r"\text{score}(t, s) = (W_q\, p_t)^\top W_k\, p_s",
        terms="$p_t$ is the vector of position $t$, the same in all layers: a sinusoid, or learned, or one-hot "
        "(`encoding.positions`). $W_q$ and $W_k$ are learned in each layer.",
        cache="keys and values",
        paper=Paper(
            "Back de Luca et al.",
            2024,
            "Positional Attention: Expressivity and Learnability of Algorithmic Computation",
            "2410.01686",
        ),
    )

    relative = False
    reads_content = False

    def __init__(self, width: int, heads: int, kv_heads: int, head_dim: int, **options: Any):
        given = PositionalAttentionOptions(**options)
        super().__init__(width, heads, kv_heads, head_dim, given.implementation, given.window)
        self.positions, self.base = given.positions, given.base
        if given.positions == "sinusoidal":
            if width % 2:
                raise ValueError(f"width={width}: sinusoids need pairs of channels: use an even width")
        else:
            self.longest = given.length
        make = nn.Linear
        if given.positions == "one_hot":
            make, width = nn.Embedding, given.length  # the product of a matrix and a one-hot vector
        self.query, self.key = make(width, heads * head_dim), make(width, kv_heads * head_dim)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        for layer in (self.query, self.key):
            nn.init.xavier_uniform_(layer.weight)
            if isinstance(layer, nn.Linear):
                nn.init.zeros_(layer.bias)

    def shared_module(self) -> "PositionVectors | None":
        if self.positions == "one_hot":
            return None
        return PositionVectors(self.width, self.base, self.longest if self.positions == "learned" else None)

    def forward(
        self, x: Tensor, q: Tensor, k: Tensor, v: Tensor, context: Context, state: KeyValueState | None = None
    ) -> Tensor:
        p = context.positions if self.positions == "one_hot" else context.shared.to(self.query.weight.dtype)
        q, k = (
            layer(p).unflatten(-1, (-1, self.head_dim)).to(v.dtype).expand(*v.shape[:2], -1, -1)
            for layer in (self.query, self.key)
        )
        return super().forward(x, q, k, v, context, state)


class PositionVectors(SharedModule):
    """Vectors `[..., C]` of positions: rows of a learned table, or sines and cosines.

    Args:
        width: number of channels C.
        base: base of the frequencies of the sinusoids.
        length: number of rows of the table. Default: None, sinusoids.
    """

    def __init__(self, width: int, base: float, length: int | None = None):
        super().__init__()
        self.width, self.base = width, base
        self.table = None if length is None else nn.Embedding(length, width)
        self.no_weight_decay = () if length is None else ("table.weight",)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        if self.table is not None:
            nn.init.normal_(self.table.weight, std=INIT_STD)

    def forward(self, positions: Tensor) -> Tensor:
        if self.table is not None:
            return self.table(positions)
        angles = phases(positions, self.width // 2, self.base)
        return torch.cat([angles.sin(), angles.cos()], -1)
