"""RoPE: queries and keys rotated in pairs of channels by an angle that grows with the position.

RoPE (Su et al., arXiv 2104.09864): pair c = 0..D/2-1 turns by t theta_c, theta_c = base^(-2c/D). The pairing is
half-split: channel c turns with channel c + D/2. (A checkpoint with interleaved pairs, 2c and 2c + 1, needs its
channels permuted.)
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from ..choice import Implementation, Plan
from ..documents import Documents
from ..precision import wide, widest
from .dispatch import fused_attention
from .plain import causal_attention, scale_of


def rope_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    base: float = 10000.0,
    documents: Documents | None = None,
    scale: float | None = None,
    implementation: Implementation | Plan = "auto",
) -> Tensor:
    """Causal attention of `q [B, T, H, D]` on the last T of the S positions of raw `k, v [B, S, Hkv, D]`.

    Positions are counted from 0 on in each row, whatever its documents: only differences matter. Other arguments,
    result and errors as of `kernels/attention/nope.py`; D is even.
    """
    scale = scale_of(q, scale)
    out = fused_attention(q, k, v, scale, documents, implementation, "rotary", base)
    if out is not None:
        return out
    positions = torch.arange(k.shape[1], device=q.device)
    q, k = rotate(q, positions[k.shape[1] - q.shape[1] :], base), rotate(k, positions, base)
    return causal_attention(q, k, v, documents, scale)


def rotate(x: Tensor, positions: Tensor, base: float | Sequence[float]) -> Tensor:
    """Turn `x [B, T, H, D]` to `positions [T]` or `[B, T]`; D is even. Same dtype, computed in float32 at least.

    `base` as of `phases`.
    """
    angle = phases(positions, x.shape[-1] // 2, base).unsqueeze(-2)
    cos, sin = angle.cos().to(wide(x)), angle.sin().to(wide(x))
    first, second = x.to(wide(x)).chunk(2, -1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], -1).to(x.dtype)


def phases(positions: Tensor, count: int, base: float | Sequence[float]) -> Tensor:
    """Angles `positions * base^(-c/count)`, `[..., count]`, in float64: a float32 angle is 0.03 rad off at 1,000,000.

    In place of `base` there may be the `count` frequencies themselves, in radians a token. There is no buffer that
    `.to(dtype)` could round.
    """
    dtype = widest(positions.device)
    if isinstance(base, Sequence):
        frequencies = torch.tensor(base, dtype=dtype, device=positions.device)
    else:
        frequencies = base ** (-torch.arange(count, dtype=dtype, device=positions.device) / count)
    return positions.to(dtype).unsqueeze(-1) * frequencies
