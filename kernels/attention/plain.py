"""Causal softmax attention in PyTorch with grouped heads, packed documents and an additive bias."""

from collections.abc import Mapping, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from ..documents import Documents
from ..precision import wide


def causal_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    documents: Documents | None = None,
    scale: float | None = None,
    bias: Tensor | None = None,
) -> Tensor:
    """Causal attention of T queries over S >= T keys; the last query is at the position of the last key.

    Computes in the dtype of q, or in that of autocast.

    Args:
        q: queries, `[B, T, H, D]`.
        k: keys, `[B, S, Hkv, D]`. Hkv must divide H.
        v: values, `[B, S, Hkv, Dv]`.
        documents: limits of attention, such as the boundaries of packed documents. Default: None.
        scale: factor of the dot products. Default: None, 1/sqrt(D).
        bias: `[B, H, T, S]`, added to the scaled scores in the dtype of q. Default: None.

    Returns:
        `[B, T, H, Dv]`.

    Raises:
        ValueError: incompatible shapes.
    """
    check_shapes(q, k, documents)
    k, v = k.to(q.dtype), v.to(q.dtype)
    length, keys, width = q.shape[1], k.shape[1], v.shape[-1]
    if width > q.shape[-1]:  # PyTorch's fused kernels need values that are not wider than keys
        parts = v.split(q.shape[-1], -1)
        return torch.cat([causal_attention(q, k, part, documents, scale, bias) for part in parts], -1)
    mask = None
    if documents is not None or bias is not None or 1 < length < keys:
        mask = visible_pairs(length, keys, documents, q.device)
        # Not every backend supports grouped heads with a mask.
        k, v = (x.repeat_interleave(q.shape[2] // x.shape[2], 2) for x in (k, v))
    if bias is not None and mask is not None:
        mask = bias.to(q.dtype).masked_fill(~mask, float("-inf"))
    elif q.device.type == "cpu" and width < q.shape[-1]:
        if length == 1 and mask is None:
            return one_query(q, k, v, scale_of(q, scale))
        v = F.pad(v, (0, q.shape[-1] - width))  # PyTorch's fused CPU kernel needs q, k and v of equal width
    # A conditional expression because torch.compile does not accept a symbolic bool here.
    causal = True if mask is None and length == keys and length > 1 else False  # noqa: SIM210
    out = F.scaled_dot_product_attention(
        q.transpose(1, 2),
        k.transpose(1, 2),
        v.transpose(1, 2),
        attn_mask=mask,
        is_causal=causal,
        scale=scale,
        enable_gqa=k.shape[2] != q.shape[2],
    )
    return out.transpose(1, 2)[..., :width]


def differentiated(*tensors: Tensor | None) -> bool:
    """Whether any of the tensors needs a gradient."""
    return torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in tensors)


def scale_of(q: Tensor, scale: float | None) -> float:
    """`scale`, or 1/sqrt(D) for `q [..., D]` if it is None."""
    return q.shape[-1] ** -0.5 if scale is None else scale


def one_query(q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
    """`causal_attention` for one new token, `q [B, 1, H, D]`, without copying keys or values.

    PyTorch's CPU kernels take twice as long if values are narrower than keys.
    """
    grouped = q.squeeze(1).unflatten(1, (k.shape[2], -1))
    weights = (torch.einsum("bhgd,bshd->bhgs", grouped, k) * scale).softmax(-1, dtype=wide(q)).to(v.dtype)
    return torch.einsum("bhgs,bshd->bhgd", weights, v).flatten(1, 2).unsqueeze(1)


def check_shapes(q: Tensor, k: Tensor, documents: Documents | None) -> None:
    """Raise ValueError for other than four dimensions, more queries than keys, indivisible heads, or documents whose
    shape differs from that of the keys."""
    if q.dim() != 4 or k.dim() != 4:
        raise ValueError(
            f"queries {list(q.shape)}, keys {list(k.shape)}: the shapes must be [B, T, H, D] and [B, S, Hkv, D]"
        )
    length, keys, heads, kv_heads = q.shape[1], k.shape[1], q.shape[2], k.shape[2]
    if length > keys:
        raise ValueError(f"{length} queries, {keys} keys: causal attention needs at least as many keys as queries")
    if not kv_heads or heads % kv_heads:
        raise ValueError(
            f"{heads} query heads, {kv_heads} key heads: the query heads must be a multiple of the key heads"
        )
    if documents is not None and documents.borders.shape[1:] != k.shape[:2]:
        raise ValueError(
            f"documents {list(documents.borders.shape[1:])} with keys {list(k.shape)}: the shape must be [B, S]"
        )


def refuse_shapes(q: Tensor, k: Tensor, wanted: Mapping[str, tuple[Tensor | None, Sequence[int]]]) -> None:
    """Raise ValueError for a tensor in `wanted`, by name, that has another shape than the one given with it."""
    for name, (x, shape) in wanted.items():
        if x is not None and x.shape != tuple(shape):
            raise ValueError(
                f"{name} {list(x.shape)} with q {list(q.shape)}, k {list(k.shape)}: the shape must be {list(shape)}"
            )


def visible_pairs(length: int, keys: int, documents: Documents | None, device: torch.device) -> Tensor:
    """Boolean mask, True where query t attends to key s: `[T, S]`, bottom-right aligned; `[B, 1, T, S]` with limits."""
    causal = torch.ones(length, keys, dtype=torch.bool, device=device).tril(keys - length)
    if documents is None:
        return causal
    starts = documents.borders[0][:, keys - length :]
    return (causal & (torch.arange(keys, device=device) >= starts.unsqueeze(-1))).unsqueeze(1)
