"""PoPE: a channel's magnitude says what, its phase says where.

PoPE (Gopalakrishnan, Csordas, Schmidhuber, Mozer, arXiv 2509.10534): with theta_c = base^(-c/D), c = 0..D-1,

    score(t, s) = sum_c softplus(q[t, c]) softplus(k[s, c]) cos((s - t) theta_c + delta[h, c]),

here as a plain dot product of the Cartesian forms [mu cos(phase), mu sin(phase)], 2D wide; values stay D wide.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from bearings.kernels.precision import wide
from bearings.kernels.rope import phases


def pope_query(q: Tensor, positions: Tensor, base: float) -> Tensor:
    """`q [B, T, H, D]` at `positions [T]` or `[B, T]` -> `[B, T, H, 2D]`, same dtype, computed in float32 at least."""
    angle = phases(positions, q.shape[-1], base).unsqueeze(-2)
    return cartesian(q, angle.cos(), angle.sin())


def pope_key(k: Tensor, positions: Tensor, delta: Tensor, base: float) -> Tensor:
    """`k [B, S, Hkv, D]` with `delta [Hkv, D]` added to its phase -> `[B, S, Hkv, 2D]`."""
    angle = phases(positions, k.shape[-1], base).unsqueeze(-2)
    cos, sin, delta = angle.cos(), angle.sin(), delta.to(angle.dtype)
    # Angle addition: one table for all heads, instead of a cosine per head.
    turn_cos, turn_sin = delta.cos(), delta.sin()
    return cartesian(k, cos * turn_cos - sin * turn_sin, sin * turn_cos + cos * turn_sin)


def cartesian(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """`softplus(x) [cos, sin]` of `x [B, T, H, D]`, `[B, T, H, 2D]`."""
    # PyTorch's softplus is stable below zero; from its default threshold of 20 on it drops a term of 2e-9.
    magnitude = F.softplus(x.to(wide(x)), threshold=40)
    return torch.cat([magnitude * cos.to(magnitude.dtype), magnitude * sin.to(magnitude.dtype)], -1).to(x.dtype)
