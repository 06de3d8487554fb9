"""Backward kernels of PaTH's preprocessing: from chunk products and blocks back to k, w and beta."""

import triton
import triton.language as tl

from bearings.kernels.path_backward import LN2
from bearings.kernels.path_prepare import dot, dot_exact, dot_split, load_tokens, tile


@triton.jit
def moments_kernel(
    MOMENTS, P, P_LO, E,
    heads, kv_heads, chunks, pairs,
    DP: tl.constexpr, PARTS: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Rows of E of chunk c: E[c, e] = E[c, e - 1] P[e - 1]^T + F[c, e - 1], with F summed over its shares."""
    pid = tl.program_id(0).to(tl.int64)
    parts: tl.constexpr = DP // ROWS
    part, chunk = pid % parts, pid // parts
    n, c = chunk // chunks, (chunk % chunks).to(tl.int32)
    b, hk = n // kv_heads, n % kv_heads
    group = heads // kv_heads
    mine = (part * ROWS + tl.arange(0, ROWS))[:, None] * DP + tl.arange(0, DP)[None, :]
    x = tl.zeros([ROWS, DP], tl.float32)
    for e in range(1, c):
        at = tile((n * chunks + e - 1) * DP * DP, DP, DP)
        x = dot_split(x, tl.trans(tl.load(P + at)), tl.trans(tl.load(P_LO + at)))
        for g in range(group):
            pair = (b * heads + hk * group + g) * pairs + c * (c - 1) // 2 + e - 1
            for share in range(PARTS):
                x += tl.load(MOMENTS + (pair * PARTS + share) * DP * DP + mine)
        tl.store(E + (n * pairs + c * (c - 1) // 2 + e) * DP * DP + mine, x.to(E.dtype.element_ty))


@triton.jit
def dproduct_kernel(M, E, DPRODUCT, chunks, pairs, DP: tl.constexpr, ROWS: tl.constexpr):
    """Rows of dP[e] = sum over later chunks c of M[c, e]^T E[c, e]."""
    pid = tl.program_id(0).to(tl.int64)
    parts: tl.constexpr = DP // ROWS
    part, chunk = pid % parts, pid // parts
    n, e = chunk // chunks, (chunk % chunks).to(tl.int32)
    mine, columns = part * ROWS + tl.arange(0, ROWS), tl.arange(0, DP)
    x = tl.zeros([ROWS, DP], tl.float32)
    if e > 0:  # nothing comes before the first chunk
        for c in range(e + 1, chunks):
            pair = (n * pairs + c * (c - 1) // 2 + e) * DP * DP
            m = tl.load(M + pair + columns[:, None] * DP + mine[None, :])
            x += dot(tl.trans(m), tl.load(E + tile(pair, DP, DP)))
    tl.store(DPRODUCT + chunk * DP * DP + mine[:, None] * DP + columns[None, :], x)


@triton.jit
def compose_backward_kernel(
    W, U, U_LO, K_END, AFTER, DK_BAR, DPRODUCT, DW, DU, DK_END,
    length, kv_heads, chunks,
    D: tl.constexpr, DP: tl.constexpr, R: tl.constexpr,
):  # fmt: skip
    """From one chunk's product and pushed keys to dW, dU and dK_END of its blocks."""
    chunk = tl.program_id(0).to(tl.int64)
    n, c = chunk // chunks, chunk % chunks
    b, h = n // kv_heads, n % kv_heads
    local = tl.arange(0, 64)
    x = tl.load(DPRODUCT + tile(chunk * DP * DP, DP, DP))
    for j in range(R):
        rows = (c * R + j).to(tl.int32) * 64 + local
        at = tile((chunk * R + j) * 64 * DP, 64, DP)
        w = load_tokens(W + (b * length * kv_heads + h) * D, rows, length, kv_heads * D, D, DP)
        after = tl.load(AFTER + tile((chunk * R + j) * DP * DP, DP, DP))
        u, dk_bar = tl.load(U + at), tl.load(DK_BAR + at)
        low = x.to(u.dtype)
        tl.store(DU + at, -dot(tl.trans(dot(after, tl.trans(w))).to(u.dtype), low))
        read = dot_split(x, tl.trans(u), tl.trans(tl.load(U_LO + at)))
        tl.store(DW + at, -dot(tl.trans(read), after))
        tl.store(DK_END + at, dot(dk_bar, after))
        x += dot(tl.trans(dk_bar), tl.load(K_END + at)) - dot_exact(read, w)


@triton.jit
def block_backward_kernel(
    Q, K, W, BETA, U, Z, INVERSE, SEEN, DSEEN, DQ_BLOCK, DSCORES, DW_CHUNK, DU_CHUNK, DK_END, DK, DW, DBETA,
    length, heads, kv_heads, chunks, scale,
    D: tl.constexpr, DP: tl.constexpr, R: tl.constexpr,
):  # fmt: skip
    """One block: dU, dZ and dW from the queries that passed it, then back through its UT form."""
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
    kv = (b * length * kv_heads + hk) * D
    w = load_tokens(W + kv, keys, length, kv_heads * D, D, DP)
    here, square = tile(n * tokens * DP + block * 64 * DP, 64, DP), tile((n * all_blocks + block) * 64 * 64, 64, 64)
    u, z = tl.load(U + here), tl.load(Z + square)
    below = local[:, None] > local[None, :]
    dw, du = tl.zeros([64, DP], tl.float32), tl.zeros([64, DP], tl.float32)
    dk, dz = tl.zeros([64, DP], tl.float32), tl.zeros([64, 64], tl.float32)
    for g in range(group):
        h = hk * group + g
        bh = b * heads + h
        q = load_tokens(Q + (b * length * heads + h) * D, keys, length, heads * D, D, DP)
        q = (q.to(tl.float32) * scale).to(q.dtype)
        x = tl.load(DQ_BLOCK + tile(bh * tokens * DP + block * 64 * DP, 64, DP))
        ds = tl.load(DSCORES + tile((bh * all_blocks + block) * 64 * 64, 64, 64))
        read = tl.where(local[:, None] >= local[None, :], dot(q, tl.trans(w)), 0.0).to(q.dtype)
        da = tl.where(local[:, None] >= local[None, :], dot(x, tl.trans(u)) + dot(ds, tl.trans(z)), 0.0)
        du -= dot(tl.trans(read), x)
        dz -= dot(tl.trans(read), ds)
        dw -= dot(tl.trans(da), q)
        dk += dot(tl.trans(ds), q)
        for i in range(j + 1, tl.minimum(R, tl.cdiv(length, 64) - c * R)):
            slot = tile(((bh * chunks + c) * (R * (R - 1) // 2) + i * (i - 1) // 2 + j) * 64 * DP, 64, DP)
            q, x = tl.load(SEEN + slot), tl.load(DSEEN + slot)
            du -= dot(tl.trans(dot(q, tl.trans(w)).to(q.dtype)), x)
            dw -= dot(tl.trans(dot(x, tl.trans(u))), q)

    dk_end = tl.load(DK_END + here)
    dz = dz * LN2 - dot(w, tl.trans(dk_end.to(w.dtype)))
    dw = dw * LN2 + tl.load(DW_CHUNK + here) - dot(z, dk_end.to(z.dtype))
    du = du * LN2 + tl.load(DU_CHUNK + here)
    dk = dk * LN2 + dk_end
    k = load_tokens(K + kv, keys, length, kv_heads * D, D, DP)
    beta = tl.load(BETA + (b * length + keys) * kv_heads + hk, mask=keys < length, other=0.0)[:, None]
    back = tl.trans(tl.load(INVERSE + square))
    du = tl.dot(back, du, input_precision="tf32x3")
    dz = tl.dot(back, dz, input_precision="tf32x3")
    gram = dot(w, tl.trans(w))
    dn = tl.where(below, -dot(du, tl.trans(u)) - dot(dz, tl.trans(z)), 0.0)
    dbeta = tl.sum(du * w.to(tl.float32), 1)
    dbeta += tl.sum(tl.where(below, dz * dot(w, tl.trans(k)), 0.0) + dn * gram, 1)
    dy = tl.where(below, beta * dz, 0.0).to(k.dtype)
    dn = beta * dn
    dw += beta * du + dot(dy, k) + dot(dn + tl.trans(dn), w)
    dk += dot(tl.trans(dy), w)

    columns = tl.arange(0, DP)
    out = kv + keys[:, None].to(tl.int64) * kv_heads * D + columns[None, :]
    mask = (keys[:, None] < length) & (columns[None, :] < D)
    tl.store(DK + out, dk, mask=mask)
    tl.store(DW + out, dw, mask=mask)
    tl.store(DBETA + (b * length + keys) * kv_heads + hk, dbeta, mask=keys < length)
