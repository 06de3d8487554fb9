"""PaTH-FoX's gates as PaTH's kernels read them."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from bearings.kernels.angles import LOG2E
from bearings.kernels.path_prepare import BLOCK, Sizes


@triton.jit
def gates_kernel(
    SUMS, GATE, START, START_LO, length, heads, chunks, s_b, s_t, s_h,
    SIZE: tl.constexpr, ROWS: tl.constexpr, BH: tl.constexpr,
):  # fmt: skip
    """ROWS tokens of one sequence, all heads; float64 in, seen from the start of the tokens' chunk."""
    parts: tl.constexpr = SIZE // ROWS
    pid = tl.program_id(0)
    part, chunk = pid % parts, pid // parts
    c, b = chunk % chunks, (chunk // chunks).to(tl.int64)
    rows, h = c * SIZE + part * ROWS + tl.arange(0, ROWS), tl.arange(0, BH)
    there, at = h < heads, SUMS + b * s_b + h * s_h
    start = tl.load(at + tl.cast(c * SIZE, tl.int64) * s_t, mask=there, other=0.0).to(tl.float64) * LOG2E
    inside = (rows < length)[:, None] & there[None, :]
    sums = tl.load(at[None, :] + rows[:, None].to(tl.int64) * s_t, mask=inside, other=0.0).to(tl.float64) * LOG2E
    gate = tl.where(inside, sums - start[None, :], 0.0)
    row = b * heads + h
    tokens = chunks * SIZE
    tl.store(GATE + row[None, :] * tokens + rows[:, None], gate.to(tl.float32), mask=there[None, :])
    if part == 0:
        high = start.to(tl.float32)
        tl.store(START + row * chunks + c, high, mask=there)
        tl.store(START_LO + row * chunks + c, (start - high).to(tl.float32), mask=there)


def gates_of(sums: Tensor | None, sizes: Sizes) -> tuple[Tensor, Tensor, Tensor] | None:
    """Cumulative log-gates `[B, T, H]`, float64, as `path_forward.forward` takes them."""
    if sums is None:
        return None
    rows = sizes.batch * sizes.heads
    gate = sums.new_empty(rows, sizes.padded, dtype=torch.float32)
    start, start_lo = (sums.new_empty(rows, sizes.chunks, dtype=torch.float32) for _ in range(2))
    gates_kernel[(sizes.batch * sizes.chunks * sizes.blocks,)](
        sums, gate, start, start_lo, sizes.length, sizes.heads, sizes.chunks, *sums.stride(),
        SIZE=sizes.blocks * BLOCK, ROWS=BLOCK, BH=triton.next_power_of_2(sizes.heads),
    )  # fmt: skip
    return gate, start, start_lo
