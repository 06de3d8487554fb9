"""Causal attention by blocks of query rows, in PyTorch, for scores that no fused kernel supports.

A block holds the scores of all heads between some queries and all keys that they may see. The backward pass recomputes
each block, so memory grows with the rows of one block times the number of keys, not with their square. The computation
is exact for any function of the scores, and serves as the reference of the faster implementations.

Scores, softmax and products are float32 or wider, and so are the sums of gradients over the blocks. If q, k and v have
16 bits, products on a GPU use TF32, which represents them exactly and rounds weights less than fused kernels do.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from threading import Lock
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from ..compiling import uncompiled
from ..documents import Documents
from ..precision import wide
from .plain import check_shapes

SCORES = 2**24  # scores in one block, over all heads and sequences
SWITCHING = Lock()  # the precision of products is one setting for all threads


class Rows(NamedTuple):
    """R consecutive queries and the S keys up to the last of them.

    Attributes:
        q: queries `[B, R, H, D]`, in float32 or wider.
        k: keys `[B, S, Hkv, D]`, in the same dtype.
        begin: index of the first of these queries among all queries.
        visible: True where a query sees a key, `[R, S]`; `[B, 1, R, S]` with documents.
        short: whether the inputs q, k and v have 16 bits and are on a GPU.
    """

    q: Tensor
    k: Tensor
    begin: int
    visible: Tensor
    short: bool = False

    def dots(self, scale: float = 1.0) -> Tensor:
        """The products q_t . k_s times `scale`, `[B, H, R, S]`."""
        (batch, rows, heads, width), (_, keys, kv_heads, _) = self.q.shape, self.k.shape
        # The query heads of a key head follow each other.
        q = self.q.transpose(1, 2).reshape(batch * kv_heads, heads // kv_heads * rows, width)
        return product(q, self.k.transpose(1, 2).flatten(0, 1).mT, scale, self.short).view(batch, heads, rows, keys)

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

        Each query is multiplied once by each row of the table. Entries where t < s are arbitrary.
        """
        return self.by_distance(torch.einsum("brhd,nd->bhrn", self.q, table[: self.k.shape[1]].to(self.q.dtype)))

    def key_products(self, table: Tensor) -> Tensor:
        """k_s . table[t - s], `[B, H, R, S]`; see `query_products`."""
        (_, rows, heads, _), keys, kv_heads = self.q.shape, self.k.shape[1], self.k.shape[2]
        table = table[:keys].to(self.k.dtype)
        near = min(keys, table.shape[0] + rows - 1)  # farther keys need the last row only
        far = torch.einsum("bshd,d->bhs", self.k[:, : keys - near], table[-1]).unsqueeze(-2).expand(-1, -1, rows, -1)
        # In reversed order, key i is at distance i - j of query j.
        backwards = torch.einsum("bshd,nd->bhsn", self.k[:, keys - near :].flip(1), table)
        products = by_difference(backwards, near)[..., :rows].flip(-2, -1).mT
        return torch.cat([far, products], -1).repeat_interleave(heads // kv_heads, 1)


def by_difference(values: Tensor, columns: int) -> Tensor:
    """From `values [..., R, N]` to `[..., R, C]`, C >= R: entry (r, c) is values[r, min(C - R + r - c, N - 1)].

    Entries with a negative index are arbitrary. Padding and reshaping shift each row by one column relative to the row
    above, so the gradient needs no atomic additions and no indices.
    """
    rows, missing = values.shape[-2], max(columns - values.shape[-1], 0)
    extended = torch.cat([values[..., :columns], values[..., -1:].expand(*values.shape[:-1], missing)], -1)
    width = columns + rows - 1
    shifted = F.pad(extended.flip(-1), (0, rows)).flatten(-2)[..., rows - 1 : rows - 1 + rows * width]
    return shifted.unflatten(-1, (rows, width))[..., :columns]


def sums_of_later_keys(x: Tensor) -> Tensor:
    """For each key, the sum over the keys after it: entry s of `x [..., S]` becomes x_{s+1} + ... + x_{S-1}.

    Summation begins at the last key, so sums of near keys are small, and so are their rounding errors.
    """
    return F.pad(x[..., 1:], (0, 1)).flip(-1).cumsum(-1).flip(-1)


def product(a: Tensor, b: Tensor, scale: float = 1.0, short: bool = False) -> Tensor:
    """`scale a @ b` of `a [N, L, K]` and `b [N, K, M]`; with `short`, float32 products use TF32.

    The scale is applied within the matrix product, which saves a pass over the result.
    """
    return _ShortProduct.apply(a, b, scale) if short else _scaled_product(a, b, scale)


class _ShortProduct(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor, scale: float) -> Tensor:
        ctx.save_for_backward(a, b)
        ctx.scale = scale
        with _tf32():
            return _scaled_product(a, b, scale)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        a, b = ctx.saved_tensors
        with _tf32():
            grad_a = _scaled_product(grad, b.mT, ctx.scale) if ctx.needs_input_grad[0] else None
            grad_b = _scaled_product(a.mT, grad, ctx.scale) if ctx.needs_input_grad[1] else None
        return grad_a, grad_b, None


def _scaled_product(a: Tensor, b: Tensor, scale: float) -> Tensor:
    return torch.baddbmm(a.new_zeros(()), a, b, beta=0, alpha=scale)


@contextmanager
def _tf32() -> Iterator[None]:
    """Use TF32 for float32 matrix products on a GPU."""
    products = torch.backends.cuda.matmul
    with SWITCHING:
        before = products.fp32_precision
        try:
            products.fp32_precision = "tf32"
            yield
        finally:
            products.fp32_precision = before


Function = Callable[..., Tensor]


def queries_in_block(batch: int, heads: int, keys: int) -> int:
    """As many queries as make `SCORES` scores with all `keys`, at least one."""
    return max(1, SCORES // max(1, batch * heads * keys))


@uncompiled  # the compiler would unroll the loop over blocks
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

    `scores` runs again in the backward pass. It must depend on nothing but its arguments: only what is passed in
    `tensors` gets a gradient, not what `scores` reads from a module.

    Args:
        q: queries, `[B, T, H, D]`.
        k: keys, `[B, S, Hkv, D]`. Hkv must divide H.
        v: values, `[B, S, Hkv, Dv]`.
        scores: `scores(block, *tensors)` returns the scores `[B, H, R, S]` of a `Rows`, including their scale. Keys
            that are not visible are masked afterwards, so their scores may have any value except NaN.
        tensors: tensors that `scores` takes; None is passed on.
        documents: boundaries of packed documents and windows, for all S tokens. Default: None.
        rows: number of queries in a block. Default: None, `queries_in_block`.
        lse: whether the result has one more channel, the log-sum-exp of the scores of each query. Default: False.

    Returns:
        `[B, T, H, Dv]` in the dtype of v, or with `lse`, `[B, T, H, Dv + 1]` in float32 or wider.

    Raises:
        ValueError: incompatible shapes.
    """
    check_shapes(q, k, documents)
    rows = rows or queries_in_block(q.shape[0], q.shape[2], k.shape[1])
    starts = None if documents is None else documents.borders[0]
    return _RowBlocks.apply(scores, rows, lse, starts, q, k, v, *tensors)


class _RowBlocks(torch.autograd.Function):
    """`attend_rows`, whose backward pass computes each block again."""

    @staticmethod
    def forward(
        ctx: Any,
        scores: Function,
        rows: int,
        lse: bool,
        starts: Tensor | None,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *tensors: Tensor | None,
    ) -> Tensor:
        ctx.scores, ctx.rows, ctx.lse = scores, rows, lse
        ctx.save_for_backward(starts, q, k, v, *tensors)
        out = v.new_empty(*q.shape[:3], v.shape[-1] + lse, dtype=wide(v) if lse else v.dtype)
        settings = scores, lse, _short(q, k, v), starts
        with torch.autocast(q.device.type, enabled=False):
            k, v = _by_head(k), _by_head(v)
            for new, seen in _blocks(q.shape[1], k.shape[1], rows):
                out[:, new] = _attend(*settings, new, q[:, new], k[:, seen], v[:, seen], *tensors)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        starts, *given = ctx.saved_tensors
        wanted = [index for index, need in enumerate(ctx.needs_input_grad[4:]) if need]
        sums = {index: torch.zeros_like(given[index], dtype=wide(given[index])) for index in wanted}
        q, k, v, *tensors = given
        settings = ctx.scores, ctx.lse, _short(q, k, v), starts
        with torch.autocast(q.device.type, enabled=False):
            whole = q, _by_head(k), _by_head(v), *tensors
            for new, seen in _blocks(q.shape[1], k.shape[1], ctx.rows):
                places = [(slice(None), each) for each in (new, seen, seen)] + [...] * len(tensors)
                parts: list[Any] = [x if x is None else x[at].detach() for x, at in zip(whole, places, strict=True)]
                leaves = [parts[index].requires_grad_() for index in wanted]
                with torch.enable_grad():
                    out = _attend(*settings, new, *parts)
                if not out.requires_grad:
                    continue
                found = torch.autograd.grad(out, leaves, grad[:, new], allow_unused=True)
                for index, each in zip(wanted, found, strict=True):
                    if each is not None:
                        sums[index][places[index]] += each
        return *[None] * 4, *(sums[index].to(x.dtype) if index in sums else None for index, x in enumerate(given))


def _short(*tensors: Tensor) -> bool:
    return all(x.dtype.itemsize == 2 and x.is_cuda for x in tensors)


def _by_head(x: Tensor) -> Tensor:
    """`x [B, S, Hkv, D]` in float32 or wider, with contiguous tokens in each head, so that products need no copy."""
    return x.to(wide(x)).transpose(1, 2).contiguous().transpose(1, 2)


def _blocks(length: int, keys: int, rows: int) -> Iterator[tuple[slice, slice]]:
    """The queries of each block, and the keys up to the last of them."""
    for begin in range(0, length, rows):
        end = min(begin + rows, length)
        yield slice(begin, end), slice(keys - length + end)


def _attend(
    scores: Function,
    lse: bool,
    short: bool,
    starts: Tensor | None,
    new: slice,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *tensors: Tensor | None,
) -> Tensor:
    """Attention of one block `[B, R, H, Dv]`; `starts [B, S]` is the first key that each token sees, None for all."""
    keys = torch.arange(k.shape[1], device=q.device)
    visible = keys <= keys[-q.shape[1] :, None]
    if starts is not None:
        visible = (visible & (keys >= starts[:, k.shape[1] - q.shape[1] : k.shape[1], None])).unsqueeze(1)
    dtype = torch.promote_types(wide(q), k.dtype)
    block = Rows(q.to(dtype), k.to(dtype), new.start, visible, short)
    masked = scores(block, *tensors).masked_fill(~visible, float("-inf"))
    weights, values = masked.softmax(-1), v.transpose(1, 2).flatten(0, 1)
    dtype = torch.promote_types(v.dtype, weights.dtype)
    grouped = weights.reshape(len(values), q.shape[2] // k.shape[2] * q.shape[1], k.shape[1])
    out = product(grouped.to(dtype), values.to(dtype), short=short).view(*weights.shape[:3], v.shape[3]).transpose(1, 2)
    return torch.cat([out, masked.logsumexp(-1).mT.unsqueeze(-1)], -1) if lse else out
