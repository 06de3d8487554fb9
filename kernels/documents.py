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
        cu_seqlens: `[N + 1]` int32, the same limits without the window: the start of each document in the concatenated
            rows, then their total length, repeated up to the fixed size. None if the number of documents is unbounded.
        window: number of tokens that each token sees, itself included; None for all.
    """

    positions: Tensor
    borders: Tensor
    cu_seqlens: Tensor | None = None
    window: int | None = None

    @classmethod
    def of(cls, ids: Tensor, most: int | None = None) -> "Documents":
        """Limits for packed documents with ids `[B, S]`. Each run of equal ids is one document.

        Args:
            ids: integers `[B, S]`.
            most: upper bound on the number of documents of all rows. It sets the size of `cu_seqlens`; counting the
                documents would have to wait for the GPU. Default: None, no `cu_seqlens`.

        Raises:
            RuntimeError: there are more than `most` documents; on a GPU, a device-side assertion.
        """
        runs = F.pad((ids[:, 1:] != ids[:, :-1]).cumsum(1), (1 if ids.shape[1] else 0, 0))
        starts, ends = torch.searchsorted(runs, runs), torch.searchsorted(runs, runs, right=True)
        positions = torch.arange(ids.shape[1], device=ids.device) - starts
        return cls(positions, torch.stack([starts, ends]).int(), None if most is None else _ends(positions, most))

    @classmethod
    def single(cls, rows: int, length: int, device: torch.device) -> "Documents":
        """Limits for rows `[rows, length]` of one document each."""
        positions = torch.arange(length, device=device).expand(rows, -1)
        borders = torch.stack([torch.zeros_like(positions), torch.full_like(positions, length)])
        cu_seqlens = length * torch.arange(rows + 1, dtype=torch.int32, device=device)
        return cls(positions, borders.int(), cu_seqlens)

    def within(self, window: int) -> "Documents":
        """The same limits, and each token sees only itself and the `window - 1` tokens before it.

        Raises:
            ValueError: `window` is less than 1.
        """
        if window < 1:
            raise ValueError(f"window={window}: it must be at least 1, as a token sees itself")
        starts, ends = self.borders
        tokens = torch.arange(starts.shape[1], device=starts.device, dtype=starts.dtype)
        near = torch.stack([starts.maximum(tokens - (window - 1)), ends.minimum(tokens + window)])
        return replace(self, borders=near, window=min(window, self.window or window))


def bounded(documents: Documents | None) -> bool:
    """Whether the ends of all documents are known, as FlashAttention-4 needs them."""
    return documents is None or documents.cu_seqlens is not None


def _ends(positions: Tensor, most: int) -> Tensor:
    """`Documents.cu_seqlens` for `most` documents, which begin where `positions [B, S]` are 0."""
    if not positions.numel():
        return torch.zeros(most + 1, dtype=torch.int32, device=positions.device)
    numbers = (positions == 0).flatten().cumsum(0)  # number of each token's document, from 1
    message = f"the rows hold more than {most} documents"
    torch._assert_async(numbers[-1] <= most, message)  # pyright: ignore[reportPrivateImportUsage]
    wanted = torch.arange(1, most + 2, device=positions.device)
    return torch.searchsorted(numbers, wanted, out_int32=True)
