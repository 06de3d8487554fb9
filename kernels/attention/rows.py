"""Causal attention by blocks of query rows, in PyTorch, for scores that no fused kernel supports.

A block holds the scores of all heads between some queries and all keys that they may see. The backward pass recomputes
each block, so memory grows with the rows of one block times the number of keys, not with their square. The computation
is exact for any function of the scores, and serves as the reference of the faster implementations.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from ..documents import Documents
from ..precision import wide
from .plain import check_shapes

SCORES = 2**24  # scores in one block, over all heads and sequences


class Rows(NamedTuple):
    """R consecutive queries and the S keys up to the last of them.

    Attributes:
        q: queries `[B, R, H, D]`, in float32 or wider.
        k: keys `[B, S, Hkv, D]`, in the same dtype.
        begin: index of the first of these queries among all queries.
        visible: True where a query sees a key, `[R, S]`; `[B, 1, R, S]` with documents.
    """

    q: Tensor
    k: Tensor
    begin: int
    visible: Tensor

    def dots(self) -> Tensor:
        """q_t . k_s, `[B, H, R, S]`."""
        grouped = self.q.unflatten(2, (self.k.shape[2], -1))
        return torch.einsum("brhgd,bshd->bhgrs", grouped, self.k).flatten(1, 2)

    def distances(self) -> Tensor:
        """t - s, integers `[R, S]`; negative where the key follows the query."""
        keys = torch.arange(self.k.shape[1], device=self.k.device)
        return keys[-self.q.shape[1] :, None] - keys

    def by_distance(self, values: Tensor) -> Tensor:
        """Entry t - s of `values [..., R or 1, N]`, or the last where t - s >= N, as `[..., R, S]`.

        Entries where t < s are arbitrary.
        """
        return by_difference(values.expand(*values.shape[:-2], self.q.shape[1], -1), self.k.shape[1])

    def query_products(self, table: Tensor) -> Tensor:
        """q_t . table[t - s], `[B, H, R, S]`, of a `table [N, D]` whose last row applies to all greater distances.

        It takes one product of each query with each row of the table. Entries where t < s are arbitrary.
        """
        return self.by_distance(torch.einsum("brhd,nd->bhrn", self.q, table[: self.k.shape[1]].to(self.q.dtype)))

    def key_products(self, table: Tensor) -> Tensor:
        """k_s . table[t - s], `[B, H, R, S]`; otherwise as `query_products`."""
        (_, rows, heads, _), keys, kv_heads = self.q.shape, self.k.shape[1], self.k.shape[2]
        table = table[:keys].to(self.k.dtype)
        near = min(keys, table.shape[0] + rows - 1)  # farther keys need the last row only
        far = torch.einsum("bshd,d->bhs", self.k[:, : keys - near], table[-1]).unsqueeze(-2).expand(-1, -1, rows, -1)
        # In reversed order, key i is at distance i - j of query j.
        backwards = torch.einsum("bshd,nd->bhsn", self.k[:, keys - near :].flip(1), table)
        products = by_difference(backwards, near)[..., :rows].flip(-2, -1).mT
        return torch.cat([far, products], -1).repeat_interleave(heads // kv_heads, 1)


def by_difference(values: Tensor, columns: int) -> Tensor:
    """Entry C - R + r - c of row r of `values [..., R, N]`, or its last, in column c of `[..., R, C]`, with C >= R.

    Each row is shifted by one column against the row above. Padding and reshaping do that, so the gradient needs no
    atomic additions and no indices.
    """
    rows, missing = values.shape[-2], max(columns - values.shape[-1], 0)
    extended = torch.cat([values[..., :columns], values[..., -1:].expand(*values.shape[:-1], missing)], -1)
    width = columns + rows - 1
    shifted = F.pad(extended.flip(-1), (0, rows)).flatten(-2)[..., rows - 1 : rows - 1 + rows * width]
    return shifted.unflatten(-1, (rows, width))[..., :columns]


def sums_of_later_keys(x: Tensor) -> Tensor:
    """For each key, the sum over the keys after it: entry s of `x [..., S]` becomes x_{s+1} + ... + x_{S-1}.

    Sums begin at the last key, so those of near keys are small and their rounding errors too.
    """
    return F.pad(x[..., 1:], (0, 1)).flip(-1).cumsum(-1).flip(-1)


Function = Callable[..., Tensor]


def attend_rows(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scores: Function,
    tensors: Sequence[Tensor | None] = (),
    documents: Documents | None = None,
    rows: int | None = None,
    lse: bool = False,
) -> Tensor:
    """Causal attention of T queries over S >= T keys; the last query is at the position of the last key.

    `scores` runs again in the backward pass. It must depend on nothing but its arguments: pass the parameters that it
    needs in `tensors` instead of reading them from a module.

    Args:
        q: queries, `[B, T, H, D]`.
        k: keys, `[B, S, Hkv, D]`. Hkv must divide H.
        v: values, `[B, S, Hkv, Dv]`.
        scores: `scores(block, *tensors)` returns the scores `[B, H, R, S]` of a `Rows`, including their scale. Keys
            that are not visible are masked afterwards, so their scores may have any value except NaN.
        tensors: tensors that `scores` takes; None is passed on.
        documents: boundaries of packed documents and windows, for all S tokens. Default: None.
        rows: number of queries in a block. Default: None, as many as make `SCORES` scores.
        lse: whether the result has one more channel, the log-sum-exp of the scores of each query. Default: False.

    Returns:
        `[B, T, H, Dv]` in the dtype of v, or with `lse`, `[B, T, H, Dv + 1]` in float32 or wider. Scores, softmax and
        products are computed in float32 or wider.

    Raises:
        ValueError: incompatible shapes.
    """
    check_shapes(q, k, documents)
    (batch, length, heads, _), keys = q.shape, k.shape[1]
    rows = rows or max(1, SCORES // max(1, batch * heads * keys))
    starts = None if documents is None else documents.borders[0]
    parts = []
    with torch.autocast(q.device.type, enabled=False):
        for begin in range(0, length, rows):
            end = min(begin + rows, length)
            last = keys - length + end
            limits = None if starts is None else starts[:, last - (end - begin) : last]
            given = scores, lse, begin, q[:, begin:end], k[:, :last], v[:, :last], limits, *tensors
            if torch.is_grad_enabled():
                parts.append(checkpoint(_attend, *given, use_reentrant=False, preserve_rng_state=False))
            else:
                parts.append(_attend(*given))
    return torch.cat(parts, 1)


def _attend(
    scores: Function,
    lse: bool,
    begin: int,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    starts: Tensor | None,
    *tensors: Tensor | None,
) -> Tensor:
    """Attention of one block `[B, R, H, Dv]`. `starts [B, R]` is the first key that each query sees; None for all."""
    keys = torch.arange(k.shape[1], device=q.device)
    visible = keys <= keys[-q.shape[1] :, None]
    if starts is not None:
        visible = (visible & (keys >= starts.unsqueeze(-1))).unsqueeze(1)
    block = Rows(q.to(wide(q)), k.to(wide(q)), begin, visible)
    masked = scores(block, *tensors).masked_fill(~visible, float("-inf"))
    weights = masked.softmax(-1).unflatten(1, (v.shape[2], -1))
    values = v.to(torch.promote_types(v.dtype, weights.dtype))
    out = torch.einsum("bhgrs,bshd->brhgd", weights.to(values.dtype), values).flatten(2, 3)
    return torch.cat([out, masked.logsumexp(-1).mT.unsqueeze(-1)], -1) if lse else out.to(v.dtype)
