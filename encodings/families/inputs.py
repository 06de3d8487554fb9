"""Positions that the model adds to its embeddings, while attention itself has no positional encoding."""

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from ...kernels.precision import wide
from ..contract.context import Context
from ..contract.module import INIT_STD, PositionModule

Scale = Literal["learned", "raw"]


class InputEncoding(PositionModule):
    """Changes the embeddings, once before the first layer. Attention then sees order through its input."""

    def new_state(self, batch: int, like: Tensor) -> Any:
        """A state of past tokens for `batch` sequences, with `like`'s dtype and device; None if none is needed."""
        return None

    def forward(self, x: Tensor, context: Context, state: Any = None) -> Tensor:
        """Embeddings `x [B, T, C]` with positions, `[B, T, C]`. A state from `new_state` is updated in place."""
        raise NotImplementedError


def document_positions(context: Context, state: Any) -> Tensor | None:
    """Position `[B, T]` of each token in its document; None if each row continues one document.

    A state holds one document per row. `context.positions` may differ: layers can draw or space their positions.
    """
    return None if state is not None or context.documents is None else context.documents.positions


@dataclass
class Seen:
    """Number of tokens that a table of positions has encoded."""

    tokens: int = 0


class PositionTable(InputEncoding):
    """Adds row t of a table to the embedding of the token at position t of its document."""

    def rows(self, count: int, x: Tensor) -> Tensor:
        """The first `count` rows of the table, `[count, C]`, on the device of `x`."""
        raise NotImplementedError

    def new_state(self, batch: int, like: Tensor) -> Seen:
        return Seen()

    def forward(self, x: Tensor, context: Context, state: Seen | None = None) -> Tensor:
        positions, start = document_positions(context, state), 0 if state is None else state.tokens
        end = start + x.shape[1]
        rows = self.rows(end, x)[start:].to(x.dtype)
        if state is not None:
            state.tokens = end
        if positions is None:
            return x + rows
        # Its gradient uses atomic additions on a GPU, unless PyTorch is in deterministic mode.
        return x + rows.index_select(0, positions.flatten()).unflatten(0, positions.shape)


class FixedTable(PositionTable):
    """A table that is computed, not learned. It is cached for each device, and is not part of the state_dict.

    Args:
        width: hidden size C.
        scale: learned multiplies the table by one learned number. raw multiplies the embeddings by sqrt(C) instead, as
            Vaswani et al. do.
        rms: root mean square of a row; the initial scale makes it equal to that of the embeddings.
    """

    no_weight_decay = keep_float32 = ("scale",)

    def __init__(self, width: int, scale: Scale, rms: float):
        super().__init__()
        self.width, self.rms = width, rms
        self.scale = nn.Parameter(torch.empty(1, dtype=torch.float32)) if scale == "learned" else None
        self.cached: dict[tuple, Tensor] = {}  # tensors are never freed, as CUDA graphs read them by address
        self.reset_parameters()

    def reset_parameters(self) -> None:
        if self.scale is not None:
            nn.init.constant_(self.scale, INIT_STD / self.rms)

    def compute(self, count: int) -> Tensor:
        """The first `count` rows, `[count, C]` in float64, on the CPU."""
        raise NotImplementedError

    def rows(self, count: int, x: Tensor) -> Tensor:
        size = 1 << (count - 1).bit_length()  # a power of two, so that few sizes are cached
        key = size, x.device, wide(x)
        if key not in self.cached:
            with torch.inference_mode(False), torch.no_grad():  # sampling may cache a table that training reads
                self.cached[key] = self.compute(size).to(x.device, wide(x))
        rows = self.cached[key][:count]
        return rows if self.scale is None else rows * self.scale

    def forward(self, x: Tensor, context: Context, state: Seen | None = None) -> Tensor:
        return super().forward(x if self.scale is not None else x * self.width**0.5, context, state)

    def diagnostics(self) -> dict[str, Tensor]:
        """The learned scale."""
        return {} if self.scale is None else {"input_scale": self.scale.detach()}
