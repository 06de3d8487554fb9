"""Backward kernels of PaTH for queries and keys of different chunks.

Scores use the product M of all chunks between the two, so tiles of scores do not depend on each other. Gradients are
accumulated from chunk to chunk: those of queries to the right, by X <- dS K_bar + X P^T, and those of keys to the left.
The former also gives E = Q_bar^T X, from which dP follows. Calls that `gradients_on_hopper` accepts are computed by
other kernels, in hopper_far_queries.py and hopper_far_keys.py.
"""

import functools
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..common import LN2
from ..launching import LAYOUTS, Launch, fits
from ..layout import row_of
from .call import Call, Form, Upstream
from .hopper_calls import gradients_on_hopper
from .prepare import Prepared
from .sizes import BLOCK, Sizes, Tiles
from .steps import from_keys, from_queries
from .tiles import dot, head_at, load_tokens, place_of, query_head, store_tokens, tile, unit_rows
from .unprepare import add_products

# By padded width; measured on an H200, see benchmarks/results/path_log.md.
QUERY_TILES = {64: Tiles(64, 64, 4, 3), 128: Tiles(128, 64, 8, 3)}
KEY_TILES = {64: Tiles(64, 64, 4, 3), 128: Tiles(64, 32, 4, 3)}
FLOAT32_TILES = {64: Tiles(64, 32, 4, 1), 128: Tiles(32, 32, 4, 1)}  # limited by shared memory
HOPPER_FROM = {128: 2048}  # by channels: tokens from which the kernels in Gluon were measured to be faster
SEGMENT = 16  # maximum size of E relative to the queries


