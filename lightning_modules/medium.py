"""Positions of tokens in the time of their medium, for whole rows, packed documents and decoding."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ..domains.clocks import KEPT, Clock
from ..kernels.documents import Documents
from ..kernels.precision import widest


@dataclass
class ClockState:
    """The time after the tokens seen so far. Each pass updates it in place.

    Attributes:
        length: number of tokens seen.
        total: sum of advances since the first token, int64 `[B]`.
        place: the place that was set last, int64 `[B]`.
    """

    length: int
    total: Tensor
    place: Tensor


class MediumClock(nn.Module):
    """Reads the positions of tokens from their ids, as `clock` describes.

    Sums are integers, so that positions are exact at any length and no cast of the module rounds them.

    Attributes:
        axes: number of axes of the positions.
    """

    advances: Tensor
    places: Tensor | None

    def __init__(self, clock: Clock):
        super().__init__()
        self.columns, self.axes = clock.columns, 1 if clock.columns is None else 2
        self.register_buffer("advances", torch.from_numpy(clock.advances).long(), persistent=False)
        places = None if clock.places is None else torch.from_numpy(clock.places).long()
        self.register_buffer("places", places, persistent=False)

    def new_state(self, batch: int, device: torch.device) -> ClockState:
        """The state before the first of `batch` sequences' tokens."""
        return ClockState(0, *(torch.zeros(batch, dtype=torch.int64, device=device) for _ in range(2)))

    def forward(self, tokens: Tensor, documents: Documents | None = None, state: ClockState | None = None) -> Tensor:
        """Positions of tokens, in float64 (float32 on mps).

        Args:
            tokens: ids `[B, T]`.
            documents: boundaries of packed documents, in each of which positions begin again. Default: None.
            state: from `new_state`; `tokens` follow the tokens already in it, and it is updated in place. Default:
                None, the first token begins the sequence.

        Returns:
            `[B, T]`, or `[B, T, 2]` with rows and columns of a raster.

        Raises:
            ValueError: both documents and a state with tokens are given.
        """
        index = torch.arange(tokens.shape[1], device=tokens.device).expand_as(tokens)
        first = index.new_zeros(()).expand_as(tokens) if documents is None else index - documents.positions
        follows = state if state is not None and state.length > 0 else None
        if follows is not None and documents is not None:
            raise ValueError("documents cannot be packed in rows that follow a state: give one of them")
        total = self.advances[tokens].cumsum(1)
        total = total - total.gather(1, first) if follows is None else total + follows.total.unsqueeze(1)
        place = None
        if self.places is not None:
            places = self.places[tokens]
            last = torch.where(places == KEPT, -1, index).cummax(1).values
            before = 0 if follows is None else follows.place.unsqueeze(1)
            place = torch.where(last < first, before, places.gather(1, last.clamp(min=0)))
        if state is not None:
            state.length, state.total = state.length + tokens.shape[1], total[:, -1]
            state.place = state.place if place is None else place[:, -1]
        if self.columns is not None:
            cell = total - 1
            total = torch.stack([cell.div(self.columns, rounding_mode="floor"), cell % self.columns], -1)
        return (total if place is None else total + place).to(widest(tokens.device))
