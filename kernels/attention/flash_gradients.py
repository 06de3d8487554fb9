"""Triton: gradients of flash attention, one kernel for queries and one for keys and values.

Neither uses atomics, so results are deterministic. Both recompute the scores from the saved log-sum-exp.
"""

import triton
import triton.language as tl

from ..common import LOG2E
from .bias import bias_of
from .gates import ROWS, add_gates, pair_of, sum_wide
from .tiles import (
    FAR,
    MASKED,
    NEAR,
    keys_seen,
    last_seen,
    queries_seeing,
    query_block,
    query_tiles_of,
    rows_of,
    tiles_of,
    visible,
)


@triton.jit
def query_gradient_kernel(
    Q, K, V, HIGH, LOW, BIAS, STARTS, OUT, LSE, LSE_GRAD, GRAD, DQ, INNER, DSUMS,
    q_b, q_t, q_h, k_b, k_t, k_h, v_b, v_t, v_h, g_b, g_t, g_h, T, S, H, GROUP, scale, zero, N,
    W: tl.constexpr, D: tl.constexpr, BW: tl.constexpr, BD: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
    GATED: tl.constexpr, BIASED: tl.constexpr, TAIL: tl.constexpr, LIMITED: tl.constexpr, CAUSAL: tl.constexpr,
    EVEN: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    m0, b, h = query_block(T, H, BM)
    rows, keys, wide, deep = tl.arange(0, BM), tl.arange(0, BN), tl.arange(0, BW), tl.arange(0, BD)
    inside, past = m0 + rows < T, S - T
    token = (b * T + m0 + rows).to(tl.int64)
    K += b * k_b + h // GROUP * k_h
    V += b * v_b + h // GROUP * v_h
    q = rows_of(Q + b * q_b + m0.to(tl.int64) * q_t + h * q_h, rows, q_t, wide, inside, W, EVEN)
    grad = rows_of(GRAD + b * g_b + m0.to(tl.int64) * g_t + h * g_h, rows, g_t, deep, inside, D, EVEN)
    kept = inside[:, None] & (deep < D)[None, :]
    out = tl.load(OUT + (token * H + h)[:, None] * D + deep[None, :], mask=kept, other=0.0)
    # sum_s P dP of each row, which the other kernels read. dS = P (dP - inner), and P is the gradient of the
    # log-sum-exp.
    inner = tl.sum(grad.to(tl.float32) * out.to(tl.float32), 1)
    if LSE_GRAD is not None:
        inner -= LOG2E * tl.load(LSE_GRAD + (b * H + h) * T + m0 + rows, mask=inside, other=0.0)
    tl.store(INNER + (b * H + h) * T + m0 + rows, inner, mask=inside)
    lse = tl.load(LSE + (b * H + h) * T + m0 + rows, mask=inside, other=float("inf"))
    last = last_seen(m0, rows, T, S, CAUSAL)
    first, begin, clear, full, end = keys_seen(STARTS, b, m0, last, inside, T, S, BM, BN, LIMITED, CAUSAL)
    near = clear
    if BIASED:
        BIAS += h * (zero + 1)
    if TAIL:
        near = max(clear, min(full, max(past + m0 + 2 - N, 0) // BN * BN))
        far_lse = lse - tl.load(BIAS)
    if GATED:
        HIGH, LOW = HIGH + (b * H + h) * S, LOW + (b * H + h) * S
        origin, row_high, row_low = 0.0, tl.zeros([BM], tl.float32), tl.zeros([BM], tl.float32)
        if CAUSAL:
            origin = tl.load(HIGH + past + m0 // ROWS * ROWS)
            row_high, row_low = pair_of(HIGH, LOW, last, inside)
        row_total = tl.zeros([BM], tl.float64)
    dq = tl.zeros([BM, BW], tl.float32)
    for part in tl.static_range(FAR if TAIL else NEAR, MASKED + 1):
        low, high = tiles_of(part, begin, clear, near, full, end, LIMITED)
        for tile in range(low, high, BN):
            n0 = tile
            if part == MASKED and LIMITED:
                n0 = tile + tl.where(tile >= clear, full - clear, 0)
            n, at = n0 + keys, tl.cast(n0, tl.int64)
            k = rows_of(K + at * k_t, keys, k_t, wide, n < S, W, EVEN or part != MASKED)
            v = rows_of(V + at * v_t, keys, v_t, deep, n < S, D, EVEN or part != MASKED)
            scores = tl.dot(q, tl.trans(k), input_precision=PRECISION) * (scale * LOG2E)
            if GATED:
                key_high, key_low = pair_of(HIGH, LOW, n, n < S)
                scores = add_gates(
                    scores, row_high[:, None], row_low[:, None], key_high[None, :], key_low[None, :], origin,
                    PRECISION == "ieee",
                )  # fmt: skip
            if BIASED and part != FAR:
                scores += bias_of(BIAS, n[None, :], last[:, None], zero, part == MASKED)
            p = tl.exp2(scores - (far_lse if part == FAR else lse)[:, None])
            if part == MASKED:
                seen = visible(n[None, :], last[:, None], first[:, None], LIMITED)
                p = tl.where(seen, p, 0.0)
            dp = tl.dot(grad, tl.trans(v), input_precision=PRECISION)
            ds = p * (dp - inner[:, None])
            if GATED and CAUSAL:
                row_total += sum_wide(ds, PRECISION == "ieee")
            dq = tl.dot(ds.to(k.dtype), k, dq, input_precision=PRECISION)
    if GATED and CAUSAL:
        tl.store(DSUMS + token * H + h, row_total, mask=inside)
    kept = inside[:, None] & (wide < W)[None, :]
    tl.store(DQ + (token * H + h)[:, None] * W + wide[None, :], (dq * scale).to(DQ.dtype.element_ty), mask=kept)


@triton.jit
def key_gradient_kernel(
    Q, K, V, HIGH, LOW, BIAS, STARTS, ENDS, LSE, GRAD, INNER, DK, DV, DSUMS,
    q_b, q_t, q_h, k_b, k_t, k_h, v_b, v_t, v_h, g_b, g_t, g_h, T, S, H, GROUP, scale, zero, N,
    W: tl.constexpr, D: tl.constexpr, BW: tl.constexpr, BD: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
    GATED: tl.constexpr, BIASED: tl.constexpr, TAIL: tl.constexpr, LIMITED: tl.constexpr, CAUSAL: tl.constexpr,
    EVEN: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    blocks, KV = tl.cdiv(S, BN), H // GROUP
    n0 = tl.program_id(0) % blocks * BN  # first keys first: most queries see them
    b, kv = (tl.program_id(0) // blocks // KV).to(tl.int64), (tl.program_id(0) // blocks % KV).to(tl.int64)
    rows, keys, wide, deep = tl.arange(0, BM), tl.arange(0, BN), tl.arange(0, BW), tl.arange(0, BD)
    n, past, at = n0 + keys, S - T, n0.to(tl.int64)
    k = rows_of(K + b * k_b + at * k_t + kv * k_h, keys, k_t, wide, n < S, W, EVEN)
    v = rows_of(V + b * v_b + at * v_t + kv * v_h, keys, v_t, deep, n < S, D, EVEN)
    begin, full, clear, end = queries_seeing(ENDS, b, n0, T, S, BM, BN, LIMITED, CAUSAL)
    near = clear
    if TAIL:
        near = max(full, min(clear, tl.cdiv(max(n0 + BN + N - 2 - past, 0), BM) * BM))
    dk = tl.zeros([BN, BW], tl.float32)
    dv = tl.zeros([BN, BD], tl.float32)
    for member in range(GROUP):
        h = kv * GROUP + member
        q_head, g_head, statistics = Q + b * q_b + h * q_h, GRAD + b * g_b + h * g_h, (b * H + h) * T
        if BIASED:
            biases = BIAS + h * (zero + 1)
        if TAIL:
            tail = tl.load(BIAS + h * (zero + 1))
        if GATED:
            highs, lows = HIGH + (b * H + h) * S, LOW + (b * H + h) * S
            key_high, key_low = pair_of(highs, lows, n, n < S)
            dsums = tl.zeros([BN], tl.float64)
        for part in tl.static_range(FAR if TAIL else NEAR, MASKED + 1):
            low, high = query_tiles_of(part, begin, full, near, clear, end, LIMITED)
            for tile in range(low, high, BM):
                m0 = tile
                if part == MASKED and LIMITED:
                    m0 = tile + tl.where(tile >= full, clear - full, 0)
                t, row = m0 + rows, tl.cast(m0, tl.int64)
                q = rows_of(q_head + row * q_t, rows, q_t, wide, t < T, W, EVEN)
                grad = rows_of(g_head + row * g_t, rows, g_t, deep, t < T, D, EVEN)
                lse = tl.load(LSE + statistics + t, mask=t < T, other=float("inf"))
                inner = tl.load(INNER + statistics + t, mask=t < T, other=0.0)
                scores = tl.dot(k, tl.trans(q), input_precision=PRECISION) * (scale * LOG2E)
                if GATED:
                    origin, row_high, row_low = 0.0, tl.zeros([BM], tl.float32), tl.zeros([BM], tl.float32)
                    if CAUSAL:
                        origin = tl.load(highs + past + m0 // ROWS * ROWS)
                        row_high, row_low = pair_of(highs + past, lows + past, t, t < T)
                    scores = add_gates(
                        scores, row_high[None, :], row_low[None, :], key_high[:, None], key_low[:, None], origin,
                        PRECISION == "ieee",
                    )  # fmt: skip
                if part == FAR:
                    lse -= tail
                elif BIASED:
                    scores += bias_of(biases, n[:, None], (past + t)[None, :], zero, part == MASKED)
                p = tl.exp2(scores - lse[None, :])
                if part == MASKED:
                    first = t
                    if LIMITED:
                        first = tl.load(STARTS + b * S + past + t, mask=t < T, other=0)
                    seen = visible(n[:, None], (past + t)[None, :], first[None, :], LIMITED)
                    p = tl.where(seen, p, 0.0)
                dv = tl.dot(p.to(grad.dtype), grad, dv, input_precision=PRECISION)
                dp = tl.dot(v, tl.trans(grad), input_precision=PRECISION)
                ds = p * (dp - inner[None, :])
                if GATED:
                    dsums -= sum_wide(ds, PRECISION == "ieee")
                dk = tl.dot(ds.to(q.dtype), q, dk, input_precision=PRECISION)
        if GATED:
            tl.store(DSUMS + (b * S + n).to(tl.int64) * H + h, dsums, mask=n < S)
    token = ((b * S + n).to(tl.int64) * KV + kv)[:, None]
    kept = (n < S)[:, None]
    tl.store(DK + token * W + wide[None, :], (dk * scale).to(DK.dtype.element_ty), mask=kept & (wide < W)[None, :])
    tl.store(DV + token * D + deep[None, :], dv.to(DV.dtype.element_ty), mask=kept & (deep < D)[None, :])
