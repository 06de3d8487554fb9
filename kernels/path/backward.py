"""Backward kernels of PaTH between queries and keys; what they leave to blocks and chunks is in unprepare.py.

Queries and keys of different chunks meet through the product M between the two, so every tile of scores is formed
without a chain. Their gradients do walk: that of a query right, by X <- dS K_bar + X P^T, that of a key left. On its
way the former leaves E = Q_bar^T X, from which dP follows. Inside a chunk the pulled queries and the pushed keys are
kept, and their gradients as they walk down the tree, from which those of the nodes' products follow.

Scores are in powers of two: queries hold scale log2(e), so what is bilinear in queries and gradients is multiplied by
ln 2 in the end. Gradients of queries leave the scale to the end.
"""

import triton
import triton.language as tl

from ..attention.gates import add_gates
from .tiles import (
    count_of,
    dot,
    level_of,
    load_block,
    load_tokens,
    node_of,
    place_of,
    slot_of,
    store_tokens,
    tile,
    unit_rows,
)

LN2 = tl.constexpr(0.6931471805599453)


@triton.jit
def far_dq_kernel(
    Q_BAR, K_BAR, V, M, NODES, DOUT, LSE, DELTA, HIGH, LOW, FIRST, DQ_BAR, E,
    length, batch, heads, kv_heads, out_row, kv_row, chunks, together, pairs, end, skipped, held,
    DP: tl.constexpr, DV: tl.constexpr, DVP: tl.constexpr, R: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
    GATED: tl.constexpr, EXACT: tl.constexpr, PACKED: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """dQ_bar of BM queries from all earlier chunks, and their share of E; of the chunks before `end`."""
    size: tl.constexpr = R * 64
    parts: tl.constexpr = size // BM
    pid = tl.program_id(0)
    tokens = chunks * size
    rank, bh = place_of(pid, tl.num_programs(0) // (batch * heads), together)
    m_block = end * parts - 1 - rank  # the longest walks start first
    b, h = bh // heads, bh % heads
    hk = h // (heads // kv_heads)
    n, c = b * kv_heads + hk, m_block // parts
    rows = m_block * BM + tl.arange(0, BM)
    here = tile(bh * tokens * DP + m_block * BM * DP, BM, DP)
    g = tl.zeros([BM, DP], tl.float32)
    q = tl.load(Q_BAR + here)
    dout = load_tokens(DOUT + (b * length * out_row + h) * DV, rows, length, out_row * DV, DV, DVP)
    lse, delta = tl.load(LSE + bh * tokens + rows), tl.load(DELTA + bh * tokens + rows)
    K_BAR += n * tokens * DP
    V += (b * length * kv_row + hk) * DV
    M += (n * pairs + c * (c - 1) // 2) * DP * DP
    NODES += (n * chunks * (2 * R - 1) + 2 * R - 2) * DP * DP  # each chunk's last is its product
    E += ((bh * held + c * (c - 1) // 2 - skipped) * parts + m_block % parts) * DP * DP
    lowest = 0
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
        # Nothing of this is in a branch, not even for e = 0: else the matrix unit waits after every 16 channels.
        tl.store(E + tile(e * parts * DP * DP, DP, DP), (dot(tl.trans(q), g.to(q.dtype)) * LN2).to(q.dtype), mask=e > 0)
        unit, unit_size = unit_rows(g)
        g = dot(unit, tl.trans(product)) * unit_size
        x = dot(q, between).to(q.dtype)
        for start in tl.range(begin, e * size + size, BN, num_stages=STAGES):
            keys = start + tl.arange(0, BN)
            k = tl.load(K_BAR + tile(start * DP, BN, DP))
            v = load_block(V, start, length, kv_row * DV, BN, DV, DVP, True)
            s = dot(x, tl.trans(k)) - lse[:, None]
            if GATED:
                key_high, key_low = tl.load(HIGH + keys)[None, :], tl.load(LOW + keys)[None, :]
                s = add_gates(s, row_high, row_low, key_high, key_low, origin, EXACT)
            if PACKED:
                s = tl.where(keys[None, :] >= first[:, None], s, float("-inf"))
            ds = tl.exp2(s) * (dot(dout, tl.trans(v)) - delta[:, None])
            g += dot(ds, k)
    tl.store(DQ_BAR + here, g.to(DQ_BAR.dtype.element_ty))


@triton.jit
def far_dkv_kernel(
    Q_BAR, K_BAR, V, M, NODES, DOUT, LSE, DELTA, HIGH, LOW, FIRST, END, DK_BAR, DV_OUT, DC,
    length, kv_heads, out_row, kv_row, dkv_row, chunks, together, pairs,
    GROUP: tl.constexpr, DP: tl.constexpr, DV: tl.constexpr, DVP: tl.constexpr, R: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, GATED: tl.constexpr, EXACT: tl.constexpr, PACKED: tl.constexpr,
    WHOLE: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """dK_bar and dV of BN keys from all later chunks, of all query heads of the group."""
    size: tl.constexpr = R * 64
    pid = tl.program_id(0)
    tokens = chunks * size
    block, n = place_of(pid, tokens // BN, together)
    b, hk, heads = n // kv_heads, n % kv_heads, kv_heads * GROUP
    e = block * BN // size
    keys = block * BN + tl.arange(0, BN)
    here = n * tokens * DP + block * BN * DP
    k = tl.load(K_BAR + tile(here, BN, DP))
    v = load_tokens(V + (b * length * kv_row + hk) * DV, keys, length, kv_row * DV, DV, DVP)
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
            bh = b * heads + h
            queries, douts = Q_BAR + bh * tokens * DP, DOUT + (b * length * out_row + h) * DV
            if GATED:
                highs, lows = HIGH + bh * tokens, LOW + bh * tokens
                key_high, key_low = tl.load(highs + keys)[:, None], tl.load(lows + keys)[:, None]
                origin = tl.load(highs + c * size)
                dc = tl.load(DC + bh * tokens + keys)
            for start in tl.range(c * size, c * size + size, BM, num_stages=STAGES):
                rows = start + tl.arange(0, BM)
                q = tl.load(queries + tile(start * DP, BM, DP))
                dout = load_block(douts, start, length, out_row * DV, BM, DV, DVP, WHOLE)
                lse, delta = tl.load(LSE + bh * tokens + rows), tl.load(DELTA + bh * tokens + rows)
                s = dot(x, tl.trans(q)) - lse[None, :]
                if GATED:
                    row_high, row_low = tl.load(highs + rows)[None, :], tl.load(lows + rows)[None, :]
                    s = add_gates(s, row_high, row_low, key_high, key_low, origin, EXACT)
                if PACKED:
                    s = tl.where(keys[:, None] >= tl.load(FIRST + b * tokens + rows)[None, :], s, float("-inf"))
                p = tl.exp2(s)
                dv += dot(p, dout)
                ds = p * (dot(v, tl.trans(dout)) - delta[None, :])
                if GATED:
                    dc -= tl.sum(ds, 1)
                y += dot(ds, q)
            if GATED:
                tl.store(DC + bh * tokens + keys, dc)
    tl.store(DK_BAR + tile(here, BN, DP), (y * LN2).to(DK_BAR.dtype.element_ty))
    store_tokens(DV_OUT + (b * length * dkv_row + hk) * DV, keys, length, dkv_row * DV, DV, dv)


@triton.jit
def near_dq_kernel(
    V, NODES, KEYS, DOUT, LSE, DELTA, HIGH, LOW, FIRST, SEEN, DQ_BAR, DSEEN,
    length, heads, kv_heads, out_row, kv_row, chunks, together,
    DP: tl.constexpr, DV: tl.constexpr, DVP: tl.constexpr, R: tl.constexpr, LEVELS: tl.constexpr, BN: tl.constexpr,
    GATED: tl.constexpr, EXACT: tl.constexpr, PACKED: tl.constexpr, FAR: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """The gradient of one block's queries walks down its chunk's nodes, and is kept where it comes to a right one.

    DQ_BAR holds it at the chunk's start before, at the block's start after.
    """
    pid = tl.program_id(0)
    all_blocks = chunks * R
    rank, bh = place_of(pid, all_blocks, together)
    block = all_blocks - 1 - rank
    if block * 64 >= length:
        return
    b, h = bh // heads, bh % heads
    hk = h // (heads // kv_heads)
    n, tokens = b * kv_heads + hk, all_blocks * 64
    c, i = block // R, block % R
    rows = block * 64 + tl.arange(0, 64)
    V += (b * length * kv_row + hk) * DV
    KEYS += (n * chunks + c) * (LEVELS * (R // 2)) * 64 * DP
    NODES += (n * chunks + c) * (2 * R - 1) * DP * DP
    SEEN += (bh * chunks + c) * (LEVELS * (R // 2)) * 64 * DP
    DSEEN += (bh * chunks + c) * (LEVELS * (R // 2)) * 64 * DP
    here = tile(bh * tokens * DP + block * 64 * DP, 64, DP)
    dout = load_tokens(DOUT + (b * length * out_row + h) * DV, rows, length, out_row * DV, DV, DVP)
    lse, delta = tl.load(LSE + bh * tokens + rows), tl.load(DELTA + bh * tokens + rows)
    lowest = 0
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
        left, slot = passed, slot_of(i, level, R) * 64 * DP
        passed += bit
        there = c * R + left  # the left sibling's first block
        q = tl.load(SEEN + tile(slot, 64, DP))
        tl.store(DSEEN + tile(slot, 64, DP), x.to(DSEEN.dtype.element_ty))
        unit, unit_size = unit_rows(x)
        x = dot(unit, tl.trans(tl.load(NODES + tile(node_of(left, level, R) * DP * DP, DP, DP)))) * unit_size
        moved = KEYS + (slot_of(left, level, R) - there) * 64 * DP
        begin = tl.minimum(tl.maximum(there * 64, lowest // BN * BN), (there + bit) * 64)
        for start in tl.range(begin, (there + bit) * 64, BN, num_stages=STAGES):
            keys = start + tl.arange(0, BN)
            k = tl.load(moved + tile(start * DP, BN, DP))
            v = load_block(V, start, length, kv_row * DV, BN, DV, DVP, True)
            s = dot(q, tl.trans(k)) - lse[:, None]
            if GATED:
                key_high, key_low = tl.load(HIGH + keys)[None, :], tl.load(LOW + keys)[None, :]
                s = add_gates(s, row_high, row_low, key_high, key_low, origin, EXACT)
            if PACKED:
                s = tl.where(keys[None, :] >= first[:, None], s, float("-inf"))
            ds = tl.exp2(s) * (dot(dout, tl.trans(v)) - delta[:, None])
            x += dot(ds, k)
    tl.store(DQ_BAR + here, x.to(DQ_BAR.dtype.element_ty))


@triton.jit
def near_dkv_kernel(
    V, NODES, KEYS, DOUT, LSE, DELTA, HIGH, LOW, FIRST, SEEN, DV_OWN, DKEYS, DK_BAR, DV_OUT, DC,
    length, kv_heads, out_row, kv_row, dkv_row, chunks, together,
    GROUP: tl.constexpr, DP: tl.constexpr, DV: tl.constexpr, DVP: tl.constexpr, R: tl.constexpr, LEVELS: tl.constexpr,
    BM: tl.constexpr, GATED: tl.constexpr, EXACT: tl.constexpr, PACKED: tl.constexpr, FAR: tl.constexpr,
    WHOLE: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """dV of one block; the gradient of its keys walks down its chunk's nodes, and is kept where it comes to a left one.

    DK_BAR holds it at the chunk's end before, at the block's end after; DV_OUT what later chunks leave before.
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
    KEYS += (n * chunks + c) * (LEVELS * (R // 2)) * 64 * DP
    DKEYS += (n * chunks + c) * (LEVELS * (R // 2)) * 64 * DP
    NODES += (n * chunks + c) * (2 * R - 1) * DP * DP
    here = tile(n * tokens * DP + block * 64 * DP, 64, DP)
    v = load_tokens(V + (b * length * kv_row + hk) * DV, keys, length, kv_row * DV, DV, DVP)
    y, dv = tl.zeros([64, DP], tl.float32), tl.zeros([64, DVP], tl.float32)
    if FAR:
        y += tl.load(DK_BAR + here).to(tl.float32) * (1 / LN2)
        dv += load_tokens(DV_OUT + (b * length * dkv_row + hk) * DV, keys, length, dkv_row * DV, DV, DVP)
    for g in range(GROUP):
        dv += tl.load(DV_OWN + tile((b * heads + hk * GROUP + g) * tokens * DVP + block * 64 * DVP, 64, DVP))
    bits, end = (R - 1) & ~j, (c + 1) * R
    for _ in range(count_of(bits, LEVELS)):
        level = level_of(bits, LEVELS)
        bit = 1 << level
        bits -= bit
        end -= bit
        # Behind the right sibling's last block, and the last that there is.
        stop = tl.minimum(end + bit, tl.cdiv(length, 64)) * 64
        slot, sibling = tile(slot_of(j, level, R) * 64 * DP, 64, DP), node_of(j, level, R) + 1
        k = tl.load(KEYS + slot)
        tl.store(DKEYS + slot, (y * LN2).to(DKEYS.dtype.element_ty))
        unit, unit_size = unit_rows(y)
        y = dot(unit, tl.load(NODES + tile(sibling * DP * DP, DP, DP))) * unit_size
        for g in range(GROUP):
            h = hk * GROUP + g
            bh = b * heads + h
            douts = DOUT + (b * length * out_row + h) * DV
            moved = SEEN + ((bh * chunks + c) * (LEVELS * (R // 2)) + slot_of(end - c * R, level, R) - end) * 64 * DP
            if GATED:
                highs, lows = HIGH + bh * tokens, LOW + bh * tokens
                key_high, key_low = tl.load(highs + keys)[:, None], tl.load(lows + keys)[:, None]
                origin = tl.load(highs + c * R * 64)
                dc = tl.load(DC + bh * tokens + keys)
            for start in tl.range(end * 64, stop, BM, num_stages=STAGES):
                rows = start + tl.arange(0, BM)
                q = tl.load(moved + tile(start * DP, BM, DP))
                dout = load_block(douts, start, length, out_row * DV, BM, DV, DVP, WHOLE)
                lse, delta = tl.load(LSE + bh * tokens + rows), tl.load(DELTA + bh * tokens + rows)
                s = dot(k, tl.trans(q)) - lse[None, :]
                if GATED:
                    row_high, row_low = tl.load(highs + rows)[None, :], tl.load(lows + rows)[None, :]
                    s = add_gates(s, row_high, row_low, key_high, key_low, origin, EXACT)
                if PACKED:
                    s = tl.where(keys[:, None] >= tl.load(FIRST + b * tokens + rows)[None, :], s, float("-inf"))
                p = tl.exp2(s)
                dv += dot(p, dout)
                ds = p * (dot(v, tl.trans(dout)) - delta[None, :])
                if GATED:
                    dc -= tl.sum(ds, 1)
                y += dot(ds, q)
            if GATED:
                tl.store(DC + bh * tokens + keys, dc)
    tl.store(DK_BAR + here, (y * LN2).to(DK_BAR.dtype.element_ty))
    store_tokens(DV_OUT + (b * length * dkv_row + hk) * DV, keys, length, dkv_row * DV, DV, dv)