@triton.jit
def far_dq_kernel(
    Q_BAR, K_BAR, V, M, NODES, DOUT, LSE, DELTA, HIGH, LOW, FIRST, DQ_BAR, E,
    length, batch, heads, kv_heads, out_row, kv_row, chunks, together, pairs, end, skipped, held,
    DP: tl.constexpr, DV: tl.constexpr, DVP: tl.constexpr, R: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
    GATED: tl.constexpr, EXACT: tl.constexpr, PACKED: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """dQ_bar of BM queries from all earlier chunks, and their part of E. Queries are in chunks before `end`."""
    size: tl.constexpr = R * 64
    parts: tl.constexpr = size // BM
    pid = tl.program_id(0)
    tokens = chunks * size
    rank, bh = place_of(pid, tl.num_programs(0) // (batch * heads), together)
    m_block = end * parts - 1 - rank  # programs with the most chunks to process start first
    b, h, hk, n = query_head(bh, heads, kv_heads)
    c = m_block // parts
    rows = m_block * BM + tl.arange(0, BM)
    here = tile(bh * tokens * DP + m_block * BM * DP, BM, DP)
    g = tl.zeros([BM, DP], tl.float32)
    q = tl.load(Q_BAR + here)
    dout = load_tokens(DOUT, b, h, rows, length, out_row, DV, DVP)
    lse, delta = tl.load(LSE + bh * tokens + rows), tl.load(DELTA + bh * tokens + rows)
    K_BAR += n * tokens * DP
    V = head_at(V, b, hk, length, kv_row, DV)
    M += (n * pairs + c * (c - 1) // 2) * DP * DP
    NODES += (n * chunks * (2 * R - 1) + 2 * R - 2) * DP * DP  # the last node of a chunk is its product
    E += ((bh * held + c * (c - 1) // 2 - skipped) * parts + m_block % parts) * DP * DP
    lowest, first, row_high, row_low, origin = 0, None, None, None, None
    if PACKED:
        first, lowest = tl.load(FIRST + b * tokens + rows), tl.load(FIRST + b * tokens + m_block * BM)
    if GATED:
        HIGH, LOW = HIGH + bh * tokens, LOW + bh * tokens
        origin = tl.load(HIGH + c * size)
        row_high, row_low = tl.load(HIGH + rows)[:, None], tl.load(LOW + rows)[:, None]
    for e in range(c):
        begin = tl.minimum(tl.maximum(e * size, lowest // BN * BN), e * size + size)
        product = tl.load(NODES + tile(e * (2 * R - 1) * DP * DP, DP, DP))
        between = tl.load(M + tile(e * DP * DP, DP, DP))
        # No branch, not even for e = 0: otherwise tensor cores wait after every 16 channels.
        tl.store(E + tile(e * parts * DP * DP, DP, DP), (dot(tl.trans(q), g.to(q.dtype)) * LN2).to(q.dtype), mask=e > 0)
        unit, unit_size = unit_rows(g)
        g = dot(unit, tl.trans(product)) * unit_size
        x = dot(q, between).to(q.dtype)
        g = from_keys(
            g, x, K_BAR, V, dout, lse, delta, HIGH, LOW, row_high, row_low, origin, first,
            begin, e * size + size, length, kv_row, DP, DV, DVP, BN, GATED, EXACT, PACKED, STAGES,
        )  # fmt: skip
    tl.store(DQ_BAR + here, g.to(DQ_BAR.dtype.element_ty))


@triton.jit
def far_dkv_kernel(
    Q_BAR, K_BAR, V, M, NODES, DOUT, LSE, DELTA, HIGH, LOW, FIRST, END, DK_BAR, DV_OUT, DC,
    length, kv_heads, out_row, kv_row, dkv_row, chunks, together, pairs,
    GROUP: tl.constexpr, DP: tl.constexpr, DV: tl.constexpr, DVP: tl.constexpr, R: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, GATED: tl.constexpr, EXACT: tl.constexpr, PACKED: tl.constexpr,
    WHOLE: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """dK_bar and dV of BN keys from all later chunks and all query heads of the group."""
    size: tl.constexpr = R * 64
    pid = tl.program_id(0)
    tokens = chunks * size
    block, n = place_of(pid, tokens // BN, together)
    b, hk, heads = n // kv_heads, n % kv_heads, kv_heads * GROUP
    e = block * BN // size
    keys = block * BN + tl.arange(0, BN)
    here = n * tokens * DP + block * BN * DP
    k = tl.load(K_BAR + tile(here, BN, DP))
    v = load_tokens(V, b, hk, keys, length, kv_row, DV, DVP)
    y, dv = tl.zeros([BN, DP], tl.float32), tl.zeros([BN, DVP], tl.float32)
    NODES += (n * chunks * (2 * R - 1) + 2 * R - 2) * DP * DP
    high = chunks
    if PACKED:
        high = tl.cdiv(tl.load(END + b * tokens + block * BN + BN - 1), size)
    for back in range(high - 1 - e):
        c = high - 1 - back
        if back > 0:
            unit, unit_size = unit_rows(y)
            y = dot(unit, tl.load(NODES + tile(c * (2 * R - 1) * DP * DP, DP, DP))) * unit_size
        x = dot(k, tl.trans(tl.load(M + tile((n * pairs + c * (c - 1) // 2 + e) * DP * DP, DP, DP)))).to(k.dtype)
        for g in range(GROUP):
            h = hk * GROUP + g
            y, dv = from_queries(
                y, dv, x, v, Q_BAR + (b * heads + h) * tokens * DP, DOUT, LSE, DELTA, HIGH, LOW, FIRST, DC,
                b, h, heads, keys, c, c * size, c * size + size, length, tokens, out_row,
                DP, DV, DVP, size, BM, GATED, EXACT, PACKED, WHOLE, STAGES,
            )  # fmt: skip
    tl.store(DK_BAR + tile(here, BN, DP), (y * LN2).to(DK_BAR.dtype.element_ty))
    store_tokens(DV_OUT, b, hk, keys, length, dkv_row, DV, dv)


def segments(sizes: Sizes, shares: int) -> list[tuple[int, int]]:
    """Ranges of chunks such that E of one range takes at most SEGMENT times the memory of the queries."""
    room = SEGMENT * sizes.padded // (shares * sizes.width)
    borders = [0]
    for c in range(1, sizes.chunks + 1):
        before = borders[-1]
        if c > before + 1 and c * (c - 1) // 2 - before * (before - 1) // 2 > room:
            borders.append(c - 1)
    return list(zip(borders, [*borders[1:], sizes.chunks], strict=True))


def query_settings(form: Form) -> dict[str, Any]:
    """Launch arguments of `far_dq_kernel` except for tensors, tiles, and the range of chunks."""
    names = ("length", "batch", "heads", "kv_heads", "out_row", "kv_row", "chunks", "together", "pairs")
    return form.scored() | form.sizes.named(*names)


@functools.lru_cache(LAYOUTS)
def query_launch(form: Form, begin: int, end: int, tiles: tuple[tuple[str, Any], ...]) -> Launch:
    """The launch of `far_dq_kernel` for queries in chunks `begin` to `end`."""
    sizes, chosen = form.sizes, dict(tiles)
    grid = ((end - begin) * (sizes.blocks * BLOCK // chosen["BM"]) * sizes.batch * sizes.heads,)
    return Launch(far_dq_kernel, (grid, query_settings(form) | held_pairs(begin, end) | chosen))


@functools.lru_cache(LAYOUTS)
def key_launch(form: Form, dkv_row: int) -> Launch:
    """The launch of `far_dkv_kernel`."""
    sizes, tiles = form.sizes, (FLOAT32_TILES if form.exact else KEY_TILES)[form.sizes.widest]
    own = min(tiles.own, sizes.blocks * BLOCK)
    settings = form.scored() | sizes.constants("GROUP")
    settings |= sizes.named("length", "kv_heads", "out_row", "kv_row", "chunks", "together", "pairs")
    settings |= {"dkv_row": dkv_row, "BM": tiles.step, "BN": own, "WHOLE": sizes.length == sizes.padded}
    settings |= {"STAGES": tiles.stages, "num_warps": tiles.warps, "num_stages": 1, "maxnreg": tiles.registers}
    return Launch(far_dkv_kernel, ((sizes.padded // own * sizes.batch * sizes.kv_heads,), settings))


def query_tiles(call: Call, tensors: dict[str, Tensor | None]) -> dict[str, Any]:
    """Launch arguments of `far_dq_kernel` for the first tiles that fit the GPU."""
    sizes, choices, shared = call.sizes, [], query_settings(call.form)
    for tiles in (FLOAT32_TILES if call.exact else QUERY_TILES)[sizes.widest].smaller():
        own = min(tiles.own, sizes.blocks * BLOCK)
        options = {"STAGES": tiles.stages, "num_warps": tiles.warps, "num_stages": 1, "maxnreg": tiles.registers}
        choices.append({"BM": own, "BN": tiles.step, **options})
        first = held_pairs(*segments(sizes, sizes.blocks * BLOCK // own)[0])
        if fits(far_dq_kernel, tensors | {"E": call.q.new_empty(0)}, shared | first | choices[-1]):
            break
    return choices[-1]


def held_pairs(begin: int, end: int) -> dict[str, int]:
    """Launch arguments of `far_dq_kernel` for the queries in chunks `begin` to `end`, for whose pairs E has room."""
    skipped = begin * (begin - 1) // 2
    return {"end": end, "skipped": skipped, "held": end * (end - 1) // 2 - skipped}


def far_queries(call: Call, up: Upstream, p: Prepared, m: Tensor, q_bar: Tensor) -> tuple[Tensor, Tensor]:
    """Gradients of queries at the start of their chunk and of chunk products, from keys of earlier chunks.

    Args:
        call: the inputs.
        up: gradient of the output.
        p: preprocessed keys and products.
        m: products between chunks, `[N, pairs, DP, DP]`.
        q_bar: queries pulled back to the start of their chunk, `[B H, Tp, DP]`.

    Returns:
        Gradients of `q_bar`, `[B H, Tp, DP]`, and of chunk products, `[N, n, DP, DP]` float32.
    """
    if gradients_on_hopper(call, up, HOPPER_FROM):
        from .hopper_far_queries import hopper_far_queries  # Gluon is imported only where it is used

        return hopper_far_queries(call, up, p, m, q_bar)
    sizes, q = call.sizes, call.q
    n, bh, width = sizes.batch * sizes.kv_heads, sizes.batch * sizes.heads, sizes.width
    dq_bar, dproduct = torch.empty_like(q_bar), q.new_zeros(n, sizes.chunks, width, width, dtype=torch.float32)
    tensors: dict[str, Tensor | None] = {"Q_BAR": q_bar, "K_BAR": p.k_bar, "M": m, "NODES": p.nodes, "DQ_BAR": dq_bar}
    tensors |= call.scored() | up.named()
    tiles, form = query_tiles(call, tensors), call.form
    shares = sizes.blocks * BLOCK // tiles["BM"]
    for begin, end in segments(sizes, shares):
        e = q.new_empty(bh, held_pairs(begin, end)["held"], shares, width, width)
        query_launch(form, begin, end, tuple(tiles.items()))(**tensors, E=e)
        add_products(sizes, m, e, dproduct, begin, end)
        del e  # otherwise E of two segments would be in memory
    return dq_bar, dproduct


def far_keys(call: Call, up: Upstream, p: Prepared, m: Tensor, q_bar: Tensor, dv: Tensor, dc: Tensor | None) -> Tensor:
    """Gradients of keys at the end of their chunk, `[N, Tp, DP]`, from queries of later chunks.

    Writes gradients of values to `dv` and adds those of gates to `dc [B H, Tp]`. For other arguments see
    `far_queries`.
    """
    if gradients_on_hopper(call, up, HOPPER_FROM):
        from .hopper_far_keys import hopper_far_keys

        return hopper_far_keys(call, up, p, m, q_bar, dv, dc)
    sizes = call.sizes
    dk_bar = call.q.new_empty(sizes.batch * sizes.kv_heads, sizes.padded, sizes.width)
    key_launch(call.form, row_of(dv))(
        Q_BAR=q_bar, K_BAR=p.k_bar, M=m, NODES=p.nodes, END=call.end, DK_BAR=dk_bar, DV_OUT=dv, DC=dc,
        **call.scored(), **up.named(),
    )  # fmt: skip
    return dk_bar
