"""Learned absolute positions: a vector for each position, added to the embeddings."""

from typing import Any, Literal

import torch
from torch import Tensor, nn

from ..core.about import About, Paper
from .base import Encoding
from .contract.context import Context
from .contract.module import INIT_STD
from .families.inputs import PositionTable, Seen, document_positions
from .families.positions import positions_used
from .options import AbsoluteLearnedOptions

Draw = Literal["none", "offset", "subset"]


class AbsoluteLearned(Encoding):
    """A learned vector for each position, added to the embeddings. Contexts cannot be longer than the table.

    Args:
        options: fields of `AbsoluteLearnedOptions`.

    Raises:
        ValueError: an option is outside its range.
    """

    about = About(
        name="Learned absolute positions",
        mechanism="inputs",
        summary="adds a learned vector per position to the embeddings",
        equation=r"x_t = e_t + p_t, \qquad \text{score}(t, s) = q_t^\top k_s",
        terms="$e_t$ is the embedding of the token at position $t$, and $p_t$ row $t$ of a learned table of "
        "`encoding.length` rows.",
        cache="keys and values",
        paper=Paper("Gehring et al.", 2017, "Convolutional Sequence to Sequence Learning", "1705.03122"),
    )

    relative = False

    def __init__(self, width: int, heads: int, kv_heads: int, head_dim: int, **options: Any):
        given = AbsoluteLearnedOptions(**options)
        super().__init__(width, heads, kv_heads, head_dim, given.implementation, given.window)
        self.longest = self.length = given.length
        self.draw: Draw = given.draw

    def input_encoding(self) -> "LearnedTable":
        return LearnedTable(self.length, self.width, self.draw)


class LearnedTable(PositionTable):
    """A learned table `[length, C]`, initially N(0, 0.02^2), as the embeddings are."""

    no_weight_decay = ("table",)

    def __init__(self, length: int, width: int, draw: Draw = "none"):
        super().__init__()
        self.draw: Draw = draw
        self.table = nn.Parameter(torch.empty(length, width))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.normal_(self.table, std=INIT_STD)

    def rows(self, count: int, x: Tensor) -> Tensor:
        return self.table[:count]

    @property
    def draws(self) -> bool:
        return self.draw != "none"

    def forward(self, x: Tensor, context: Context, state: Seen | None = None) -> Tensor:
        if self.draw == "none" or not self.training:
            return super().forward(x, context, state)
        index, length = document_positions(context, state), x.shape[1]
        if index is None:
            index = torch.arange(length, device=x.device)
        if self.draw == "subset":
            positions = positions_used(index, True, randomise=len(self.table))
        else:
            positions = index + torch.randint(len(self.table) - length + 1, (), device=x.device)
        return x + self.table.to(x.dtype).index_select(0, positions.flatten()).unflatten(0, positions.shape)
