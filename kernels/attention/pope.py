"""PoPE: a channel's magnitude says what, its phase says where.

PoPE (Gopalakrishnan, Csordas, Schmidhuber, Mozer, arXiv 2509.10534): with theta_c = base^(-c/D), c = 0..D-1,

    score(t, s) = sum_c softplus(q[t, c]) softplus(k[s, c]) cos((s - t) theta_c + delta[h, c]),

here as a plain dot product of the Cartesian forms [mu cos(phase), mu sin(phase)], 2D wide; values stay D wide.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from ..choice import Implementation, Plan
from ..documents import Documents
from ..precision import wide
from .dispatch import fused_attention
from .plain import causal_attention, scale_of
from .rope import phases


def pope_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    delta: Tensor,
    base: float = 10000.0,
    documents: Documents | None = None,
    scale: float | None = None,
    implementation: Implementation | Plan = "auto",
    magnitudes: bool = False,
) -> Tensor:
    """Causal attention of `q [B, T, H, D]` on the last T of the S positions of raw `k, v [B, S, Hkv, D]`.

    `delta [Hkv, D]` is taken as it is; clamping is the caller's. Positions are counted from 0 on in each row, whatever
    its documents: only differences matter. With `magnitudes`, `k` holds softplus(k) instead, as a cache does: it is as
    wide, and reading it then costs no more than reading RoPE's. Other arguments, result and errors as of
    `kernels/attention/nope.py`.
    """
    scale = scale_of(q, scale)
    form = "magnitude" if magnitudes else "polar"
    out = fused_attention(q, k, v, scale, documents, implementation, form, base, delta=delta)
    if out is not None:
        return out
    positions = torch.arange(k.shape[1], device=q.device)
    q, k = pope_query(q, positions[k.shape[1] - q.shape[1] :], base), pope_key(k, positions, delta, base, magnitudes)
    return causal_attention(q, k, v, documents, scale)


def pope_query(q: Tensor, positions: Tensor, base: float | Sequence[float]) -> Tensor:
    """`q [B, T, H, D]` at `positions [T]` or `[B, T]` -> `[B, T, H, 2D]`, same dtype, computed in float32 at least.

    `base` as of `phases`.
    """
    angle = phases(positions, q.shape[-1], base).unsqueeze(-2)
    return cartesian(magnitude(q), angle.cos(), angle.sin()).to(q.dtype)


def pope_key(
    k: Tensor, positions: Tensor, delta: Tensor, base: float | Sequence[float], magnitudes: bool = False
) -> Tensor:
    """`k [B, S, Hkv, D]`, raw or its `magnitudes`, with `delta [Hkv, D]` added to its phase -> `[B, S, Hkv, 2D]`."""
    angle = phases(positions, k.shape[-1], base).unsqueeze(-2)
    cos, sin, delta = angle.cos(), angle.sin(), delta.to(angle.dtype)
    # Angle addition: one table for all heads, instead of a cosine per head.
    turn_cos, turn_sin = delta.cos(), delta.sin()
    mu = k.to(wide(k)) if magnitudes else magnitude(k)
    return cartesian(mu, cos * turn_cos - sin * turn_sin, sin * turn_cos + cos * turn_sin).to(k.dtype)


def magnitude(x: Tensor) -> Tensor:
    """`softplus(x)`, in float32 at least."""
    # PyTorch's softplus is stable below zero; from its default threshold of 20 on it drops a term of 2e-9.
    return F.softplus(x.to(wide(x)), threshold=40)


def cartesian(mu: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """`mu [cos, sin]` of `mu [B, T, H, D]`, `[B, T, H, 2D]`."""
    return torch.cat([mu * cos.to(mu.dtype), mu * sin.to(mu.dtype)], -1)
