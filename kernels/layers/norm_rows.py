"""Triton: residual addition and RMSNorm of the sum, row by row, and the gradients of both."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..common import processors

PER_WARP = 256  # elements of a row
# Backward kernel, measured on an H200: warps per multiprocessor, each with a partial sum of the weight gradient; rows
# in flight.
RESIDENT, STAGES = 16, 3


@triton.jit
def added_norm_kernel(X, BRANCH, WEIGHT, TOTAL, NORMED, RSTD, C, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    c = tl.arange(0, BLOCK)
    at, kept = row * C + c, c < C
    total = tl.load(X + at, mask=kept, other=0.0).to(tl.float32)
    total += tl.load(BRANCH + at, mask=kept, other=0.0).to(tl.float32)
    total = total.to(TOTAL.dtype.element_ty).to(tl.float32)  # normalise the sum as it is stored, rounded
    rstd = 1 / tl.sqrt_rn(tl.sum(total * total, 0) / C + eps)
    weight = tl.load(WEIGHT + c, mask=kept, other=0.0)
    tl.store(TOTAL + at, total.to(TOTAL.dtype.element_ty), mask=kept)
    tl.store(NORMED + at, (total * rstd * weight).to(NORMED.dtype.element_ty), mask=kept)
    tl.store(RSTD + row, rstd)


@triton.jit
def added_norm_backward_kernel(
    GRAD, NORMED_GRAD, TOTAL, RSTD, WEIGHT, DX, DBRANCH, DWEIGHT, rows, C,
    BLOCK: tl.constexpr, ROUNDED: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    c = tl.arange(0, BLOCK)
    kept = c < C
    weight = tl.load(WEIGHT + c, mask=kept, other=0.0)
    dweight = tl.zeros([BLOCK], tl.float32)
    for row in tl.range(tl.program_id(0), rows, tl.num_programs(0), num_stages=STAGES):
        at = tl.cast(row, tl.int64) * C + c
        grad = tl.load(NORMED_GRAD + at, mask=kept, other=0.0).to(tl.float32)
        total = tl.load(TOTAL + at, mask=kept, other=0.0).to(tl.float32)
        rstd = tl.load(RSTD + row)
        unit = total * rstd
        dweight += grad * unit
        grad *= weight
        dx = (grad - unit * (tl.sum(grad * unit, 0) / C)) * rstd
        dx += tl.load(GRAD + at, mask=kept, other=0.0).to(tl.float32)
        tl.store(DX + at, dx.to(DX.dtype.element_ty), mask=kept)
        if ROUNDED:
            tl.store(DBRANCH + at, dx.to(DBRANCH.dtype.element_ty), mask=kept)
    # One row per program, summed later in a fixed order: atomics would make results differ between runs.
    tl.store(DWEIGHT + tl.program_id(0) * C + c, dweight, mask=kept)


def forward(x: Tensor, branch: Tensor, weight: Tensor, eps: float, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """The sum of contiguous `x` and `branch`, both `[..., C]`, its norm in `dtype`, and 1 / RMS of each row in float32.

    The sum has the dtype of x, and the norm is that of the rounded sum.
    """
    width = x.shape[-1]
    total, normed = torch.empty_like(x), torch.empty_like(x, dtype=dtype)
    rstd = weight.new_empty(x.numel() // width)
    block = triton.next_power_of_2(width)
    added_norm_kernel[(len(rstd),)](
        X=x, BRANCH=branch, WEIGHT=weight, TOTAL=total, NORMED=normed, RSTD=rstd, C=width, eps=eps,
        BLOCK=block, num_warps=warps_of(block),
    )  # fmt: skip
    return total, normed, rstd


def backward(
    grad: Tensor, normed_grad: Tensor, total: Tensor, rstd: Tensor, weight: Tensor, dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of x, branch and weight from contiguous gradients of the sum and its norm.

    The gradient of the branch has `dtype`. It is empty if that is the dtype of the sum, because it equals that of x.
    """
    width, rounded = total.shape[-1], dtype != total.dtype
    dx = torch.empty_like(total)
    dbranch = torch.empty_like(total, dtype=dtype) if rounded else total.new_empty(0)
    block = triton.next_power_of_2(width)
    warps = warps_of(block)
    programs = min(processors(total.device) * RESIDENT // warps, len(rstd))
    partial = weight.new_empty(programs, width)
    added_norm_backward_kernel[(programs,)](
        GRAD=grad, NORMED_GRAD=normed_grad, TOTAL=total, RSTD=rstd, WEIGHT=weight,
        DX=dx, DBRANCH=dbranch, DWEIGHT=partial, rows=len(rstd), C=width,
        BLOCK=block, ROUNDED=rounded, STAGES=STAGES, num_warps=warps,
    )  # fmt: skip
    return dx, dbranch, partial.sum(0)


def warps_of(block: int) -> int:
    """Number of warps that process a row of `block` elements."""
    return min(max(block // PER_WARP, 1), RESIDENT)
