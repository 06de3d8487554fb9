"""Triton: flash attention and its gradients, for any encoding whose score is a dot product plus FoX's gates.

FlashAttention-2 (Dao, arXiv 2307.08691): tiles of scores that never leave the chip, a running softmax, and a backward
pass that forms them again from the saved log-sum-exp. Gradients of queries and of keys are two kernels, each owning
what it writes: no atomics, so two runs agree bit for bit. Widths that are no power of two are padded by masked loads.
"""

import functools

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.runtime.errors import OutOfResources

from bearings.kernels.angles import LOG2E
from bearings.kernels.attention import document_runs

ROWS = tl.constexpr(128)  # a multiple of every block's rows
# Not -inf: a row that sees nothing in its first tile would be inf - inf. What it gathers there is scaled by 0 later.
UNSEEN = tl.constexpr(-1e30)


@triton.jit
def rows_of(X, rows, stride, columns, inside, WIDTH: tl.constexpr, EVEN: tl.constexpr):
    """`[rows, columns]` of X, zero outside. `EVEN`: all rows exist; a padded width is masked in any case."""
    at = X + rows[:, None] * stride + columns[None, :]
    if EVEN and columns.shape[0] == WIDTH:
        x = tl.load(at)
    elif EVEN:
        x = tl.load(at, mask=(columns < WIDTH)[None, :], other=0.0)
    else:
        x = tl.load(at, mask=inside[:, None] & (columns < WIDTH)[None, :], other=0.0)
    return x


