"""Triton: a tensor times a scalar on the GPU, with vector loads.

PyTorch loads one element at a time for this: 110 us for 309 MB on an H200, where 72 us are possible.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK, WARPS = 2048, 4


@triton.jit
def scale_kernel(X, FACTOR, OUT, size, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(X + at, mask=at < size, other=0.0).to(tl.float32) * tl.load(FACTOR)
    tl.store(OUT + at, x.to(OUT.dtype.element_ty), mask=at < size)


def scaled(x: Tensor, factor: Tensor) -> Tensor:
    """Contiguous `x` times `factor` (a float32 scalar), rounded once to the dtype of x."""
    out = torch.empty_like(x)
    grid = (triton.cdiv(x.numel(), BLOCK),)
    scale_kernel[grid](X=x, FACTOR=factor, OUT=out, size=x.numel(), BLOCK=BLOCK, num_warps=WARPS)
    return out
