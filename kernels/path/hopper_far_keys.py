"""Gradients of keys and values from queries of later chunks, for Hopper: the algorithm of `far_dkv_kernel`."""

from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from ..common import LN2
from ..layout import row_of
from . import tiles
from .call import Call, Upstream
from .hopper import rows_of
from .hopper_far import TILES, FarTiles, as_matrix, as_pair, claim, copy_products, copy_rows, heads_of, item
from .prepare import Prepared
from .ring import shared
from .warpgroup import accumulator, coalesced, operand, put, start_product

place_of, unit_rows = gluon.jit(tiles.place_of.fn), gluon.jit(tiles.unit_rows.fn)


@gluon.jit
def feed(
    sources, own, loaded, ring, bases, rounds, chunks, e, step, GROUP: gl.constexpr, R: gl.constexpr, BM: gl.constexpr
):
    """Copy the keys and values of a program, then what `gather` reads, in its order."""
    Q_BAR, K_BAR, V, M, NODES, DOUT = sources
    key_row, value_row, value_column, node_row, pair_row, query_row, dout_row, dout_column = bases
    pair_bytes: gl.constexpr = Q_BAR.block_type.nbytes + DOUT.block_type.nbytes
    copy_rows(K_BAR, V, own, loaded, key_row, value_row, value_column)
    it = 0
    for back in range(rounds):
        c = chunks - 1 - back
        copy_products(NODES, M, node_row + c * (2 * R - 1), pair_row + c * (c - 1) // 2 + e, ring, it)
        it += 2
        for g in range(GROUP):
            for start in range(0, R * 64, BM):
                memory, full = claim(ring, it, pair_bytes)
                queries, douts = as_pair(memory, BM)
                row = c * R * 64 + start
                tma.async_copy_global_to_shared(Q_BAR, [query_row + g * step + row, 0], full, queries)
                column = dout_column + g * DOUT.block_type.shape[1]
                tma.async_copy_global_to_shared(DOUT, [dout_row + row, column], full, douts)
                it += 1


@gluon.jit
def initial(LSE, DELTA, at, BM: gl.constexpr):
    """Initial accumulators of scores and of gradients of weights: minus the log-sum-exp and minus delta of queries."""
    layout: gl.constexpr = gl.SliceLayout(0, accumulator(BM))
    columns = gl.arange(0, BM, layout)
    return -gl.load(LSE + at + columns), -gl.load(DELTA + at + columns)


@gluon.jit
def gather(
    scores, results, buffers, loaded, ring, statistics, targets, rounds, chunks, step, rows, length,
    ODD: gl.constexpr, GROUP: gl.constexpr, R: gl.constexpr, BM: gl.constexpr,
):  # fmt: skip
    """Gradients of 64 keys and values.

    Buffers hold the keys, the values, and the keys pushed to the chunk of the queries.
    """
    LSE, DELTA, HIGH, LOW = scores
    DK_BAR, DV_OUT, DC = results
    keys, values, moved = buffers
    dtype: gl.constexpr = keys.dtype
    DP: gl.constexpr = keys.shape[1]
    DVP: gl.constexpr = values.shape[1]
    GATED: gl.constexpr = HIGH is not None
    tile: gl.constexpr = accumulator(BM)
    steps: gl.constexpr = R * 64 // BM
    dk_row, dv_at, dv_step = targets
    zero = gl.full([64, BM], 0.0, gl.float32, tile)
    y = gl.full([64, DP], 0.0, gl.float32, accumulator(DP))
    dv = gl.full([64, DVP], 0.0, gl.float32, accumulator(DVP))
    mbarrier.wait(loaded, 0)
    it = 0
    for back in range(rounds):
        c = chunks - 1 - back
        at = statistics + c * R * 64
        memory, full, empty, phase = item(ring, it)
        unit, size = unit_rows(y)
        mbarrier.wait(full, phase)
        units = moved._reinterpret(gl.float16, [64, DP], shared(64, DP))  # not in registers: there is no room for both
        put(units, unit)
        y = warpgroup_mma_wait(0, [start_product(units, as_matrix(memory, gl.float16), DP)]) * size
        mbarrier.arrive(empty)
        memory, full, empty, phase = item(ring, it + 1)
        mbarrier.wait(full, phase)
        x = warpgroup_mma_wait(0, [start_product(keys, as_matrix(memory, dtype).permute((1, 0)), DP)])
        mbarrier.arrive(empty)
        put(moved, x)
        s, dp = initial(LSE, DELTA, at, BM)
        it += 2
        for head in range(GROUP):
            if GATED:
                origin = gl.load(HIGH + at + head * step)
                mine = statistics + head * step + rows + ODD * 64 + gl.arange(0, 64, gl.SliceLayout(1, tile))
                bias = gl.expand_dims(origin - gl.load(HIGH + mine) - gl.load(LOW + mine), 1)
                dc = gl.load(DC + mine)
            for part in range(steps):
                memory, full, empty, phase = item(ring, it)
                queries, douts = as_pair(memory, BM)
                start = zero
                if GATED:
                    start = zero + bias
                mbarrier.wait(full, phase)
                s = warpgroup_mma(moved, queries.permute((1, 0)), start + gl.expand_dims(s, 0), is_async=True)
                dp = warpgroup_mma(values, douts.permute((1, 0)), zero + gl.expand_dims(dp, 0), is_async=True)
                s, dp = warpgroup_mma_wait(0, [s, dp])
                p = gl.exp2(s)
                ds = p * dp
                if GATED:
                    dc -= gl.sum(ds, 1)
                ds = gl.convert_layout(ds.to(dtype), operand(DP))
                p = gl.convert_layout(p.to(dtype), operand(DVP))
                dv = warpgroup_mma(p, douts, dv, is_async=True)
                y = warpgroup_mma(ds, queries, y, is_async=True)
                # Loaded for the next tile, while the tensor cores multiply.
                after = gl.minimum(head * steps + part + 1, GROUP * steps - 1)
                s, dp = initial(LSE, DELTA, at + after // steps * step + after % steps * BM, BM)
                dv, y = warpgroup_mma_wait(0, [dv, y])
                mbarrier.arrive(empty)
                it += 1
            if GATED:
                gl.store(DC + mine, dc)

    put(moved, y * LN2)
    tma.async_copy_shared_to_global(DK_BAR, [dk_row + ODD * 64, 0], moved)
    values.store(dv.to(dtype))
    broad: gl.constexpr = coalesced(DVP)
    tokens = gl.expand_dims(rows + ODD * 64 + gl.arange(0, 64, gl.SliceLayout(1, broad)), 1)
    columns = gl.expand_dims(gl.arange(0, DVP, gl.SliceLayout(0, broad)), 0)
    gl.store(DV_OUT + dv_at + tokens.to(gl.int64) * dv_step + columns, values.load(broad), mask=tokens < length)
    tma.store_wait(0)


@gluon.jit(do_not_specialize=["length", "kv_heads", "dkv_row", "chunks", "together", "pairs"])
def far_dkv_hopper_kernel(
    Q_BAR, K_BAR, V, M, NODES, DOUT, LSE, DELTA, HIGH, LOW, DC, DK_BAR, DV_OUT,
    length, kv_heads, dkv_row, chunks, together, pairs,
    GROUP: gl.constexpr, R: gl.constexpr, BM: gl.constexpr, STAGES: gl.constexpr, CONSUMER: gl.constexpr,
):  # fmt: skip
    """dK_bar and dV of 128 keys from all later chunks and all query heads of the group."""
    DP: gl.constexpr = K_BAR.block_type.shape[1]
    DVP: gl.constexpr = V.block_type.shape[1]
    gl.static_assert(2 * BM >= DP and DP == DVP)
    tokens = chunks * R * 64
    block, n = place_of(gl.program_id(0), tokens // 128, together)
    n = n.to(gl.int32)
    b, hk = n // kv_heads, n % kv_heads
    e = block * 128 // (R * 64)
    rounds = chunks - 1 - e

    left = gl.allocate_shared_memory(K_BAR.dtype, [64, DP], shared(64, DP))
    left_values = gl.allocate_shared_memory(K_BAR.dtype, [64, DVP], shared(64, DVP))
    left_moved = gl.allocate_shared_memory(K_BAR.dtype, [64, DP], shared(64, DP))
    right = gl.allocate_shared_memory(K_BAR.dtype, [64, DP], shared(64, DP))
    right_values = gl.allocate_shared_memory(K_BAR.dtype, [64, DVP], shared(64, DVP))
    right_moved = gl.allocate_shared_memory(K_BAR.dtype, [64, DP], shared(64, DP))
    slots = gl.allocate_shared_memory(K_BAR.dtype, [STAGES, 2 * BM, DP], shared(2 * BM, DP))
    loaded = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    mbarrier.init(loaded, count=1)
    for slot in gl.static_range(STAGES):
        mbarrier.init(full.index(slot), count=1)
        mbarrier.init(empty.index(slot), count=2)
    fence_async_shared()

    heads = n * GROUP  # the first query head of the group, among all sequences
    sources, ring = (Q_BAR, K_BAR, V, M, NODES, DOUT), (slots, full, empty)
    scores, results = (LSE, DELTA, HIGH, LOW), (DK_BAR, DV_OUT, DC)
    bases = (
        n * tokens + block * 128, b * length + block * 128, hk * DVP, n * chunks * (2 * R - 1) + 2 * R - 2, n * pairs,
        heads * tokens, b * length, hk * GROUP * DVP,
    )  # fmt: skip
    statistics = heads * tokens
    dv_at = (b.to(gl.int64) * length * dkv_row + hk) * DVP
    targets = (n * tokens + block * 128, dv_at, dkv_row * DVP)
    rows = block * 128
    gl.warp_specialize([
        (gather, (
            scores, results, (left, left_values, left_moved), loaded, ring, statistics, targets, rounds, chunks, tokens,
            rows, length, 0, GROUP, R, BM,
        )),
        (gather, (
            scores, results, (right, right_values, right_moved), loaded, ring, statistics, targets, rounds, chunks,
            tokens, rows, length, 1, GROUP, R, BM,
        )),
        (feed, (
            sources, (left, left_values, right, right_values), loaded, ring, bases, rounds, chunks, e, tokens,
            GROUP, R, BM,
        )),
    ], [4, 1], [CONSUMER, 24])  # fmt: skip


def hopper_far_keys(
    call: Call,
    up: Upstream,
    p: Prepared,
    m: Tensor,
    q_bar: Tensor,
    dv: Tensor,
    dc: Tensor | None,
    tiles: FarTiles = TILES,
) -> Tensor:
    """The same as `far.far_keys`."""
    sizes = call.sizes
    dk_bar = call.q.new_empty(sizes.batch * sizes.kv_heads, sizes.padded, sizes.width)
    far_dkv_hopper_kernel[(sizes.padded // 128 * sizes.batch * sizes.kv_heads,)](
        Q_BAR=rows_of(q_bar, tiles.step), K_BAR=rows_of(p.k_bar, 64), V=heads_of(call.v, 64, sizes.kv_row),
        M=rows_of(m, sizes.width), NODES=rows_of(p.nodes, sizes.width),
        DOUT=heads_of(up.dout, tiles.step, sizes.out_row), LSE=up.lse, DELTA=up.delta, HIGH=call.high,
        LOW=call.low, DC=dc, DK_BAR=rows_of(dk_bar, 64), DV_OUT=dv, dkv_row=row_of(dv),
        **sizes.named("length", "kv_heads", "chunks", "together", "pairs"),
        **sizes.constants("GROUP", "R"), BM=tiles.step, STAGES=tiles.stages, CONSUMER=tiles.consumer,
        num_warps=4, maxnreg=tiles.registers,
    )  # fmt: skip
    return dk_bar
