"""PaTH attention by Triton kernels, as one PyTorch operator: deterministic, of any length.

The scheme is in kernels/path/prepare.py. The backward pass keeps q, k, v, w, beta, output and lse; of short sequences
(kernels/path/slices.py, SHORT) also what blocks and nodes were prepared to and how queries were pulled back, which it
does anew for others.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from ..attention.gates import gates_of
from .backward import far_dkv_kernel, far_dq_kernel, near_dkv_kernel, near_dq_kernel
from .diagonal import diagonal_kernel
from .forward import LOG2E, Pulled, Tiles, empty_queries, forward, pull_kernel
from .prepare import BLOCK, Prepared, Sizes, empty, pairs_of, prepare, sizes_of
from .slices import SHORT, slice_of
from .unprepare import descend_kernel, dproduct_kernel, gather_kernel, unprepare_kernel


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
    """Causal PaTH attention over a whole sequence; arguments and result as `path_attention`, `borders` of documents.

    Computes in the dtype of q, which is float32, bfloat16 or float16; the chains of reflections in float16 at least.
    """
    out, *_ = path_forward(q, k.to(q.dtype), v.to(q.dtype), w.to(q.dtype), beta.float(), scale, borders, sums)
    return out.to(v.dtype)


@torch.library.custom_op("bearings::path_forward", mutates_args=())
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
    """Output `[B, T, H, Dv]`, lse `[B H, Tp]` in powers of two, and what is kept: empty for long sequences."""
    q, k, v, w, beta = in_rows(q, k, v, w, beta)
    sizes = sizes_of(q, k, v)._replace(q_row=row_of(q), kv_row=row_of(k))
    documents = borders_of(borders, sizes)
    first, keep = None if documents is None else documents[0], sizes.length <= SHORT
    prepared = prepare(k, w, beta, sizes, keep)
    gates = None if sums is None else gates_of(sums, q, sizes.padded)
    out, lse, pulled = forward(q, k, v, w, scale, prepared, gates, first, sizes, keep)
    return out, lse, *kept(q, prepared if keep else None, pulled)


def row_of(x: Tensor) -> int:
    """How many heads a token has where `x [B, T, H, D]` lies, of which x takes some; 0 where heads lie otherwise."""
    _, length, heads, depth = x.shape
    row = max(x.stride(1) // depth, heads)
    expected = length * row * depth, row * depth, depth, 1
    return row if all(size == 1 or x.stride(i) == expected[i] for i, size in enumerate(x.shape)) else 0


def in_rows(q: Tensor, k: Tensor, v: Tensor, *others: Tensor) -> list[Tensor]:
    """As the kernels read them: slices of larger tensors are not copied if k and v lie alike."""
    if row_of(q) == 0:
        q = q.contiguous()
    if row_of(k) == 0 or row_of(k) != row_of(v):
        k, v = k.contiguous(), v.contiguous()
    return [q, k, v, *(x.contiguous() for x in others)]


def kept(like: Tensor, prepared: Prepared | None, pulled: Pulled | None) -> list[Tensor]:
    """Both as eight tensors, which an operator returns: what there is not is a vector of nothing."""
    return [like.new_empty(0) if x is None else x for x in (*(prepared or [None] * 6), *(pulled or [None] * 2))]


def regained(
    kept: list[Tensor], batch: int, rows: slice, kv_heads: slice, heads: slice
) -> tuple[Prepared | None, Pulled | None]:
    """Both again, of some sequences and heads."""

    def part(x: Tensor, which: slice) -> Tensor | None:
        return None if x.dim() == 1 else x.unflatten(0, (batch, len(x) // batch))[rows, which].flatten(0, 1)

    if kept[0].dim() == 1:
        return None, None
    return Prepared(*(part(x, kv_heads) for x in kept[:6])), Pulled(*(part(x, heads) for x in kept[6:]))


@path_forward.register_fake
def _(q, k, v, w, beta, scale, borders, sums):
    sizes = sizes_of(q, k, v)
    out = v.new_empty(sizes.batch, sizes.length, sizes.heads, sizes.value_dim)
    lse = q.new_empty(sizes.batch * sizes.heads, sizes.padded, dtype=torch.float32)
    if sizes.length > SHORT:
        return out, lse, *kept(q, None, None)
    return out, lse, *kept(q, empty(k, sizes), empty_queries(q, sizes))


@torch.library.custom_op("bearings::path_backward", mutates_args=())
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
    """dq, dk and dv in one tensor, dw, dbeta and dsums; without sums the last is empty."""
    q, k, v, w, beta, dout = in_rows(q, k, v, w, beta, dout)
    packed, dw, dbeta = q.new_empty(packed_shape(q, k, v)), torch.empty_like(w), torch.empty_like(beta)
    gradients = [*parts(packed, q, k, v), dw, dbeta]
    dsums = lse.new_empty(0) if sums is None else torch.empty_like(sums, memory_format=torch.contiguous_format)
    lse = lse.unflatten(0, (q.shape[0], -1))
    for rows, kv_heads, heads in slices(q, k):

        def part(x: Tensor, which: slice, rows: slice = rows) -> Tensor:
            return x[rows, :, which]

        inputs = [part(q, heads), *(part(x, kv_heads) for x in (k, v, w, beta))]
        sizes = sizes_of(*inputs[:3])
        sizes = sizes._replace(q_row=row_of(q), kv_row=row_of(k), out_row=q.shape[2], w_row=k.shape[2])
        gates = None if sums is None else gates_of(part(sums, heads), q, sizes.padded)
        documents = borders_of(None if borders is None else borders[:, rows], sizes)
        saved = part(out, heads), lse[rows, heads].flatten(0, 1).contiguous(), part(dout, heads)
        found = [part(x, which) for x, which in zip(gradients, (heads, *[kv_heads] * 4), strict=True)]
        before = regained(kept, len(q), rows, kv_heads, heads)
        dc = backward(*inputs, scale, *saved, *before, gates, documents, found, sizes)
        if dc is not None:
            dsums[rows, :, heads] = dc.unflatten(0, (sizes.batch, -1))[..., : sizes.length].transpose(1, 2)
    return packed, dw, dbeta, dsums


def slices(q: Tensor, k: Tensor) -> list[tuple[slice, slice, slice]]:
    """Sequences, key heads and query heads to take at a time."""
    batch, length, heads, _ = q.shape
    kv_heads = k.shape[2]
    group, room = heads // kv_heads, slice_of(length)
    rows, wide = max(room // (length * heads), 1), min(max(room // (length * group), 1), kv_heads)
    rows = -(-batch // -(-batch // rows))  # all about as large: a small one takes long for what it does
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


def packed_shape(q: Tensor, k: Tensor, v: Tensor) -> tuple[int, ...]:
    """Of the gradients of q, k and v in one tensor.

    Heads behind each other where they are as wide: of one matrix product's slices, that is the gradient of the product
    as it stands.
    """
    if v.shape[3] == q.shape[3]:
        return *q.shape[:2], q.shape[2] + 2 * k.shape[2], q.shape[3]
    return (q.numel() + k.numel() + v.numel(),)


def parts(packed: Tensor, q: Tensor, k: Tensor, v: Tensor) -> list[Tensor]:
    """The three, views of `packed`."""
    if packed.ndim > 1:
        # As the compiler knows it for the inverse of putting them together, of which it then makes nothing.
        return list(packed.split_with_sizes([x.shape[2] for x in (q, k, v)], 2))
    sizes = [x.numel() for x in (q, k, v)]
    return [part.view(x.shape) for part, x in zip(packed.split_with_sizes(sizes), (q, k, v), strict=True)]


def save_for_backward(ctx, inputs, output) -> None:
    *tensors, ctx.scale, borders, sums = inputs
    ctx.save_for_backward(*tensors, borders, sums, *output)
    ctx.set_materialize_grads(False)  # else zeros for all that was prepared


def differentiate(ctx, dout: Tensor, *nothing):
    q, k, v, w, beta, borders, sums, out, lse, *kept = ctx.saved_tensors
    inputs = q, k, v, w, beta, ctx.scale, borders, sums
    packed, dw, dbeta, dsums = path_backward(*inputs, out, lse, kept, dout)
    return *parts(packed, q, k, v), dw, dbeta, None, None, None if sums is None else dsums


path_forward.register_autograd(differentiate, setup_context=save_for_backward)


def segments(sizes: Sizes, shares: int) -> list[tuple[int, int]]:
    """The chunks of a sequence in ranges, so that E of one range takes no more than SEGMENT times the queries."""
    room = SEGMENT * sizes.padded // (shares * sizes.width)
    borders = [0]
    for c in range(1, sizes.chunks + 1):
        before = borders[-1]
        if c > before + 1 and c * (c - 1) // 2 - before * (before - 1) // 2 > room:
            borders.append(c - 1)
    return list(zip(borders, [*borders[1:], sizes.chunks], strict=True))


def borders_of(borders: Tensor | None, sizes: Sizes) -> Sequence[Tensor] | None:
    """`borders [2, B, T]` of documents as the kernels read them: starts and ends, `[B, Tp]` each."""
    return None if borders is None else F.pad(borders, (0, sizes.padded - sizes.length)).unbind(0)


# By padded width; measured on an H200, see benchmarks/results/path_log.md.
FAR_DQ_TILES = {64: Tiles(64, 64, 4, 3), 128: Tiles(128, 64, 8, 3)}
FAR_DKV_TILES = {64: Tiles(64, 64, 4, 3), 128: Tiles(64, 32, 4, 3)}
NEAR_DQ_TILES = {64: Tiles(64, 32, 4, 3, 128), 128: Tiles(64, 32, 4, 3)}
NEAR_DKV_TILES = {64: Tiles(64, 32, 4, 3, 168), 128: Tiles(64, 32, 4, 3)}
SEGMENT = 16  # times the queries that E may take
FLOAT32_TILES = {64: Tiles(64, 32, 4, 1), 128: Tiles(32, 32, 4, 1)}  # what shared memory holds of them


def backward(
    q, k, v, w, beta, scale, out, lse, dout, prepared: Prepared | None, pulled: Pulled | None,
    gates, documents, gradients, sizes: Sizes,
) -> Tensor | None:  # fmt: skip
    """Writes dq, dk, dv, dw, dbeta to `gradients`; returns that of the gates' sums `[B H, Tp]`, None without gates."""
    dq, dk, dv, dw, dbeta = gradients
    first, end = (None, None) if documents is None else documents
    high, low = gates or (None, None)
    gated, packed, exact = gates is not None, documents is not None, q.dtype == torch.float32
    n, bh = sizes.batch * sizes.kv_heads, sizes.batch * sizes.heads
    tokens, width, r = sizes.padded, sizes.width, sizes.blocks
    length, heads, kv_heads, chunks, pairs = sizes.length, sizes.heads, sizes.kv_heads, sizes.chunks, sizes.pairs
    counts, group = (length, heads, kv_heads, sizes.out_row, sizes.kv_row), heads // kv_heads
    widths = {"DP": width, "DV": sizes.value_dim, "DVP": sizes.value_width, "R": r}
    flags = {"GATED": gated, "EXACT": exact, "PACKED": packed}
    near = {**widths, "LEVELS": sizes.levels, "FAR": pairs > 0}

    def single(*shape: int) -> Tensor:
        return q.new_empty(shape, dtype=torch.float32)

    p = prepare(k, w, beta, sizes, True) if prepared is None else prepared
    seen, q_bar = empty_queries(q, sizes) if pulled is None else pulled
    delta, dq_bar = single(bh, tokens), q.new_empty(bh, tokens, width)
    pull_kernel[(chunks * r * bh,)](
        q, w, p.u, p.nodes, out, dout, seen, q_bar, delta,
        length, heads, kv_heads, sizes.q_row, sizes.out_row, sizes.w_row, chunks, sizes.together, scale * LOG2E,
        D=sizes.head_dim, **near, KEPT=pulled is not None, num_warps=4, num_stages=1,
    )  # fmt: skip

    wide = max(width, sizes.value_width)
    dq_tiles, dkv_tiles = (FLOAT32_TILES[wide] if exact else x[wide] for x in (FAR_DQ_TILES, FAR_DKV_TILES))
    dc = torch.zeros_like(delta) if gated else None  # keys' shares alone: a row's own gate changes no softmax
    dk_bar, dproduct = q.new_empty(n, tokens, width), None
    if pairs:
        m = pairs_of(p.nodes, sizes, q.dtype)
        own = min(dq_tiles.own, r * BLOCK)
        shares = r * BLOCK // own
        dproduct = q.new_zeros(n, chunks, width, width, dtype=torch.float32)
        for begin, stop in segments(sizes, shares):
            skipped, held = begin * (begin - 1) // 2, stop * (stop - 1) // 2 - begin * (begin - 1) // 2
            e = q.new_empty(bh, held, shares, width, width)
            far_dq_kernel[((stop - begin) * shares * bh,)](
                q_bar, p.k_bar, v, m, p.nodes, dout, lse, delta, high, low, first, dq_bar, e,
                length, sizes.batch, *counts[1:], chunks, sizes.together, pairs, stop, skipped, held,
                **widths, BM=own, BN=dq_tiles.step, **flags, STAGES=dq_tiles.stages,
                num_warps=dq_tiles.warps, num_stages=1, maxnreg=dq_tiles.registers,
            )  # fmt: skip
            dproduct_kernel[(n * chunks * (width // 32),)](
                m, e, dproduct, chunks, pairs, begin, stop, skipped, held,
                GROUP=group, DP=width, SHARES=shares, COLUMNS=32, num_warps=4, num_stages=1,
            )  # fmt: skip
            del e
        own = min(dkv_tiles.own, r * BLOCK)
        far_dkv_kernel[(tokens // own * n,)](
            q_bar, p.k_bar, v, m, p.nodes, dout, lse, delta, high, low, first, end, dk_bar, dv, dc,
            length, kv_heads, sizes.out_row, sizes.kv_row, row_of(dv), chunks, sizes.together, pairs,
            GROUP=group, **widths, BM=dkv_tiles.step, BN=own, **flags, WHOLE=length == tokens, STAGES=dkv_tiles.stages,
            num_warps=dkv_tiles.warps, num_stages=1, maxnreg=dkv_tiles.registers,
        )  # fmt: skip
        p = p._replace(k_bar=None)
        del q_bar, pulled, prepared, m

    dseen, du = torch.empty_like(seen), dq_bar
    tiles = FLOAT32_TILES[wide] if exact else NEAR_DQ_TILES[wide]
    near_dq_kernel[(chunks * r * bh,)](
        v, p.nodes, p.keys, dout, lse, delta, high, low, first, seen, dq_bar, dseen,
        *counts, chunks, sizes.together, **near, BN=tiles.step, **flags, STAGES=tiles.stages,
        num_warps=tiles.warps, num_stages=1, maxnreg=tiles.registers,
    )  # fmt: skip
    top = sizes.levels if pairs else max(sizes.levels - 1, 0)  # no query leaves the only chunk, no key its end
    nodes, narrow = 2 * r - (2 * r >> top), min(width, 64)
    # The first of them are blocks. Those of a tree without a product to give a gradient to get none.
    dnodes = q.new_empty(n, chunks, nodes, width, width) if nodes else q.new_zeros(n, chunks, r, width, width)

    def gather(rows: Tensor, columns: Tensor, right: bool) -> None:
        if nodes:
            gather_kernel[(n * chunks * (nodes // 2) * (width // narrow),)](
                rows, columns, dnodes, length, chunks, nodes,
                GROUP=1 if right else group, DP=width, R=r, LEVELS=sizes.levels, COLUMNS=narrow, RIGHT=right,
                num_warps=4, num_stages=1 if exact else 2,
            )  # fmt: skip

    gather(seen, dseen, False)
    del dseen
    dw_block, dk_block, dz, dv_own = (
        q.new_empty(bh, tokens, columns) for columns in (width, width, BLOCK, sizes.value_width)
    )
    diagonal_kernel[(chunks * r * bh,)](
        q, k, v, w, p.u, p.z, dout, lse, delta, high, low, first, dq_bar, dw_block, dk_block, dz, dv_own, dq, dc,
        length, heads, kv_heads, sizes.q_row, sizes.kv_row, sizes.out_row, sizes.w_row, row_of(dq), chunks,
        sizes.together, scale * LOG2E, D=sizes.head_dim, **widths, **flags,
        num_warps=4, num_stages=1, maxnreg=168 if wide == 64 and not exact else None,
    )  # fmt: skip
    dkeys = torch.empty_like(p.keys)
    tiles = FLOAT32_TILES[wide] if exact else NEAR_DKV_TILES[wide]
    near_dkv_kernel[(chunks * r * n,)](
        v, p.nodes, p.keys, dout, lse, delta, high, low, first, seen, dv_own, dkeys, dk_bar, dv, dc,
        length, kv_heads, sizes.out_row, sizes.kv_row, row_of(dv), chunks, sizes.together,
        GROUP=group, **near, BM=tiles.step, **flags, WHOLE=length == tokens, STAGES=tiles.stages,
        num_warps=tiles.warps, num_stages=1, maxnreg=tiles.registers,
    )  # fmt: skip
    del dv_own
    dk_end = dk_bar
    gather(dkeys, p.keys, True)
    p = p._replace(keys=None)
    del seen, dkeys
    for level in reversed(range(top if pairs else top - 1)):
        descend_kernel[(n * chunks * (r >> level) * (width // narrow),)](
            p.nodes, dnodes, dproduct, length, chunks, nodes,
            DP=width, R=r, LEVEL=level, ROOT=level == sizes.levels - 1, ROWS=narrow, num_warps=4, num_stages=1,
        )  # fmt: skip
    del dproduct
    p = p._replace(nodes=None)
    unprepare_kernel[(chunks * r * n,)](
        k, w, beta, p.u, p.z, p.inverse, dnodes, dk_end, du, dw_block, dk_block, dz, dk, dw, dbeta,
        length, kv_heads, sizes.kv_row, sizes.w_row, row_of(dk), chunks * r, nodes or r,
        GROUP=group, D=sizes.head_dim, DP=width, R=r, num_warps=4, num_stages=1,
    )  # fmt: skip
    return dc
