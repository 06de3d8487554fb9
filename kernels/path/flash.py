"""PaTH attention in Triton as a PyTorch operator: deterministic, for any length.

kernels/path/README.md describes the algorithm. Saved for the backward pass are q, k, v, w, beta, output and
log-sum-exp. Short sequences (SHORT in kernels/path/slices.py) also save the preprocessed blocks and nodes and the
pulled queries; for longer ones the backward pass recomputes them. A `bordered` call also returns what other parts of
the sequence need (parts.py): queries and keys at the borders of chunks and the products of chunks. Their gradients,
and that of the log-sum-exp, join those of the attention within this part in the backward pass.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
import triton
from torch import Tensor

from ..attention.gates import gates_of
from ..layout import in_rows, packed_shape, parts, row_of
from ..operator import operator
from .backward import Outer, backward
from .call import Call
from .forward import forward
from .prepare import Prepared, empty, prepare
from .pull import Pulled, empty_queries
from .sizes import BLOCK, Sizes, sizes_of
from .slices import SHORT, slice_of

Kept = tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]


def path_flash_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    w: Tensor,
    beta: Tensor,
    scale: float,
    borders: Tensor | None = None,
    sums: Tensor | None = None,
) -> Tensor:
    """Causal PaTH attention over a whole sequence. For arguments and result see `path_attention`.

    `borders` are those of `Documents`. Computes in the dtype of q (float32, bfloat16 or float16). Products of
    reflections are in float16, or in float32 for float32 inputs.
    """
    out, *_ = path_forward(q, k.to(q.dtype), v.to(q.dtype), w.to(q.dtype), beta.float(), scale, borders, sums, False)
    return out.to(v.dtype)


@operator("bearings::path_forward")
def path_forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    w: Tensor,
    beta: Tensor,
    scale: float,
    borders: Tensor | None,
    sums: Tensor | None,
    bordered: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Attention of a whole sequence, or of a part of one if `bordered`.

    Returns:
        The output, `[B, T, H, Dv]`; the log-sum-exp, `[B H, Tp]` in base 2; eight saved tensors (`kept`), empty for
        long sequences; and the products of chunks, `[N, n, DP, DP]`. Unless `bordered` there are no products, and only
        the output is differentiable. Otherwise `k_bar` and `q_bar` are never empty, and they, the products and the
        log-sum-exp are differentiable too.
    """
    q, k, v, w, beta = in_rows(q, k, v, w, beta)
    sizes = sizes_of(q, k, v, bordered=bordered)._replace(q_row=row_of(q), kv_row=row_of(k))
    keep = sizes.length <= SHORT
    prepared = prepare(k, w, beta, sizes, keep)
    call = Call(q, k, v, w, beta, scale, sizes, *gates_of(sums, sizes.padded), *borders_of(borders, sizes))
    out, lse, pulled = forward(call, prepared, keep)
    products, k_bar = q.new_empty(0, dtype=torch.float32), prepared.k_bar
    if bordered and k_bar is not None:
        products = prepared.nodes[:, :, -1].to(torch.float32, copy=True)
        k_bar = k_bar.to(k.dtype)  # the range of float16 is too small for its gradient
        k_bar[:, triton.cdiv(sizes.length, BLOCK) * BLOCK :] = 0  # no kernel writes this padding
    return out, lse, *kept(q, prepared if keep else None, pulled, k_bar if bordered else None), products


def kept(like: Tensor, prepared: Prepared | None, pulled: Pulled | None, k_bar: Tensor | None = None) -> Kept:
    """The fields of `prepared` and `pulled` as eight tensors that an operator can return. An empty one stands for None.

    `k_bar` takes the place of `prepared.k_bar` if `prepared` is None.
    """
    first = prepared or (None, None, None, None, k_bar, None)
    u, z, nodes, keys, k_bar, inverse, seen, q_bar = (
        like.new_empty(0) if x is None else x for x in (*first, *(pulled or [None] * 2))
    )
    return u, z, nodes, keys, k_bar, inverse, seen, q_bar


def regained(kept: list[Tensor], part: "Slice") -> tuple[Prepared | None, Pulled | None]:
    """`prepared` and `pulled` from the result of `kept`, for the sequences and heads of `part`."""
    if kept[0].dim() == 1:
        return None, None
    u, z, nodes, keys = (part.of_folded(x, part.kv_heads) for x in kept[:4])
    k_bar, inverse = (None if x.dim() == 1 else part.of_folded(x, part.kv_heads) for x in kept[4:6])
    seen, q_bar = kept[6:]
    pulled = Pulled(part.of_folded(seen, part.heads), None if q_bar.dim() == 1 else part.of_folded(q_bar, part.heads))
    return Prepared(u, z, nodes, keys, k_bar, inverse), pulled


@path_forward.register_fake
def _(q, k, v, w, beta, scale, borders, sums, bordered):
    sizes = sizes_of(q, k, v, bordered=bordered)
    out = v.new_empty(sizes.batch, sizes.length, sizes.heads, sizes.value_dim)
    lse = q.new_empty(sizes.batch * sizes.heads, sizes.padded, dtype=torch.float32)
    prepared, pulled = empty(k, sizes), empty_queries(q, sizes)
    n, chunks, width = sizes.batch * sizes.kv_heads, sizes.chunks, sizes.width
    products = q.new_empty((n, chunks, width, width) if bordered else 0, dtype=torch.float32)
    if sizes.length <= SHORT:
        return out, lse, *kept(q, prepared, pulled), products
    if bordered:
        return out, lse, *kept(q, None, pulled._replace(seen=q.new_empty(0)), prepared.k_bar), products
    return out, lse, *kept(q, None, None), products


