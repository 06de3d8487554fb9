"""Triton: nats and the most likely token from rows of logits, or their gradient written in place."""

import triton
import triton.language as tl
from torch import Tensor

from ..choice import INTERPRETED
from ..common import LOG2E, UNSEEN
from ..operator import on_its_gpu

# Measured on an H200. Score kernel: columns per load, loads in flight per thread, warps.
COLUMNS, DEPTH, WARPS = 1024, 2, 4
# Gradient kernel: columns of a tile, warps, registers per thread (two programs fit a multiprocessor), and bytes per
# column of the tiles kept in registers. They hold 51,200 logits in half precision, which are read once; logits beyond
# that are read twice.
TILE, GRADIENT_WARPS, REGISTERS, HELD = 2048, 8, 128, 50


@triton.jit
def logit_of(LOGITS, target, vocabulary, ignored):
    """The target's logit in a row, whether the target counts, and whether it is in the vocabulary."""
    kept = target != ignored
    known = (target >= 0) & (target < vocabulary)
    return tl.load(LOGITS + target, mask=kept & known, other=float("nan")).to(tl.float32), kept, known


@triton.jit
def score_kernel(LOGITS, TARGETS, NATS, RIGHT, V, vocabulary, ignored, COLUMNS: tl.constexpr, DEPTH: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    LOGITS += row * V
    target = tl.load(TARGETS + row)
    # Each column keeps its own maximum and sum, so threads synchronise once per row instead of once per tile.
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
    """Copies of 16-bit tiles that the compiler cannot identify with the originals; it would keep widened originals."""
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
    # Each column keeps its own maximum and sum, so threads synchronise once per row instead of once per tile.
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
    tl.debug_barrier()  # read the target's logit before any thread overwrites it
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
    tl.debug_barrier()  # write the target's gradient last, which is cheaper than a comparison per column
    p = tl.exp2(wanted * LOG2E - log_sum) - 1.0
    tl.store(LOGITS + target, p.to(LOGITS.dtype.element_ty), mask=kept & known)


@on_its_gpu
def score_rows(
    logits: Tensor, targets: Tensor, nats: Tensor, right: Tensor | None, ignored: int, vocabulary: int | None = None
) -> None:
    """Fill `nats [N]` and `right [N]` (whether the most likely token is the target) from contiguous `logits [N, V]`.

    Columns from `vocabulary` on are padding and hold -inf. If `right` is None, the gradient of the summed nats replaces
    the logits. A target outside the vocabulary has NaN nats: raising an error would need a synchronisation.
    """
    rows, columns = logits.shape
    padded = triton.next_power_of_2(columns)
    shared = {"LOGITS": logits, "TARGETS": targets.contiguous(), "NATS": nats, "V": columns}
    shared |= {"vocabulary": columns if vocabulary is None else vocabulary, "ignored": ignored}
    if right is None:
        tile = min(padded, TILE)
        kept = min(triton.cdiv(columns, tile), HELD // logits.element_size())
        narrow = logits.element_size() == 2 and not INTERPRETED  # the interpreter does not support assembly
        gradient_kernel[(rows,)](
            **shared, COLUMNS=tile, KEPT=kept, NARROW=narrow, num_warps=GRADIENT_WARPS, maxnreg=REGISTERS
        )
    else:
        score_kernel[(rows,)](**shared, RIGHT=right, COLUMNS=min(padded, COLUMNS), DEPTH=DEPTH, num_warps=WARPS)
