"""PaTH attention in Triton as a PyTorch operator: deterministic, for any length.

kernels/path/README.md describes the algorithm. Saved for the backward pass are q, k, v, w, beta, output and
log-sum-exp. Short sequences (SHORT in kernels/path/slices.py) also save the preprocessed blocks and nodes and the
pulled queries; for longer ones the backward pass recomputes them.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from ..attention.gates import gates_of
from ..layout import in_rows, packed_shape, parts, row_of
from ..operator import operator
from .backward import backward
from .call import Call
from .forward import forward
from .prepare import Prepared, empty, prepare
from .pull import Pulled, empty_queries
from .sizes import Sizes, sizes_of
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
    out, *_ = path_forward(q, k.to(q.dtype), v.to(q.dtype), w.to(q.dtype), beta.float(), scale, borders, sums)
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
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Output `[B, T, H, Dv]`, log-sum-exp `[B H, Tp]` in base 2, and saved tensors (empty for long sequences)."""
    q, k, v, w, beta = in_rows(q, k, v, w, beta)
    sizes = sizes_of(q, k, v)._replace(q_row=row_of(q), kv_row=row_of(k))
    keep = sizes.length <= SHORT
    prepared = prepare(k, w, beta, sizes, keep)
    call = Call(q, k, v, w, beta, scale, sizes, *gates_of(sums, sizes.padded), *borders_of(borders, sizes))
    out, lse, pulled = forward(call, prepared, keep)
    return out, lse, *kept(q, prepared if keep else None, pulled)


def kept(like: Tensor, prepared: Prepared | None, pulled: Pulled | None) -> Kept:
    """Both as eight tensors that an operator can return. An empty tensor stands for None."""
    u, z, nodes, keys, k_bar, inverse, seen, q_bar = (
        like.new_empty(0) if x is None else x for x in (*(prepared or [None] * 6), *(pulled or [None] * 2))
    )
    return u, z, nodes, keys, k_bar, inverse, seen, q_bar


def regained(
    kept: list[Tensor], batch: int, rows: slice, kv_heads: slice, heads: slice
) -> tuple[Prepared | None, Pulled | None]:
    """The inverse of `kept`, for some sequences and heads."""

    def part(x: Tensor, which: slice) -> Tensor:
        return x.unflatten(0, (batch, len(x) // batch))[rows, which].flatten(0, 1)

    if kept[0].dim() == 1:
        return None, None
    u, z, nodes, keys = (part(x, kv_heads) for x in kept[:4])
    k_bar, inverse = (None if x.dim() == 1 else part(x, kv_heads) for x in kept[4:6])
    seen, q_bar = kept[6:]
    pulled = Pulled(part(seen, heads), None if q_bar.dim() == 1 else part(q_bar, heads))
    return Prepared(u, z, nodes, keys, k_bar, inverse), pulled


@path_forward.register_fake
def _(q, k, v, w, beta, scale, borders, sums):
    sizes = sizes_of(q, k, v)
    out = v.new_empty(sizes.batch, sizes.length, sizes.heads, sizes.value_dim)
    lse = q.new_empty(sizes.batch * sizes.heads, sizes.padded, dtype=torch.float32)
    if sizes.length > SHORT:
        return out, lse, *kept(q, None, None)
    return out, lse, *kept(q, empty(k, sizes), empty_queries(q, sizes))


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
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """dq, dk and dv in one tensor, dw, dbeta, and dsums (empty without sums)."""
    q, k, v, w, beta, dout = in_rows(q, k, v, w, beta, dout)
    packed, dw, dbeta = q.new_empty(packed_shape(q, k, v)), torch.empty_like(w), torch.empty_like(beta)
    gradients = [*parts(packed, q, k, v), dw, dbeta]
    dsums = lse.new_empty(0) if sums is None else torch.empty_like(sums, memory_format=torch.contiguous_format)
    lse = lse.unflatten(0, (q.shape[0], -1))
    for rows, kv_heads, heads in slices(q, k):

        def part(x: Tensor, which: slice, rows: slice = rows) -> Tensor:
            return x[rows, :, which]

        own_q, (own_k, own_v, own_w, own_beta) = part(q, heads), (part(x, kv_heads) for x in (k, v, w, beta))
        sizes = sizes_of(own_q, own_k, own_v)
        sizes = sizes._replace(q_row=row_of(q), kv_row=row_of(k), out_row=q.shape[2], w_row=k.shape[2])
        gates = gates_of(None if sums is None else part(sums, heads), sizes.padded)
        edges = borders_of(None if borders is None else borders[:, rows], sizes)
        call = Call(own_q, own_k, own_v, own_w, own_beta, scale, sizes, *gates, *edges)
        saved = part(out, heads), part(dout, heads), lse[rows, heads].flatten(0, 1).contiguous()
        found = [part(x, which) for x, which in zip(gradients, (heads, *[kv_heads] * 4), strict=True)]
        dc = backward(call, *saved, *regained(kept, len(q), rows, kv_heads, heads), found)
        if dc is not None:
            dsums[rows, :, heads] = dc.unflatten(0, (sizes.batch, -1))[..., : sizes.length].transpose(1, 2)
    return packed, dw, dbeta, dsums


def slices(q: Tensor, k: Tensor) -> list[tuple[slice, slice, slice]]:
    """Sequences, key heads and query heads to process at a time."""
    batch, length, heads, _ = q.shape
    kv_heads = k.shape[2]
    group, room = heads // kv_heads, slice_of(length)
    rows, wide = max(room // (length * heads), 1), min(max(room // (length * group), 1), kv_heads)
    rows = -(-batch // -(-batch // rows))  # about equally large, because small ones are inefficient
    return [
        (slice(b, b + rows), slice(h, h + wide), slice(h * group, (h + wide) * group))
        for b in range(0, batch, rows)
        for h in range(0, kv_heads, wide)
    ]


@path_backward.register_fake
def _(q, k, v, w, beta, scale, borders, sums, out, lse, kept, dout):
    dw, dbeta = (torch.empty_like(x, memory_format=torch.contiguous_format) for x in (w, beta))
    return (
        q.new_empty(packed_shape(q, k, v)),
        dw,
        dbeta,
        lse.new_empty(0) if sums is None else sums.new_empty(sums.shape),
    )


def save_for_backward(ctx, inputs, output) -> None:
    *tensors, ctx.scale, borders, sums = inputs
    ctx.save_for_backward(*tensors, borders, sums, *output)
    ctx.set_materialize_grads(False)  # otherwise PyTorch allocates zeros for all saved tensors


def differentiate(ctx, dout: Tensor, *nothing):
    q, k, v, w, beta, borders, sums, out, lse, *kept = ctx.saved_tensors
    inputs = q, k, v, w, beta, ctx.scale, borders, sums
    packed, dw, dbeta, dsums = path_backward(*inputs, out, lse, kept, dout)
    return *parts(packed, q, k, v), dw, dbeta, None, None, None if sums is None else dsums


path_forward.register_autograd(differentiate, setup_context=save_for_backward)


def borders_of(borders: Tensor | None, sizes: Sizes) -> tuple[Tensor | None, Tensor | None]:
    """Starts and ends of documents, `[B, Tp]` each, from `borders [2, B, T]`; None without documents."""
    if borders is None:
        return None, None
    starts, ends = F.pad(borders, (0, sizes.padded - sizes.length)).unbind(0)
    return starts, ends
