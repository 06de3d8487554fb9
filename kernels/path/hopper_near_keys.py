"""Gradients of keys and values from queries of the same chunk, for Hopper: the algorithm of `near_dkv_kernel`."""

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
from ..layout import row_of
from . import tiles
from .call import Call, Upstream
from .hopper import rows_of
from .hopper_far import TILES, FarTiles, as_matrix, as_pair, heads_of, initial, item
from .prepare import Prepared
from .ring import level_of, node_of, shared, slot_of
from .warpgroup import accumulator, coalesced, load_rows, operand, put, start_product

place_of, unit_rows, count_of = (
    gluon.jit(function.fn) for function in (tiles.place_of, tiles.unit_rows, tiles.count_of)
)


@gluon.jit
def feed(
    sources, own, loaded, ring, bases, place,
    GROUP: gl.constexpr, R: gl.constexpr, LEVELS: gl.constexpr, BM: gl.constexpr,
):  # fmt: skip
    """Copy the values of a program and the gradients of its keys, then what `gather` reads, in its order."""
    SEEN, KEYS, V, NODES, DOUT, DK_BAR = sources
    left_values, left_moved, right_values, right_moved = own
    dk_row, value_row, value_column, node_row, key_row, query_row, dout_row, dout_column, step = bases
    c, j, visits, blocks = place
    DP: gl.constexpr = KEYS.block_type.shape[1]
    mbarrier.expect(loaded, 2 * DK_BAR.block_type.nbytes + 2 * V.block_type.nbytes)
    tma.async_copy_global_to_shared(DK_BAR, [dk_row, 0], loaded, left_moved)
    tma.async_copy_global_to_shared(V, [value_row, value_column], loaded, left_values)
    tma.async_copy_global_to_shared(DK_BAR, [dk_row + 64, 0], loaded, right_moved)
    tma.async_copy_global_to_shared(V, [value_row + 64, value_column], loaded, right_values)
    it = 0
    bits, end = (R - 1) ^ j, (c + 1) * R
    for _ in range(visits):
        gl.assume(bits >= 0)
        gl.assume(end >= 0)
        level = level_of(bits, LEVELS)
        bits -= 1 << level
        end -= 1 << level
        memory, full, empty, phase = item(ring, it)
        mbarrier.wait(empty, phase ^ 1)
        mbarrier.expect(full, NODES.block_type.nbytes)
        node = node_row + node_of(j, level, R) + 1
        tma.async_copy_global_to_shared(NODES, [node * DP, 0], full, as_matrix(memory, NODES.dtype))
        memory, full, empty, phase = item(ring, it + 1)
        left, right = as_pair(memory, 64)
        mbarrier.wait(empty, phase ^ 1)
        mbarrier.expect(full, 2 * KEYS.block_type.nbytes)
        row = key_row + slot_of(j, level, R) * 64
        tma.async_copy_global_to_shared(KEYS, [row, 0], full, left)
        tma.async_copy_global_to_shared(KEYS, [row + 64, 0], full, right)
        it += 2
        for g in range(GROUP):
            for part in range(gl.minimum(1 << level, blocks - end)):
                memory, full, empty, phase = item(ring, it)
                queries, douts = as_pair(memory, BM)
                mbarrier.wait(empty, phase ^ 1)
                mbarrier.expect(full, SEEN.block_type.nbytes + DOUT.block_type.nbytes)
                row = query_row + g * step + (slot_of(end - c * R, level, R) + part) * 64
                tma.async_copy_global_to_shared(SEEN, [row, 0], full, queries)
                column = dout_column + g * DOUT.block_type.shape[1]
                tma.async_copy_global_to_shared(DOUT, [dout_row + (end + part) * 64, column], full, douts)
                it += 1


