"""Gradients of queries from keys of earlier chunks, for Hopper: the algorithm of `far_dq_kernel`."""

import torch
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
from . import tiles
from .call import Call, Upstream
from .far import held_pairs, segments
from .hopper import rows_of
from .hopper_far import TILES, FarTiles, as_matrix, as_pair, claim, copy_products, copy_rows, heads_of, item
from .prepare import Prepared
from .ring import shared
from .unprepare import add_products
from .warpgroup import accumulator, bias_of, operand, put, start_product

place_of, unit_rows, query_head = (
    gluon.jit(function.fn) for function in (tiles.place_of, tiles.unit_rows, tiles.query_head)
)


@gluon.jit
def feed(sources, own, loaded, ring, bases, c, R: gl.constexpr, BN: gl.constexpr):
    """Copy the queries of a program and the gradients of their outputs, then what `gather` reads, in its order."""
    Q_BAR, K_BAR, V, M, NODES, DOUT = sources
    query_row, dout_row, dout_column, node_row, pair_row, key_row, value_row, value_column = bases
    pair_bytes: gl.constexpr = K_BAR.block_type.nbytes + V.block_type.nbytes
    copy_rows(Q_BAR, DOUT, own, loaded, query_row, dout_row, dout_column)
    it = 0
    for e in range(c):
        copy_products(NODES, M, node_row + e * (2 * R - 1), pair_row + e, ring, it)
        it += 2
        for start in range(0, R * 64, BN):
            memory, full = claim(ring, it, pair_bytes)
            keys, values = as_pair(memory, BN)
            row = e * R * 64 + start
            tma.async_copy_global_to_shared(K_BAR, [key_row + row, 0], full, keys)
            tma.async_copy_global_to_shared(V, [value_row + row, value_column], full, values)
            it += 1


