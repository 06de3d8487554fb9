"""FoX: attention scores decay by the forget gates between key and query.

FoX (Lin et al., arXiv 2503.02130): sum_{u=s+1..t} log f_u = c_t - c_s is added to the scaled score of each head, where
c_t = sum_{u<=t} log f_u are the cumulative log-gates. c grows with the length while the relevant differences stay
small, so c is kept in float64 and rounded only after the subtraction.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from ..choice import Implementation, Plan
from ..documents import Documents
from ..precision import wide, widest
from .blocks import Chunks, attend_in_blocks, by_group
from .dispatch import fused_attention
from .plain import causal_attention, scale_of


def cumulative_log_gates(logits: Tensor, before: Tensor | None = None) -> Tensor:
    """Cumulative log-gates c of the gates f = sigmoid(logits).

    Args:
        logits: `[B, T, H]`.
        before: c of the previous token, `[B, H]`; None at the start of a sequence.

    Returns:
        `[B, T, H]` in float64 (float32 on mps).
    """
    sums = F.logsigmoid(logits.to(wide(logits))).to(widest(logits.device)).cumsum(1)
    return sums if before is None else sums + before.unsqueeze(1)


def fox_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    sums: Tensor,
    documents: Documents | None = None,
    scale: float | None = None,
    implementation: Implementation | Plan = "auto",
) -> Tensor:
    """Causal attention with forget gates (Lin et al., arXiv 2503.02130), score(t, s) = scale q_t . k_s + c_t - c_s.

    The T queries are at the last T of S positions. Inputs may have any floating-point dtype. Under autocast inputs are
    cast to its dtype, except that "torch" computes whole sequences (T == S) in float32 or wider.

    Args:
        q: queries, `[B, T, H, D]`.
        k: keys, `[B, S, Hkv, D]`. Hkv must divide H.
        v: values, `[B, S, Hkv, D]`.
        sums: cumulative log-gates c, `[B, S, H]` float64; see `cumulative_log_gates`.
        documents: boundaries of packed documents, or other limits (`Documents`). Default: None, each row
            is one document.
        scale: factor of the dot products, above 0; it does not apply to the gates. Default: None, 1/sqrt(D).
        implementation: "auto" (fastest supported), "triton", "torch", or a `Plan` that was already chosen. cuDNN does
            not support gates. Default: "auto".

    Returns:
        `[B, T, H, D]`: with "torch" in the dtype of v, with "triton" in the dtype in which attention was computed.

    Raises:
        ValueError: incompatible shapes, scale <= 0, or a requested implementation that does not support the inputs.
    """
    scale = scale_of(q, scale)
    out = fused_attention(q, k, v, scale, documents, implementation, sums=sums)
    if out is not None:
        return out
    if q.shape[1] == k.shape[1]:
        with torch.autocast(q.device.type, enabled=False):
            blocks = attend_in_blocks(q, k, v, plain_chunks, scale, documents, sums)
            return blocks.softmax.result(q.shape[1]).to(v.dtype)
    sums = sums.transpose(1, 2)
    bias = sums[..., k.shape[1] - q.shape[1] :].unsqueeze(-1) - sums.unsqueeze(-2)
    return causal_attention(q, k, v, documents=documents, scale=scale, bias=bias.to(q.dtype))


def plain_chunks(queries: Tensor, keys: Tensor, chunked: Callable[[Tensor], Tensor]) -> Chunks:
    """Plain dot products; queries and keys do not change between chunks."""
    return Chunks(by_group(queries, keys.mT), queries, keys, None)