@gluon.jit
def gather(
    scores, results, buffers, given, loaded, ring, statistics, targets, place, step, length,
    ODD: gl.constexpr, GROUP: gl.constexpr, R: gl.constexpr, LEVELS: gl.constexpr, BM: gl.constexpr,
):  # fmt: skip
    """Gradients of 64 keys and values.

    Buffers hold the values, keys at the end of the node that is visited, and what is copied to memory.
    """
    LSE, DELTA, HIGH, LOW = scores
    DKEYS, DK_BAR, DV_OUT, DC = results
    values, moved, spare = buffers
    DV_OWN, own_row = given
    dtype: gl.constexpr = values.dtype
    DP: gl.constexpr = moved.shape[1]
    DVP: gl.constexpr = values.shape[1]
    GATED: gl.constexpr = HIGH is not None
    tile: gl.constexpr = accumulator(BM)
    dk_row, dkeys_row, dv_at, dv_step = targets
    c, j, visits, blocks = place
    block = c * R + j + ODD
    zero = gl.full([64, BM], 0.0, gl.float32, tile)

    broad: gl.constexpr = coalesced(DVP)
    local = gl.arange(0, 64, gl.SliceLayout(1, broad))
    columns = gl.arange(0, DVP, gl.SliceLayout(0, broad))
    spare.store(load_rows(DV_OUT, dv_at, block * 64 + local, columns, length, dv_step))
    gl.thread_barrier()
    dv = spare.load(accumulator(DVP)).to(gl.float32)
    for g in range(GROUP):
        gl.thread_barrier()
        at = DV_OWN + (own_row + g * step + ODD * 64).to(gl.int64) * DVP
        spare.store(gl.load(at + gl.expand_dims(local, 1) * DVP + gl.expand_dims(columns, 0)))
        gl.thread_barrier()
        dv += spare.load(accumulator(DVP)).to(gl.float32)
    mbarrier.wait(loaded, 0)
    y = moved.load(accumulator(DP)).to(gl.float32) * (1 / LN2)
    gl.thread_barrier()

    it = 0
    bits, end = (R - 1) ^ j, (c + 1) * R
    for _ in range(visits - ODD):
        gl.assume(bits >= 0)
        gl.assume(end >= 0)
        level = level_of(bits, LEVELS)
        bits -= 1 << level
        end -= 1 << level
        tma.store_wait(0)
        gl.thread_barrier()  # only one thread waits
        put(spare, y * LN2)
        tma.async_copy_shared_to_global(DKEYS, [dkeys_row + slot_of(j + ODD, level, R) * 64, 0], spare)
        memory, full, empty, phase = item(ring, it)
        unit, size = unit_rows(y)
        units = moved._reinterpret(gl.float16, [64, DP], shared(64, DP))  # in registers, there is no room for both
        put(units, unit)
        mbarrier.wait(full, phase)
        y = warpgroup_mma_wait(0, [start_product(units, as_matrix(memory, gl.float16), DP)]) * size
        mbarrier.arrive(empty)
        memory, full, empty, phase = item(ring, it + 1)
        mbarrier.wait(full, phase)
        left, right = as_pair(memory, 64)
        if ODD:
            put(moved, right.load(coalesced(DP)))
        else:
            put(moved, left.load(coalesced(DP)))
        mbarrier.arrive(empty)
        it += 2
        at = statistics + end * 64
        count = gl.minimum(1 << level, blocks - end)
        for head in range(GROUP):
            if GATED:
                origin = gl.load(HIGH + statistics + head * step + c * R * 64)
                mine = statistics + head * step + block * 64 + gl.arange(0, 64, gl.SliceLayout(1, tile))
                bias = gl.expand_dims(origin - gl.load(HIGH + mine) - gl.load(LOW + mine), 1)
                dc = gl.load(DC + mine)
            s, dp = initial(LSE, DELTA, at + head * step, BM)
            for part in range(count):
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
                s, dp = initial(LSE, DELTA, at + head * step + gl.minimum(part + 1, count - 1) * BM, BM)
                dv, y = warpgroup_mma_wait(0, [dv, y])
                mbarrier.arrive(empty)
                it += 1
            if GATED:
                gl.store(DC + mine, dc)

    if ODD:  # the last right sibling is this block
        rest = gl.where(visits > 0, 2 + GROUP * gl.where(block < blocks, 1, 0), 0)
        for _ in range(rest):
            memory, full, empty, phase = item(ring, it)
            mbarrier.wait(full, phase)
            mbarrier.arrive(empty)
            it += 1
    tma.store_wait(0)
    gl.thread_barrier()
    put(spare, y * LN2)
    tma.async_copy_shared_to_global(DK_BAR, [dk_row + ODD * 64, 0], spare)
    values.store(dv.to(dtype))
    rows = gl.expand_dims(block * 64 + local, 1)
    gl.store(
        DV_OUT + dv_at + rows.to(gl.int64) * dv_step + gl.expand_dims(columns, 0),
        values.load(broad),
        mask=rows < length,
    )
    tma.store_wait(0)


