"""Triton: from rows of logits to nats, the likeliest token or, in the logits' own place, their gradient."""

import triton
import triton.language as tl
from torch import Tensor

from bearings.kernels.angles import LOG2E

# Columns that a program reads side by side, how many rows of them a thread holds, and warps: with the gradient and
# without, measured on an H200.
GRADIENT_TILES, TILES = (4096, 2, 16), (1024, 2, 4)


@triton.jit
def score_kernel(
    LOGITS, TARGETS, NATS, RIGHT, V, ignored, COLUMNS: tl.constexpr, DEPTH: tl.constexpr, GRADIENT: tl.constexpr
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    LOGITS += row * V
    target = tl.load(TARGETS + row)
    # Every column gathers its own maximum and sum: threads wait for each other once a row, not once a tile.
    column = tl.arange(0, DEPTH)[:, None] * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    highest = tl.full([COLUMNS], -1e30, tl.float32)  # not -inf, for inf - inf
    weight = tl.zeros([COLUMNS], tl.float32)
    best = tl.zeros([COLUMNS], tl.int32)
    for start in range(0, V, DEPTH * COLUMNS):
        here = start + column
        x = tl.load(LOGITS + here, mask=here < V, other=float("-inf")).to(tl.float32)
        top = tl.max(x, 0)
        if not GRADIENT:
            first = tl.min(tl.where(x == top[None, :], here, V), 0)
            best = tl.where(top > highest, first, best)
        above = tl.maximum(highest, top)
        fresh = tl.sum(tl.exp2((x - above[None, :]) * LOG2E), 0)
        weight = weight * tl.exp2((highest - above) * LOG2E) + fresh
        highest = above
    top = tl.max(highest, 0)
    log_sum = top + tl.log2(tl.sum(weight * tl.exp2((highest - top) * LOG2E), 0)) / LOG2E
    kept = target != ignored
    known = (target >= 0) & (target < V)
    wanted = tl.load(LOGITS + target, mask=kept & known, other=float("nan")).to(tl.float32)
    tl.store(NATS + row, tl.where(kept, log_sum - wanted, 0.0))
    if GRADIENT:
        tl.debug_barrier()  # the target's logit is read before any thread overwrites it
        share = tl.where(kept, 1.0, 0.0)
        for start in range(0, V, DEPTH * COLUMNS):
            here = start + column
            x = tl.load(LOGITS + here, mask=here < V, other=float("-inf")).to(tl.float32)
            p = tl.exp2((x - log_sum) * LOG2E) - tl.where(here == target, 1.0, 0.0)
            tl.store(LOGITS + here, (p * share).to(LOGITS.dtype.element_ty), mask=here < V)
    else:
        likeliest = tl.min(tl.where(highest == top, best, V), 0)
        tl.store(RIGHT + row, kept & (likeliest == target))


def score_rows(logits: Tensor, targets: Tensor, nats: Tensor, right: Tensor | None, ignored: int) -> None:
    """Fill `nats [N]` and `right [N]`, whether the likeliest token is the target, from contiguous `logits [N, V]`.

    Without `right` the logits become their gradient of the summed nats. A target outside the vocabulary has NaN nats:
    raising would have to wait for the GPU.
    """
    columns, depth, warps = GRADIENT_TILES if right is None else TILES
    columns = min(triton.next_power_of_2(logits.shape[1]), columns)
    score_kernel[(len(logits),)](
        logits, targets.contiguous(), nats, right, logits.shape[1], ignored,
        COLUMNS=columns, DEPTH=depth, GRADIENT=right is None, num_warps=warps,
    )  # fmt: skip
