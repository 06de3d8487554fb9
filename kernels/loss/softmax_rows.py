"""Triton: from rows of logits to nats and the likeliest token or, in the logits' own place, their gradient."""

import triton
import triton.language as tl
from torch import Tensor

from ..choice import INTERPRETED
from ..common import LOG2E, UNSEEN

# Measured on an H200. Scores: columns that a program reads side by side, how many rows of them a thread holds, warps.
COLUMNS, DEPTH, WARPS = 1024, 2, 4
# Gradients: columns of a tile, warps, registers of a thread (of which two programs fit a multiprocessor), and bytes a
# column of the tiles that stay in them: 51,200 logits in half precision, of which a row is read once. What is beyond is
# read again.
TILE, GRADIENT_WARPS, REGISTERS, HELD = 2048, 8, 128, 50


@triton.jit
def logit_of(LOGITS, target, vocabulary, ignored):
    """The target's logit in a row; whether the target counts, and whether it is in the vocabulary."""
    kept = target != ignored
    known = (target >= 0) & (target < vocabulary)
    return tl.load(LOGITS + target, mask=kept & known, other=float("nan")).to(tl.float32), kept, known


@triton.jit
def score_kernel(LOGITS, TARGETS, NATS, RIGHT, V, vocabulary, ignored, COLUMNS: tl.constexpr, DEPTH: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    LOGITS += row * V
    target = tl.load(TARGETS + row)
    # Every column gathers its own maximum and sum: threads wait for each other once a row, not once a tile.
    column = tl.arange(0, DEPTH)[:, None] * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    highest = tl.full([COLUMNS], UNSEEN, tl.float32)
    weight = tl.zeros([COLUMNS], tl.float32)
    best = tl.zeros([COLUMNS], tl.int32)
    for start in range(0, V, DEPTH * COLUMNS):
        here = start + column
        x = tl.load(LOGITS + here, mask=here < V, other=float("-inf")).to(tl.float32)
        top = tl.max(x, 0)
        first = tl.min(tl.where(x == top[None, :], here, V), 0)
        best = tl.where(top > highest, first, best)
        above = tl.maximum(highest, top)
        fresh = tl.sum(tl.exp2((x - above[None, :]) * LOG2E), 0)
        weight = weight * tl.exp2((highest - above) * LOG2E) + fresh
        highest = above
    top = tl.max(highest, 0)
    log_sum = top + tl.log2(tl.sum(weight * tl.exp2((highest - top) * LOG2E), 0)) / LOG2E
    wanted, kept, _ = logit_of(LOGITS, target, vocabulary, ignored)
    tl.store(NATS + row, tl.where(kept, log_sum - wanted, 0.0))
    likeliest = tl.min(tl.where(highest == top, best, V), 0)
    tl.store(RIGHT + row, kept & (likeliest == target))


@triton.jit
def as_new(tiles, KEPT: tl.constexpr, NARROW: tl.constexpr):
    """The same numbers of 16 bits, which the compiler takes for others: it would keep those of before, widened."""
    if not NARROW:
        return tiles
    fresh = ()
    for i in tl.static_range(KEPT):
        fresh += (
            tl.inline_asm_elementwise(
                "mov.b32 $0, $1;", "=r,r", [tiles[i]], dtype=tiles[i].dtype, is_pure=False, pack=2
            ),
        )
    return fresh


@triton.jit
def gradient_kernel(
    LOGITS, TARGETS, NATS, V, vocabulary, ignored, COLUMNS: tl.constexpr, KEPT: tl.constexpr, NARROW: tl.constexpr
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    LOGITS += row * V
    column = tl.arange(0, COLUMNS)
    tiles = ()
    for i in tl.static_range(KEPT):
        here = i * COLUMNS + column
        tiles += (tl.load(LOGITS + here, mask=here < V, other=float("-inf")),)
    target = tl.load(TARGETS + row)
    wanted, kept, known = logit_of(LOGITS, target, vocabulary, ignored)
    # Every column gathers its own maximum and sum: threads wait for each other once a row, not once a tile.
    top = tiles[0]  # pyright: ignore[reportGeneralTypeIssues]
    for i in tl.static_range(1, KEPT):
        top = tl.maximum(top, tiles[i])
    highest = tl.maximum(top.to(tl.float32), UNSEEN)
    tiles = as_new(tiles, KEPT, NARROW)
    weight = tl.zeros([COLUMNS], tl.float32)
    for i in tl.static_range(KEPT):
        weight += tl.exp2(tiles[i].to(tl.float32) * LOG2E - highest * LOG2E)
    for start in range(KEPT * COLUMNS, V, COLUMNS):
        here = start + column
        x = tl.load(LOGITS + here, mask=here < V, other=float("-inf")).to(tl.float32)
        above = tl.maximum(highest, x)
        weight = weight * tl.exp2((highest - above) * LOG2E) + tl.exp2((x - above) * LOG2E)
        highest = above
    most = tl.max(highest, 0)
    log_sum = most * LOG2E + tl.log2(tl.sum(weight * tl.exp2((highest - most) * LOG2E), 0))  # in powers of two
    tl.store(NATS + row, tl.where(kept, log_sum / LOG2E - wanted, 0.0))
    tl.debug_barrier()  # the target's logit is read before any thread overwrites it
    less = tl.where(kept, log_sum, float("inf"))  # an ignored target's row is 0
    tiles = as_new(tiles, KEPT, NARROW)
    for i in tl.static_range(KEPT):
        here = i * COLUMNS + column
        p = tl.exp2(tiles[i].to(tl.float32) * LOG2E - less)
        tl.store(LOGITS + here, p.to(LOGITS.dtype.element_ty), mask=here < V)
    for start in range(KEPT * COLUMNS, V, COLUMNS):
        here = start + column
        x = tl.load(LOGITS + here, mask=here < V, other=float("-inf")).to(tl.float32)
        tl.store(LOGITS + here, tl.exp2(x * LOG2E - less).to(LOGITS.dtype.element_ty), mask=here < V)
    tl.debug_barrier()  # and its gradient is written after what all of them wrote: cheaper than a comparison a column
    p = tl.exp2(wanted * LOG2E - log_sum) - 1.0
    tl.store(LOGITS + target, p.to(LOGITS.dtype.element_ty), mask=kept & known)


def score_rows(
    logits: Tensor, targets: Tensor, nats: Tensor, right: Tensor | None, ignored: int, vocabulary: int | None = None
) -> None:
    """Fill `nats [N]` and `right [N]`, whether the likeliest token is the target, from contiguous `logits [N, V]`.

    Columns from `vocabulary` on are padding and hold -inf. Without `right` the logits become their gradient of the
    summed nats. A target outside the vocabulary has NaN nats: raising would have to wait for the GPU.
    """
    rows, columns = logits.shape
    padded = triton.next_power_of_2(columns)
    shared = {"LOGITS": logits, "TARGETS": targets.contiguous(), "NATS": nats, "V": columns}
    shared |= {"vocabulary": columns if vocabulary is None else vocabulary, "ignored": ignored}
    if right is None:
        tile = min(padded, TILE)
        kept = min(triton.cdiv(columns, tile), HELD // logits.element_size())
        narrow = logits.element_size() == 2 and not INTERPRETED  # the interpreter knows no assembly
        gradient_kernel[(rows,)](
            **shared, COLUMNS=tile, KEPT=kept, NARROW=narrow, num_warps=GRADIENT_WARPS, maxnreg=REGISTERS
        )
    else:
        score_kernel[(rows,)](**shared, RIGHT=right, COLUMNS=min(padded, COLUMNS), DEPTH=DEPTH, num_warps=WARPS)
