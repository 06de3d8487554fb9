"""Triton: the gates of FoX and PaTH-FoX inside a tile of scores, and the sums that FoX's gradient needs."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..common import LOG2E, strides

# FoX's gates are seen from a row at a multiple of this, which is a multiple of the rows of its kernels' blocks.
ROWS = tl.constexpr(128)


@triton.jit
def gates_kernel(SUMS, HIGH, LOW, s_b, s_t, s_h, S, PADDED, H, BLOCK: tl.constexpr):
    """Cumulative log-gates in powers of two, float64 as the float32 pair HIGH + LOW, `[B, H, PADDED]`."""
    blocks = tl.cdiv(PADDED, BLOCK)
    bh = (tl.program_id(0) // blocks).to(tl.int64)
    s = (tl.program_id(0) % blocks * BLOCK + tl.arange(0, BLOCK)).to(tl.int64)
    c = tl.load(SUMS + bh // H * s_b + bh % H * s_h + s * s_t, mask=s < S, other=0.0) * LOG2E
    high = c.to(tl.float32)
    tl.store(HIGH + bh * PADDED + s, high, mask=s < PADDED)
    tl.store(LOW + bh * PADDED + s, (c - high.to(tl.float64)).to(tl.float32), mask=s < PADDED)


@triton.jit
def add_gates(scores, row_high, row_low, key_high, key_low, origin, EXACT: tl.constexpr):
    """c_t - c_s of rows t and keys s, one a column and the other a row of the tile.

    A row's own half changes neither softmax nor gradient. Unless `EXACT` it is left out, also of the log-sum-exp, and
    the keys' half is seen from an origin that all kernels share; its size then sets the rounding.
    """
    if EXACT:
        return scores + ((row_high - key_high) + (row_low - key_low))
    else:
        return scores - (key_high - origin + key_low)


@triton.jit
def pair_of(HIGH, LOW, at, inside):
    """The float32 pair of some tokens' cumulative log-gates."""
    return tl.load(HIGH + at, mask=inside, other=0.0), tl.load(LOW + at, mask=inside, other=0.0)


@triton.jit
def sum_wide(x, EXACT: tl.constexpr):
    """Sums of rows in float64: sums over sums follow, which pile up rounding."""
    if EXACT:
        return tl.sum(x.to(tl.float64), 1)
    else:
        return tl.sum(x, 1).to(tl.float64)


def gates_of(sums: Tensor | None, padded: int | None = None) -> tuple[Tensor | None, Tensor | None]:
    """Cumulative log-gates `[B, S, H]` as the kernels read them, with zeros up to `padded` tokens; None without any."""
    if sums is None:
        return None, None
    batch, keys, heads = sums.shape
    padded = padded or keys
    high, low = torch.empty(2, batch, heads, padded, device=sums.device)
    gates_kernel[(batch * heads * triton.cdiv(padded, 256),)](
        SUMS=sums, HIGH=high, LOW=low, **strides(s=sums), S=keys, PADDED=padded, H=heads, BLOCK=256
    )
    return high, low
