"""Backward kernels of PaTH between queries and keys; what they leave to blocks and chunks is in path_unprepare.py.

Queries and keys of different chunks meet through the product M between the two, so every tile of scores is formed
without a chain. Their gradients do walk: that of a query right, by X <- dS K_bar + X P^T, that of a key left. On its
way the former leaves E = Q_bar^T X, from which dP follows. Inside a chunk the pulled queries are kept, and the gradient
of each as it passes a block.

Scores are in powers of two: queries hold scale log2(e), so what is bilinear in queries and gradients is multiplied by
ln 2 in the end. Gradients of queries leave the scale to the end.
"""

import triton
import triton.language as tl

from bearings.kernels.path_forward import decay
from bearings.kernels.path_tiles import dot, load_block, load_tokens, tile, unit_rows

LN2 = tl.constexpr(0.6931471805599453)


@triton.jit
def far_dq_kernel(
    Q_BAR, K_BAR, V, M, P, DOUT, LSE, DELTA, GATES, START, START_LO, FIRST, DQ_BAR, E,
    length, batch, heads, kv_heads, q_row, kv_row, chunks, pairs, end, skipped, held,
    DP: tl.constexpr, DV: tl.constexpr, DVP: tl.constexpr, R: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
    GATED: tl.constexpr, PACKED: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """dQ_bar of BM queries from all earlier chunks, and their share of E; of the chunks before `end`."""
    size: tl.constexpr = R * 64
    parts: tl.constexpr = size // BM
    pid = tl.program_id(0)
    tokens = chunks * size
    all_heads = batch * heads
    m_block = end * parts - 1 - pid // all_heads
    bh = (pid % all_heads).to(tl.int64)
    b, h = bh // heads, bh % heads
    hk = h // (heads // kv_heads)
    n, c = b * kv_heads + hk, m_block // parts
    rows = m_block * BM + tl.arange(0, BM)
    here = tile(bh * tokens * DP + m_block * BM * DP, BM, DP)
    g = tl.zeros([BM, DP], tl.float32)
    q = tl.load(Q_BAR + here)
    dout = load_tokens(DOUT + (b * length * q_row + h) * DV, rows, length, q_row * DV, DV, DVP)
    lse, delta = tl.load(LSE + bh * tokens + rows), tl.load(DELTA + bh * tokens + rows)
    K_BAR += n * tokens * DP
    V += (b * length * kv_row + hk) * DV
    M += (n * pairs + c * (c - 1) // 2) * DP * DP
    P += n * chunks * DP * DP
    E += ((bh * held + c * (c - 1) // 2 - skipped) * parts + m_block % parts) * DP * DP
    lowest = 0
    if PACKED:
        first, lowest = tl.load(FIRST + b * tokens + rows), tl.load(FIRST + b * tokens + m_block * BM)
    if GATED:
        GATES, START, START_LO = GATES + bh * tokens, START + bh * chunks, START_LO + bh * chunks
    for e in range(c):
        begin = tl.minimum(tl.maximum(e * size, lowest // BN * BN), e * size + size)
        product, between = tl.load(P + tile(e * DP * DP, DP, DP)), tl.load(M + tile(e * DP * DP, DP, DP))
        # Nothing of this is in a branch, not even for e = 0: else the matrix unit waits after every 16 channels.
        tl.store(E + tile(e * parts * DP * DP, DP, DP), (dot(tl.trans(q), g.to(q.dtype)) * LN2).to(q.dtype), mask=e > 0)
        unit, unit_size = unit_rows(g)
        g = dot(unit, tl.trans(product)) * unit_size
        x = dot(q, between).to(q.dtype)
        if GATED:
            apart = decay(START, START_LO, c, e)
        for start in tl.range(begin, e * size + size, BN, num_stages=STAGES):
            keys = start + tl.arange(0, BN)
            k = tl.load(K_BAR + tile(start * DP, BN, DP))
            v = load_block(V, start, length, kv_row * DV, BN, DV, DVP, True)
            s = dot(x, tl.trans(k)) - lse[:, None]
            if GATED:
                s -= (tl.load(GATES + keys) + apart)[None, :]
            if PACKED:
                s = tl.where(keys[None, :] >= first[:, None], s, float("-inf"))
            ds = tl.exp2(s) * (dot(dout, tl.trans(v)) - delta[:, None])
            g += dot(ds, k)
    tl.store(DQ_BAR + here, g.to(DQ_BAR.dtype.element_ty))


@triton.jit
def far_dkv_kernel(
    Q_BAR, K_BAR, V, M, P, DOUT, LSE, DELTA, GATES, START, START_LO, FIRST, END, DK_BAR, DV_FAR, DC,
    length, heads, kv_heads, q_row, kv_row, chunks, pairs,
    DP: tl.constexpr, DV: tl.constexpr, DVP: tl.constexpr, R: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
    GATED: tl.constexpr, PACKED: tl.constexpr, WHOLE: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """dK_bar and dV of BN keys from all later chunks, of all query heads of the group."""
    size: tl.constexpr = R * 64
    pid = tl.program_id(0)
    tokens = chunks * size
    all_heads = tl.num_programs(0) // (tokens // BN)
    block, n = pid // all_heads, (pid % all_heads).to(tl.int64)
    b, hk = n // kv_heads, n % kv_heads
    group = heads // kv_heads
    e = block * BN // size
    keys = block * BN + tl.arange(0, BN)
    here = n * tokens * DP + block * BN * DP
    k = tl.load(K_BAR + tile(here, BN, DP))
    v = load_tokens(V + (b * length * kv_row + hk) * DV, keys, length, kv_row * DV, DV, DVP)
    y, dv = tl.zeros([BN, DP], tl.float32), tl.zeros([BN, DVP], tl.float32)
    high = chunks
    if PACKED:
        high = tl.cdiv(tl.load(END + b * tokens + block * BN + BN - 1), size)
    for back in range(high - 1 - e):
        c = high - 1 - back
        if back > 0:
            unit, unit_size = unit_rows(y)
            y = dot(unit, tl.load(P + tile((n * chunks + c) * DP * DP, DP, DP))) * unit_size
        x = dot(k, tl.trans(tl.load(M + tile((n * pairs + c * (c - 1) // 2 + e) * DP * DP, DP, DP)))).to(k.dtype)
        for g in range(group):
            h = hk * group + g
            bh = b * heads + h
            queries, douts = Q_BAR + bh * tokens * DP, DOUT + (b * length * q_row + h) * DV
            if GATED:
                bias = tl.load(GATES + bh * tokens + keys) + decay(START + bh * chunks, START_LO + bh * chunks, c, e)
                dc = tl.load(DC + bh * tokens + keys)
            for start in tl.range(c * size, c * size + size, BM, num_stages=STAGES):
                rows = start + tl.arange(0, BM)
                q = tl.load(queries + tile(start * DP, BM, DP))
                dout = load_block(douts, start, length, q_row * DV, BM, DV, DVP, WHOLE)
                lse, delta = tl.load(LSE + bh * tokens + rows), tl.load(DELTA + bh * tokens + rows)
                s = dot(x, tl.trans(q)) - lse[None, :]
                if GATED:
                    s -= bias[:, None]
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
    tl.store(DV_FAR + tile(n * tokens * DVP + block * BN * DVP, BN, DVP), dv.to(DV_FAR.dtype.element_ty))


@triton.jit
def near_dq_kernel(
    V, STEP, K_END, DOUT, LSE, DELTA, GATES, FIRST, SEEN, DQ_BAR, DSEEN,
    length, heads, kv_heads, q_row, kv_row, chunks,
    DP: tl.constexpr, DV: tl.constexpr, DVP: tl.constexpr, R: tl.constexpr,
    GATED: tl.constexpr, PACKED: tl.constexpr,
):  # fmt: skip
    """The gradient of one block's queries walks right over its chunk, and is kept as it passes each block.

    DQ_BAR holds it at the chunk's start before, at the block's start after.
    """
    pid = tl.program_id(0)
    all_blocks, all_heads = chunks * R, tl.num_programs(0) // (chunks * R)
    block, bh = pid // all_heads, (pid % all_heads).to(tl.int64)
    if block * 64 >= length:
        return
    b, h = bh // heads, bh % heads
    hk = h // (heads // kv_heads)
    n, tokens = b * kv_heads + hk, all_blocks * 64
    local = tl.arange(0, 64)
    rows = block * 64 + local
    V += (b * length * kv_row + hk) * DV
    K_END, STEP = K_END + n * tokens * DP, STEP + n * all_blocks * DP * DP
    here = tile(bh * tokens * DP + block * 64 * DP, 64, DP)
    dout = load_tokens(DOUT + (b * length * q_row + h) * DV, rows, length, q_row * DV, DV, DVP)
    lse, delta = tl.load(LSE + bh * tokens + rows), tl.load(DELTA + bh * tokens + rows)
    if PACKED:
        first = tl.load(FIRST + b * tokens + rows)
    if GATED:
        GATES += bh * tokens
    x = tl.load(DQ_BAR + here).to(tl.float32)
    c, i = block // R, block % R
    slots = ((bh * chunks + c) * (R * (R - 1) // 2) + i * (i - 1) // 2) * 64 * DP
    for j in range(i):
        start = (c * R + j) * 64
        keys, at, slot = start + local, tile(start * DP, 64, DP), tile(slots + j * 64 * DP, 64, DP)
        k, v = tl.load(K_END + at), load_tokens(V, keys, length, kv_row * DV, DV, DVP)
        s = dot(tl.load(SEEN + slot), tl.trans(k)) - lse[:, None]
        if GATED:
            s -= tl.load(GATES + keys)[None, :]
        if PACKED:
            s = tl.where(keys[None, :] >= first[:, None], s, float("-inf"))
        ds = tl.exp2(s) * (dot(dout, tl.trans(v)) - delta[:, None])
        tl.store(DSEEN + slot, x.to(DSEEN.dtype.element_ty))
        unit, unit_size = unit_rows(x)
        step = tl.load(STEP + tile((c * R + j) * DP * DP, DP, DP))
        x = dot(unit, tl.trans(step)) * unit_size + dot(ds, k)

    tl.store(DQ_BAR + here, x.to(DQ_BAR.dtype.element_ty))


@triton.jit
def near_dkv_kernel(
    V, K_END, DOUT, LSE, DELTA, GATES, FIRST, SEEN, DV_OWN, DV_FAR, AFTER, DK_BAR, DV_OUT, DC,
    length, heads, kv_heads, q_row, kv_row, chunks,
    DP: tl.constexpr, DV: tl.constexpr, DVP: tl.constexpr, R: tl.constexpr,
    GATED: tl.constexpr, PACKED: tl.constexpr,
):  # fmt: skip
    """dV of one block, and what its pushed keys get from later blocks of the chunk and from later chunks.

    DK_BAR holds the latter at the chunk's end before, all at the block's end after.
    """
    pid = tl.program_id(0)
    all_blocks, all_heads = chunks * R, tl.num_programs(0) // (chunks * R)
    block, n = pid // all_heads, (pid % all_heads).to(tl.int64)
    if block * 64 >= length:
        return
    b, hk = n // kv_heads, n % kv_heads
    group, tokens = heads // kv_heads, all_blocks * 64
    c, j = block // R, block % R
    local = tl.arange(0, 64)
    keys = block * 64 + local
    here = tile(n * tokens * DP + block * 64 * DP, 64, DP)
    k = tl.load(K_END + here)
    v = load_tokens(V + (b * length * kv_row + hk) * DV, keys, length, kv_row * DV, DV, DVP)
    after = tl.load(AFTER + tile((n * all_blocks + block) * DP * DP, DP, DP))
    dk = dot(tl.load(DK_BAR + here), after) * (1 / LN2)
    dv = tl.load(DV_FAR + tile(n * tokens * DVP + block * 64 * DVP, 64, DVP)).to(tl.float32)
    for g in range(group):
        h = hk * group + g
        bh = b * heads + h
        douts = DOUT + (b * length * q_row + h) * DV
        dv += tl.load(DV_OWN + tile(bh * tokens * DVP + block * 64 * DVP, 64, DVP))
        if GATED:
            bias = tl.load(GATES + bh * tokens + keys)
            dc = tl.load(DC + bh * tokens + keys)
        for i in range(j + 1, tl.minimum(R, tl.cdiv(length, 64) - c * R)):
            rows = (c * R + i) * 64 + local
            slot = ((bh * chunks + c) * (R * (R - 1) // 2) + i * (i - 1) // 2 + j) * 64 * DP
            q = tl.load(SEEN + tile(slot, 64, DP))
            dout = load_tokens(douts, rows, length, q_row * DV, DV, DVP)
            lse, delta = tl.load(LSE + bh * tokens + rows), tl.load(DELTA + bh * tokens + rows)
            s = dot(k, tl.trans(q)) - lse[None, :]
            if GATED:
                s -= bias[:, None]
            if PACKED:
                s = tl.where(keys[:, None] >= tl.load(FIRST + b * tokens + rows)[None, :], s, float("-inf"))
            p = tl.exp2(s)
            dv += dot(p, dout)
            ds = p * (dot(v, tl.trans(dout)) - delta[None, :])
            if GATED:
                dc -= tl.sum(ds, 1)
            dk += dot(ds, q)
        if GATED:
            tl.store(DC + bh * tokens + keys, dc)
    tl.store(DK_BAR + here, (dk * LN2).to(DK_BAR.dtype.element_ty))
    columns = tl.arange(0, DVP)
    out = DV_OUT + (b * length * kv_row + hk) * DV + keys[:, None].to(tl.int64) * kv_row * DV + columns[None, :]
    tl.store(out, dv, mask=(keys[:, None] < length) & (columns[None, :] < DV))