@triton.jit
def gates_kernel(SUMS, HIGH, LOW, s_b, s_s, s_h, S, H, BLOCK: tl.constexpr):
    """Cumulative log-gates in powers of two, float64 as the float32 pair HIGH + LOW, `[B, H, S]`."""
    blocks = tl.cdiv(S, BLOCK)
    bh = (tl.program_id(0) // blocks).to(tl.int64)
    s = (tl.program_id(0) % blocks * BLOCK + tl.arange(0, BLOCK)).to(tl.int64)
    c = tl.load(SUMS + bh // H * s_b + bh % H * s_h + s * s_s, mask=s < S) * LOG2E
    high = c.to(tl.float32)
    tl.store(HIGH + bh * S + s, high, mask=s < S)
    tl.store(LOW + bh * S + s, (c - high.to(tl.float64)).to(tl.float32), mask=s < S)


@triton.jit
def add_gates(scores, row_high, row_low, key_high, key_low, origin, EXACT: tl.constexpr):
    """c_t - c_s of rows t and keys s, one a column and the other a row of the tile.

    A row's own half changes neither softmax nor gradient. Unless `EXACT` it is left out, also of the log-sum-exp, and
    the keys' half is seen from an origin that all kernels share; its size then sets the rounding.
    """
    if EXACT:
        return scores + ((row_high - key_high) + (row_low - key_low))
    else:
        return scores - (key_high - origin + key_low)


@triton.jit
def sum_wide(x, EXACT: tl.constexpr):
    """Sums of rows in float64: sums over sums follow, which pile up rounding."""
    if EXACT:
        return tl.sum(x.to(tl.float64), 1)
    else:
        return tl.sum(x, 1).to(tl.float64)


@triton.jit
def forward_kernel(
    Q, K, V, HIGH, LOW, STARTS, OUT, LSE,
    q_b, q_t, q_h, k_b, k_s, k_h, v_b, v_s, v_h, T, S, H, GROUP, scale,
    W: tl.constexpr, D: tl.constexpr, BW: tl.constexpr, BD: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
    GATED: tl.constexpr, PACKED: tl.constexpr, EVEN: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    blocks = tl.cdiv(T, BM)
    m0 = (blocks - 1 - tl.program_id(0) % blocks) * BM  # the longest rows first
    b, h = (tl.program_id(0) // blocks // H).to(tl.int64), (tl.program_id(0) // blocks % H).to(tl.int64)
    rows, keys, wide, deep = tl.arange(0, BM), tl.arange(0, BN), tl.arange(0, BW), tl.arange(0, BD)
    inside, past = m0 + rows < T, S - T
    Q += b * q_b + m0.to(tl.int64) * q_t + h * q_h
    K += b * k_b + h // GROUP * k_h
    V += b * v_b + h // GROUP * v_h
    q = rows_of(Q, rows, q_t, wide, inside, W, EVEN)
    last = past + m0 + rows
    end = past + min(m0 + BM, T)
    begin, full = 0, (past + m0 + 1) // BN * BN
    first = last
    if PACKED:
        first = tl.load(STARTS + b * S + last, mask=inside, other=0)
        begin = tl.load(STARTS + b * S + past + m0) // BN * BN
        full = begin
    if GATED:
        HIGH, LOW = HIGH + (b * H + h) * S, LOW + (b * H + h) * S
        origin = tl.load(HIGH + past + m0 // ROWS * ROWS)
        row_high = tl.load(HIGH + last, mask=inside, other=0.0)[:, None]
        row_low = tl.load(LOW + last, mask=inside, other=0.0)[:, None]
    highest = tl.full([BM], UNSEEN, tl.float32)
    weight = tl.zeros([BM], tl.float32)
    acc = tl.zeros([BM, BD], tl.float32)
    for masked in tl.static_range(2):
        low = begin if masked == 0 else full
        high = full if masked == 0 else end
        for n0 in range(low, high, BN):
            n, at = n0 + keys, tl.cast(n0, tl.int64)
            k = rows_of(K + at * k_s, keys, k_s, wide, n < S, W, EVEN or masked == 0)
            scores = tl.dot(q, tl.trans(k), input_precision=PRECISION)
            factor = scale * LOG2E
            if GATED:
                key_high = tl.load(HIGH + n, mask=n < S, other=0.0)[None, :]
                key_low = tl.load(LOW + n, mask=n < S, other=0.0)[None, :]
                scores = add_gates(scores * factor, row_high, row_low, key_high, key_low, origin, PRECISION == "ieee")
                factor = 1.0
            if masked == 1:
                seen = n[None, :] <= last[:, None]
                if PACKED:
                    seen = seen & (n[None, :] >= first[:, None])
                scores = tl.where(seen, scores, UNSEEN)
            above = tl.maximum(highest, tl.max(scores, 1) * factor)
            p = tl.exp2(scores * factor - above[:, None])
            if PACKED and masked == 1:  # a row may see nothing yet, and UNSEEN less UNSEEN is anything
                p = tl.where(seen, p, 0.0)
            rescale = tl.exp2(highest - above)
            weight = weight * rescale + tl.sum(p, 1)
            v = rows_of(V + at * v_s, keys, v_s, deep, n < S, D, EVEN or masked == 0)
            acc = tl.dot(p.to(v.dtype), v, acc * rescale[:, None], input_precision=PRECISION)
            highest = above
    token = (b * T + m0 + rows).to(tl.int64)
    tl.store(LSE + (b * H + h) * T + m0 + rows, highest + tl.log2(weight), mask=inside)
    kept = inside[:, None] & (deep < D)[None, :]
    tl.store(
        OUT + (token * H + h)[:, None] * D + deep[None, :], (acc / weight[:, None]).to(OUT.dtype.element_ty), mask=kept
    )


@triton.jit
def query_gradient_kernel(
    Q, K, V, HIGH, LOW, STARTS, OUT, LSE, GRAD, DQ, INNER, DSUMS,
    q_b, q_t, q_h, k_b, k_s, k_h, v_b, v_s, v_h, g_b, g_t, g_h, T, S, H, GROUP, scale,
    W: tl.constexpr, D: tl.constexpr, BW: tl.constexpr, BD: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
    GATED: tl.constexpr, PACKED: tl.constexpr, EVEN: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    blocks = tl.cdiv(T, BM)
    m0 = (blocks - 1 - tl.program_id(0) % blocks) * BM
    b, h = (tl.program_id(0) // blocks // H).to(tl.int64), (tl.program_id(0) // blocks % H).to(tl.int64)
    rows, keys, wide, deep = tl.arange(0, BM), tl.arange(0, BN), tl.arange(0, BW), tl.arange(0, BD)
    inside, past = m0 + rows < T, S - T
    token = (b * T + m0 + rows).to(tl.int64)
    K += b * k_b + h // GROUP * k_h
    V += b * v_b + h // GROUP * v_h
    q = rows_of(Q + b * q_b + m0.to(tl.int64) * q_t + h * q_h, rows, q_t, wide, inside, W, EVEN)
    grad = rows_of(GRAD + b * g_b + m0.to(tl.int64) * g_t + h * g_h, rows, g_t, deep, inside, D, EVEN)
    kept = inside[:, None] & (deep < D)[None, :]
    out = tl.load(OUT + (token * H + h)[:, None] * D + deep[None, :], mask=kept, other=0.0)
    # sum_s P dP of each row, which the keys' kernel reads.
    inner = tl.sum(grad.to(tl.float32) * out.to(tl.float32), 1)
    tl.store(INNER + (b * H + h) * T + m0 + rows, inner, mask=inside)
    lse = tl.load(LSE + (b * H + h) * T + m0 + rows, mask=inside, other=float("inf"))
    last = past + m0 + rows
    end = past + min(m0 + BM, T)
    begin, full = 0, (past + m0 + 1) // BN * BN
    first = last
    if PACKED:
        first = tl.load(STARTS + b * S + last, mask=inside, other=0)
        begin = tl.load(STARTS + b * S + past + m0) // BN * BN
        full = begin
    if GATED:
        HIGH, LOW = HIGH + (b * H + h) * S, LOW + (b * H + h) * S
        origin = tl.load(HIGH + past + m0 // ROWS * ROWS)
        row_high = tl.load(HIGH + last, mask=inside, other=0.0)[:, None]
        row_low = tl.load(LOW + last, mask=inside, other=0.0)[:, None]
        row_total = tl.zeros([BM], tl.float64)
    dq = tl.zeros([BM, BW], tl.float32)
    for masked in tl.static_range(2):
        low = begin if masked == 0 else full
        high = full if masked == 0 else end
        for n0 in range(low, high, BN):
            n, at = n0 + keys, tl.cast(n0, tl.int64)
            k = rows_of(K + at * k_s, keys, k_s, wide, n < S, W, EVEN or masked == 0)
            v = rows_of(V + at * v_s, keys, v_s, deep, n < S, D, EVEN or masked == 0)
            scores = tl.dot(q, tl.trans(k), input_precision=PRECISION) * (scale * LOG2E)
            if GATED:
                key_high = tl.load(HIGH + n, mask=n < S, other=0.0)[None, :]
                key_low = tl.load(LOW + n, mask=n < S, other=0.0)[None, :]
                scores = add_gates(scores, row_high, row_low, key_high, key_low, origin, PRECISION == "ieee")
            p = tl.exp2(scores - lse[:, None])
            if masked == 1:
                seen = n[None, :] <= last[:, None]
                if PACKED:
                    seen = seen & (n[None, :] >= first[:, None])
                p = tl.where(seen, p, 0.0)
            dp = tl.dot(grad, tl.trans(v), input_precision=PRECISION)
            ds = p * (dp - inner[:, None])
            if GATED:
                row_total += sum_wide(ds, PRECISION == "ieee")
            dq = tl.dot(ds.to(k.dtype), k, dq, input_precision=PRECISION)
    if GATED:
        tl.store(DSUMS + token * H + h, row_total, mask=inside)
    kept = inside[:, None] & (wide < W)[None, :]
    tl.store(DQ + (token * H + h)[:, None] * W + wide[None, :], (dq * scale).to(DQ.dtype.element_ty), mask=kept)


@triton.jit
def key_gradient_kernel(
    Q, K, V, HIGH, LOW, STARTS, ENDS, LSE, GRAD, INNER, DK, DV, DSUMS,
    q_b, q_t, q_h, k_b, k_s, k_h, v_b, v_s, v_h, g_b, g_t, g_h, T, S, H, GROUP, scale,
    W: tl.constexpr, D: tl.constexpr, BW: tl.constexpr, BD: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
    GATED: tl.constexpr, PACKED: tl.constexpr, EVEN: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    blocks, KV = tl.cdiv(S, BN), H // GROUP
    n0 = tl.program_id(0) % blocks * BN  # the first keys, which most queries see, first
    b, kv = (tl.program_id(0) // blocks // KV).to(tl.int64), (tl.program_id(0) // blocks % KV).to(tl.int64)
    rows, keys, wide, deep = tl.arange(0, BM), tl.arange(0, BN), tl.arange(0, BW), tl.arange(0, BD)
    n, past, at = n0 + keys, S - T, n0.to(tl.int64)
    k = rows_of(K + b * k_b + at * k_s + kv * k_h, keys, k_s, wide, n < S, W, EVEN)
    v = rows_of(V + b * v_b + at * v_s + kv * v_h, keys, v_s, deep, n < S, D, EVEN)
    begin, end = max(n0 - past, 0) // BM * BM, T
    full = tl.cdiv(max(n0 + BN - 1 - past, 0), BM) * BM
    if PACKED:
        end = tl.load(ENDS + b * S + min(n0 + BN, S) - 1)
        full = end
    full = min(full, tl.cdiv(end, BM) * BM)
    dk = tl.zeros([BN, BW], tl.float32)
    dv = tl.zeros([BN, BD], tl.float32)
    for member in range(GROUP):
        h = kv * GROUP + member
        q_head, g_head, statistics = Q + b * q_b + h * q_h, GRAD + b * g_b + h * g_h, (b * H + h) * T
        if GATED:
            highs, lows = HIGH + (b * H + h) * S, LOW + (b * H + h) * S
            key_high = tl.load(highs + n, mask=n < S, other=0.0)[:, None]
            key_low = tl.load(lows + n, mask=n < S, other=0.0)[:, None]
            dsums = tl.zeros([BN], tl.float64)
        for masked in tl.static_range(2):
            low = full if masked == 0 else begin
            high = end if masked == 0 else full
            for m0 in range(low, high, BM):
                t, row = m0 + rows, tl.cast(m0, tl.int64)
                q = rows_of(q_head + row * q_t, rows, q_t, wide, t < T, W, EVEN)
                grad = rows_of(g_head + row * g_t, rows, g_t, deep, t < T, D, EVEN)
                lse = tl.load(LSE + statistics + t, mask=t < T, other=float("inf"))
                inner = tl.load(INNER + statistics + t, mask=t < T, other=0.0)
                scores = tl.dot(k, tl.trans(q), input_precision=PRECISION) * (scale * LOG2E)
                if GATED:
                    origin = tl.load(highs + past + m0 // ROWS * ROWS)
                    row_high = tl.load(highs + past + t, mask=t < T, other=0.0)[None, :]
                    row_low = tl.load(lows + past + t, mask=t < T, other=0.0)[None, :]
                    scores = add_gates(scores, row_high, row_low, key_high, key_low, origin, PRECISION == "ieee")
                p = tl.exp2(scores - lse[None, :])
                if masked == 1:
                    seen = n[:, None] <= (past + t)[None, :]
                    if PACKED:
                        first = tl.load(STARTS + b * S + t, mask=t < T, other=0)
                        seen = seen & (n[:, None] >= first[None, :])
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


def blocks_of(kernel: str, dtype: torch.dtype, width: int, depth: int) -> list[tuple[int, int, int, int]]:
    """(BM, BN, warps, stages) in order of preference; a GPU with less shared memory takes a later one."""
    if dtype == torch.float32:
        return [(32, 32, 4, 2), (32, 32, 4, 1), (16, 16, 4, 1)]
    if width <= 64 and depth <= 64:
        best = {"forward": (64, 64, 4, 3), "query": (64, 64, 4, 3), "key": (32, 64, 4, 3)}
    elif depth <= 64:
        best = {"forward": (128, 64, 8, 3), "query": (128, 32, 8, 3), "key": (64, 64, 4, 2)}
    elif width <= 128:
        best = {"forward": (64, 64, 4, 3), "query": (128, 128, 8, 2), "key": (64, 64, 4, 2)}
    else:
        best = {"forward": (128, 64, 8, 3), "query": (128, 64, 8, 2), "key": (32, 128, 8, 3)}
    return [best[kernel], (64, 32, 4, 2) if kernel != "key" else (32, 64, 4, 2), (32, 32, 4, 1)]


def launch(
    kernel, name: str, tiles: int, pointers: tuple, q: Tensor, k: Tensor, v: Tensor,
    grad: Tensor | None, scale: float, flags: dict,
) -> None:  # fmt: skip
    """Run `kernel` over the blocks of queries (or keys, `name` being "key"), with the first blocks that fit."""
    (length, heads, width), (keys, kv_heads), depth = q.shape[1:], k.shape[1:3], v.shape[3]
    strides = [stride for x in (q, k, v, grad) if x is not None for stride in x.stride()[:3]]
    padded = {"BW": max(triton.next_power_of_2(width), 16), "BD": max(triton.next_power_of_2(depth), 16)}
    for bm, bn, warps, stages in blocks_of(name, q.dtype, padded["BW"], padded["BD"]):
        blocks = triton.cdiv(keys, bn) if name == "key" else triton.cdiv(length, bm)
        try:
            kernel[(blocks * tiles,)](
                *pointers, *strides, length, keys, heads, heads // kv_heads, scale,
                W=width, D=depth, **padded, BM=bm, BN=bn, EVEN=length % bm == 0 and keys % bn == 0, **flags,
                PRECISION="ieee" if q.dtype == torch.float32 else "tf32", num_warps=warps, num_stages=stages,
            )  # fmt: skip
        except OutOfResources as error:
            problem = error
        else:
            return
    raise RuntimeError(
        f"{torch.cuda.get_device_name(q.device)} has too little shared memory for implementation=triton at head_dim="
        f"{depth} ({problem}): use implementation=torch or a smaller head_dim"
    )


@functools.cache
def _nothing(device: torch.device) -> Tensor:
    """Stands in for a pointer that a kernel never follows."""
    return torch.empty(1, device=device)


def document_edges(documents: Tensor) -> tuple[Tensor, Tensor]:
    """First token of each token's document and the first behind it, `[B, S]` int32."""
    runs = document_runs(documents)
    starts = torch.searchsorted(runs, runs).int()
    return starts, torch.searchsorted(runs, runs, right=True).int()


def gates_of(sums: Tensor | None, q: Tensor) -> tuple[Tensor, Tensor]:
    """Cumulative log-gates `[B, S, H]` as the kernels read them."""
    if sums is None:
        return _nothing(q.device), _nothing(q.device)
    batch, keys, heads = sums.shape
    high, low = torch.empty(2, batch, heads, keys, device=q.device)
    gates_kernel[(batch * heads * triton.cdiv(keys, 256),)](sums, high, low, *sums.stride(), keys, heads, BLOCK=256)
    return high, low


def flash_forward(
    q: Tensor, k: Tensor, v: Tensor, scale: float, sums: Tensor | None, documents: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Causal attention of `q [B, T, H, W]` over `k [B, S, Hkv, W]`, `v [B, S, Hkv, D]`, bottom-right aligned.

    Args:
        sums: `[B, S, H]` float64, cumulative log-gates c: c_t - c_s is added to the scaled score.
        documents: `[B, S]`; attention stays inside each run. Needs T == S.

    Returns:
        `[B, T, H, D]` and the log-sum-exp of each row in powers of two, `[B, H, T]` float32; with gates, as
        `add_gates` leaves it.
    """
    (batch, length, heads), depth = q.shape[:3], v.shape[3]
    out = q.new_empty(batch, length, heads, depth)
    lse = torch.empty(batch, heads, length, device=q.device)
    none = _nothing(q.device)
    starts = none if documents is None else document_edges(documents)[0]
    pointers = (q, k, v, *gates_of(sums, q), starts, out, lse)
    flags = {"GATED": sums is not None, "PACKED": documents is not None}
    launch(forward_kernel, "forward", batch * heads, pointers, q, k, v, None, scale, flags)
    return out, lse


def flash_backward(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor,
    scale: float, sums: Tensor | None, documents: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:  # fmt: skip
    """Gradients of q, k, v and sums."""
    (batch, length, heads), (keys, kv_heads) = q.shape[:3], k.shape[1:3]
    dq, dk, dv = (x.new_empty(x.shape) for x in (q, k, v))
    inner, none = torch.empty_like(lse), _nothing(q.device)
    # A row of dS adds up to 0 but for rounding. The same rounding in both shares cancels where it should.
    row_sums, column_sums = none, none
    if sums is not None:
        row_sums, column_sums = (sums.new_empty(batch, n, heads) for n in (length, keys))
    starts, ends = (none, none) if documents is None else document_edges(documents)
    gates = gates_of(sums, q)
    flags = {"GATED": sums is not None, "PACKED": documents is not None}
    pointers = (q, k, v, *gates, starts, out, lse, grad, dq, inner, row_sums)
    launch(query_gradient_kernel, "query", batch * heads, pointers, q, k, v, grad, scale, flags)
    pointers = (q, k, v, *gates, starts, ends, lse, grad, inner, dk, dv, column_sums)
    launch(key_gradient_kernel, "key", batch * kv_heads, pointers, q, k, v, grad, scale, flags)
    if sums is None:
        return dq, dk, dv, None
    column_sums[:, keys - length :] += row_sums
    return dq, dk, dv, column_sums
