"""Triton: flash attention and its gradients, for scores that are a dot product plus optional FoX gates.

FlashAttention-2 (Dao, arXiv 2307.08691): tiles of scores stay on the chip, the softmax is accumulated tile by tile, and
the backward pass recomputes scores from the saved log-sum-exp. One kernel computes the gradients of queries and another
those of keys and values. Neither uses atomics, so results are deterministic. Head dimensions that are not a power of
two are padded by masked loads.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.runtime.errors import OutOfResources

from ..common import LOG2E, UNSEEN, precision_of, strides
from .flash_gradients import key_gradient_kernel, query_gradient_kernel
from .gates import ROWS, add_gates, gates_of, pair_of
from .tiles import keys_seen, query_block, rows_of, visible


@triton.jit
def forward_kernel(
    Q, K, V, HIGH, LOW, STARTS, OUT, LSE,
    q_b, q_t, q_h, k_b, k_t, k_h, v_b, v_t, v_h, T, S, H, GROUP, scale,
    W: tl.constexpr, D: tl.constexpr, BW: tl.constexpr, BD: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
    GATED: tl.constexpr, PACKED: tl.constexpr, EVEN: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    m0, b, h = query_block(T, H, BM)
    rows, keys, wide, deep = tl.arange(0, BM), tl.arange(0, BN), tl.arange(0, BW), tl.arange(0, BD)
    inside, past = m0 + rows < T, S - T
    Q += b * q_b + m0.to(tl.int64) * q_t + h * q_h
    K += b * k_b + h // GROUP * k_h
    V += b * v_b + h // GROUP * v_h
    q = rows_of(Q, rows, q_t, wide, inside, W, EVEN)
    last = past + m0 + rows
    first, begin, full, end = keys_seen(STARTS, b, m0, last, inside, T, S, BM, BN, PACKED)
    if GATED:
        HIGH, LOW = HIGH + (b * H + h) * S, LOW + (b * H + h) * S
        origin = tl.load(HIGH + past + m0 // ROWS * ROWS)
        row_high, row_low = pair_of(HIGH, LOW, last, inside)
    highest = tl.full([BM], UNSEEN, tl.float32)
    weight = tl.zeros([BM], tl.float32)
    acc = tl.zeros([BM, BD], tl.float32)
    for masked in tl.static_range(2):
        low = begin if masked == 0 else full
        high = full if masked == 0 else end
        for n0 in range(low, high, BN):
            n, at = n0 + keys, tl.cast(n0, tl.int64)
            k = rows_of(K + at * k_t, keys, k_t, wide, n < S, W, EVEN or masked == 0)
            scores = tl.dot(q, tl.trans(k), input_precision=PRECISION)
            factor = scale * LOG2E
            if GATED:
                key_high, key_low = pair_of(HIGH, LOW, n, n < S)
                scores = add_gates(
                    scores * factor, row_high[:, None], row_low[:, None], key_high[None, :], key_low[None, :], origin,
                    PRECISION == "ieee",
                )  # fmt: skip
                factor = 1.0
            if masked == 1:
                seen = visible(n[None, :], last[:, None], first[:, None], PACKED)
                scores = tl.where(seen, scores, UNSEEN)
            above = tl.maximum(highest, tl.max(scores, 1) * factor)
            p = tl.exp2(scores * factor - above[:, None])
            if PACKED and masked == 1:  # a row may have no visible key yet, and UNSEEN - UNSEEN is meaningless
                p = tl.where(seen, p, 0.0)
            rescale = tl.exp2(highest - above)
            weight = weight * rescale + tl.sum(p, 1)
            v = rows_of(V + at * v_t, keys, v_t, deep, n < S, D, EVEN or masked == 0)
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
        # With four warps, widths above 64 would spill up to 13 KB per thread to local memory. The GPU reserves that for
        # every resident thread, which takes gigabytes.
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


def launch(kernel, name: str, programs: int, q: Tensor, k: Tensor, v: Tensor, **arguments) -> None:
    """Launch `kernel` over blocks of queries (keys if `name` is "key"), with the first block sizes that fit the GPU.

    Args:
        kernel: the Triton kernel.
        name: its name in `blocks_of`.
        programs: programs per block: sequences times heads.
        q, k, v: inputs of the attention.
        arguments: launch arguments of the kernel that do not follow from q, k, v and the block sizes.

    Raises:
        RuntimeError: no block sizes fit the shared memory of the GPU.
    """
    (length, heads, width), (keys, kv_heads), depth = q.shape[1:], k.shape[1:3], v.shape[3]
    arguments |= {"Q": q, "K": k, "V": v, "T": length, "S": keys, "H": heads, "GROUP": heads // kv_heads}
    arguments |= {"W": width, "D": depth, "PRECISION": precision_of(q.dtype), **strides(q=q, k=k, v=v)}
    padded = {"BW": max(triton.next_power_of_2(width), 16), "BD": max(triton.next_power_of_2(depth), 16)}
    for bm, bn, warps, stages in blocks_of(name, q.dtype, padded["BW"], padded["BD"]):
        blocks = triton.cdiv(keys, bn) if name == "key" else triton.cdiv(length, bm)
        even = length % bm == 0 and keys % bn == 0
        try:
            kernel[(blocks * programs,)](
                **arguments, **padded, BM=bm, BN=bn, EVEN=even, num_warps=warps, num_stages=stages
            )
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
        sums: cumulative log-gates c, `[B, S, H]` float64; c_t - c_s is added to the scaled score.
        borders: document boundaries, `[2, B, S]`; see `Documents`. Needs T == S.

    Returns:
        The output, `[B, T, H, D]`, and the log-sum-exp of each row in base 2, `[B, H, T]` float32. With gates it is
        that of the scores as `add_gates` returns them.
    """
    (batch, length, heads), depth = q.shape[:3], v.shape[3]
    out = q.new_empty(batch, length, heads, depth)
    lse = torch.empty(batch, heads, length, device=q.device)
    high, low = gates_of(sums)
    launch(
        forward_kernel, "forward", batch * heads, q, k, v,
        HIGH=high, LOW=low, STARTS=None if borders is None else borders[0], OUT=out, LSE=lse,
        scale=scale, GATED=sums is not None, PACKED=borders is not None,
    )  # fmt: skip
    return out, lse


