"""Attention to the nearest keys and to the first ones, in time and memory proportional to the window."""

import torch
from torch import Tensor

from ..precision import wide
from .plain import check_shapes

ROWS = 256  # queries in one block


def nearest_and_first(
    q: Tensor, k: Tensor, v: Tensor, far_q: Tensor, far_k: Tensor, window: int, scale: float
) -> Tensor:
    """Attention with the mask of LM-Infinite (Han et al., arXiv 2308.16137).

    T queries are at the last T of S positions. Query t sees key s at distance d = t - s

    - if 0 <= d < window, with score scale q_t . k_s;
    - if d >= window and s < N, with score scale far_q_t . far_k_s.

    Args:
        q: queries, `[B, T, H, W]`, encoded at their positions.
        k: keys, `[B, S, Hkv, W]`, encoded at their positions. Hkv must divide H.
        v: values, `[B, S, Hkv, D]`.
        far_q: queries `[B, T, H, W]`, encoded at the largest distance.
        far_k: the first N keys `[B, N, Hkv, W]`, encoded at position 0; N < window.
        window: number of nearest keys, the query's own included.
        scale: factor of the dot products.

    Returns:
        `[B, T, H, D]` in the dtype of v.

    Raises:
        ValueError: incompatible shapes.
    """
    check_shapes(q, k, None)
    length, keys, first = q.shape[1], k.shape[1], far_k.shape[1]
    parts = []
    with torch.autocast(q.device.type, enabled=False):
        for begin in range(0, max(length, 1), ROWS):
            rows = slice(begin, min(begin + ROWS, length))
            t = torch.arange(keys - length, keys, device=q.device)[rows, None]
            near = slice(max(0, keys - length + rows.start - window + 1), keys - length + rows.stop)
            d = t - torch.arange(near.start, near.stop, device=q.device)
            scores = _dots(q[:, rows], k[:, near]).masked_fill((d < 0) | (d >= window), float("-inf"))
            far = t - torch.arange(first, device=q.device) < window
            scores = torch.cat([scores, _dots(far_q[:, rows], far_k).masked_fill(far, float("-inf"))], -1)
            weights = (scores * scale).softmax(-1).unflatten(1, (v.shape[2], -1))
            values = torch.cat([v[:, near], v[:, :first]], 1).to(weights.dtype)
            parts.append(torch.einsum("bhgrs,bshd->brhgd", weights, values).flatten(2, 3).to(v.dtype))
    return torch.cat(parts, 1)


def _dots(q: Tensor, k: Tensor) -> Tensor:
    """q_t . k_s in float32 or wider, `[B, H, R, S]`."""
    grouped = q.to(wide(q)).unflatten(2, (k.shape[2], -1))
    return torch.einsum("brhgd,bshd->bhgrs", grouped, k.to(grouped.dtype)).flatten(1, 2)
