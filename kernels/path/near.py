"""Backward kernels of PaTH for queries and keys of different blocks of the same chunk.

They read the stored pulled queries and pushed keys. Gradients are propagated down the tree of nodes; the intermediate
gradients are stored, because the gradients of the node products are computed from them.
"""

import functools

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..common import LN2
from ..launching import LAYOUTS, Launch
from ..layout import row_of
from .call import Call, Form, Upstream
from .prepare import Prepared
from .sizes import Tiles
from .steps import from_keys, from_queries
from .tiles import (
    count_of,
    dot,
    head_at,
    level_of,
    load_tokens,
    node_of,
    node_tile,
    nodes_at,
    place_of,
    query_head,
    slot_of,
    slot_tile,
    slots_at,
    store_tokens,
    tile,
    unit_rows,
)

# By padded width; measured on an H200, see benchmarks/results/path_log.md.
QUERY_TILES = {64: Tiles(64, 32, 4, 3, 128), 128: Tiles(64, 32, 4, 3)}
KEY_TILES = {64: Tiles(64, 32, 4, 3, 168), 128: Tiles(64, 32, 4, 3)}
FLOAT32_TILES = {64: Tiles(64, 32, 4, 1), 128: Tiles(32, 32, 4, 1)}  # limited by shared memory


