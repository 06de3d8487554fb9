"""Triton: phases at exact positions with float32 sines and cosines, and softplus for PoPE.

Angles are 64-bit fractions of a turn. Position times frequency wraps around through integer overflow, so a phase is as
exact at position 1,000,000 as at 1, without float64 or a table of the context length.
"""

import functools
import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from .common import LOG2E

QUARTER = tl.constexpr(1 << 30)  # of a turn, in units of 2^-32
RADIANS = tl.constexpr(2 * math.pi / 2**32)


@functools.lru_cache(maxsize=1024)
def turns_per_token(frequencies: tuple[float, ...], device: torch.device) -> Tensor:
    """Frequencies in radians per token as fractions of a turn in units of 2^-64, `[count]` int64. Cached per device."""
    turns = [round(frequency / (2 * math.pi) * 2**64) % 2**64 for frequency in frequencies]
    return torch.tensor([turn - 2**64 if turn >= 2**63 else turn for turn in turns], device=device)


@triton.jit
def cos_sin(turns):
    """Cosine and sine in float32 of int64 `turns`, from series around the nearest quarter turn."""
    x = (turns >> 32).to(tl.int32)
    quadrant = (x + QUARTER // 2) >> 30
    y = (x - (quadrant << 30)).to(tl.float32) * RADIANS
    z = y * y
    s = y * (1.0 + z * (-1 / 6 + z * (1 / 120 + z * (-1 / 5040 + z * (1 / 362880)))))
    c = 1.0 + z * (-1 / 2 + z * (1 / 24 + z * (-1 / 720 + z * (1 / 40320))))
    odd = (quadrant & 1) != 0
    sine, cosine = tl.where(odd, c, s), tl.where(odd, s, c)
    return tl.where(((quadrant + 1) & 2) != 0, -cosine, cosine), tl.where((quadrant & 2) != 0, -sine, sine)


@triton.jit
def log1p(y, ROUGH: tl.constexpr):
    """log(1 + y) for y in [0, 1], from a polynomial approximation of log(1 + y) / y.

    The relative error is at most 1.5e-7. With `ROUGH` it is at most 6e-5, for results that are rounded to bfloat16
    (relative error up to 4e-3).
    """
    if ROUGH:
        z = 0.306300938 + y * (-0.157427207 + y * 0.0413472988)
        z = 0.999943256 + y * (-0.496977806 + y * z)
    else:
        z = 0.0195425274 - 0.00317605705 * y
        z = 0.105436238 + y * (-0.0563736132 + y * z)
        z = 0.196632743 + y * (-0.152696671 + y * z)
        z = 0.333297105 + y * (-0.249516163 + y * z)
        z = 0.999999995 + y * (-0.499998926 + y * z)
    return y * z


@triton.jit
def decayed(x, ROUGH: tl.constexpr):
    """exp(-|x|). `ROUGH` flushes subnormal results to zero, which saves instructions."""
    return tl.exp2(tl.abs(x) * -LOG2E) if ROUGH else tl.exp(-tl.abs(x))


@triton.jit
def softplus(x, ROUGH: tl.constexpr):
    """log(1 + exp(x)), accurate for large negative x too (with `ROUGH`, down to 1e-38). For `ROUGH` see `log1p`."""
    return tl.maximum(x, 0.0) + log1p(decayed(x, ROUGH), ROUGH)


@triton.jit
def softplus_and_slope(x, ROUGH: tl.constexpr):
    """softplus and its derivative, the logistic function, from one exponential. For `ROUGH` see `log1p`."""
    y = decayed(x, ROUGH)
    slope = tl.where(x > 0, 1.0, y) / (1.0 + y)
    return tl.maximum(x, 0.0) + log1p(y, ROUGH), slope
