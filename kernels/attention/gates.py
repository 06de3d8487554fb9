"""Triton: adding the gates of FoX and PaTH-FoX to a tile of scores, and the sums that their gradient needs."""

import functools

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..common import LOG2E, strides
from ..launching import LAYOUTS, Launch
from ..layout import Layout, layout_of

# FoX subtracts the gate of an origin row whose index is a multiple of this. It is a multiple of all block heights.
ROWS = tl.constexpr(128)


@triton.jit
def gates_kernel(SUMS, HIGH, LOW, s_b, s_t, s_h, S, PADDED, H, BLOCK: tl.constexpr):
    """Cumulative log-gates in base 2, float64 split into the float32 pair HIGH + LOW, `[B, H, PADDED]`."""
    blocks = tl.cdiv(PADDED, BLOCK)
    bh = (tl.program_id(0) // blocks).to(tl.int64)
    s = (tl.program_id(0) % blocks * BLOCK + tl.arange(0, BLOCK)).to(tl.int64)
    c = tl.load(SUMS + bh // H * s_b + bh % H * s_h + s * s_t, mask=s < S, other=0.0) * LOG2E
    high = c.to(tl.float32)
    tl.store(HIGH + bh * PADDED + s, high, mask=s < PADDED)
    tl.store(LOW + bh * PADDED + s, (c - high.to(tl.float64)).to(tl.float32), mask=s < PADDED)


@triton.jit
def add_gates(scores, row_high, row_low, key_high, key_low, origin, EXACT: tl.constexpr):
    """Add c_t - c_s to scores, for rows t and keys s; one is a column and the other a row of the tile.

    c_t changes neither softmax nor gradient. Unless `EXACT` it is omitted, also from the log-sum-exp, and c_s is taken
    relative to an origin that all kernels share. The distance from the origin then determines the rounding.
    """
    if EXACT:
        return scores + ((row_high - key_high) + (row_low - key_low))
    else:
        return scores - (key_high - origin + key_low)


@triton.jit
def pair_of(HIGH, LOW, at, inside):
    """Load the float32 pair of the cumulative log-gates of some tokens."""
    return tl.load(HIGH + at, mask=inside, other=0.0), tl.load(LOW + at, mask=inside, other=0.0)


@triton.jit
def sum_wide(x, EXACT: tl.constexpr):
    """Sums of rows in float64, because cumulative sums of them follow, which accumulate rounding errors."""
    if EXACT:
        return tl.sum(x.to(tl.float64), 1)
    else:
        return tl.sum(x, 1).to(tl.float64)


def gates_of(sums: Tensor | None, padded: int | None = None) -> tuple[Tensor | None, Tensor | None]:
    """Cumulative log-gates `[B, S, H]` as pairs `[B, H, padded]` for the kernels, zero-padded; None without gates."""
    if sums is None:
        return None, None
    batch, keys, heads = sums.shape
    padded = padded or keys
    high, low = torch.empty(2, batch, heads, padded, device=sums.device).unbind()
    _prepared(layout_of(sums), padded)(SUMS=sums, HIGH=high, LOW=low)
    return high, low


@functools.lru_cache(LAYOUTS)
def _prepared(sums: Layout, padded: int) -> Launch:
    """The launch of `gates_kernel` for sums of this layout."""
    (batch, keys, heads), block = sums.shape, 256
    settings = {**strides(s=sums), "S": keys, "PADDED": padded, "H": heads, "BLOCK": block}
    return Launch(gates_kernel, ((batch * heads * triton.cdiv(padded, block),), settings))
