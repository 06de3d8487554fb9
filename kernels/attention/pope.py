"""PoPE: magnitudes of channels encode content, phases encode position.

PoPE (Gopalakrishnan, Csordas, Schmidhuber, Mozer, arXiv 2509.10534): with theta_c = base^(-c/D), c = 0..D-1,

    score(t, s) = sum_c softplus(q[t, c]) softplus(k[s, c]) cos((s - t) theta_c + delta[h, c]),

computed as a plain dot product of the Cartesian forms [mu cos(phase), mu sin(phase)] with 2D channels. Values have D.
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
from .rope import frequencies_of, phases


def pope_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    delta: Tensor,
    base: float | Sequence[float] = 10000.0,
    documents: Documents | None = None,
    scale: float | None = None,
    implementation: Implementation | Plan = "auto",
    magnitudes: bool = False,
) -> Tensor:
    """Causal attention with PoPE (Gopalakrishnan et al., arXiv 2509.10534); the equation is at the top of this file.

    Positions count from 0 in each row; they do not restart at documents, because only differences matter. The T queries
    are at the last T of S positions. Inputs may have any floating-point dtype; angles are exact to float64. Under
    autocast inputs are cast to its dtype, except float64.

    Args:
        q: queries before softplus, `[B, T, H, D]`.
        k: keys before softplus, `[B, S, Hkv, D]`. Hkv must divide H. With `magnitudes`, softplus(k).
        v: values, `[B, S, Hkv, D]`.
        delta: learned phase offsets in radians, `[Hkv, D]`. Used as given; the caller clamps them.
        base: base of the frequencies, or the D frequencies in radians per token. Default: 10000.
        documents: boundaries of packed documents, or other limits (`Documents`). Default: None, each row
            is one document.
        scale: factor of the scores, above 0. Default: None, 1/sqrt(D).
        implementation: "auto" (fastest supported), "triton", "cudnn", "fa4" (needs flash-attn-4), "torch", or a `Plan`
            that was already chosen. Default: "auto".
        magnitudes: whether `k` already holds softplus(k). A cache stores this form: it has D channels, so decoding
            reads as many bytes as with RoPE. Default: False.

    Returns:
        `[B, T, H, D]`, in the dtype in which attention was computed.

    Raises:
        ValueError: incompatible shapes, a wrong number of frequencies, scale <= 0, or a requested implementation that
            does not support the inputs.
    """
    scale, frequencies = scale_of(q, scale), frequencies_of(base, q.shape[-1])
    form = "magnitude" if magnitudes else "polar"
    out = fused_attention(q, k, v, scale, documents, implementation, form, frequencies, delta=delta)
    if out is not None:
        return out
    positions = torch.arange(k.shape[1], device=q.device)
    q, k = pope_query(q, positions[k.shape[1] - q.shape[1] :], base), pope_key(k, positions, delta, base, magnitudes)
    return causal_attention(q, k, v, documents, scale)


def pope_query(q: Tensor, positions: Tensor, base: float | Sequence[float]) -> Tensor:
    """Cartesian form of queries. Computes in float32 or wider.

    Args:
        q: queries before softplus, `[B, T, H, D]`.
        positions: `[T]` or `[B, T]`.
        base: base of the frequencies, or the D frequencies in radians per token.

    Returns:
        `[B, T, H, 2D]` in the dtype of q.
    """
    angle = phases(positions, q.shape[-1], base).unsqueeze(-2)
    return cartesian(magnitude(q), angle.cos(), angle.sin()).to(q.dtype)


def pope_key(
    k: Tensor, positions: Tensor, delta: Tensor, base: float | Sequence[float], magnitudes: bool = False
) -> Tensor:
    """Cartesian form of keys. Computes in float32 or wider.

    Args:
        k: keys before softplus, or after it with `magnitudes`, `[B, S, Hkv, D]`.
        positions: `[S]` or `[B, S]`.
        delta: offsets added to the phases, `[Hkv, D]`.
        base: base of the frequencies, or the D frequencies in radians per token.
        magnitudes: whether `k` already holds softplus(k).

    Returns:
        `[B, S, Hkv, 2D]` in the dtype of k.
    """
    angle = phases(positions, k.shape[-1], base).unsqueeze(-2)
    cos, sin, delta = angle.cos(), angle.sin(), delta.to(angle.dtype)
    # The angle addition formulas need one table for all heads instead of one per head.
    turn_cos, turn_sin = delta.cos(), delta.sin()
    mu = k.to(wide(k)) if magnitudes else magnitude(k)
    return cartesian(mu, cos * turn_cos - sin * turn_sin, sin * turn_cos + cos * turn_sin).to(k.dtype)


def magnitude(x: Tensor) -> Tensor:
    """`softplus(x)` in float32 or wider."""
    # Above its default threshold of 20, PyTorch's softplus drops a term of 2e-9.
    return F.softplus(x.to(wide(x)), threshold=40)


def cartesian(mu: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """`[mu cos, mu sin]`, from `mu [B, T, H, D]` to `[B, T, H, 2D]`."""
    return torch.cat([mu * cos.to(mu.dtype), mu * sin.to(mu.dtype)], -1)
