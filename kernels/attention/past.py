"""Attention over keys that all precede the queries, with its log-sum-exp; `merge` adds the attention to later keys."""

import math

from torch import Tensor

from ..precision import wide
from .blocks import by_group


def past_attention(
    q: Tensor, k: Tensor, v: Tensor, sums: Tensor | None = None, by_kernel: bool = False
) -> tuple[Tensor, Tensor]:
    """Attention of T queries over S keys without a mask, and the log-sum-exp of the scores. Both are differentiable.

    Args:
        q: queries, `[B, T, H, D]`, including the factor of the scores.
        k: keys, `[B, S, Hkv, D]`. Hkv must divide H.
        v: values, `[B, S, Hkv, Dv]`.
        sums: cumulative log-gates c of the keys relative to the start of the queries, `[B, S, H]` in float64. -c_s is
            added to the score of key s. Default: None, no gates.
        by_kernel: whether Triton computes this. PyTorch saves T S numbers per head for the backward pass. Default:
            False.

    Returns:
        The output, `[B, T, H, Dv]` in the dtype of v, and the natural log-sum-exp, `[B, T, H]` in float32 or wider.
    """
    if by_kernel and k.shape[1]:  # the kernel would divide by a sum over no keys
        from .flash_past import past_forward  # imports Triton, which is not available on every platform

        out, lse = past_forward(q, k, v, sums)
        return out, lse.transpose(1, 2) * math.log(2)
    heads, dtype = k.shape[2], wide(q)
    queries = q.to(dtype).unflatten(2, (heads, -1)).permute(0, 2, 3, 1, 4)
    scores = by_group(queries, k.to(dtype).transpose(1, 2).mT)
    if sums is not None:
        scores = scores - sums.to(dtype).unflatten(2, (heads, -1)).permute(0, 2, 3, 1).unsqueeze(3)
    out = by_group(scores.softmax(-1), v.to(dtype).transpose(1, 2))
    lse = scores.logsumexp(-1)
    return out.permute(0, 3, 1, 2, 4).flatten(2, 3).to(v.dtype), lse.permute(0, 3, 1, 2).flatten(2)
