"""Triton: copies the heads of a dense tensor into a slice of a larger one, with vector loads.

PyTorch copies one element at a time for this layout: 64 us for 100 MB on an H200, where 23 us are possible.
"""

import triton
import triton.language as tl
from torch import Tensor

ROWS, COLUMNS, WARPS = 8, 256, 4  # tokens and channels per program, warps


@triton.jit
def place_kernel(X, OUT, out_b, out_t, T, tokens, width, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    token = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)[:, None]
    c = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    kept = (token < tokens) & (c < width)
    x = tl.load(X + token * width + c, mask=kept, other=0.0)
    tl.store(OUT + token // T * out_b + token % T * out_t + c, x, mask=kept)


def place(x: Tensor, out: Tensor) -> None:
    """Copy contiguous `x [B, T, H, D]` to `out` of the same shape, in which the heads of each token are contiguous."""
    tokens, width = x.shape[0] * x.shape[1], x.shape[2] * x.shape[3]
    grid = (triton.cdiv(tokens, ROWS), triton.cdiv(width, COLUMNS))
    place_kernel[grid](
        X=x, OUT=out, out_b=out.stride(0), out_t=out.stride(1), T=x.shape[1], tokens=tokens, width=width,
        ROWS=ROWS, COLUMNS=COLUMNS, num_warps=WARPS,
    )  # fmt: skip
