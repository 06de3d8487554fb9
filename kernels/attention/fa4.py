"""The two passes of FlashAttention-4 (package flash-attn-4), for the operators in kernels/attention/fused.py.

The package's public function is an autograd function. An operator that PyTorch can compile needs its passes separately;
they are internal, so kernels/choice.py accepts one version of the package.
"""

from typing import Any

import torch
from torch import Tensor


def fa4_forward(
    q: Tensor, k: Tensor, v: Tensor, scale: float, cu_seqlens: Tensor | None = None, window: int | None = None
) -> tuple[Tensor, Tensor]:
    """Causal attention of `q [B, T, H, W]` over `k [B, S, Hkv, W]` and `v [B, S, Hkv, D]`, in float16 or bfloat16.

    The queries are at the last T of S positions; with `cu_seqlens`, S = T.

    Compiles for several seconds when it is first called with new head dimensions, with documents or with a window.

    Args:
        cu_seqlens, window: see `Documents`. Default: None, each row is one document.

    Returns:
        The output `[B, T, H, D]`, and the natural log-sum-exp in float32: `[B, H, T]`, with `cu_seqlens` `[H, B * T]`.
    """
    from flash_attn.cute.interface import _flash_attn_fwd  # pyright: ignore[reportMissingImports]  # late: it is slow

    shape, limits = q.shape[:2], _limits(q.shape[1], cu_seqlens, window)
    if cu_seqlens is not None:
        q, k, v = (x.flatten(0, 1) for x in (q, k, v))
    out, lse, *_ = _flash_attn_fwd(q, k, v, softmax_scale=scale, causal=True, return_lse=True, **limits)
    return out.view(*shape, *out.shape[-2:]), lse


def fa4_backward(
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    scale: float,
    cu_seqlens: Tensor | None = None,
    window: int | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of q, k and v from `grad [B, T, H, D]` and the results of `fa4_forward`.

    Deterministic, and slower, with `torch.use_deterministic_algorithms`.
    """
    from flash_attn.cute.interface import _flash_attn_bwd  # pyright: ignore[reportMissingImports]  # late: it is slow

    heads, shared = k.shape[2], q.shape[2] // k.shape[2]
    split = shared > 1 and k.shape[-1] != v.shape[-1]  # the package has no grouped heads for this case
    if split:
        k, v = (x.repeat_interleave(shared, 2) for x in (k, v))
    shapes, limits = [x.shape[:2] for x in (q, k, v)], _limits(q.shape[1], cu_seqlens, window)
    if cu_seqlens is not None:
        q, k, v, out, grad = (x.flatten(0, 1) for x in (q, k, v, out, grad))
    limits["deterministic"] = torch.are_deterministic_algorithms_enabled()
    found = _flash_attn_bwd(q, k, v, out, grad, lse, scale, causal=True, **limits)
    dq, dk, dv = (x.view(*shape, *x.shape[-2:]) for x, shape in zip(found, shapes, strict=True))
    if split:
        dk, dv = (x.unflatten(2, (heads, shared)).sum(3, dtype=torch.float32).to(x.dtype) for x in (dk, dv))
    return dq, dk, dv


def _limits(length: int, cu_seqlens: Tensor | None, window: int | None) -> dict[str, Any]:
    """The package's arguments for documents and a window, in rows of `length` tokens. It counts a window without the
    token itself."""
    if cu_seqlens is None:
        return {}
    given = {"cu_seqlens_q": cu_seqlens, "cu_seqlens_k": cu_seqlens, "max_seqlen_q": length, "max_seqlen_k": length}
    return given if window is None else given | {"window_size_left": window - 1}
