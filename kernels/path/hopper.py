"""Forward kernel of PaTH for Hopper: two blocks of queries share every tile of keys, which a producer warp fetches.

The algorithm is that of forward.py. A program owns two sibling blocks. Each is computed by a warp group with its own
running softmax; a third partition copies tiles of keys, values and products into shared memory with TMA. So the L2
cache, which limits the portable kernel, is read once for 128 queries, and while one warp group computes exponentials
the tensor cores multiply for the other.
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

from ..common import LOG2E, UNSEEN
from . import tiles
from .call import Call
from .prepare import Prepared
from .pull import Pulled, empty_queries
from .ring import arrived, as_product, produce, shared, slot_of, visit_of
from .warpgroup import (
    accumulator,
    bias_of,
    coalesced,
    load_rows,
    operand,
    put,
    rescaled,
    save,
    saved,
    soften,
    start_product,
    start_scores,
)

place_of, query_head, count_of = (
    gluon.jit(function.fn) for function in (tiles.place_of, tiles.query_head, tiles.count_of)
)


@gluon.jit
def diagonal(
    given, buffers, offsets, steps, gates, block, length, scale, DP: gl.constexpr, DVP: gl.constexpr, BN: gl.constexpr
):
    """Attention within a block, in UT form.

    `own` then holds its queries pulled back to its start, and `two` the same in float16 if those are not.
    """
    Q, K, V, W, U, Z = given
    own, one, two = buffers
    q_at, k_at, v_at, w_at, form = offsets
    q_step, k_step, v_step, w_step = steps
    wide: gl.constexpr = coalesced(DP)
    square: gl.constexpr = coalesced(64)
    broad: gl.constexpr = coalesced(DVP)
    chain: gl.constexpr = gl.float16
    GATED: gl.constexpr = gates[0] is not None

    # All tiles are requested before the first of them is needed.
    local = gl.arange(0, 64, gl.SliceLayout(1, wide))
    columns = gl.arange(0, DP, gl.SliceLayout(0, wide))
    q = load_rows(Q, q_at, block * 64 + local, columns, length, q_step)
    w = load_rows(W, w_at, block * 64 + local, columns, length, w_step)
    k = load_rows(K, k_at, block * 64 + local, columns, length, k_step)
    down = gl.expand_dims(gl.arange(0, 64, gl.SliceLayout(1, square)), 1)
    across = gl.expand_dims(gl.arange(0, 64, gl.SliceLayout(0, square)), 0)
    z = gl.load(Z + form * 64 + block * 64 * 64 + down * 64 + across)
    u = gl.load(U + form * DP + block * 64 * DP + gl.expand_dims(local, 1) * DP + gl.expand_dims(columns, 0))
    value_rows = block * 64 + gl.arange(0, 64, gl.SliceLayout(1, broad))
    v = load_rows(V, v_at, value_rows, gl.arange(0, DVP, gl.SliceLayout(0, broad)), length, v_step)

    mma: gl.constexpr = accumulator(64)
    rows = gl.expand_dims(gl.arange(0, 64, gl.SliceLayout(1, mma)), 1)
    seen = rows >= gl.expand_dims(gl.arange(0, 64, gl.SliceLayout(0, mma)), 0)
    half = own._reinterpret(chain, [64, DP], shared(64, DP))
    half.store((q.to(gl.float32) * scale).to(chain))
    one.store(w.to(chain))
    put(two, k)
    if GATED:
        bias = bias_of(gates, block * 64, 64)
    read, s = start_product(half, one.permute((1, 0)), 64), start_scores(half, two, bias if GATED else None)
    read, s = warpgroup_mma_wait(0, [read, s])
    read = gl.where(seen, -read, 0.0).to(chain)
    small = one._reinterpret(chain, [64, 64], shared(64, 64))
    small.store(z)
    put(two, u)
    low = half.load(accumulator(DP)).to(gl.float32)
    s = warpgroup_mma(gl.convert_layout(read, operand(64)), small, s, is_async=True)
    low = warpgroup_mma(gl.convert_layout(read, operand(DP)), two, low, is_async=True)
    s, low = warpgroup_mma_wait(0, [s, low])
    put(own, low)
    if own.dtype != chain:
        put(two, low)
    weight = gl.full([64], 0.0, gl.float32, gl.SliceLayout(1, mma))
    highest = gl.full([64], UNSEEN, gl.float32, gl.SliceLayout(1, mma))
    p, weight, highest, _rescale = soften(gl.where(seen, s, float("-inf")), weight, highest)
    fresh = one._reinterpret(V.dtype.element_ty, [64, DVP], shared(64, DVP))
    put(fresh, v)
    acc = start_product(gl.convert_layout(p.to(V.dtype.element_ty), operand(DVP)), fresh, DVP)
    layout: gl.constexpr = gl.SliceLayout(1, accumulator(BN))
    weight, highest = gl.convert_layout(weight, layout), gl.convert_layout(highest, layout)
    return warpgroup_mma_wait(0, [acc]), weight, highest


@gluon.jit
def consume(
    given, results, buffers, ring, place, offsets, steps, gates, targets, length, scale,
    ODD: gl.constexpr, DP: gl.constexpr, DVP: gl.constexpr, R: gl.constexpr, LEVELS: gl.constexpr, FAR: gl.constexpr,
    KEEP: gl.constexpr, BN: gl.constexpr,
):  # fmt: skip
    """Attention of one block: its diagonal, its left sibling if it is the right one, and what both siblings visit."""
    OUT, LSE, SEEN, Q_BAR = results
    own, one, two = buffers
    c, i, near, visits, block, bh = place
    out_at, out_step, seen_base, tokens = targets
    dtype: gl.constexpr = OUT.dtype.element_ty
    GATED: gl.constexpr = gates[0] is not None
    same: gl.constexpr = own.dtype == gl.float16  # otherwise queries for products are kept in float16 too
    chain = own if same else two
    tile: gl.constexpr = accumulator(BN)
    block = block + ODD
    acc, weight, highest = diagonal(given, buffers, offsets, steps, gates, block, length, scale, DP, DVP, BN)

    if ODD:
        if GATED:
            bias = bias_of(gates, block * 64 - 64, BN)
        keys, values, empty = arrived(ring, 0)
        left = warpgroup_mma_wait(0, [start_scores(own, keys, bias if GATED else None)])
        mbarrier.arrive(empty)
        if BN > 64:  # the tile has keys of another block too
            inside = gl.expand_dims(gl.arange(0, BN, gl.SliceLayout(0, tile)), 0) < 64
            left = gl.where(inside, left, float("-inf"))
        shares, weight, highest, factor = soften(left, weight, highest)
        shares = gl.convert_layout(shares.to(dtype), operand(DVP))
        keys, values, empty = arrived(ring, 1)
        acc = warpgroup_mma(shares, values, rescaled(acc, factor), is_async=True)
        first = start_product(chain, as_product(keys, DP), DP)
        acc, first = warpgroup_mma_wait(0, [acc, first])
        mbarrier.arrive(empty)
        if KEEP:
            save(SEEN, seen_base + slot_of(i + 1, 0, R) * 64, own, True)
            saved()
        put(own, first)
        if not same:
            put(two, first)
    else:  # wait although nothing is read: a later wait for the other phase must not see the initial one
        keys, values, empty = arrived(ring, 0)
        mbarrier.arrive(empty)
        keys, values, empty = arrived(ring, 1)
        mbarrier.arrive(empty)
    if KEEP and FAR:
        save(Q_BAR, bh * tokens + block * 64, own, near == 0)

    it = 2
    bits = i
    for visit in range(visits):
        there, count, level, bits, _beyond = visit_of(visit, near, bits, c, R, LEVELS)
        if GATED:
            bias = bias_of(gates, there * 64, BN)
        if KEEP:
            save(SEEN, seen_base + slot_of(i + ODD, level, R) * 64, own, visit < near)
        keys, values, empty = arrived(ring, it)
        s = warpgroup_mma_wait(0, [start_scores(own, keys, bias if GATED else None)])
        mbarrier.arrive(empty)
        if GATED:
            bias = bias_of(gates, there * 64 + BN, BN)  # of the next tile, ahead of its use
        p, weight, highest, rescale = soften(s, weight, highest)
        acc = rescaled(acc, rescale)
        p = gl.convert_layout(p.to(dtype), operand(DVP))
        it += 1
        for step in range(1, count * 64 // BN):
            keys, values, empty = arrived(ring, it)
            s = start_scores(own, keys, bias if GATED else None)
            acc = warpgroup_mma(p, values, acc, is_async=True)
            if GATED:
                bias = bias_of(gates, there * 64 + step * BN + BN, BN)
            s = warpgroup_mma_wait(1, [s])  # values are added up during the softmax
            after, weight, highest, rescale = soften(s, weight, highest)
            acc = warpgroup_mma_wait(0, [acc])
            mbarrier.arrive(empty)
            acc = rescaled(acc, rescale)
            p = gl.convert_layout(after.to(dtype), operand(DVP))
            it += 1
        keys, values, empty = arrived(ring, it)
        acc = warpgroup_mma(p, values, acc, is_async=True)
        moved = start_product(chain, as_product(keys, DP), DP)
        acc, moved = warpgroup_mma_wait(0, [acc, moved])
        mbarrier.arrive(empty)
        it += 1
        if KEEP:
            saved()
        put(own, moved)
        if not same:
            put(two, moved)
        if KEEP and FAR:
            save(Q_BAR, bh * tokens + block * 64, own, visit == near - 1)

    if KEEP:
        tma.store_wait(0)
    broad: gl.constexpr = coalesced(DVP)
    out = one._reinterpret(dtype, [64, DVP], shared(64, DVP))
    out.store(rescaled(acc, 1.0 / weight).to(dtype))
    rows = gl.expand_dims(block * 64 + gl.arange(0, 64, gl.SliceLayout(1, broad)), 1)
    columns = gl.expand_dims(gl.arange(0, DVP, gl.SliceLayout(0, broad)), 0)
    gl.store(OUT + out_at + rows.to(gl.int64) * out_step + columns, out.load(broad), mask=rows < length)
    lse_rows = block * 64 + gl.arange(0, 64, gl.SliceLayout(1, tile))
    lse = gl.where(lse_rows < length, highest + gl.log2(weight), float("inf"))
    gl.store(LSE + bh.to(gl.int64) * tokens + lse_rows, lse)


# Compiled once for all sizes.
COUNTS = ["length", "heads", "kv_heads", "q_row", "kv_row", "out_row", "w_row", "chunks", "together"]


@gluon.jit(do_not_specialize=COUNTS)
def hopper_kernel(
    Q, K, V, W, U, Z, HIGH, LOW, OUT, LSE, KEYS, K_BAR, VALUES, PRODUCTS, SEEN, Q_BAR,
    length, heads, kv_heads, q_row, kv_row, out_row, w_row, chunks, together, scale,
    DP: gl.constexpr, DVP: gl.constexpr, R: gl.constexpr, LEVELS: gl.constexpr, FAR: gl.constexpr,
    KEEP: gl.constexpr, BN: gl.constexpr, STAGES: gl.constexpr, CONSUMER: gl.constexpr,
):  # fmt: skip
    """Attention of two sibling blocks of one head. Scores are in base 2: `scale` includes log2(e)."""
    gl.static_assert(BN >= DP)
    pairs = chunks * (R // 2)
    rank, bh = place_of(gl.program_id(0), pairs, together)
    bh = bh.to(gl.int32)
    block = (pairs - 1 - rank) * 2  # programs with the most blocks to process start first
    b, h, hk, n = query_head(bh, heads, kv_heads)
    tokens = pairs * 128
    c, i = block // R, block % R
    inside = block * 64 < length
    near = gl.where(inside, count_of(i, LEVELS), 0)
    visits = near
    if FAR:
        visits += gl.where(inside, c, 0)

    keys = gl.allocate_shared_memory(KEYS.dtype, [STAGES, BN, DP], shared(BN, DP))
    values = gl.allocate_shared_memory(VALUES.dtype, [STAGES, BN, DVP], shared(BN, DVP))
    left = gl.allocate_shared_memory(KEYS.dtype, [64, DP], shared(64, DP))
    right = gl.allocate_shared_memory(KEYS.dtype, [64, DP], shared(64, DP))
    left_one = gl.allocate_shared_memory(gl.float16, [64, DP], shared(64, DP))
    left_two = gl.allocate_shared_memory(gl.float16, [64, DP], shared(64, DP))
    right_one = gl.allocate_shared_memory(gl.float16, [64, DP], shared(64, DP))
    right_two = gl.allocate_shared_memory(gl.float16, [64, DP], shared(64, DP))
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for slot in gl.static_range(STAGES):
        mbarrier.init(full.index(slot), count=1)
        mbarrier.init(empty.index(slot), count=2)
    fence_async_shared()

    first = b.to(gl.int64) * length
    levels: gl.constexpr = LEVELS * (R // 2) * 64  # rows of keys and queries of a chunk
    given, results, ring = (Q, K, V, W, U, Z), (OUT, LSE, SEEN, Q_BAR), (keys, values, full, empty)
    place = (c, i, near, visits, block, bh)
    offsets = (
        (first * q_row + h) * DP, (first * kv_row + hk) * DP, (first * kv_row + hk) * DVP, (first * w_row + hk) * DP,
        n.to(gl.int64) * tokens,
    )  # fmt: skip
    steps = (q_row * DP, kv_row * DP, kv_row * DVP, w_row * DP)
    targets = ((first * out_row + h) * DVP, out_row * DVP, (bh * chunks + c) * levels, tokens)
    bases = ((n * chunks + c) * levels, n * tokens, b * length, hk * DVP, n * chunks * (2 * R - 1))
    if HIGH is None:
        gates = (None, None, None)
    else:
        at = bh.to(gl.int64) * tokens
        gates = (HIGH + at, LOW + at, gl.load(HIGH + at + c * R * 64))
    gl.warp_specialize([
        (consume, (
            given, results, (left, left_one, left_two), ring, place, offsets, steps, gates, targets, length,
            scale, 0, DP, DVP, R, LEVELS, FAR, KEEP, BN,
        )),
        (consume, (
            given, results, (right, right_one, right_two), ring, place, offsets, steps, gates, targets, length,
            scale, 1, DP, DVP, R, LEVELS, FAR, KEEP, BN,
        )),
        (produce, ((KEYS, K_BAR, VALUES, PRODUCTS), ring, place, bases, DP, R, LEVELS, FAR, BN)),
    ], [4, 1], [CONSUMER, 24])  # fmt: skip


def rows_of(x: Tensor | None, rows: int) -> TensorDescriptor | None:
    """Descriptor of tiles of `rows` rows of a contiguous tensor `[..., width]`; None for None."""
    if x is None:
        return None
    width = x.shape[-1]
    layout = gl.NVMMASharedLayout.get_default_for([rows, width], gl.float16)
    return TensorDescriptor(x, [x.numel() // width, width], [width, 1], [rows, width], layout)


class HopperTiles(NamedTuple):
    """Keys per tile, tiles in flight, and registers of a thread: of all partitions on average, and of consumers."""

    step: int
    stages: int
    registers: int = 168
    consumer: int = 240


TILES = {64: HopperTiles(128, 3), 128: HopperTiles(128, 2)}


def hopper_forward(
    call: Call, prepared: Prepared, keep: bool = False, tiles: HopperTiles | None = None, together: int | None = None
) -> tuple[Tensor, Tensor, Pulled | None]:
    """The same as `forward.portable_forward`."""
    sizes, v = call.sizes, call.v
    out = v.new_empty(sizes.batch, sizes.length, sizes.heads, sizes.value_dim)
    lse = torch.empty(sizes.batch * sizes.heads, sizes.padded, dtype=torch.float32, device=v.device)
    tiles = tiles or TILES[sizes.widest]
    pulled = empty_queries(call.q, sizes) if keep else None
    seen, q_bar = (rows_of(x, 64) for x in pulled or (None, None))
    width = sizes.value_width
    layout = gl.NVMMASharedLayout.get_default_for([tiles.step, width], gl.float16)
    shape, row = [sizes.batch * sizes.length, sizes.kv_heads * width], sizes.kv_row * width
    hopper_kernel[(sizes.all_blocks // 2 * sizes.batch * sizes.heads,)](
        Q=call.q, K=call.k, V=v, W=call.w, U=prepared.u, Z=prepared.z, HIGH=call.high, LOW=call.low, OUT=out, LSE=lse,
        KEYS=rows_of(prepared.keys, tiles.step),
        K_BAR=rows_of(prepared.k_bar, tiles.step),
        VALUES=TensorDescriptor(v, shape, [row, 1], [tiles.step, width], layout),
        PRODUCTS=rows_of(prepared.nodes, sizes.width), SEEN=seen, Q_BAR=q_bar,
        **sizes.named("length", "heads", "kv_heads", "q_row", "kv_row", "out_row", "w_row", "chunks"),
        together=together or sizes.together, scale=call.scale * LOG2E.value,
        **sizes.constants("DP", "DVP", "R", "LEVELS", "FAR"), KEEP=keep, BN=tiles.step, STAGES=tiles.stages,
        CONSUMER=tiles.consumer, num_warps=4, maxnreg=tiles.registers,
    )  # fmt: skip
    return out, lse, pulled
