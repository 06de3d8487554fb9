"""Backward kernels of the PaTH preprocessing: gradients of chunk products and blocks back to k, w and beta."""

import functools

import triton
import triton.language as tl
from torch import Tensor

from ..common import LN2
from ..launching import LAYOUTS, Launch
from ..layout import row_of
from .call import Call
from .diagonal import Shares
from .prepare import Prepared
from .sizes import Sizes
from .tiles import dot, dot_split, head_at, key_block, load_columns, load_tokens, slot_of, tile


@triton.jit
def dproduct_kernel(
    M, E, DPRODUCT, chunks, pairs, begin, end, skipped, held,
    GROUP: tl.constexpr, DP: tl.constexpr, SHARES: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Add M[c, e]^T E[c, e] of later chunks c in begin..end to columns of dP[e]. E is summed over its parts."""
    pid = tl.program_id(0).to(tl.int64)
    parts: tl.constexpr = DP // COLUMNS
    part, chunk = pid % parts, pid // parts
    n, e = chunk // chunks, (chunk % chunks).to(tl.int32)
    some = tl.arange(0, DP)[:, None] * DP + part * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    out = DPRODUCT + chunk * DP * DP + some
    x = tl.load(out)
    if e > 0:  # nothing comes before the first chunk
        for c in range(tl.maximum(e + 1, begin), end):
            pair = c * (c - 1) // 2 + e
            total = tl.zeros([DP, COLUMNS], tl.float32)
            for g in range(GROUP):
                first = ((n * GROUP + g) * held + pair - skipped) * SHARES
                for share in tl.static_range(SHARES):
                    total += tl.load(E + (first + share) * DP * DP + some)
            m = tl.load(M + tile((n * pairs + pair) * DP * DP, DP, DP))
            x += dot(tl.trans(m), total.to(m.dtype))
    tl.store(out, x)


@triton.jit
def gather_kernel(
    WIDE, NARROW, DNODES, length, chunks, nodes,
    GROUP: tl.constexpr, DP: tl.constexpr, R: tl.constexpr, LEVELS: tl.constexpr, COLUMNS: tl.constexpr,
    RIGHT: tl.constexpr,
):  # fmt: skip
    """COLUMNS of the gradient of the product of one node: WIDE^T NARROW, summed over tokens that passed the node.

    Keys pass RIGHT nodes: WIDE holds their gradients, NARROW the keys, and GROUP is 1. Queries pass left nodes: WIDE
    holds the queries, NARROW their gradients, for the GROUP of query heads that share the key head.
    """
    pid = tl.program_id(0)
    parts: tl.constexpr = DP // COLUMNS
    part, pid = pid % parts, pid // parts
    all_chunks = tl.num_programs(0) // (nodes // 2 * parts)
    node, chunk = nodes - 2 + RIGHT - pid // all_chunks * 2, (pid % all_chunks).to(tl.int64)  # largest nodes first
    n, c = chunk // chunks, (chunk % chunks).to(tl.int32)
    blocks = tl.cdiv(length, 64) - c * R
    level = node * 0
    for other in tl.static_range(1, LEVELS + 1):
        level += (node >= 2 * R - ((2 * R) >> other)).to(tl.int32)
    index = node - (2 * R - ((2 * R) >> level))
    if (index << level) >= blocks:
        return
    mine = part * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    narrow = tl.arange(0, 64)[:, None] * DP + mine
    first, count = slot_of(index << level, level, R), 1 << level
    out = tl.zeros([DP, COLUMNS], tl.float32)
    if not RIGHT:
        count = tl.minimum(count, tl.maximum(blocks - ((index + 1) << level), 0))
    for g in range(GROUP):
        slots = (((n * GROUP + g) * chunks + c) * (LEVELS * (R // 2)) + first) * 64 * DP
        for block in range(count):
            columns = tl.load(NARROW + slots + block * 64 * DP + narrow)
            out += dot(tl.trans(tl.load(WIDE + slots + block * 64 * DP + tile(0, 64, DP))), columns)
    if not RIGHT:
        out *= LN2
    at = DNODES + (chunk * nodes + node) * DP * DP + tl.arange(0, DP)[:, None] * DP + mine
    tl.store(at, out.to(DNODES.dtype.element_ty))


@triton.jit
def descend_kernel(
    NODES, DNODES, DPRODUCT, length, chunks, nodes,
    DP: tl.constexpr, R: tl.constexpr, LEVEL: tl.constexpr, ROOT: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Add the contribution of the parent to ROWS (or columns) of the gradient of the product of one node.

    The product of the parent is that of its right child times that of its left child. The parent may be the ROOT.
    """
    pid = tl.program_id(0)
    parts: tl.constexpr = DP // ROWS
    count: tl.constexpr = R >> LEVEL
    part, index, chunk = pid % parts, pid // parts % count, (pid // (parts * count)).to(tl.int64)
    if (index << LEVEL) >= tl.cdiv(length, 64) - (chunk % chunks).to(tl.int32) * R:
        return
    node = 2 * R - ((2 * R) >> LEVEL) + index
    DNODES += chunk * nodes * DP * DP
    above = 2 * R - ((2 * R) >> (LEVEL + 1)) + index // 2
    parent = DPRODUCT + chunk * DP * DP if ROOT else DNODES + above * DP * DP
    sibling = tl.load(NODES + (chunk * (2 * R - 1) + (node ^ 1)) * DP * DP + tile(0, DP, DP))
    own, all_of = part * ROWS + tl.arange(0, ROWS), tl.arange(0, DP)
    DNODES += node * DP * DP
    if index % 2 == 1:
        wide = own[:, None] * DP + all_of[None, :]
        rows = tl.load(parent + wide).to(tl.float32)
        size = tl.maximum(tl.max(tl.abs(rows)), 1e-37)
        rows = dot(rows * (1 / size), tl.trans(sibling)) * size + tl.load(DNODES + wide)
        tl.store(DNODES + wide, rows.to(DNODES.dtype.element_ty))
    else:
        high = all_of[:, None] * DP + own[None, :]
        columns = tl.load(parent + high).to(tl.float32)
        largest = tl.maximum(tl.max(tl.abs(columns)), 1e-37)
        unit = (columns * (1 / largest)).to(sibling.dtype)
        columns = dot(tl.trans(sibling), unit) * largest + tl.load(DNODES + high)
        tl.store(DNODES + high, columns.to(DNODES.dtype.element_ty))


@triton.jit
def solve(back, x):
    """back @ x for a gradient x, whose rows are scaled to at most 1 for the product."""
    size = tl.maximum(tl.max(tl.abs(x)), 1e-37)
    unit = x * (1 / size)
    return (dot_split(back, unit) if back.dtype == tl.float32 else dot(back, unit.to(back.dtype))) * size


@triton.jit
def over_group(X, at, stride, GROUP: tl.constexpr):
    """Sum of the contributions of the query heads of one key head."""
    total = tl.load(X + at).to(tl.float32)
    for g in range(1, GROUP):
        total += tl.load(X + g * stride + at)
    return total


@triton.jit
def du_columns(DU, DSTEP, at, stride, GROUP: tl.constexpr, w, back, part, DP: tl.constexpr):
    """64 columns of the gradient of U beta^-1."""
    dstep = tl.load(DSTEP + tl.arange(0, DP)[:, None] * DP + part * 64 + tl.arange(0, 64)[None, :])
    return solve(back, over_group(DU, at, stride, GROUP) - dot(w, dstep))


@triton.jit
def unprepare_kernel(
    K, W, BETA, U, Z, INVERSE, DNODES, DK_END, DU, DW_BLOCK, DK_BLOCK, DZ, DK, DW, DBETA,
    length, kv_heads, kv_row, w_row, dkv_row, all_blocks, nodes,
    GROUP: tl.constexpr, D: tl.constexpr, DP: tl.constexpr, R: tl.constexpr,
):  # fmt: skip
    """Backward pass of one block through its product and its UT form."""
    pid, n, block = key_block(all_blocks)
    if block * 64 >= length:
        return
    DSTEP = DNODES + (pid // R * nodes + pid % R) * DP * DP
    b, h = n // kv_heads, n % kv_heads
    local = tl.arange(0, 64)
    rows = block * 64 + local
    square, columns = tile(pid * 64 * 64, 64, 64), local[:, None] * DP + local[None, :]
    # Pointers of the first query head into DU, DW_BLOCK and DK_BLOCK; the next heads follow at a stride of `head`.
    first, head = (n * GROUP * all_blocks + block) * 64, tl.cast(all_blocks, tl.int64) * 64
    below = local[:, None] > local[None, :]
    beta = tl.load(BETA + (b * length + rows) * w_row + h, mask=rows < length, other=0.0)[:, None]
    DK = head_at(DK, b, h, length, dkv_row, D) + rows[:, None].to(tl.int64) * dkv_row * D + local[None, :]
    DW = head_at(DW, b, h, length, w_row, D) + rows[:, None].to(tl.int64) * w_row * D + local[None, :]
    mask = (rows < length)[:, None]
    w = load_tokens(W, b, h, rows, length, w_row, D, DP)
    back = tl.trans(tl.load(INVERSE + square))
    dz = over_group(DZ, tile(first * 64, 64, 64), head * 64, GROUP)
    dz = solve(back, dz - dot(w, tl.trans(tl.load(DK_END + tile(pid * 64 * DP, 64, DP)))))
    k = load_tokens(K, b, h, rows, length, kv_row, D, DP)
    dbeta = tl.sum(tl.where(below, dz * dot(w, tl.trans(k)), 0.0), 1)
    dy = tl.where(below, beta * dz, 0.0).to(w.dtype)
    dn = dot(dz, tl.trans(tl.load(Z + square).to(w.dtype)))
    # Wide results are computed by columns, so that few tiles are live at a time; k and w are loaded again.
    for part in tl.static_range(DP // 64):
        dk = dot(tl.trans(dy), load_columns(W, b, h, rows, length, w_row, part, D))
        dk += tl.load(DK_END + pid * 64 * DP + part * 64 + columns)
        dk += over_group(DK_BLOCK, first * DP + part * 64 + columns, head * DP, GROUP)
        tl.store(DK + part * 64, dk, mask=mask & (part * 64 + local[None, :] < D))

    # Contribution of U to the gradient of W, in the dtype of W.
    w = load_tokens(W, b, h, rows, length, w_row, D, DP)
    du_first = du_columns(DU, DSTEP, first * DP + columns, head * DP, GROUP, w, back, 0, DP)
    dn += dot(du_first, tl.trans(tl.load(U + pid * 64 * DP + columns).to(w.dtype)))
    dbeta += tl.sum(du_first * load_columns(W, b, h, rows, length, w_row, 0, D).to(tl.float32), 1)
    du_first = du_first.to(w.dtype)
    if DP > 64:
        du_last = du_columns(DU, DSTEP, first * DP + 64 + columns, head * DP, GROUP, w, back, 1, DP)
        dn += dot(du_last, tl.trans(tl.load(U + pid * 64 * DP + 64 + columns).to(w.dtype)))
        dbeta += tl.sum(du_last * load_columns(W, b, h, rows, length, w_row, 1, D).to(tl.float32), 1)
        du_last = du_last.to(w.dtype)
    dn = tl.where(below, -dn, 0.0)
    dbeta += tl.sum(dn * dot(w, tl.trans(w)), 1)
    tl.store(DBETA + (b * length + rows) * w_row + h, dbeta, mask=rows < length)
    dn = beta * dn
    dn = (dn + tl.trans(dn)).to(w.dtype)

    z, u = tl.load(Z + square).to(w.dtype), tl.load(U + tile(pid * 64 * DP, 64, DP)).to(w.dtype)
    for part in tl.static_range(DP // 64):
        dstep = tl.load(DSTEP + (part * 64 + local)[:, None] * DP + tl.arange(0, DP)[None, :])
        dw = beta * (du_first if part == 0 else du_last)
        dw += dot(dn, load_columns(W, b, h, rows, length, w_row, part, D))
        dw += dot(dy, load_columns(K, b, h, rows, length, kv_row, part, D))
        dw -= dot(u, tl.trans(dstep)) + dot(z, tl.load(DK_END + pid * 64 * DP + part * 64 + columns))
        dw += over_group(DW_BLOCK, first * DP + part * 64 + columns, head * DP, GROUP)
        tl.store(DW + part * 64, dw, mask=mask & (part * 64 + local[None, :] < D))


@functools.lru_cache(LAYOUTS)
def product_launch(sizes: Sizes, begin: int, end: int, held: int, shares: int) -> Launch:
    """The launch of `dproduct_kernel`."""
    columns = 32
    settings = {**sizes.named("chunks", "pairs"), "begin": begin, "end": end, "skipped": begin * (begin - 1) // 2}
    settings |= {"held": held, **sizes.constants("GROUP", "DP"), "SHARES": shares, "COLUMNS": columns}
    grid = (sizes.batch * sizes.kv_heads * sizes.chunks * (sizes.width // columns),)
    return Launch(dproduct_kernel, (grid, settings | {"num_warps": 4, "num_stages": 1}))


@functools.lru_cache(LAYOUTS)
def gather_launch(sizes: Sizes, exact: bool, nodes: int, right: bool) -> Launch:
    """The launch of `gather_kernel`."""
    columns = min(sizes.width, 64)
    settings = {**sizes.named("length", "chunks"), "nodes": nodes, **sizes.constants("DP", "R", "LEVELS")}
    settings |= {"GROUP": 1 if right else sizes.heads // sizes.kv_heads, "COLUMNS": columns, "RIGHT": right}
    grid = (sizes.batch * sizes.kv_heads * sizes.chunks * (nodes // 2) * (sizes.width // columns),)
    return Launch(gather_kernel, (grid, settings | {"num_warps": 4, "num_stages": 1 if exact else 2}))


@functools.lru_cache(LAYOUTS)
def descend_launches(sizes: Sizes, nodes: int) -> list[Launch]:
    """The launches of `descend_kernel`, from the top."""
    trees, rows, top = sizes.batch * sizes.kv_heads * sizes.chunks, min(sizes.width, 64), levels_of_gradients(sizes)
    shared = {**sizes.named("length", "chunks"), "nodes": nodes, **sizes.constants("DP", "R"), "ROWS": rows}
    shared |= {"num_warps": 4, "num_stages": 1}
    return [
        Launch(
            descend_kernel,
            (
                (trees * (sizes.blocks >> level) * (sizes.width // rows),),
                {**shared, "LEVEL": level, "ROOT": level == sizes.levels - 1},
            ),
        )
        for level in reversed(range(top if sizes.far else top - 1))
    ]


@functools.lru_cache(LAYOUTS)
def block_launch(sizes: Sizes, nodes: int, dkv_row: int) -> Launch:
    """The launch of `unprepare_kernel`."""
    settings = sizes.named("length", "kv_heads", "kv_row", "w_row", "all_blocks")
    settings |= {"dkv_row": dkv_row, "nodes": nodes, **sizes.constants("GROUP", "D", "DP", "R")}
    grid = (sizes.all_blocks * sizes.batch * sizes.kv_heads,)
    return Launch(unprepare_kernel, (grid, settings | {"num_warps": 4, "num_stages": 1}))


def add_products(sizes: Sizes, m: Tensor, e: Tensor, dproduct: Tensor, begin: int, end: int) -> None:
    """Add the contribution of queries in chunks `begin` to `end` to the gradient of chunk products.

    Args:
        sizes: sizes of the call.
        m: products between chunks, `[N, pairs, DP, DP]`.
        e: output of `far_dq_kernel`, `[B H, pairs with queries in that range, parts, DP, DP]`.
        dproduct: gradient of chunk products, `[N, n, DP, DP]`, updated in place.
        begin, end: range of chunks.
    """
    product_launch(sizes, begin, end, *e.shape[1:3])(M=m, E=e, DPRODUCT=dproduct)


def levels_of_gradients(sizes: Sizes) -> int:
    """Number of levels whose nodes have a gradient.

    Unless `sizes.far`, the two halves of the chunk have none: no query is pulled past the left one, no key pushed past
    the right one.
    """
    return sizes.levels if sizes.far else max(sizes.levels - 1, 0)


def empty_dnodes(like: Tensor, sizes: Sizes) -> Tensor:
    """Tensor for gradients of node products, `[N, n, nodes, DP, DP]`, blocks first; zero if only blocks have any."""
    r, trees = sizes.blocks, (sizes.batch * sizes.kv_heads, sizes.chunks)
    nodes = 2 * r - (2 * r >> levels_of_gradients(sizes))
    make = like.new_empty if nodes else like.new_zeros
    return make(*trees, nodes or r, sizes.width, sizes.width)


def gather(call: Call, dnodes: Tensor, wide: Tensor, narrow: Tensor, right: bool) -> None:
    """Fill gradients of the products of right nodes (from keys) or of left nodes (from queries).

    Args:
        call: the inputs.
        dnodes: gradients of node products, `[N, n, nodes, DP, DP]`.
        wide, narrow: for right nodes, gradients of pushed keys and the keys, `[N, n, levels, R / 2, 64, DP]`; for left
            nodes, pulled queries and their gradients, `[B H, n, levels, R / 2, 64, DP]`.
        right: which nodes to fill.
    """
    if levels_of_gradients(call.sizes):
        launch = gather_launch(call.sizes, call.exact, dnodes.shape[2], right)
        launch(WIDE=wide, NARROW=narrow, DNODES=dnodes)


def descend(sizes: Sizes, nodes: Tensor, dnodes: Tensor, dproduct: Tensor | None) -> None:
    """Propagate gradients of products from chunks down to blocks.

    Args:
        sizes: sizes of the call.
        nodes: node products, `[N, n, 2 R - 1, DP, DP]`.
        dnodes: their gradients, `[N, n, nodes, DP, DP]`, updated in place.
        dproduct: gradients of chunk products, `[N, n, DP, DP]`; None unless `sizes.far`.
    """
    for launch in descend_launches(sizes, dnodes.shape[2]):
        launch(NODES=nodes, DNODES=dnodes, DPRODUCT=dproduct)


def unprepare(
    call: Call, p: Prepared, dnodes: Tensor, dk_end: Tensor, du: Tensor, shares: Shares,
    dk: Tensor, dw: Tensor, dbeta: Tensor,
) -> None:  # fmt: skip
    """Write `dk, dw [B, T, Hkv, D]` and `dbeta [B, T, Hkv]`.

    Args:
        call: the inputs.
        p: preprocessed blocks.
        dnodes: gradients of node products, those of blocks first.
        dk_end: gradients of keys at the end of their block, `[N, Tp, DP]`.
        du, shares: results of `diagonal`.
        dk, dw, dbeta: gradients to fill.
    """
    block_launch(call.sizes, dnodes.shape[2], row_of(dk))(
        K=call.k, W=call.w, BETA=call.beta, U=p.u, Z=p.z, INVERSE=p.inverse, DNODES=dnodes, DK_END=dk_end, DU=du,
        DW_BLOCK=shares.dw, DK_BLOCK=shares.dk, DZ=shares.dz, DK=dk, DW=dw, DBETA=dbeta,
    )  # fmt: skip
