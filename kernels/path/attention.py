"""PaTH attention over a whole sequence, in Triton or PyTorch.

PaTH (Yang et al., arXiv 2505.16381): with H_s = I - beta_s w_s w_s^T,

    score(t, s) = q_t^T H_t H_{t-1} ... H_{s+1} k_s.
"""

import torch
from torch import Tensor

from ..attention.plain import check_shapes, refuse_shapes
from ..choice import Implementation, Needs, Plan, choose
from ..documents import Documents
from .chunks import path_block


def path_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    w: Tensor,
    beta: Tensor,
    scale: float,
    documents: Documents | None = None,
    sums: Tensor | None = None,
    implementation: Implementation | Plan = "auto",
) -> Tensor:
    """Causal PaTH attention over a whole sequence (Yang et al., arXiv 2505.16381).

    "torch" ignores autocast and computes the Householder products in float32 or wider; it saves about T^2 / 2 numbers
    per head for the backward pass. "triton" saves none of them (kernels/path/flash.py) but needs temporary memory for
    T^2 D^2 / 2^21 numbers for the products between pairs of chunks. Inputs may have any floating-point dtype.

    Args:
        q: queries, `[B, T, H, D]`.
        k: keys, `[B, T, Hkv, D]`. Hkv must divide H.
        v: values, `[B, T, Hkv, Dv]`.
        w: directions of the Householder transforms, `[B, T, Hkv, D]`, with |w| <= 1.
        beta: their strengths, `[B, T, Hkv]`, in [0, 2].
        scale: factor of the scores; it does not apply to the gates.
        documents: boundaries of packed documents. Attention does not cross them. Default: None, each row is one
            document.
        sums: cumulative log-gates c of PaTH-FoX, `[B, T, H]` float64. c_t - c_s is added to the scaled score. Default:
            None, no gates.
        implementation: "auto" (fastest supported), "triton", "torch", or a `Plan` that was already chosen. cuDNN does
            not support Householder transforms. Default: "auto".

    Returns:
        `[B, T, H, Dv]` in the dtype of v.

    Raises:
        ValueError: incompatible shapes, or a requested implementation that does not support the inputs.
    """
    check_shapes(q, k, documents)
    wanted = {
        "k": (k, (*q.shape[:2], k.shape[2], q.shape[3])),
        "v": (v, (*k.shape[:3], v.shape[-1])),
        "w": (w, k.shape),
        "beta": (beta, k.shape[:3]),
        "sums": (sums, q.shape[:3]),
    }
    refuse_shapes(q, k, wanted)
    if planned(implementation, q, v).implementation == "triton":
        from .flash import path_flash_attention  # imports Triton, which is not available on every platform

        return path_flash_attention(q, k, v, w, beta, scale, None if documents is None else documents.borders, sums)
    with torch.autocast(q.device.type, enabled=False):
        return path_block(q, k, v, w, beta, scale, documents, sums).softmax.result(q.shape[1]).to(v.dtype)


def planned(implementation: Implementation | Plan, q: Tensor, v: Tensor) -> Plan:
    """The plan for PaTH attention on `q [B, T, H, D]` and values with the head dimension of `v`."""
    if not q.numel():
        return Plan("torch", "torch", "there is nothing to compute")
    if isinstance(implementation, Plan):
        return implementation
    head_dim, length = q.shape[-1], q.shape[1]
    needs = Needs(head_dim, head_dim, v.shape[-1], reflections=True)
    return choose(implementation, q.device, q.dtype, needs, length, length)
