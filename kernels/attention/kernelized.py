"""Linear attention with a factor for each distance, by chunks, in PyTorch.

o_t = sum_s c(t - s) (f_t . g_s) v_s / sum_s c(t - s) (f_t . g_s), with features f of queries and g of keys (Luo et al.,
arXiv 2106.12566). c is constant from the distance N - 1 on. A query therefore needs the products with the last N - 1
keys before its chunk and those in it, and for all earlier keys only the sum of g_s [v_s, 1].
"""

from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from ..compiling import uncompiled
from ..documents import Documents
from ..precision import wide
from .plain import check_shapes
from .rows import by_difference

CHUNK = 128


@uncompiled  # the compiled gradient fails for a single token (PyTorch 2.13)
def kernelized_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    factors: Tensor,
    documents: Documents | None = None,
    sums: Tensor | None = None,
    chunk: int = CHUNK,
) -> Tensor:
    """Causal linear attention in time O(S (chunk + N)). Chunks are computed again in the backward pass.

    Args:
        q: features of queries, `[B, T, H, M]`, positive.
        k: features of keys, `[B, S, Hkv, M]`, positive; S - T is at most N - 1. Hkv must divide H.
        v: values, `[B, S, Hkv, D]`.
        factors: c by query head and distance, `[H, N]`, positive. The last one applies to greater distances too.
        documents: boundaries of packed documents; needs S = T. Default: None, each row is one document.
        sums: `feature_sums` of the keys before the first of S, `[B, Hkv, M, D + 1]`. Each of them must be at least
            N - 1 tokens before the first query. Default: None, there are none.
        chunk: number of queries that are computed together, or N if that is more. Default: `CHUNK`.

    Returns:
        `[B, T, H, D]` in the dtype of v. Computed in float32 or wider.

    Raises:
        ValueError: incompatible shapes.
    """
    check_shapes(q, k, documents)
    earlier, reach = k.shape[1] - q.shape[1], factors.shape[1] - 1
    if earlier > (reach if documents is None else 0):
        allowed = f"at most {reach}, one less than the distances in factors," if documents is None else "none"
        raise ValueError(f"{k.shape[1]} keys, {q.shape[1]} queries: there must be {allowed} before the queries")
    starts = None if documents is None else documents.borders[0]
    with torch.autocast(q.device.type, enabled=False):
        dtype = wide(v)
        values = F.pad(v.to(dtype), (0, 1), value=1.0)  # the last channel sums the weights
        given = q.to(dtype), k.to(dtype), values, factors.to(dtype), starts, sums
        attend = partial(_attend, max(chunk, factors.shape[1]))
        if torch.is_grad_enabled():
            out = checkpoint(attend, *given, use_reentrant=False, preserve_rng_state=False)
        else:
            out = attend(*given)
        return (out[..., :-1] / out[..., -1:]).to(v.dtype)


def feature_sums(k: Tensor, v: Tensor) -> Tensor:
    """Sums of `g_s [v_s, 1]` over features `k [B, S, Hkv, M]` and values `v [B, S, Hkv, D]`: `[B, Hkv, M, D + 1]`."""
    with torch.autocast(k.device.type, enabled=False):
        return torch.einsum("bshm,bshd->bhmd", k, F.pad(v.to(k.dtype), (0, 1), value=1.0))