@gluon.jit
def columns_of(x, part):
    """64 columns of a tile of at least 64, without copying."""
    DP: gl.constexpr = x.shape[1]
    return x._reinterpret(x.dtype, [DP // 64, 64, 64], shared(64, 64)).index(part)


@gluon.jit
def gather(
    scores, results, both, spare, loaded, agreed, ring, statistics, targets, first, c, parts,
    ODD: gl.constexpr, R: gl.constexpr, BN: gl.constexpr,
):  # fmt: skip
    """Gradients of 64 queries, and half of the rows of E for queries of both warp groups. `spare` is a buffer for E."""
    left, left_douts, right, right_douts = both
    own, douts = left, left_douts
    if ODD:
        own, douts = right, right_douts
    LSE, DELTA, HIGH, LOW = scores
    DQ_BAR, E = results
    written, taken = agreed  # barriers of both warp groups
    GATED: gl.constexpr = HIGH is not None
    dtype: gl.constexpr = left.dtype
    DP: gl.constexpr = left.shape[1]
    tile: gl.constexpr = accumulator(BN)
    dq_row, e_row = targets
    rows = gl.arange(0, 64, gl.SliceLayout(1, tile))
    zero = gl.full([64, BN], 0.0, gl.float32, tile)
    lse = -gl.load(LSE + statistics + ODD * 64 + rows)
    delta = -gl.load(DELTA + statistics + ODD * 64 + rows)
    if GATED:
        gates = (HIGH + first, LOW + first, gl.load(HIGH + first + c * R * 64))
    g = gl.full([64, DP], 0.0, gl.float32, accumulator(DP))
    mbarrier.wait(loaded, 0)
    dout = douts.load(operand(BN))
    gl.thread_barrier()  # `douts` is now memory for g
    it = 0
    for e in range(c):
        mbarrier.wait(taken, (e & 1) ^ 1)
        put(douts, g)
        mbarrier.arrive(written)
        mbarrier.wait(written, e & 1)
        product = start_product(columns_of(left, ODD).permute((1, 0)), left_douts, DP)
        product = warpgroup_mma(columns_of(right, ODD).permute((1, 0)), right_douts, product, is_async=True)
        unit, size = unit_rows(g)
        unit = gl.convert_layout(unit.to(gl.float16), operand(DP))
        product = warpgroup_mma_wait(0, [product])
        mbarrier.arrive(taken)
        tma.store_wait(0)
        gl.thread_barrier()  # only one thread waits
        put(spare, product * LN2)
        if e > 0:
            tma.async_copy_shared_to_global(E, [e_row + e * parts * DP + ODD * 64, 0], spare)
        memory, full, empty, phase = item(ring, it)
        mbarrier.wait(full, phase)
        chain = as_matrix(memory, gl.float16).permute((1, 0))
        g = warpgroup_mma_wait(0, [start_product(unit, chain, DP)]) * size
        mbarrier.arrive(empty)
        memory, full, empty, phase = item(ring, it + 1)
        mbarrier.wait(full, phase)
        x = warpgroup_mma_wait(0, [start_product(own, as_matrix(memory, dtype), DP)])
        mbarrier.arrive(empty)
        x = gl.convert_layout(x.to(dtype), operand(BN))
        if GATED:
            bias = bias_of(gates, e * R * 64, BN)
        it += 2
        for step in range(R * 64 // BN):
            memory, full, empty, phase = item(ring, it)
            keys, values = as_pair(memory, BN)
            start = zero
            if GATED:
                start = zero + gl.expand_dims(bias, 0)
            mbarrier.wait(full, phase)
            s = warpgroup_mma(x, keys.permute((1, 0)), start + gl.expand_dims(lse, 1), is_async=True)
            dp = warpgroup_mma(dout, values.permute((1, 0)), zero + gl.expand_dims(delta, 1), is_async=True)
            s, dp = warpgroup_mma_wait(0, [s, dp])
            ds = gl.convert_layout((gl.exp2(s) * dp).to(dtype), operand(DP))
            g = warpgroup_mma(ds, keys, g, is_async=True)
            if GATED:  # loaded for the next tile, while the tensor cores multiply
                bias = bias_of(gates, (e * (R * 64 // BN) + step + 1) * BN, BN)
            g = warpgroup_mma_wait(0, [g])
            mbarrier.arrive(empty)
            it += 1

    tma.store_wait(0)
    gl.thread_barrier()
    put(spare, g)
    tma.async_copy_shared_to_global(DQ_BAR, [dq_row + ODD * 64, 0], spare)
    tma.store_wait(0)


@gluon.jit(
    do_not_specialize=["length", "batch", "heads", "kv_heads", "chunks", "together", "pairs", "end", "skipped", "held"]
)
def far_dq_hopper_kernel(
    Q_BAR, K_BAR, V, M, NODES, DOUT, LSE, DELTA, HIGH, LOW, DQ_BAR, E,
    length, batch, heads, kv_heads, chunks, together, pairs, end, skipped, held,
    R: gl.constexpr, BN: gl.constexpr, STAGES: gl.constexpr, CONSUMER: gl.constexpr,
):  # fmt: skip
    """dQ_bar of 128 queries from all earlier chunks, and their part of E. Queries are in chunks before `end`."""
    DP: gl.constexpr = K_BAR.block_type.shape[1]
    DVP: gl.constexpr = V.block_type.shape[1]
    gl.static_assert(2 * BN >= DP and DP == DVP and DP == 128)
    parts: gl.constexpr = R // 2
    tokens = chunks * R * 64
    rank, bh = place_of(gl.program_id(0), gl.num_programs(0) // (batch * heads), together)
    m_block = end * parts - 1 - rank  # programs with the most chunks to process start first
    b, h, hk, n = query_head(bh.to(gl.int32), heads, kv_heads)
    bh = bh.to(gl.int32)
    c = m_block // parts

    left = gl.allocate_shared_memory(K_BAR.dtype, [64, DP], shared(64, DP))
    left_douts = gl.allocate_shared_memory(K_BAR.dtype, [64, DVP], shared(64, DVP))
    left_spare = gl.allocate_shared_memory(K_BAR.dtype, [64, DP], shared(64, DP))
    right = gl.allocate_shared_memory(K_BAR.dtype, [64, DP], shared(64, DP))
    right_douts = gl.allocate_shared_memory(K_BAR.dtype, [64, DVP], shared(64, DVP))
    right_spare = gl.allocate_shared_memory(K_BAR.dtype, [64, DP], shared(64, DP))
    slots = gl.allocate_shared_memory(K_BAR.dtype, [STAGES, 2 * BN, DP], shared(2 * BN, DP))
    loaded = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    written = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    taken = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    mbarrier.init(loaded, count=1)
    mbarrier.init(written, count=2)
    mbarrier.init(taken, count=2)
    for slot in gl.static_range(STAGES):
        mbarrier.init(full.index(slot), count=1)
        mbarrier.init(empty.index(slot), count=2)
    fence_async_shared()

    sources, ring, both = (
        (Q_BAR, K_BAR, V, M, NODES, DOUT),
        (slots, full, empty),
        (left, left_douts, right, right_douts),
    )
    bases = (
        bh * tokens + m_block * 128, b * length + m_block * 128, h * DVP, n * chunks * (2 * R - 1) + 2 * R - 2,
        n * pairs + c * (c - 1) // 2, n * tokens, b * length, hk * DVP,
    )  # fmt: skip
    at = bh * tokens + m_block * 128
    targets = (at, ((bh * held + c * (c - 1) // 2 - skipped) * parts + m_block % parts) * DP)
    scores, results, agreed = (LSE, DELTA, HIGH, LOW), (DQ_BAR, E), (written, taken)
    gl.warp_specialize([
        (gather, (
            scores, results, both, left_spare, loaded, agreed, ring, at, targets, bh * tokens, c, parts, 0, R, BN,
        )),
        (gather, (
            scores, results, both, right_spare, loaded, agreed, ring, at, targets, bh * tokens, c, parts, 1, R, BN,
        )),
        (feed, (sources, both, loaded, ring, bases, c, R, BN)),
    ], [4, 1], [CONSUMER, 24])  # fmt: skip


def hopper_far_queries(
    call: Call, up: Upstream, p: Prepared, m: Tensor, q_bar: Tensor, tiles: FarTiles = TILES
) -> tuple[Tensor, Tensor]:
    """The same as `far.far_queries`."""
    sizes, q = call.sizes, call.q
    n, bh, width, shares = sizes.batch * sizes.kv_heads, sizes.batch * sizes.heads, sizes.width, sizes.blocks // 2
    dq_bar, dproduct = torch.empty_like(q_bar), q.new_zeros(n, sizes.chunks, width, width, dtype=torch.float32)
    for begin, end in segments(sizes, shares):
        pairs = held_pairs(begin, end)
        e = q.new_empty(bh, pairs["held"], shares, width, width)
        far_dq_hopper_kernel[((end - begin) * shares * bh,)](
            Q_BAR=rows_of(q_bar, 64), K_BAR=rows_of(p.k_bar, tiles.step), V=heads_of(call.v, tiles.step, sizes.kv_row),
            M=rows_of(m, width), NODES=rows_of(p.nodes, width), DOUT=heads_of(up.dout, 64, sizes.out_row),
            LSE=up.lse, DELTA=up.delta, HIGH=call.high, LOW=call.low, DQ_BAR=rows_of(dq_bar, 64), E=rows_of(e, 64),
            **sizes.named("length", "batch", "heads", "kv_heads", "chunks", "together", "pairs"), **pairs,
            **sizes.constants("R"), BN=tiles.step, STAGES=tiles.stages, CONSUMER=tiles.consumer,
            num_warps=4, maxnreg=tiles.registers,
        )  # fmt: skip
        add_products(sizes, m, e, dproduct, begin, end)
        del e  # otherwise E of two segments would be in memory
    return dq_bar, dproduct
