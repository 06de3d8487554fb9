"""Boundaries of packed documents, computed once per batch for all layers and passes."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor


@dataclass(frozen=True)
class Documents:
    """The documents of packed rows. A repeated id that is not adjacent starts a new document.

    Attributes:
        runs: `[B, T]` integers, the index of each token's document within its row.
        positions: `[B, T]` integers, the position of each token within its document.
        borders: `[2, B, T]` int32, for each token the start and the end (exclusive) of its document.
    """

    runs: Tensor
    positions: Tensor
    borders: Tensor

    @classmethod
    def of(cls, ids: Tensor) -> "Documents":
        """Build from document ids, integers `[B, T]`. Each run of equal ids is one document."""
        runs = F.pad((ids[:, 1:] != ids[:, :-1]).cumsum(1), (1, 0))
        starts, ends = torch.searchsorted(runs, runs), torch.searchsorted(runs, runs, right=True)
        positions = torch.arange(ids.shape[1], device=ids.device) - starts
        return cls(runs, positions, torch.stack([starts, ends]).int())