@triton.jit
def near_dq_kernel(
    V, NODES, KEYS, DOUT, LSE, DELTA, HIGH, LOW, FIRST, SEEN, DQ_BAR, DSEEN,
    length, heads, kv_heads, out_row, kv_row, chunks, together,
    DP: tl.constexpr, DV: tl.constexpr, DVP: tl.constexpr, R: tl.constexpr, LEVELS: tl.constexpr, BN: tl.constexpr,
    GATED: tl.constexpr, EXACT: tl.constexpr, PACKED: tl.constexpr, FAR: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Propagate the gradient of the queries of one block down the nodes of its chunk, storing it at right nodes.

    DQ_BAR holds the gradient at the start of the chunk on entry, and at the start of the block on return.
    """
    pid = tl.program_id(0)
    all_blocks = chunks * R
    rank, bh = place_of(pid, all_blocks, together)
    block = all_blocks - 1 - rank
    if block * 64 >= length:
        return
    b, h, hk, n = query_head(bh, heads, kv_heads)
    tokens = all_blocks * 64
    c, i = block // R, block % R
    rows = block * 64 + tl.arange(0, 64)
    V = head_at(V, b, hk, length, kv_row, DV)
    KEYS, NODES = slots_at(KEYS, n * chunks + c, R, LEVELS, DP), nodes_at(NODES, n * chunks + c, R, DP)
    SEEN, DSEEN = (slots_at(SEEN, bh * chunks + c, R, LEVELS, DP), slots_at(DSEEN, bh * chunks + c, R, LEVELS, DP))
    here = tile(bh * tokens * DP + block * 64 * DP, 64, DP)
    dout = load_tokens(DOUT, b, h, rows, length, out_row, DV, DVP)
    lse, delta = tl.load(LSE + bh * tokens + rows), tl.load(DELTA + bh * tokens + rows)
    lowest, first, row_high, row_low, origin = 0, None, None, None, None
    if PACKED:
        first, lowest = tl.load(FIRST + b * tokens + rows), tl.load(FIRST + b * tokens + block * 64)
    if GATED:
        HIGH, LOW = HIGH + bh * tokens, LOW + bh * tokens
        origin = tl.load(HIGH + c * R * 64)
        row_high, row_low = tl.load(HIGH + rows)[:, None], tl.load(LOW + rows)[:, None]
    x = tl.zeros([64, DP], tl.float32)
    if FAR:
        x += tl.load(DQ_BAR + here)
    bits, passed = i, 0
    for _ in range(count_of(i, LEVELS)):
        level = level_of(bits, LEVELS)
        bit = 1 << level
        bits -= bit
        left, here_seen = passed, slot_tile(i, level, R, DP)
        passed += bit
        there = c * R + left  # first block of the left sibling
        q = tl.load(SEEN + here_seen)
        tl.store(DSEEN + here_seen, x.to(DSEEN.dtype.element_ty))
        unit, unit_size = unit_rows(x)
        x = dot(unit, tl.trans(tl.load(NODES + node_tile(left, level, R, DP)))) * unit_size
        moved = KEYS + (slot_of(left, level, R) - there) * 64 * DP
        begin = tl.minimum(tl.maximum(there * 64, lowest // BN * BN), (there + bit) * 64)
        x = from_keys(
            x, q, moved, V, dout, lse, delta, HIGH, LOW, row_high, row_low, origin, first,
            begin, (there + bit) * 64, length, kv_row, DP, DV, DVP, BN, GATED, EXACT, PACKED, STAGES,
        )  # fmt: skip
    tl.store(DQ_BAR + here, x.to(DQ_BAR.dtype.element_ty))


@triton.jit
def near_dkv_kernel(
    V, NODES, KEYS, DOUT, LSE, DELTA, HIGH, LOW, FIRST, SEEN, DV_OWN, DKEYS, DK_BAR, DV_OUT, DC,
    length, kv_heads, out_row, kv_row, dkv_row, chunks, together,
    GROUP: tl.constexpr, DP: tl.constexpr, DV: tl.constexpr, DVP: tl.constexpr, R: tl.constexpr, LEVELS: tl.constexpr,
    BM: tl.constexpr, GATED: tl.constexpr, EXACT: tl.constexpr, PACKED: tl.constexpr, FAR: tl.constexpr,
    WHOLE: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """dV of one block. Propagate the gradient of its keys down the nodes of its chunk, storing it at left nodes.

    DK_BAR holds the gradient at the end of the chunk on entry, and at the end of the block on return. DV_OUT holds the
    contribution of later chunks on entry.
    """
    pid = tl.program_id(0)
    all_blocks = chunks * R
    block, n = place_of(pid, all_blocks, together)
    if block * 64 >= length:
        return
    b, hk, heads = n // kv_heads, n % kv_heads, kv_heads * GROUP
    tokens = all_blocks * 64
    c, j = block // R, block % R
    keys = block * 64 + tl.arange(0, 64)
    KEYS, DKEYS = slots_at(KEYS, n * chunks + c, R, LEVELS, DP), slots_at(DKEYS, n * chunks + c, R, LEVELS, DP)
    NODES = nodes_at(NODES, n * chunks + c, R, DP)
    here = tile(n * tokens * DP + block * 64 * DP, 64, DP)
    v = load_tokens(V, b, hk, keys, length, kv_row, DV, DVP)
    y, dv = tl.zeros([64, DP], tl.float32), tl.zeros([64, DVP], tl.float32)
    if FAR:
        y += tl.load(DK_BAR + here).to(tl.float32) * (1 / LN2)
        dv += load_tokens(DV_OUT, b, hk, keys, length, dkv_row, DV, DVP)
    for g in range(GROUP):
        dv += tl.load(DV_OWN + tile((b * heads + hk * GROUP + g) * tokens * DVP + block * 64 * DVP, 64, DVP))
    bits, end = (R - 1) & ~j, (c + 1) * R
    for _ in range(count_of(bits, LEVELS)):
        level = level_of(bits, LEVELS)
        bit = 1 << level
        bits -= bit
        end -= bit
        # End of the right sibling, limited to existing blocks.
        stop = tl.minimum(end + bit, tl.cdiv(length, 64)) * 64
        slot, sibling = slot_tile(j, level, R, DP), node_of(j, level, R) + 1
        k = tl.load(KEYS + slot)
        tl.store(DKEYS + slot, (y * LN2).to(DKEYS.dtype.element_ty))
        unit, unit_size = unit_rows(y)
        y = dot(unit, tl.load(NODES + tile(sibling * DP * DP, DP, DP))) * unit_size
        for g in range(GROUP):
            h = hk * GROUP + g
            slots = (b * heads + h) * chunks + c
            moved = slots_at(SEEN, slots, R, LEVELS, DP) + (slot_of(end - c * R, level, R) - end) * 64 * DP
            y, dv = from_queries(
                y, dv, k, v, moved, DOUT, LSE, DELTA, HIGH, LOW, FIRST, DC,
                b, h, heads, keys, c, end * 64, stop, length, tokens, out_row,
                DP, DV, DVP, R * 64, BM, GATED, EXACT, PACKED, WHOLE, STAGES,
            )  # fmt: skip
    tl.store(DK_BAR + here, (y * LN2).to(DK_BAR.dtype.element_ty))
    store_tokens(DV_OUT, b, hk, keys, length, dkv_row, DV, dv)


@functools.lru_cache(LAYOUTS)
def query_launch(form: Form) -> Launch:
    """The launch of `near_dq_kernel`."""
    sizes, tiles = form.sizes, (FLOAT32_TILES if form.exact else QUERY_TILES)[form.sizes.widest]
    settings = form.scored() | sizes.constants("LEVELS", "FAR")
    settings |= sizes.named("length", "heads", "kv_heads", "out_row", "kv_row", "chunks", "together")
    settings |= {"BN": tiles.step, "STAGES": tiles.stages}
    settings |= {"num_warps": tiles.warps, "num_stages": 1, "maxnreg": tiles.registers}
    return Launch(near_dq_kernel, ((sizes.all_blocks * sizes.batch * sizes.heads,), settings))


@functools.lru_cache(LAYOUTS)
def key_launch(form: Form, dkv_row: int) -> Launch:
    """The launch of `near_dkv_kernel`."""
    sizes, tiles = form.sizes, (FLOAT32_TILES if form.exact else KEY_TILES)[form.sizes.widest]
    settings = form.scored() | sizes.constants("GROUP", "LEVELS", "FAR")
    settings |= sizes.named("length", "kv_heads", "out_row", "kv_row", "chunks", "together")
    settings |= {"dkv_row": dkv_row, "BM": tiles.step, "WHOLE": sizes.length == sizes.padded, "STAGES": tiles.stages}
    settings |= {"num_warps": tiles.warps, "num_stages": 1, "maxnreg": tiles.registers}
    return Launch(near_dkv_kernel, ((sizes.all_blocks * sizes.batch * sizes.kv_heads,), settings))


def near_queries(call: Call, up: Upstream, p: Prepared, seen: Tensor, dq_bar: Tensor) -> Tensor:
    """Gradients of the pulled queries `seen [B H, n, levels, R / 2, 64, DP]`, in the same shape.

    `dq_bar [B H, Tp, DP]` holds gradients at the start of each chunk on entry, and of each block on return.
    """
    dseen = torch.empty_like(seen)
    query_launch(call.form)(
        NODES=p.nodes, KEYS=p.keys, SEEN=seen, DQ_BAR=dq_bar, DSEEN=dseen, **call.scored(), **up.named()
    )
    return dseen


def near_keys(
    call: Call, up: Upstream, p: Prepared, seen: Tensor, dv_own: Tensor, dk_bar: Tensor, dv: Tensor, dc: Tensor | None
) -> Tensor:
    """Gradients of the pushed keys, in the shape of `p.keys`. Completes `dv`, and adds to `dc`.

    `dk_bar [N, Tp, DP]` holds gradients at the end of each chunk on entry, and of each block on return.
    `dv_own [B H, Tp, DVP]` are the contributions of queries to values of their own block.
    """
    dkeys = torch.empty_like(p.keys)
    key_launch(call.form, row_of(dv))(
        NODES=p.nodes, KEYS=p.keys, SEEN=seen, DV_OWN=dv_own, DKEYS=dkeys, DK_BAR=dk_bar, DV_OUT=dv, DC=dc,
        **call.scored(), **up.named(),
    )  # fmt: skip
    return dkeys
