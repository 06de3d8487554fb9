"""The keys that each token sees: boundaries of packed documents and sliding windows, the same for all layers."""

from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor


@dataclass(frozen=True)
class Documents:
    """Limits of causal attention over S tokens. The queries are the last T <= S of them.

    Attributes:
        positions: `[B, S]` integers, the position of each token within its document.
        borders: `[2, B, S]` int32: the first token that each token sees, and the end (exclusive) of the tokens that
            see it.
    """

    positions: Tensor
    borders: Tensor

    @classmethod
    def of(cls, ids: Tensor) -> "Documents":
        """Limits for packed documents with ids `[B, S]`. Each run of equal ids is one document."""
        runs = F.pad((ids[:, 1:] != ids[:, :-1]).cumsum(1), (1, 0))
        starts, ends = torch.searchsorted(runs, runs), torch.searchsorted(runs, runs, right=True)
        positions = torch.arange(ids.shape[1], device=ids.device) - starts
        return cls(positions, torch.stack([starts, ends]).int())

    @classmethod
    def single(cls, rows: int, length: int, device: torch.device) -> "Documents":
        """Limits for rows `[rows, length]` of one document each."""
        positions = torch.arange(length, device=device).expand(rows, -1)
        borders = torch.stack([torch.zeros_like(positions), torch.full_like(positions, length)])
        return cls(positions, borders.int())

    def within(self, window: int) -> "Documents":
        """The same limits, and each token sees only itself and the `window - 1` tokens before it."""
        starts, ends = self.borders
        tokens = torch.arange(starts.shape[1], device=starts.device, dtype=starts.dtype)
        near = torch.stack([starts.maximum(tokens - (window - 1)), ends.minimum(tokens + window)])
        return replace(self, borders=near)
