"""Attention without a positional encoding, or with one that has already been applied to q and k."""

from torch import Tensor

from ..choice import Implementation, Plan
from ..documents import Documents
from .dispatch import fused_attention
from .plain import causal_attention, scale_of


def nope_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    documents: Documents | None = None,
    scale: float | None = None,
    implementation: Implementation | Plan = "auto",
) -> Tensor:
    """Causal softmax attention, score(t, s) = q_t . k_s (Vaswani et al., arXiv 1706.03762).

    T queries attend to S >= T keys; the last query is at the position of the last key. Inputs may have any
    floating-point dtype. Under autocast they are cast to its dtype, except float64.

    Args:
        q: queries, `[B, T, H, D]`.
        k: keys, `[B, S, Hkv, D]`. Hkv must divide H; each key head serves H / Hkv query heads.
        v: values, `[B, S, Hkv, Dv]`. Kernels support some widths Dv other than D, at most 2D; PyTorch supports all.
        documents: boundaries of packed documents, or other limits (`Documents`). Default: None, each row
            is one document.
        scale: factor of the dot products, above 0. Default: None, 1/sqrt(D).
        implementation: "auto" (fastest supported), "triton", "cudnn", "fa4" (needs flash-attn-4), "torch", or a `Plan`
            that was already chosen. Default: "auto".

    Returns:
        `[B, T, H, Dv]`, in the dtype in which attention was computed.

    Raises:
        ValueError: incompatible shapes, scale <= 0, or a requested implementation that does not support the inputs.
    """
    scale = scale_of(q, scale)
    out = fused_attention(q, k, v, scale, documents, implementation)
    return causal_attention(q, k, v, documents, scale) if out is None else out
