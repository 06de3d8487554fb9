"""The two passes of FlashAttention-4 (package flash-attn-4), for the operators in kernels/attention/fused.py.

The package's public function is an autograd function. An operator that PyTorch can compile needs its passes separately;
they are internal, so kernels/choice.py accepts one version of the package.
"""

import torch
from torch import Tensor


def fa4_forward(q: Tensor, k: Tensor, v: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """Causal attention of `q [B, T, H, W]` over `k [B, T, Hkv, W]` and `v [B, T, Hkv, D]`, in float16 or bfloat16.

    Compiles for several seconds when it is first called with new head dimensions.

    Returns:
        The output `[B, T, H, D]`, and the natural log-sum-exp `[B, H, T]` in float32.
    """
    from flash_attn.cute.interface import _flash_attn_fwd  # pyright: ignore[reportMissingImports]  # late: it is slow

    out, lse, *_ = _flash_attn_fwd(q, k, v, softmax_scale=scale, causal=True, return_lse=True)
    return out, lse


def fa4_backward(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of q, k and v from `grad [B, T, H, D]` and the results of `fa4_forward`.

    Deterministic, and slower, with `torch.use_deterministic_algorithms`.
    """
    from flash_attn.cute.interface import _flash_attn_bwd  # pyright: ignore[reportMissingImports]  # late: it is slow

    heads, shared = k.shape[2], q.shape[2] // k.shape[2]
    split = shared > 1 and k.shape[-1] != v.shape[-1]  # the package has no grouped heads for this case
    if split:
        k, v = (x.repeat_interleave(shared, 2) for x in (k, v))
    deterministic = torch.are_deterministic_algorithms_enabled()
    dq, dk, dv = _flash_attn_bwd(q, k, v, out, grad, lse, scale, causal=True, deterministic=deterministic)
    if split:
        dk, dv = (x.unflatten(2, (heads, shared)).sum(3, dtype=torch.float32).to(x.dtype) for x in (dk, dv))
    return dq, dk, dv
