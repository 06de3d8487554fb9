"""The attention of one block of queries in hopper.py: what a warp group computes with the tiles of the ring."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma, warpgroup_mma, warpgroup_mma_wait

from ..common import UNSEEN
from .ring import arrived, as_product, shared, slot_of, visit_of
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


@gluon.jit
def diagonal(
    given, buffers, offsets, steps, gates, block, length, scale, DP: gl.constexpr, DVP: gl.constexpr, BN: gl.constexpr
):
    """Attention within a block, in UT form.

    Afterwards `own` holds the queries pulled back to the start of the block. If their dtype is not float16, `two` holds
    them in float16.
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
        if BN > 64:  # the tile also has keys of another block
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
    else:  # nothing is read, but without this wait a later one could mistake the initial phase for its own
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
            bias = bias_of(gates, there * 64 + BN, BN)  # of the next tile, loaded before it is needed
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
            s = warpgroup_mma_wait(1, [s])  # the product with the values continues during the softmax
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
