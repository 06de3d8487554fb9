"""Packed rows: where each document begins and ends, found once for all layers and passes."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor


@dataclass(frozen=True)
class Documents:
    """The documents of packed rows. An id that comes back later is another document.

    Attributes:
        runs: `[B, T]` integers, the number of each token's document in its row, from 0 on.
        positions: `[B, T]` integers, of each token in its document.
        borders: `[2, B, T]` int32, the first token of each token's document and the one after its last.
    """

    runs: Tensor
    positions: Tensor
    borders: Tensor

    @classmethod
    def of(cls, ids: Tensor) -> "Documents":
        """From integers `[B, T]`, of which each run of equal ones is a document."""
        runs = F.pad((ids[:, 1:] != ids[:, :-1]).cumsum(1), (1, 0))
        starts, ends = torch.searchsorted(runs, runs), torch.searchsorted(runs, runs, right=True)
        positions = torch.arange(ids.shape[1], device=ids.device) - starts
        return cls(runs, positions, torch.stack([starts, ends]).int())
