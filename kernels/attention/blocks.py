"""Causal attention over blocks that double in length, in PyTorch, for scores that no fused kernel supports.

The sequence is cut into short chunks. Attention is computed within each chunk; then neighbouring blocks are joined in
pairs until one is left. In each join every query of the right block attends to every key of the left block, and the
result updates a running softmax. This takes log2(T / CHUNK) joins, computes little above the diagonal, and saves about
T^2 / 2 numbers per head for the backward pass.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from ..documents import Documents
from ..precision import wide
from .plain import check_shapes

CHUNK = 32


class Softmax(NamedTuple):
    """A running softmax: `total / weight` is the attention over the keys processed so far."""

    total: Tensor  # [..., G, L, Dv]
    weight: Tensor  # [..., G, L, 1]
    highest: Tensor  # [..., G, L, 1], the maximum score, without gradient

    def fold(self, scores: Tensor, values: Tensor) -> "Softmax":
        """Add more keys with `scores [..., G, L, S]` and `values [..., S, Dv]`. All scores of a row may be -inf."""
        highest = torch.maximum(self.highest, scores.detach().amax(-1, keepdim=True))
        exponentials, rescale = (scores - highest).exp(), (self.highest - highest).exp()
        weight = self.weight * rescale + exponentials.sum(-1, keepdim=True)
        return Softmax(self.total * rescale + by_group(exponentials, values), weight, highest)

    def result(self, length: int) -> Tensor:
        """The attention output of the first `length` queries when one block is left, `[B, T, H, Dv]`."""
        out = (self.total / self.weight)[:, :, 0, :, :length]
        return out.permute(0, 3, 1, 2, 4).flatten(2, 3)


class Chunks(NamedTuple):
    """n chunks as an operator prepares them: scores within each, and the inputs of scores between chunks."""

    scores: Tensor  # [B, Hkv, n, G, L, L]; entries above the diagonal are ignored
    queries: Tensor  # [B, Hkv, n, G, L, D], transformed to the start of the chunk
    keys: Tensor  # [B, Hkv, n, L, D], transformed to the end of the chunk
    product: Tensor | None  # [B, Hkv, n, D, D], the transform across the whole chunk; None for the identity


class Blocks(NamedTuple):
    """n neighbouring blocks of L tokens, with attention computed within each. For other fields see `Chunks`."""

    queries: Tensor
    keys: Tensor
    product: Tensor | None
    values: Tensor  # [B, Hkv, n, L, Dv]
    softmax: Softmax


def attend_in_blocks(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    first: Callable[[Tensor, Tensor, Callable[[Tensor], Tensor]], Chunks],
    scale: float,
    documents: Documents | None,
    sums: Tensor | None,
) -> Blocks:
    """Attention of all T tokens, returned as one block. Zero padding follows the last token, where no query sees it.

    Args:
        q: queries, `[B, T, H, D]`.
        k: keys, `[B, T, Hkv, D]`.
        v: values, `[B, T, Hkv, Dv]`.
        first: computes `Chunks` from chunked, scaled queries and chunked keys. Its third argument is a function that
            chunks other tensors `[B, T, Hkv, ...]`.
        scale: factor of the scores.
        documents: boundaries of packed documents.
        sums: cumulative log-gates c, `[B, T, H]`; c_t - c_s is added to the scaled score.
    """
    check_shapes(q, k, documents)
    length, heads = q.shape[1], k.shape[2]
    n = 1
    while n * CHUNK < length:
        n *= 2
    size = max(-(-length // n), 1)

    def chunked(x: Tensor) -> Tensor:  # [B, T, Hkv, ...] -> [B, Hkv, n, L, ...]
        x = F.pad(x.to(wide(q)), (0, 0) * (x.dim() - 2) + (0, n * size - length))
        return x.unflatten(1, (n, size)).movedim(3, 1)

    queries = chunked(q.unflatten(2, (heads, -1)) * scale).movedim(4, 3).contiguous()
    scores, queries, keys, product = first(queries, chunked(k), chunked)
    visible = torch.ones(size, size, dtype=torch.bool, device=q.device).tril()
    starts = None
    if documents is not None:
        starts = F.pad(documents.borders[0], (0, n * size - length)).unsqueeze(1)
        visible = visible & sees(starts.unflatten(-1, (n, 1, size)), key_places(n, size, q.device))
    if sums is not None:
        sums = by_head(sums, heads, n * size)
        c = sums.unflatten(-1, (n, size)).transpose(2, 3)
        scores = scores + gates(c, c, c[..., :1], scores.dtype)
    scores, values = scores.masked_fill(~visible, float("-inf")), chunked(v)
    highest = scores.detach().amax(-1, keepdim=True)
    exponentials = (scores - highest).exp()
    softmax = Softmax(by_group(exponentials, values), exponentials.sum(-1, keepdim=True), highest)
    blocks = Blocks(queries, keys, product, values, softmax)
    while blocks.keys.shape[2] > 1:
        blocks = join(blocks, starts, sums)
    return blocks


def join(blocks: Blocks, starts: Tensor | None, sums: Tensor | None) -> Blocks:
    """Join n blocks into n / 2 of twice the length.

    `starts [B, 1, n L]` is the first key that each query sees; `sums [B, Hkv, G, n L]`.
    """
    n, size = blocks.keys.shape[2:4]

    def halves(x: Tensor) -> tuple[Tensor, Tensor]:
        left, right = x.unflatten(2, (n // 2, 2)).unbind(3)
        return left, right

    (q_left, q_right), (k_left, k_right) = halves(blocks.queries), halves(blocks.keys)
    v_left, v_right = halves(blocks.values)
    left, right = (Softmax(*parts) for parts in zip(*(halves(x) for x in blocks.softmax), strict=True))
    scores = by_group(q_right, k_left.mT)
    if sums is not None:
        c_left, c_right = sums.unflatten(-1, (n // 2, 2, size)).transpose(2, 3).unbind(4)
        scores = scores + gates(c_right, c_left, c_left[..., -1:], scores.dtype)
    if starts is not None:
        right_starts = starts.unflatten(-1, (n // 2, 1, 2, size))[..., 1, :]
        scores = scores.masked_fill(~sees(right_starts, key_places(n, size, q_right.device)[::2]), float("-inf"))
    softmax = Softmax(*(torch.cat(pair, -2) for pair in zip(left, right.fold(scores, v_left), strict=True)))
    product = None
    if blocks.product is not None:
        p_left, p_right = halves(blocks.product)
        q_right, k_left, product = by_group(q_right, p_left), k_left @ p_right.mT, p_right @ p_left
    queries, keys, values = (torch.cat(pair, -2) for pair in ((q_left, q_right), (k_left, k_right), (v_left, v_right)))
    return Blocks(queries, keys, product, values, softmax)


def key_places(n: int, size: int, device: torch.device) -> Tensor:
    """Places of the keys of n blocks within the row, `[n, 1, L]`."""
    return torch.arange(n * size, device=device).view(n, 1, size)


def sees(starts: Tensor, keys: Tensor) -> Tensor:
    """Whether queries with `starts [..., L]` see the keys at places `keys [..., S]`: `[..., L, S]`."""
    return keys.unsqueeze(-2) >= starts.unsqueeze(-1)


def gates(later: Tensor, earlier: Tensor, border: Tensor, dtype: torch.dtype) -> Tensor:
    """c_t - c_s in `dtype`, `[..., L, S]`, for `later [..., L]` and `earlier [..., S]`.

    The value at a `border [..., 1]` between them is subtracted from both first, in float64. Rounding is then relative
    to the difference, and no float64 matrix is needed.
    """
    return (later - border).to(dtype).unsqueeze(-1) - (earlier - border).to(dtype).unsqueeze(-2)


def by_head(sums: Tensor, kv_heads: int, length: int) -> Tensor:
    """Reshape `[B, T, H]` to `[B, Hkv, G, length]`, zero-padded."""
    return F.pad(sums.unflatten(2, (kv_heads, -1)).movedim(1, -1), (0, length - sums.shape[1]))


def by_group(x: Tensor, y: Tensor) -> Tensor:
    """`x [..., G, L, M] @ y [..., M, N]`; the G query heads of a key head share y."""
    return (x.flatten(-3, -2) @ y).unflatten(-2, x.shape[-3:-1])
