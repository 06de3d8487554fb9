"""RoPE: rotates pairs of query and key channels by angles proportional to the position.

RoPE (Su et al., arXiv 2104.09864): at position t, pair c = 0..D/2-1 is rotated by t theta_c, theta_c = base^(-2c/D).
Pairs are half-split: channel c is paired with channel c + D/2. Checkpoints with interleaved pairs (2c and 2c + 1) need
their channels permuted.
"""

import math
from collections.abc import Sequence
from numbers import Real

import torch
from torch import Tensor

from ..choice import Implementation, Plan
from ..compiling import cached, once
from ..documents import Documents
from ..precision import wide, widest
from .dispatch import fused_attention
from .plain import causal_attention, scale_of


def rope_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    base: float | Sequence[float] = 10000.0,
    documents: Documents | None = None,
    scale: float | None = None,
    implementation: Implementation | Plan = "auto",
) -> Tensor:
    """Causal attention with RoPE (Su et al., arXiv 2104.09864).

    score(t, s) is the dot product of q_t and k_s after both are rotated to their positions. Positions count from 0 in
    each row; they do not restart at documents, because only differences matter. The T queries are at the last T of S
    positions. Inputs may have any floating-point dtype; angles are exact to float64. Under autocast inputs are cast to
    its dtype, except float64.

    Args:
        q: queries before rotation, `[B, T, H, D]`; D is even.
        k: keys before rotation, `[B, S, Hkv, D]`. Hkv must divide H.
        v: values, `[B, S, Hkv, D]`.
        base: base of the frequencies, or the D/2 frequencies in radians per token; a frequency of 0 leaves its pair of
            channels unchanged. Default: 10000.
        documents: boundaries of packed documents, or other limits (`Documents`). Default: None, each row
            is one document.
        scale: factor of the dot products, above 0. Default: None, 1/sqrt(D).
        implementation: "auto" (fastest supported), "triton", "cudnn", "fa4" (needs flash-attn-4), "torch", or a `Plan`
            that was already chosen. Default: "auto".

    Returns:
        `[B, T, H, D]`, in the dtype in which attention was computed.

    Raises:
        ValueError: incompatible shapes, a wrong number of frequencies, scale <= 0, or a requested implementation that
            does not support the inputs.
    """
    scale, frequencies = scale_of(q, scale), frequencies_of(base, _pairs(q))
    out = fused_attention(q, k, v, scale, documents, implementation, "rotary", frequencies)
    if out is not None:
        return out
    positions = torch.arange(k.shape[1], device=q.device)
    q, k = rotate(q, positions[k.shape[1] - q.shape[1] :], base), rotate(k, positions, base)
    return causal_attention(q, k, v, documents, scale)


def rotate(x: Tensor, positions: Tensor, base: float | Sequence[float]) -> Tensor:
    """Rotate queries or keys to their positions. Computes in float32 or wider.

    Args:
        x: `[B, T, H, D]`; D is even.
        positions: `[T]` or `[B, T]`.
        base: base of the frequencies, or the D/2 frequencies in radians per token.

    Returns:
        `[B, T, H, D]` in the dtype of x.
    """
    angle = phases(positions, _pairs(x), base).unsqueeze(-2)
    return rotate_by(x, *cos_sin(angle, wide(x)))


def _pairs(x: Tensor) -> int:
    """Number of pairs of channels of `x [..., D]`. Raises ValueError if D is odd."""
    if x.shape[-1] % 2:
        raise ValueError(f"head_dim={x.shape[-1]}: RoPE needs a multiple of 2")
    return x.shape[-1] // 2


def rotate_by(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Multiply pairs of channels, as complex numbers, by `cos + i sin`. Computes in float32 or wider.

    Args:
        x: `[B, T, H, D]`; D is even.
        cos, sin: `[T, H, D/2]` or `[B, T, H, D/2]`, with 1 for H if all heads are equal.

    Returns:
        `[B, T, H, D]` in the dtype of x.
    """
    cos, sin = cos.to(wide(x)), sin.to(wide(x))
    first, second = x.to(wide(x)).chunk(2, -1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], -1).to(x.dtype)


def cos_sin(angles: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Cosine and sine of `angles` in radians, in `dtype`, float32 or wider.

    Angles of a wider dtype are reduced to half a turn in that dtype first, as sines in float64 are slow on a GPU.
    """
    if angles.dtype != dtype:
        turns = angles * (0.5 / math.pi)
        angles = (turns - turns.round()).to(dtype) * (2 * math.pi)
    return angles.cos(), angles.sin()


def phases(positions: Tensor, count: int, base: float | Sequence[float]) -> Tensor:
    """Angles `positions * base^(-c/count)` in radians.

    Computed in float64 (float32 on mps): at position 1,000,000 a float32 angle is off by 0.03 rad. The frequencies are
    not a module buffer, so `.to(dtype)` cannot round them.

    Args:
        positions: `[...]`.
        count: number of frequencies.
        base: base of the frequencies, or the `count` frequencies in radians per token.

    Returns:
        `[..., count]`.
    """
    dtype = widest(positions.device)
    if isinstance(base, Sequence):
        frequencies = table_of(frequencies_of(base, count), dtype, positions.device)
    else:
        frequencies = base ** (-torch.arange(count, dtype=dtype, device=positions.device) / count)
    return once(positions.to(dtype).unsqueeze(-1) * frequencies)


def frequencies_of(base: float | Sequence[float], count: int) -> tuple[float, ...]:
    """`base` if it is a sequence of `count` frequencies, otherwise `geometric(base, count)`.

    Raises:
        ValueError: wrong number of frequencies, or neither a positive number nor a sequence.
    """
    if not isinstance(base, Sequence):
        if not isinstance(base, (float, int, Real)) or not base > 0:
            raise ValueError(f"base={base}: it must be a number above 0, or a list or tuple of {count} frequencies")
        return geometric(base, count)
    if len(base) != count:
        raise ValueError(f"base={list(base)}: got {len(base)} frequencies; the channels need {count}")
    return tuple(base)


@cached
def geometric(base: float, count: int) -> tuple[float, ...]:
    """`base^(-c/count)` for c = 0..count-1, radians per token."""
    return tuple(base ** (-c / count) for c in range(count))


@cached
def table_of(frequencies: tuple[float, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """`frequencies` as a tensor. Cached, because copying them to a GPU synchronises."""
    return torch.tensor(frequencies, dtype=dtype, device=device)