def flash_backward(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor,
    scale: float, sums: Tensor | None, borders: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:  # fmt: skip
    """Gradients of q, k, v and sums."""
    (batch, length, heads), (keys, kv_heads) = q.shape[:3], k.shape[1:3]
    dq, dk, dv, inner = *(x.new_empty(x.shape) for x in (q, k, v)), torch.empty_like(lse)
    row_sums = column_sums = None
    if sums is not None:
        # Each row of dS sums to 0 up to rounding. Both parts are rounded in the same way, so they cancel.
        row_sums, column_sums = (sums.new_empty(batch, n, heads) for n in (length, keys))
    starts, ends = (None, None) if borders is None else borders
    high, low = gates_of(sums)
    shared = {"HIGH": high, "LOW": low, "STARTS": starts, "LSE": lse, "GRAD": grad, "INNER": inner, **strides(g=grad)}
    shared |= {"scale": scale, "GATED": sums is not None, "PACKED": borders is not None}
    launch(query_gradient_kernel, "query", batch * heads, q, k, v, **shared, OUT=out, DQ=dq, DSUMS=row_sums)
    launch(key_gradient_kernel, "key", batch * kv_heads, q, k, v, **shared, ENDS=ends, DK=dk, DV=dv, DSUMS=column_sums)
    if row_sums is None or column_sums is None:
        return dq, dk, dv, None
    column_sums[:, keys - length :] += row_sums
    return dq, dk, dv, column_sums
