"""Positions that are added to the embeddings, while attention itself has no positional encoding."""

from typing import Any

from torch import Tensor

from ..contract.context import Context
from ..contract.module import PositionModule


class InputEncoding(PositionModule):
    """Positions added to the embeddings, once before the first layer. Attention then sees order through its input."""

    def new_state(self, batch: int, like: Tensor) -> Any:
        """What is kept of past tokens of `batch` sequences, with `like`'s dtype and device; None for nothing."""
        return None

    def forward(self, x: Tensor, context: Context, state: Any = None) -> Tensor:
        """Embeddings `x [B, T, C]` with positions, `[B, T, C]`. A state from `new_state` is updated in place."""
        raise NotImplementedError
