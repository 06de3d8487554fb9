"""Triton: flash attention and its gradients, for any encoding whose score is a dot product plus FoX's gates.

FlashAttention-2 (Dao, arXiv 2307.08691): tiles of scores that never leave the chip, a running softmax, and a backward
pass that forms them again from the saved log-sum-exp. Gradients of queries and of keys are two kernels, each owning
what it writes: no atomics, so two runs agree bit for bit. Widths that are no power of two are padded by masked loads.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.runtime.errors import OutOfResources

from ..angles import LOG2E
from .flash_gradients import key_gradient_kernel, query_gradient_kernel
from .gates import ROWS, add_gates, gates_of
from .tiles import nothing, rows_of

# Not -inf: a row that sees nothing in its first tile would be inf - inf. What it gathers there is scaled by 0 later.
UNSEEN = tl.constexpr(-1e30)


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


def blocks_of(kernel: str, dtype: torch.dtype, width: int, depth: int) -> list[tuple[int, int, int, int]]:
    """(BM, BN, warps, stages) in order of preference; a GPU with less shared memory takes a later one."""
    if dtype == torch.float32:
        # Four warps would spill vectors of more than 64 to local memory, up to 13 KB a thread; the GPU sets that aside
        # for every thread that it can hold, some gigabytes.
        warps = 4 if width <= 64 else 8
        return [(32, 32, warps, 2), (16, 32, warps, 2)]
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


def flash_forward(
    q: Tensor, k: Tensor, v: Tensor, scale: float, sums: Tensor | None, borders: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Causal attention of `q [B, T, H, W]` over `k [B, S, Hkv, W]`, `v [B, S, Hkv, D]`, bottom-right aligned.

    Args:
        sums: `[B, S, H]` float64, cumulative log-gates c: c_t - c_s is added to the scaled score.
        borders: `[2, B, S]`, of `Documents`; attention stays inside each. Needs T == S.

    Returns:
        `[B, T, H, D]` and the log-sum-exp of each row in powers of two, `[B, H, T]` float32; with gates, as
        `add_gates` leaves it.
    """
    (batch, length, heads), depth = q.shape[:3], v.shape[3]
    out = q.new_empty(batch, length, heads, depth)
    lse = torch.empty(batch, heads, length, device=q.device)
    none = nothing(q.device)
    starts = none if borders is None else borders[0]
    pointers = (q, k, v, *gates_of(sums, q), starts, out, lse)
    flags = {"GATED": sums is not None, "PACKED": borders is not None}
    launch(forward_kernel, "forward", batch * heads, pointers, q, k, v, None, scale, flags)
    return out, lse


def flash_backward(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor,
    scale: float, sums: Tensor | None, borders: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:  # fmt: skip
    """Gradients of q, k, v and sums."""
    (batch, length, heads), (keys, kv_heads) = q.shape[:3], k.shape[1:3]
    dq, dk, dv = (x.new_empty(x.shape) for x in (q, k, v))
    inner, none = torch.empty_like(lse), nothing(q.device)
    # A row of dS adds up to 0 but for rounding. The same rounding in both shares cancels where it should.
    row_sums, column_sums = none, none
    if sums is not None:
        row_sums, column_sums = (sums.new_empty(batch, n, heads) for n in (length, keys))
    starts, ends = (none, none) if borders is None else borders
    gates = gates_of(sums, q)
    flags = {"GATED": sums is not None, "PACKED": borders is not None}
    pointers = (q, k, v, *gates, starts, out, lse, grad, dq, inner, row_sums)
    launch(query_gradient_kernel, "query", batch * heads, pointers, q, k, v, grad, scale, flags)
    pointers = (q, k, v, *gates, starts, ends, lse, grad, inner, dk, dv, column_sums)
    launch(key_gradient_kernel, "key", batch * kv_heads, pointers, q, k, v, grad, scale, flags)
    if sums is None:
        return dq, dk, dv, None
    column_sums[:, keys - length :] += row_sums
    return dq, dk, dv, column_sums