def _attend(
    chunk: int, q: Tensor, k: Tensor, v: Tensor, factors: Tensor, starts: Tensor | None, sums: Tensor | None
) -> Tensor:
    """Numerators and denominators `[B, T, H, D + 1]`, in n chunks of L queries. `starts [B, T]`: their first keys."""
    length, heads, reach = q.shape[1], k.shape[2], factors.shape[1] - 1
    size = max(min(chunk, length), 1)
    n = max(-(-length // size), 1)
    end = n * size - length

    def chunked(x: Tensor) -> tuple[Tensor, Tensor]:  # [B, S, Hkv, ...] -> [B, Hkv, n, reach + L, ...], [..., L, ...]
        x = F.pad(x, (0, 0, 0, 0, reach + length - x.shape[1], end)).transpose(1, 2)
        earlier = (
            x[:, :, :reach].unsqueeze(2) if n == 1 else x[:, :, : n * size].unflatten(2, (n, size))[:, :, :, :reach]
        )
        return torch.cat([earlier, x[:, :, reach:].unflatten(2, (n, size))], 3), x[:, :, : n * size].unflatten(
            2, (n, size)
        )

    queries = F.pad(q, (0, 0, 0, 0, 0, end)).unflatten(2, (heads, -1)).unflatten(1, (n, size)).permute(0, 3, 4, 1, 2, 5)
    (near_k, far_k), (near_v, far_v) = chunked(k), chunked(v)  # zero-padded at both ends; padding has weight 0
    visible = torch.ones(size, reach + size, dtype=torch.bool, device=q.device).tril(reach)
    table = by_difference(factors.unsqueeze(1).expand(-1, size, -1), reach + size).masked_fill(~visible, 0.0)
    weights = torch.einsum("bhgntm,bhnsm->bhgnts", queries, near_k) * table.unflatten(0, (heads, -1)).unsqueeze(2)
    borders = torch.arange(n, device=q.device) * size - reach  # the first key in each chunk's near keys
    sees_far = None
    if starts is not None:
        starts = F.pad(starts, (0, end))
        first = starts.unflatten(1, (n, size))  # [B, n, L]
        places = borders.unsqueeze(1) + torch.arange(reach + size, device=q.device)
        weights = weights * (places.unsqueeze(1) >= first.unsqueeze(-1))[:, None, None]
        sees_far = first < borders.unsqueeze(1)
    out = torch.einsum("bhgnts,bhnsd->bhgntd", weights, near_v)
    far = _far_sums(far_k, far_v, borders, starts, sums)
    if far is not None:
        of_far = torch.einsum("bhgntm,bhnmd->bhgntd", queries, far)
        of_far = of_far * factors[:, -1].view(heads, -1, 1, 1, 1)
        out = out + (of_far if sees_far is None else of_far * sees_far[:, None, None, :, :, None])
    return out.permute(0, 3, 4, 1, 2, 5).flatten(3, 4).flatten(1, 2)[:, :length]


def _far_sums(k: Tensor, v: Tensor, borders: Tensor, starts: Tensor | None, sums: Tensor | None) -> Tensor | None:
    """Sums over all keys before the near keys of each chunk, `[B, Hkv, n, M, D + 1]`; None if there are none.

    With documents, only over the keys in the same document as the last of them.
    """
    n, size = k.shape[2:4]
    if n == 1:
        return None if sums is None else sums.unsqueeze(2)
    if starts is None:
        parts = torch.einsum("bhnsm,bhnsd->bhnmd", k, v)
        before = F.pad(parts.cumsum(2)[:, :, :-1], (0, 0, 0, 0, 1, 0))
        return before if sums is None else before + sums.unsqueeze(2)
    ends = borders + size  # of the keys in each part
    begin = starts[:, (ends - 1).clamp(min=0)]  # [B, n], the start of the document of each part's last key
    places = borders.unsqueeze(1) + torch.arange(size, device=k.device)
    k = k * (places >= begin.unsqueeze(-1))[:, None, :, :, None]
    parts = torch.einsum("bhnsm,bhnsd->bhnmd", k, v)
    # Chunk i adds the parts before it that reach into the document at its border. There are few chunks in packed rows.
    earlier = torch.ones(n, n, dtype=torch.bool, device=k.device).tril(-1)
    begin = F.pad(begin[:, :-1], (1, 0)).unsqueeze(-1)
    return torch.einsum("bij,bhjmd->bhimd", (earlier & (ends > begin)).to(v.dtype), parts)
