"""FoX: attention whose scores decay by the forget gates passed on the way from key to query.

FoX (Lin et al., arXiv 2503.02130): sum_{u=s+1..t} log f_u = c_t - c_s is added to the score, per head and unscaled,
with the cumulative log-gates c_t = sum_{u<=t} log f_u. They grow with the length while the differences that matter stay
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
    """c of f = sigmoid(`logits [B, T, H]`), in float64, going on from `before [B, H]` of the last token seen."""
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
    """Causal attention of `q [B, T, H, D]` on the last T of `k, v [B, S, Hkv, D]`, with c given as `sums [B, S, H]`.

    By PyTorch's operations a whole sequence (T == S) is computed in float32 at least, whatever autocast says. Other
    arguments, result and errors as of `kernels/attention/nope.py`.
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
    bias = sums[..., -q.shape[1] :].unsqueeze(-1) - sums.unsqueeze(-2)
    return causal_attention(q, k, v, documents=documents, scale=scale, bias=bias.to(q.dtype))


def plain_chunks(queries: Tensor, keys: Tensor, chunked: Callable[[Tensor], Tensor]) -> Chunks:
    """Dot products alone: nothing happens to queries and keys between chunks."""
    return Chunks(by_group(queries, keys.mT), queries, keys, None)
