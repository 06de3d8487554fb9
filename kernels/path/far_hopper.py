"""Gradients of keys and values from queries of later chunks for Hopper: the algorithm of `far_dkv_kernel` in far.py.

A program owns 128 keys: 64 for each of two warp groups. A third partition copies tiles of queries and gradients of the
output into shared memory with TMA. While one warp group computes exponentials, the tensor cores multiply for the other.
"""

from typing import NamedTuple

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
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from ..common import LN2
from ..layout import row_of
from . import tiles
from .call import Call, Upstream
from .far import held_pairs, segments
from .hopper import rows_of
from .prepare import Prepared
from .ring import shared
from .unprepare import add_products
from .warpgroup import accumulator, bias_of, coalesced, operand, put, start_product

place_of, unit_rows, query_head = (
    gluon.jit(function.fn) for function in (tiles.place_of, tiles.unit_rows, tiles.query_head)
)


@gluon.jit
def item(ring, it):
    """The memory of an item, the barriers that announce and release it, and their phase."""
    slots, full, empty = ring
    STAGES: gl.constexpr = slots.shape[0]
    slot = it % STAGES
    return slots.index(slot), full.index(slot), empty.index(slot), (it // STAGES) & 1


@gluon.jit
def as_pair(memory, BM: gl.constexpr):
    """An item that is a tile of queries and the gradients of their outputs."""
    DP: gl.constexpr = memory.shape[1]
    pair = memory._reinterpret(memory.dtype, [2, BM, DP], shared(BM, DP))
    return pair.index(0), pair.index(1)


@gluon.jit
def as_matrix(memory, dtype: gl.constexpr):
    """An item that is a product of chunks."""
    DP: gl.constexpr = memory.shape[1]
    return memory._reinterpret(dtype, [DP, DP], shared(DP, DP))


@gluon.jit
def feed(sources, own, loaded, ring, bases, rounds, chunks, e, step, GROUP: gl.constexpr, R: gl.constexpr, BM: gl.constexpr):
    """Copy the keys and values of a program, then what `gather` reads, in its order."""
    Q_BAR, K_BAR, V, M, NODES, DOUT = sources
    left, left_values, right, right_values = own
    key_row, value_row, value_column, node_row, pair_row, query_row, dout_row, dout_column = bases
    DP: gl.constexpr = K_BAR.block_type.shape[1]
    matrix_bytes: gl.constexpr = NODES.block_type.nbytes
    pair_bytes: gl.constexpr = Q_BAR.block_type.nbytes + DOUT.block_type.nbytes
    mbarrier.expect(loaded, 2 * K_BAR.block_type.nbytes + 2 * V.block_type.nbytes)
    tma.async_copy_global_to_shared(K_BAR, [key_row, 0], loaded, left)
    tma.async_copy_global_to_shared(V, [value_row, value_column], loaded, left_values)
    tma.async_copy_global_to_shared(K_BAR, [key_row + 64, 0], loaded, right)
    tma.async_copy_global_to_shared(V, [value_row + 64, value_column], loaded, right_values)
    it = 0
    for back in range(rounds):
        c = chunks - 1 - back
        memory, full, empty, phase = item(ring, it)
        mbarrier.wait(empty, phase ^ 1)
        mbarrier.expect(full, matrix_bytes)
        node = node_row + c * (2 * R - 1)
        tma.async_copy_global_to_shared(NODES, [node * DP, 0], full, as_matrix(memory, NODES.dtype))
        memory, full, empty, phase = item(ring, it + 1)
        mbarrier.wait(empty, phase ^ 1)
        mbarrier.expect(full, matrix_bytes)
        pair = pair_row + c * (c - 1) // 2 + e
        tma.async_copy_global_to_shared(M, [pair * DP, 0], full, as_matrix(memory, M.dtype))
        it += 2
        for g in range(GROUP):
            for start in range(0, R * 64, BM):
                memory, full, empty, phase = item(ring, it)
                queries, douts = as_pair(memory, BM)
                mbarrier.wait(empty, phase ^ 1)
                mbarrier.expect(full, pair_bytes)
                row = c * R * 64 + start
                tma.async_copy_global_to_shared(Q_BAR, [query_row + g * step + row, 0], full, queries)
                column = dout_column + g * DOUT.block_type.shape[1]
                tma.async_copy_global_to_shared(DOUT, [dout_row + row, column], full, douts)
                it += 1


@gluon.jit
def initial(LSE, DELTA, at, BM: gl.constexpr):
    """What scores and gradients of shares start from: less the log-sum-exp and delta of each query."""
    layout: gl.constexpr = gl.SliceLayout(0, accumulator(BM))
    columns = gl.arange(0, BM, layout)
    return -gl.load(LSE + at + columns), -gl.load(DELTA + at + columns)


@gluon.jit
def gather(
    LSE, DELTA, HIGH, LOW, DC, DK_BAR, DV_OUT, keys, values, moved, loaded, ring, statistics, targets, rounds, chunks, step,
    rows, length,
    ODD: gl.constexpr, GROUP: gl.constexpr, R: gl.constexpr, BM: gl.constexpr,
):  # fmt: skip
    """Gradients of 64 keys and values. `moved` is memory for the keys pushed to the chunk of the queries."""
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
        units = moved._reinterpret(gl.float16, [64, DP], shared(64, DP))  # in registers, there is no room for both
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
                # Those of the next tile, while tensor cores multiply.
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
            LSE, DELTA, HIGH, LOW, DC, DK_BAR, DV_OUT, left, left_values, left_moved, loaded, ring, statistics, targets, rounds,
            chunks, tokens, rows, length, 0, GROUP, R, BM,
        )),
        (gather, (
            LSE, DELTA, HIGH, LOW, DC, DK_BAR, DV_OUT, right, right_values, right_moved, loaded, ring, statistics, targets,
            rounds, chunks, tokens, rows, length, 1, GROUP, R, BM,
        )),
        (feed, (
            sources, (left, left_values, right, right_values), loaded, ring, bases, rounds, chunks, e, tokens,
            GROUP, R, BM,
        )),
    ], [4, 1], [CONSUMER, 24])  # fmt: skip


