"""Triton: copies the heads of a dense tensor into a slice of a larger one, with vector loads.

PyTorch copies one element at a time for this layout: 64 us for 100 MB on an H200, where 23 us are possible.
"""

import functools

import triton
import triton.language as tl
from torch import Tensor

from ..launching import LAYOUTS, Launch

ROWS, COLUMNS, WARPS = 8, 256, 4  # tokens and channels per program, warps


@triton.jit
def place_kernel(X, OUT, out_b, out_t, T, tokens, width, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    token = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)[:, None]
    c = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    kept = (token < tokens) & (c < width)
    x = tl.load(X + token * width + c, mask=kept, other=0.0)
    tl.store(OUT + token // T * out_b + token % T * out_t + c, x, mask=kept)


@functools.lru_cache(LAYOUTS)
def prepared(shape: tuple[int, ...], strides: tuple[int, ...]) -> Launch:
    """A launch for tensors of this shape and these strides of the result."""
    tokens, width = shape[0] * shape[1], shape[2] * shape[3]
    grid = (triton.cdiv(tokens, ROWS), triton.cdiv(width, COLUMNS))
    sizes = {"out_b": strides[0], "out_t": strides[1], "T": shape[1], "tokens": tokens, "width": width}
    return Launch(place_kernel, (grid, sizes | {"ROWS": ROWS, "COLUMNS": COLUMNS, "num_warps": WARPS}))


def place(x: Tensor, out: Tensor) -> None:
    """Copy contiguous `x [B, T, H, D]` to `out` of the same shape, in which the heads of each token are contiguous."""
    prepared(x.shape, out.stride())(X=x, OUT=out)
