"""Triton: tiles of rows in memory, whose width may be no power of two."""

import functools

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def rows_of(X, rows, stride, columns, inside, WIDTH: tl.constexpr, EVEN: tl.constexpr):
    """`[rows, columns]` of X, zero outside. `EVEN`: all rows exist; a padded width is masked in any case."""
    at = X + rows[:, None] * stride + columns[None, :]
    if EVEN and columns.shape[0] == WIDTH:
        x = tl.load(at)
    elif EVEN:
        x = tl.load(at, mask=(columns < WIDTH)[None, :], other=0.0)
    else:
        x = tl.load(at, mask=inside[:, None] & (columns < WIDTH)[None, :], other=0.0)
    return x


@functools.cache
def nothing(device: torch.device) -> Tensor:
    """Stands in for a pointer that a kernel never follows."""
    return torch.empty(1, device=device)