@gluon.jit
def feed_keys(sources, own, loaded, ring, bases, c, R: gl.constexpr, BN: gl.constexpr):
    """Copy the queries of a program and the gradients of their outputs, then what `gather_queries` reads, in its order."""
    Q_BAR, K_BAR, V, M, NODES, DOUT = sources
    left, left_douts, right, right_douts = own
    query_row, dout_row, dout_column, node_row, pair_row, key_row, value_row, value_column = bases
    DP: gl.constexpr = K_BAR.block_type.shape[1]
    matrix_bytes: gl.constexpr = NODES.block_type.nbytes
    pair_bytes: gl.constexpr = K_BAR.block_type.nbytes + V.block_type.nbytes
    mbarrier.expect(loaded, 2 * Q_BAR.block_type.nbytes + 2 * DOUT.block_type.nbytes)
    tma.async_copy_global_to_shared(Q_BAR, [query_row, 0], loaded, left)
    tma.async_copy_global_to_shared(DOUT, [dout_row, dout_column], loaded, left_douts)
    tma.async_copy_global_to_shared(Q_BAR, [query_row + 64, 0], loaded, right)
    tma.async_copy_global_to_shared(DOUT, [dout_row + 64, dout_column], loaded, right_douts)
    it = 0
    for e in range(c):
        memory, full, empty, phase = item(ring, it)
        mbarrier.wait(empty, phase ^ 1)
        mbarrier.expect(full, matrix_bytes)
        node = node_row + e * (2 * R - 1)
        tma.async_copy_global_to_shared(NODES, [node * DP, 0], full, as_matrix(memory, NODES.dtype))
        memory, full, empty, phase = item(ring, it + 1)
        mbarrier.wait(empty, phase ^ 1)
        mbarrier.expect(full, matrix_bytes)
        tma.async_copy_global_to_shared(M, [(pair_row + e) * DP, 0], full, as_matrix(memory, M.dtype))
        it += 2
        for start in range(0, R * 64, BN):
            memory, full, empty, phase = item(ring, it)
            keys, values = as_pair(memory, BN)
            mbarrier.wait(empty, phase ^ 1)
            mbarrier.expect(full, pair_bytes)
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
def gather_queries(
    LSE, DELTA, HIGH, LOW, DQ_BAR, E, both, spare, loaded, shared_barriers, ring, statistics, targets, first, c, parts,
    ODD: gl.constexpr, R: gl.constexpr, BN: gl.constexpr,
):  # fmt: skip
    """Gradients of 64 queries, and half of the rows of E of both warp groups. `spare` is memory to store E from."""
    left, left_douts, right, right_douts = both
    own, douts = left, left_douts
    if ODD:
        own, douts = right, right_douts
    written, taken = shared_barriers
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
            if GATED:  # of the next tile, while tensor cores multiply
                bias = bias_of(gates, (e * (R * 64 // BN) + step + 1) * BN, BN)
            g = warpgroup_mma_wait(0, [g])
            mbarrier.arrive(empty)
            it += 1

    tma.store_wait(0)
    gl.thread_barrier()
    put(spare, g)
    tma.async_copy_shared_to_global(DQ_BAR, [dq_row + ODD * 64, 0], spare)
    tma.store_wait(0)


@gluon.jit(do_not_specialize=["length", "batch", "heads", "kv_heads", "chunks", "together", "pairs", "end", "skipped", "held"])
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

    sources, ring, both = (Q_BAR, K_BAR, V, M, NODES, DOUT), (slots, full, empty), (left, left_douts, right, right_douts)
    bases = (
        bh * tokens + m_block * 128, b * length + m_block * 128, h * DVP, n * chunks * (2 * R - 1) + 2 * R - 2,
        n * pairs + c * (c - 1) // 2, n * tokens, b * length, hk * DVP,
    )  # fmt: skip
    at = bh * tokens + m_block * 128
    targets = (at, ((bh * held + c * (c - 1) // 2 - skipped) * parts + m_block % parts) * DP)
    gl.warp_specialize([
        (gather_queries, (
            LSE, DELTA, HIGH, LOW, DQ_BAR, E, both, left_spare, loaded, (written, taken), ring, at, targets, bh * tokens, c,
            parts, 0, R, BN,
        )),
        (gather_queries, (
            LSE, DELTA, HIGH, LOW, DQ_BAR, E, both, right_spare, loaded, (written, taken), ring, at, targets, bh * tokens, c,
            parts, 1, R, BN,
        )),
        (feed_keys, (sources, both, loaded, ring, bases, c, R, BN)),
    ], [4, 1], [CONSUMER, 24])  # fmt: skip


class FarTiles(NamedTuple):
    """Queries per tile, tiles in flight, and registers of a thread: of all partitions on average, and of consumers."""

    step: int
    stages: int
    registers: int = 168
    consumer: int = 240


TILES = FarTiles(64, 4)


def heads_of(x: Tensor, rows: int, row: int) -> TensorDescriptor:
    """Descriptor of tiles of `rows` tokens of one head of a caller's tensor `[B, T, heads, D]`."""
    batch, length, heads, width = x.shape
    layout = gl.NVMMASharedLayout.get_default_for([rows, width], gl.float16)
    return TensorDescriptor(x, [batch * length, heads * width], [row * width, 1], [rows, width], layout)


def hopper_far_keys(
    call: Call, up: Upstream, p: Prepared, m: Tensor, q_bar: Tensor, dv: Tensor, dc: Tensor | None, tiles: FarTiles = TILES
) -> Tensor:
    """The same as `far.far_keys`."""
    sizes = call.sizes
    dk_bar = torch.empty_like(p.k_bar)
    far_dkv_hopper_kernel[(sizes.padded // 128 * sizes.batch * sizes.kv_heads,)](
        Q_BAR=rows_of(q_bar, tiles.step), K_BAR=rows_of(p.k_bar, 64), V=heads_of(call.v, 64, sizes.kv_row),
        M=rows_of(m, sizes.width), NODES=rows_of(p.nodes, sizes.width),
        DOUT=heads_of(up.dout, tiles.step, sizes.out_row), LSE=up.lse, DELTA=up.delta, HIGH=call.high, LOW=call.low, DC=dc, DK_BAR=rows_of(dk_bar, 64),
        DV_OUT=dv, dkv_row=row_of(dv), **sizes.named("length", "kv_heads", "chunks", "together", "pairs"),
        **sizes.constants("GROUP", "R"), BM=tiles.step, STAGES=tiles.stages, CONSUMER=tiles.consumer,
        num_warps=4, maxnreg=tiles.registers,
    )  # fmt: skip
    return dk_bar


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
