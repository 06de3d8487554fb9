"""Causal attention over blocks that double in length, for scores that no fused kernel forms.

The sequence is cut into short chunks, each attended within itself; then neighbouring blocks are joined pairwise until
one is left: every query of the right one attends to every key of the left one, and the result is folded into a running
softmax. The loop has log2(T / CHUNK) steps, hardly anything above the diagonal is computed, and the backward pass keeps
about T^2 / 2 numbers a head.
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
    """A softmax in the making: `total / weight` is the attention over the keys folded in so far."""

    total: Tensor  # [..., G, L, Dv]
    weight: Tensor  # [..., G, L, 1]
    highest: Tensor  # [..., G, L, 1], a constant to the gradient

    def fold(self, scores: Tensor, values: Tensor) -> "Softmax":
        """Take in `scores [..., G, L, S]` of further `values [..., S, Dv]`; a row may be -inf throughout."""
        highest = torch.maximum(self.highest, scores.detach().amax(-1, keepdim=True))
        exponentials, rescale = (scores - highest).exp(), (self.highest - highest).exp()
        weight = self.weight * rescale + exponentials.sum(-1, keepdim=True)
        return Softmax(self.total * rescale + by_group(exponentials, values), weight, highest)

    def result(self, length: int) -> Tensor:
        """The attention of the first `length` queries of one whole block, `[B, T, H, Dv]`."""
        out = (self.total / self.weight)[:, :, 0, :, :length]
        return out.permute(0, 3, 1, 2, 4).flatten(2, 3)


class Chunks(NamedTuple):
    """What one operator makes of n chunks: scores within each, and what tokens outside a chunk need to know of it."""

    scores: Tensor  # [B, Hkv, n, G, L, L]; what lies above the diagonal is ignored
    queries: Tensor  # [B, Hkv, n, G, L, D], seen from the block's start
    keys: Tensor  # [B, Hkv, n, L, D], seen from its end
    product: Tensor | None  # [B, Hkv, n, D, D], what the block does to whatever passes through it; None: nothing


class Blocks(NamedTuple):
    """n neighbouring blocks of L tokens, each attended within itself."""

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
    """All T tokens as one block. They are zero-padded behind the last, where no query before sees them.

    Args:
        q: `[B, T, H, D]`; k: `[B, T, Hkv, D]`; v: `[B, T, Hkv, Dv]`.
        first: makes `Chunks` of chunked, scaled queries and keys; its third argument chunks `[B, T, Hkv, ...]` too.
        documents: of packed rows; sums: `[B, T, H]`, cumulative log-gates c: c_t - c_s is added to the scaled score.
    """
    check_shapes(q, k, documents)
    length, heads = q.shape[1], k.shape[2]
    n = 1
    while n * CHUNK < length:
        n *= 2
    size = -(-length // n)

    def chunked(x: Tensor) -> Tensor:  # [B, T, Hkv, ...] -> [B, Hkv, n, L, ...]
        x = F.pad(x.to(wide(q)), (0, 0) * (x.dim() - 2) + (0, n * size - length))
        return x.unflatten(1, (n, size)).movedim(3, 1)

    queries = chunked(q.unflatten(2, (heads, -1)) * scale).movedim(4, 3).contiguous()
    scores, queries, keys, product = first(queries, chunked(k), chunked)
    visible = torch.ones(size, size, dtype=torch.bool, device=q.device).tril()
    runs = None
    if documents is not None:
        runs = F.pad(documents.runs, (0, n * size - length)).unsqueeze(1)
        inside = runs.unflatten(-1, (n, 1, size))
        visible = visible & (inside.unsqueeze(-1) == inside.unsqueeze(-2))
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
        blocks = join(blocks, runs, sums)
    return blocks


def join(blocks: Blocks, runs: Tensor | None, sums: Tensor | None) -> Blocks:
    """Half as many blocks, twice as long; `runs [B, 1, n L]` of documents, `sums [B, Hkv, G, n L]`."""
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
    if runs is not None:
        r_left, r_right = runs.unflatten(-1, (n // 2, 1, 2, size)).unbind(4)
        scores = scores.masked_fill(r_right.unsqueeze(-1) != r_left.unsqueeze(-2), float("-inf"))
    softmax = Softmax(*(torch.cat(pair, -2) for pair in zip(left, right.fold(scores, v_left), strict=True)))
    product = None
    if blocks.product is not None:
        p_left, p_right = halves(blocks.product)
        q_right, k_left, product = by_group(q_right, p_left), k_left @ p_right.mT, p_right @ p_left
    queries, keys, values = (torch.cat(pair, -2) for pair in ((q_left, q_right), (k_left, k_right), (v_left, v_right)))
    return Blocks(queries, keys, product, values, softmax)


def gates(later: Tensor, earlier: Tensor, border: Tensor, dtype: torch.dtype) -> Tensor:
    """c_t - c_s for `later [..., L]`, `earlier [..., S]`, `[..., L, S]` in `dtype`.

    Both sides are first taken from a `border [..., 1]` between them, in float64: then the rounding is relative to the
    difference, and no float64 matrix is formed.
    """
    return (later - border).to(dtype).unsqueeze(-1) - (earlier - border).to(dtype).unsqueeze(-2)


def by_head(sums: Tensor, kv_heads: int, length: int) -> Tensor:
    """`[B, T, H]` as `[B, Hkv, G, length]`, zero-padded."""
    return F.pad(sums.unflatten(2, (kv_heads, -1)).movedim(1, -1), (0, length - sums.shape[1]))


def by_group(x: Tensor, y: Tensor) -> Tensor:
    """`x [..., G, L, M] @ y [..., M, N]`: the G query heads of one key head share its matrix."""
    return (x.flatten(-3, -2) @ y).unflatten(-2, x.shape[-3:-1])
