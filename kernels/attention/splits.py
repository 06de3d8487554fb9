"""Triton: a few queries over many keys in splits, each with a running softmax; then the splits are combined.

A running softmax holds scores in powers of two in one of two forms. `rows`: scores are `[keys, rows]`, as many keys
fill the matrix unit. `places`, for a single query, which is too little for it: each of a tile's places has a softmax of
its own over the tiles, so that no thread waits for another; they meet after the last tile.
"""

import torch
import triton
import triton.language as tl

from ..common import processors


@triton.jit
def tile_at(X, row, places, columns, stride, inside):
    """`[places, columns]` of a cache from token `row` on."""
    return tl.load(X + row * stride + places[:, None] * stride + columns[None, :], mask=inside, other=0.0)


@triton.jit
def fold_rows(scores, v, seen, highest, weight, acc, PRECISION: tl.constexpr):
    """A tile of `scores [keys, rows]` and `v [keys, D]` into a softmax; `seen` is a mask, or None for all."""
    above = tl.maximum(highest, tl.max(scores, 0))
    p = tl.exp2(scores - above[None, :])
    if seen is not None:
        p = tl.where(seen, p, 0.0)
    rescale = tl.exp2(highest - above)
    weight = weight * rescale + tl.sum(p, 0)
    acc = tl.dot(tl.trans(v), p.to(v.dtype), acc * rescale[None, :], input_precision=PRECISION)
    return above, weight, acc


@triton.jit
def fold_places(scores, v, seen, highest, weight, acc):
    """A tile of `scores [keys]` and `v [keys, D]` into the softmax of each place; `seen` as above."""
    above = tl.maximum(highest, scores)
    p = tl.exp2(scores - above)
    if seen is not None:
        p = tl.where(seen, p, 0.0)
    rescale = tl.exp2(highest - above)
    weight = weight * rescale + p
    acc = acc * rescale[:, None] + p[:, None] * v.to(tl.float32)
    return above, weight, acc


@triton.jit
def store_rows(PARTIAL, LSE, at, c, inside, highest, weight, acc, D: tl.constexpr):
    """Shares of the output, at `at [rows]`, and their log-sum-exps: -inf where a row has seen nothing."""
    some = weight > 0
    weight = tl.where(some, weight, 1.0)
    tl.store(LSE + at, tl.where(some, highest + tl.log2(weight), float("-inf")), mask=inside)
    tl.store(PARTIAL + at[None, :] * D + c[:, None], acc / weight[None, :], mask=inside[None, :] & (c < D)[:, None])


@triton.jit
def store_places(PARTIAL, LSE, at, c, highest, weight, acc, D: tl.constexpr):
    """The same of a single query."""
    top = tl.max(highest, 0)
    rescale = tl.exp2(highest - top)
    total = tl.sum(weight * rescale, 0)
    some = total > 0
    total = tl.where(some, total, 1.0)
    tl.store(LSE + at, tl.where(some, top + tl.log2(total), float("-inf")))
    tl.store(PARTIAL + at * D + c, tl.sum(acc * rescale[:, None], 0) / total, mask=c < D)


@triton.jit
def combine(PARTIAL, LSE, OUT, row, D: tl.constexpr, BD: tl.constexpr, SPLITS: tl.constexpr, BS: tl.constexpr):
    """One row of the output from its SPLITS shares and their log-sum-exps."""
    split, c = tl.arange(0, BS), tl.arange(0, BD)
    lse = tl.load(LSE + row * SPLITS + split, mask=split < SPLITS, other=float("-inf"))
    there = (split < SPLITS)[:, None] & (c < D)[None, :]
    partial = tl.load(PARTIAL + (row * SPLITS + split)[:, None] * D + c[None, :], mask=there, other=0.0)
    share = tl.exp2(lse - tl.max(lse, 0))
    out = tl.sum(partial * share[:, None], 0) / tl.sum(share, 0)
    tl.store(OUT + row * D + c, out.to(OUT.dtype.element_ty), mask=c < D)


@triton.jit
def combine_kernel(PARTIAL, LSE, OUT, D: tl.constexpr, BD: tl.constexpr, SPLITS: tl.constexpr, BS: tl.constexpr):
    combine(PARTIAL, LSE, OUT, tl.program_id(0).to(tl.int64), D, BD, SPLITS, BS)


def splits_for(device: torch.device, waves: int, walks: int, pieces: int) -> int:
    """In how many splits to read the keys, so that `walks` over `pieces` of them make `waves` programs a processor."""
    splits = max(1, min(waves * processors(device) // walks, pieces))
    return 1 << splits.bit_length() - 1  # a power of two is a constant of the kernels: each is compiled once
