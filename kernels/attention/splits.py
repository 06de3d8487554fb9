"""Triton: attention of a few queries over many keys, split along the keys, then combined.

Each split keeps a running softmax in base 2, in one of two forms. `rows`: scores are `[keys, rows]`, so many keys fill
the tensor cores. `places`: for one query, which is too small for tensor cores. Each key place within a tile keeps a
separate softmax across tiles, so threads do not synchronise until all are combined after the last tile.
"""

import torch
import triton
import triton.language as tl

from ..common import processors


@triton.jit
def tile_at(X, row, places, columns, stride, inside):
    """Load `[places, columns]` of a cache starting at token `row`."""
    return tl.load(X + row * stride + places[:, None] * stride + columns[None, :], mask=inside, other=0.0)


@triton.jit
def fold_rows(scores, v, seen, highest, weight, acc, PRECISION: tl.constexpr):
    """Update a softmax with a tile of `scores [keys, rows]` and `v [keys, D]`. `seen` is a mask, or None for all."""
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
    """Update the softmax of each place with a tile of `scores [keys]` and `v [keys, D]`; for `seen` see above."""
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
    """Store partial outputs at `at [rows]` and their log-sum-exps, -inf for rows without visible keys."""
    some = weight > 0
    weight = tl.where(some, weight, 1.0)
    tl.store(LSE + at, tl.where(some, highest + tl.log2(weight), float("-inf")), mask=inside)
    tl.store(PARTIAL + at[None, :] * D + c[:, None], acc / weight[None, :], mask=inside[None, :] & (c < D)[:, None])


@triton.jit
def store_places(PARTIAL, LSE, at, c, highest, weight, acc, D: tl.constexpr):
    """`store_rows` for a single query."""
    top = tl.max(highest, 0)
    rescale = tl.exp2(highest - top)
    total = tl.sum(weight * rescale, 0)
    some = total > 0
    total = tl.where(some, total, 1.0)
    tl.store(LSE + at, tl.where(some, top + tl.log2(total), float("-inf")))
    tl.store(PARTIAL + at * D + c, tl.sum(acc * rescale[:, None], 0) / total, mask=c < D)


@triton.jit
def combine(PARTIAL, LSE, OUT, row, D: tl.constexpr, BD: tl.constexpr, SPLITS: tl.constexpr, BS: tl.constexpr):
    """Combine one row of the output from SPLITS partial outputs and their log-sum-exps."""
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
    """Number of splits per walk over the keys, at most `pieces`, that gives about `waves` programs per multiprocessor.

    Rounded down to a power of two: each value is a constant of the kernels and compiled separately.
    """
    splits = max(1, min(waves * processors(device) // walks, pieces))
    return 1 << splits.bit_length() - 1