@gluon.jit(do_not_specialize=["length", "kv_heads", "dkv_row", "chunks", "together"])
def near_dkv_hopper_kernel(
    SEEN, KEYS, V, NODES, DOUT, LSE, DELTA, HIGH, LOW, DC, DV_OWN, DKEYS, DK_BAR, DV_OUT,
    length, kv_heads, dkv_row, chunks, together,
    GROUP: gl.constexpr, R: gl.constexpr, LEVELS: gl.constexpr, BM: gl.constexpr, STAGES: gl.constexpr,
    CONSUMER: gl.constexpr,
):  # fmt: skip
    """dV of two sibling blocks. Propagate the gradients of their keys down the nodes of their chunk.

    DK_BAR holds the gradient at the end of the chunk on entry, and at the end of the block on return. DV_OUT holds the
    contribution of later chunks on entry.
    """
    DP: gl.constexpr = KEYS.block_type.shape[1]
    DVP: gl.constexpr = V.block_type.shape[1]
    gl.static_assert(BM == 64 and DP == 128 and DVP == 128)
    tokens = chunks * R * 64
    pair, n = place_of(gl.program_id(0), tokens // 128, together)
    n = n.to(gl.int32)
    b, hk = n // kv_heads, n % kv_heads
    block = pair * 2
    c, j = block // R, block % R
    blocks = (length + 63) // 64
    visits = gl.where(block < blocks, count_of((R - 1) ^ j, LEVELS), 0)

    left_values = gl.allocate_shared_memory(KEYS.dtype, [64, DVP], shared(64, DVP))
    left_moved = gl.allocate_shared_memory(KEYS.dtype, [64, DP], shared(64, DP))
    left_spare = gl.allocate_shared_memory(KEYS.dtype, [64, DP], shared(64, DP))
    right_values = gl.allocate_shared_memory(KEYS.dtype, [64, DVP], shared(64, DVP))
    right_moved = gl.allocate_shared_memory(KEYS.dtype, [64, DP], shared(64, DP))
    right_spare = gl.allocate_shared_memory(KEYS.dtype, [64, DP], shared(64, DP))
    slots = gl.allocate_shared_memory(KEYS.dtype, [STAGES, 2 * BM, DP], shared(2 * BM, DP))
    loaded = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    mbarrier.init(loaded, count=1)
    for slot in gl.static_range(STAGES):
        mbarrier.init(full.index(slot), count=1)
        mbarrier.init(empty.index(slot), count=2)
    fence_async_shared()

    rows: gl.constexpr = LEVELS * (R // 2) * 64  # rows of keys and queries of a chunk
    heads = n * GROUP  # the first query head of the group, among all sequences
    place, ring = (c, j, visits, blocks), (slots, full, empty)
    sources = (SEEN, KEYS, V, NODES, DOUT, DK_BAR)
    scores, results = (LSE, DELTA, HIGH, LOW), (DKEYS, DK_BAR, DV_OUT, DC)
    bases = (
        n * tokens + block * 64, b * length + block * 64, hk * DVP, (n * chunks + c) * (2 * R - 1),
        (n * chunks + c) * rows, (heads * chunks + c) * rows, b * length, hk * GROUP * DVP, chunks * rows,
    )  # fmt: skip
    targets = (
        n * tokens + block * 64, (n * chunks + c) * rows, (b.to(gl.int64) * length * dkv_row + hk) * DVP, dkv_row * DVP,
    )  # fmt: skip
    given = (DV_OWN, heads * tokens + block * 64)
    gl.warp_specialize([
        (gather, (
            scores, results, (left_values, left_moved, left_spare), given, loaded, ring, heads * tokens, targets, place,
            tokens, length, 0, GROUP, R, LEVELS, BM,
        )),
        (gather, (
            scores, results, (right_values, right_moved, right_spare), given, loaded, ring, heads * tokens, targets,
            place, tokens, length, 1, GROUP, R, LEVELS, BM,
        )),
        (feed, (
            sources, (left_values, left_moved, right_values, right_moved), loaded, ring, bases, place,
            GROUP, R, LEVELS, BM,
        )),
    ], [4, 1], [CONSUMER, 24])  # fmt: skip


def hopper_near_keys(
    call: Call, up: Upstream, p: Prepared, seen: Tensor, dv_own: Tensor, dk_bar: Tensor, dv: Tensor, dc: Tensor | None,
    tiles: FarTiles = TILES,
) -> Tensor:  # fmt: skip
    """The same as `near.near_keys`."""
    sizes = call.sizes
    dkeys = torch.empty_like(p.keys)
    near_dkv_hopper_kernel[(sizes.padded // 128 * sizes.batch * sizes.kv_heads,)](
        SEEN=rows_of(seen, tiles.step), KEYS=rows_of(p.keys, 64), V=heads_of(call.v, 64, sizes.kv_row),
        NODES=rows_of(p.nodes, sizes.width), DOUT=heads_of(up.dout, tiles.step, sizes.out_row), LSE=up.lse,
        DELTA=up.delta, HIGH=call.high, LOW=call.low, DC=dc, DV_OWN=dv_own, DKEYS=rows_of(dkeys, 64),
        DK_BAR=rows_of(dk_bar, 64), DV_OUT=dv, dkv_row=row_of(dv),
        **sizes.named("length", "kv_heads", "chunks", "together"), **sizes.constants("GROUP", "R", "LEVELS"),
        BM=tiles.step, STAGES=tiles.stages, CONSUMER=tiles.consumer, num_warps=4, maxnreg=tiles.registers,
    )  # fmt: skip
    return dkeys
