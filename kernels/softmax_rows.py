"""Triton: from rows of logits to nats, the likeliest token and, in the logits' own place, their gradient."""

import triton
import triton.language as tl
from torch import Tensor

from bearings.kernels.angles import LOG2E


@triton.jit
def score_kernel(
    LOGITS, TARGETS, NATS, RIGHT, V, ignored, BLOCK: tl.constexpr, GRADIENT: tl.constexpr
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    LOGITS += row * V
    target = tl.load(TARGETS + row)
    column = tl.arange(0, BLOCK)
    highest, weight, best = float("-inf"), 0.0, 0
    for start in range(0, V, BLOCK):
        here = start + column
        x = tl.load(LOGITS + here, mask=here < V, other=float("-inf")).to(tl.float32)
        top = tl.max(x, 0)
        first = tl.min(tl.where(x == top, here, V), 0)
        best = tl.where(top > highest, first, best)
        above = tl.maximum(highest, top)
        weight = weight * tl.exp2((highest - above) * LOG2E) + tl.sum(tl.exp2((x - above) * LOG2E), 0)
        highest = above
    kept = target != ignored
    log_sum = highest + tl.log2(weight) / LOG2E
    known = (target >= 0) & (target < V)
    wanted = tl.load(LOGITS + target, mask=kept & known, other=float("nan")).to(tl.float32)
    tl.store(NATS + row, tl.where(kept, log_sum - wanted, 0.0))
    tl.store(RIGHT + row, kept & (best == target))
    if GRADIENT:
        tl.debug_barrier()  # the target's logit is read before any thread overwrites it
        share = tl.where(kept, 1.0, 0.0)
        for start in range(0, V, BLOCK):
            here = start + column
            x = tl.load(LOGITS + here, mask=here < V, other=float("-inf")).to(tl.float32)
            p = tl.exp2((x - log_sum) * LOG2E) - tl.where(here == target, 1.0, 0.0)
            tl.store(LOGITS + here, (p * share).to(LOGITS.dtype.element_ty), mask=here < V)


def score_rows(logits: Tensor, targets: Tensor, nats: Tensor, right: Tensor, gradient: bool, ignored: int) -> None:
    """Fill `nats [N]` and `right [N]` from contiguous `logits [N, V]`.

    With `gradient` the logits become their gradient of the summed nats. A target outside the vocabulary has NaN nats:
    raising would have to wait for the GPU.
    """
    block = min(triton.next_power_of_2(logits.shape[1]), 4096)
    score_kernel[(len(logits),)](
        logits, targets.contiguous(), nats, right, logits.shape[1], ignored,
        BLOCK=block, GRADIENT=gradient, num_warps=8,
    )  # fmt: skip