@operator("bearings::path_backward")
def path_backward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    w: Tensor,
    beta: Tensor,
    scale: float,
    borders: Tensor | None,
    sums: Tensor | None,
    out: Tensor,
    lse: Tensor,
    kept: list[Tensor],
    dout: Tensor,
    outer: list[Tensor],
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """dq, dk and dv in one tensor, dw, dbeta, and dsums (empty without sums).

    `outer` are the gradients of log-sum-exp, `k_bar`, `q_bar` and products of a bordered call, otherwise empty.
    """
    q, k, v, w, beta, dout = in_rows(q, k, v, w, beta, dout)
    packed, dw, dbeta = q.new_empty(packed_shape(q, k, v)), torch.empty_like(w), torch.empty_like(beta)
    gradients = [*parts(packed, q, k, v), dw, dbeta]
    dsums = lse.new_empty(0) if sums is None else torch.empty_like(sums, memory_format=torch.contiguous_format)
    for part in slices(q, k):
        own_q, own_out, own_dout, own_dq = (part.of(x, part.heads) for x in (q, out, dout, gradients[0]))
        own_k, own_v, own_w, own_beta, *found = (part.of(x, part.kv_heads) for x in (k, v, w, beta, *gradients[1:]))
        sizes = sizes_of(own_q, own_k, own_v, bordered=bool(outer))
        sizes = sizes._replace(q_row=row_of(q), kv_row=row_of(k), out_row=q.shape[2], w_row=k.shape[2])
        gates = gates_of(None if sums is None else part.of(sums, part.heads), sizes.padded)
        edges = borders_of(None if borders is None else borders[:, part.rows], sizes)
        call = Call(own_q, own_k, own_v, own_w, own_beta, scale, sizes, *gates, *edges)
        saved = own_out, own_dout, part.of_folded(lse, part.heads).contiguous()
        of = part.heads, part.kv_heads, part.heads, part.kv_heads
        outside = Outer(*map(part.of_folded, outer, of)) if outer else None
        dc = backward(call, *saved, *regained(kept, part), [own_dq, *found], outside)
        if dc is not None:
            dc = dc.unflatten(0, (sizes.batch, -1))[..., : sizes.length].transpose(1, 2)
            part.of(dsums, part.heads).copy_(dc)
    return packed, dw, dbeta, dsums


class Slice(NamedTuple):
    """Sequences, key heads and query heads that are processed at a time.

    Attributes:
        batch: number of all sequences.
        whole: whether these are all sequences and heads, which saves the time of slicing many tensors.
    """

    rows: slice
    kv_heads: slice
    heads: slice
    batch: int
    whole: bool

    def of(self, x: Tensor, heads: slice) -> Tensor:
        """The part of `x [B, T, heads, ...]`."""
        return x if self.whole else x[self.rows, :, heads]

    def of_folded(self, x: Tensor, heads: slice) -> Tensor:
        """The part of `x [B heads, ...]`."""
        return x if self.whole else x.unflatten(0, (self.batch, len(x) // self.batch))[self.rows, heads].flatten(0, 1)


def slices(q: Tensor, k: Tensor) -> list[Slice]:
    """Division of all sequences and heads into slices that the backward pass processes one after another."""
    batch, length, heads, _ = q.shape
    kv_heads = k.shape[2]
    group, room = heads // kv_heads, slice_of(length)
    rows, wide = max(room // (length * heads), 1), min(max(room // (length * group), 1), kv_heads)
    rows = -(-batch // -(-batch // rows))  # about equally large, because small ones are inefficient
    whole = rows >= batch and wide >= kv_heads
    return [
        Slice(slice(b, b + rows), slice(h, h + wide), slice(h * group, (h + wide) * group), batch, whole)
        for b in range(0, batch, rows)
        for h in range(0, kv_heads, wide)
    ]


@path_backward.register_fake
def _(q, k, v, w, beta, scale, borders, sums, out, lse, kept, dout, outer):
    dw, dbeta = (torch.empty_like(x, memory_format=torch.contiguous_format) for x in (w, beta))
    return (
        q.new_empty(packed_shape(q, k, v)),
        dw,
        dbeta,
        lse.new_empty(0) if sums is None else sums.new_empty(sums.shape),
    )


def save_for_backward(ctx, inputs, output) -> None:
    *tensors, ctx.scale, borders, sums, ctx.bordered = inputs
    ctx.save_for_backward(*tensors, borders, sums, *output)
    ctx.set_materialize_grads(False)  # otherwise PyTorch allocates zeros for all saved tensors


def differentiate(ctx, dout: Tensor | None, dlse: Tensor | None, *gradients: Tensor | None):
    q, k, v, w, beta, borders, sums, out, lse, *kept, products = ctx.saved_tensors
    inputs, outer = (q, k, v, w, beta, ctx.scale, borders, sums), []
    if ctx.bordered:
        *_, dk_bar, _, _, dq_bar, dproducts = gradients
        given, like = (dlse, dk_bar, dq_bar, dproducts), (lse, kept[4], kept[7], products)
        outer = [torch.zeros_like(x) if dx is None else dx for dx, x in zip(given, like, strict=True)]
    dout = torch.zeros_like(out) if dout is None else dout
    packed, dw, dbeta, dsums = path_backward(*inputs, out, lse, kept, dout, outer)
    return *parts(packed, q, k, v), dw, dbeta, None, None, None if sums is None else dsums, None


path_forward.register_autograd(differentiate, setup_context=save_for_backward)


def borders_of(borders: Tensor | None, sizes: Sizes) -> tuple[Tensor | None, Tensor | None]:
    """Starts and ends of documents, `[B, Tp]` each, from `borders [2, B, T]`; None without documents."""
    if borders is None:
        return None, None
    starts, ends = F.pad(borders, (0, sizes.padded - sizes.length)).unbind(0)
    return starts, ends
