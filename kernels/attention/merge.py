"""Attention with its log-sum-exp, and the merge of attention over several sets of keys into one softmax."""

from collections.abc import Sequence

import torch
from torch import Tensor

from ..choice import Implementation, Plan
from ..documents import Documents
from .dispatch import fused_attention_lse
from .distance import check_distance, distance_scores
from .plain import scale_of
from .rows import attend_rows


def attention_lse(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    table: Tensor | None = None,
    documents: Documents | None = None,
    scale: float | None = None,
    implementation: Implementation | Plan = "auto",
) -> tuple[Tensor, Tensor]:
    """Causal attention and the log-sum-exp of the scores of each query. Both are differentiable.

    Args:
        q: queries, `[B, T, H, D]`, at the last T of S positions.
        k: keys, `[B, S, Hkv, D]`. Hkv must divide H.
        v: values, `[B, S, Hkv, D]`.
        table: bias by head and distance; see `distance_attention`. Default: None.
        documents: boundaries of packed documents and windows, for all S tokens. Default: None.
        scale: factor of the dot products, above 0. Default: None, 1/sqrt(D).
        implementation: "auto" (fastest supported), "triton", "torch", or a `Plan` that was already chosen. cuDNN has no
            gradient of the log-sum-exp. Default: "auto".

    Returns:
        The output, `[B, T, H, D]`, and the natural log-sum-exp, `[B, T, H]` in float32 or wider.

    Raises:
        ValueError: incompatible shapes, scale <= 0, or a requested implementation that does not support the inputs.
    """
    scale = scale_of(q, scale)
    if table is not None:
        check_distance(q, k, table, documents, scale)
    found = fused_attention_lse(q, k, v, scale, documents, implementation, table)
    if found is not None:
        return found
    if table is not None:
        out = attend_rows(q, k, v, distance_scores(scale), (table,), documents, lse=True)
    else:
        out = attend_rows(q, k, v, lambda block: block.dots(scale), (), documents, lse=True)
    return out[..., :-1].to(v.dtype), out[..., -1]


def merge(parts: Sequence[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """Merge attention over disjoint sets of keys into attention over all of them, as one softmax.

    Args:
        parts: for each set the output `[B, T, H, D]` and the natural log-sum-exp `[B, T, H]`. A query that sees no key
            of a set has a log-sum-exp of -inf and any finite output there.

    Returns:
        The output in the dtype of the first, and the log-sum-exp, of the union.
    """
    outs, lses = zip(*parts, strict=True)
    lse = torch.logsumexp(torch.stack(lses), 0)
    weighted = [(own - lse).exp().unsqueeze(-1) * out for out, own in zip(outs, lses, strict=True)]
    return torch.stack(weighted).sum(0).to(outs[0].dtype), lse
