"""Triton: flash attention and its gradients, for scores that are a dot product plus optional FoX gates or a bias by
distance.

FlashAttention-2 (Dao, arXiv 2307.08691): tiles of scores stay on the chip, the softmax is accumulated tile by tile, and
the backward pass recomputes scores from the saved log-sum-exp. One kernel computes the gradients of queries and another
those of keys and values. Neither uses atomics, so results are deterministic. Head dimensions that are not a power of
two are padded by masked loads.
"""

import functools
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..common import LOG2E, UNSEEN, precision_of, strides
from ..launching import LAYOUTS, Launch, split
from ..layout import Layout, layout_of
from .bias import bias_for, bias_of, table_gradient_kernel
from .flash_gradients import key_gradient_kernel, query_gradient_kernel
from .gates import ROWS, add_gates, gates_of, pair_of
from .splits import splits_for
from .tiles import FAR, MASKED, NEAR, keys_seen, last_seen, query_block, rows_of, tiles_of, visible

# For the gradient of the table: maximum distances per band, and programs per multiprocessor.
LARGEST, WAVES = 128, 4


@triton.jit
def forward_kernel(
    Q, K, V, HIGH, LOW, BIAS, STARTS, OUT, LSE,
    q_b, q_t, q_h, k_b, k_t, k_h, v_b, v_t, v_h, T, S, H, GROUP, scale, zero, N,
    W: tl.constexpr, D: tl.constexpr, BW: tl.constexpr, BD: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
    GATED: tl.constexpr, BIASED: tl.constexpr, TAIL: tl.constexpr, LIMITED: tl.constexpr, CAUSAL: tl.constexpr,
    EVEN: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    m0, b, h = query_block(T, H, BM)
    rows, keys, wide, deep = tl.arange(0, BM), tl.arange(0, BN), tl.arange(0, BW), tl.arange(0, BD)
    inside, past = m0 + rows < T, S - T
    Q += b * q_b + m0.to(tl.int64) * q_t + h * q_h
    K += b * k_b + h // GROUP * k_h
    V += b * v_b + h // GROUP * v_h
    q = rows_of(Q, rows, q_t, wide, inside, W, EVEN)
    last = last_seen(m0, rows, T, S, CAUSAL)
    first, begin, clear, full, end = keys_seen(STARTS, b, m0, last, inside, T, S, BM, BN, LIMITED, CAUSAL)
    near = clear
    if BIASED:
        BIAS += h * (zero + 1)
    if TAIL:
        near = max(clear, min(full, max(past + m0 + 2 - N, 0) // BN * BN))
        tail = tl.load(BIAS)
    if GATED:
        HIGH, LOW = HIGH + (b * H + h) * S, LOW + (b * H + h) * S
        origin, row_high, row_low = 0.0, tl.zeros([BM], tl.float32), tl.zeros([BM], tl.float32)
        if CAUSAL:
            origin = tl.load(HIGH + past + m0 // ROWS * ROWS)
            row_high, row_low = pair_of(HIGH, LOW, last, inside)
    highest = tl.full([BM], UNSEEN, tl.float32)
    weight = tl.zeros([BM], tl.float32)
    acc = tl.zeros([BM, BD], tl.float32)
    for part in tl.static_range(FAR if TAIL else NEAR, MASKED + 1):
        low, high = tiles_of(part, begin, clear, near, full, end, LIMITED)
        for tile in range(low, high, BN):
            n0 = tile
            if part == MASKED and LIMITED:
                n0 = tile + tl.where(tile >= clear, full - clear, 0)
            n, at = n0 + keys, tl.cast(n0, tl.int64)
            k = rows_of(K + at * k_t, keys, k_t, wide, n < S, W, EVEN or part != MASKED)
            scores = tl.dot(q, tl.trans(k), input_precision=PRECISION)
            factor = scale * LOG2E
            if GATED:
                key_high, key_low = pair_of(HIGH, LOW, n, n < S)
                scores = add_gates(
                    scores * factor, row_high[:, None], row_low[:, None], key_high[None, :], key_low[None, :], origin,
                    PRECISION == "ieee",
                )  # fmt: skip
                factor = 1.0
            if BIASED and part != FAR:
                scores = scores * factor + bias_of(BIAS, n[None, :], last[:, None], zero, part == MASKED)
                factor = 1.0
            if part == MASKED:
                seen = visible(n[None, :], last[:, None], first[:, None], LIMITED)
                scores = tl.where(seen, scores, UNSEEN)
            above = tl.max(scores, 1) * factor
            if part == FAR:
                above = tl.maximum(highest, above + tail)
                p = tl.exp2(scores * factor - (above - tail)[:, None])
            else:
                above = tl.maximum(highest, above)
                p = tl.exp2(scores * factor - above[:, None])
            if LIMITED and part == MASKED:  # a row may have no visible key yet, and UNSEEN - UNSEEN is meaningless
                p = tl.where(seen, p, 0.0)
            rescale = tl.exp2(highest - above)
            weight = weight * rescale + tl.sum(p, 1)
            v = rows_of(V + at * v_t, keys, v_t, deep, n < S, D, EVEN or part != MASKED)
            acc = tl.dot(p.to(v.dtype), v, acc * rescale[:, None], input_precision=PRECISION)
            highest = above
    token = (b * T + m0 + rows).to(tl.int64)
    tl.store(LSE + (b * H + h) * T + m0 + rows, highest + tl.log2(weight), mask=inside)
    kept = inside[:, None] & (deep < D)[None, :]
    tl.store(
        OUT + (token * H + h)[:, None] * D + deep[None, :], (acc / weight[:, None]).to(OUT.dtype.element_ty), mask=kept
    )


KERNELS = {"forward": forward_kernel, "query": query_gradient_kernel, "key": key_gradient_kernel}
KERNELS |= {"table": table_gradient_kernel}


def blocks_of(kernel: str, dtype: torch.dtype, width: int, depth: int) -> list[tuple[int, int, int, int]]:
    """(BM, BN, warps, stages) in order of preference; a GPU with less shared memory takes a later one."""
    square = kernel == "table"
    if dtype == torch.float32:
        # With four warps, widths above 64 would spill up to 13 KB per thread to local memory. The GPU reserves that for
        # every resident thread, which takes gigabytes.
        warps = 4 if width <= 64 else 8
        return [(32, 32, warps, 2), (16, 16 if square else 32, warps, 2)]
    if square:
        return [(64, 64, 8, 3 if width <= 64 else 2), (32, 32, 4, 1)]
    if width <= 64 and depth <= 64:
        best = {"forward": (64, 64, 4, 3), "query": (64, 64, 4, 3), "key": (32, 64, 4, 3)}
    elif depth <= 64:
        best = {"forward": (128, 64, 8, 3), "query": (128, 32, 8, 3), "key": (64, 64, 4, 2)}
    elif width <= 128:
        best = {"forward": (64, 64, 4, 3), "query": (128, 128, 8, 2), "key": (64, 64, 4, 2)}
    else:
        best = {"forward": (128, 64, 8, 3), "query": (128, 64, 8, 2), "key": (32, 128, 8, 3)}
    return [best[kernel], (64, 32, 4, 2) if kernel != "key" else (32, 64, 4, 2), (32, 32, 4, 1)]


@functools.lru_cache(LAYOUTS)
def prepared(
    name: str,
    extent: int,
    programs: int,
    q: Layout,
    k: Layout,
    v: Layout,
    names: tuple[str, ...],
    values: tuple[Any, ...],
) -> Launch:
    """The launch for inputs of these layouts. `names` and `values` are the other settings; see `launch`."""
    (length, heads, width), (keys, kv_heads), depth = q.shape[1:], k.shape[1:3], v.shape[3]
    wide, deep = (max(triton.next_power_of_2(size), 16) for size in (width, depth))
    settings = {"T": length, "S": keys, "H": heads, "GROUP": heads // kv_heads, "W": width, "D": depth}
    settings |= {"BW": wide, "BD": deep, "PRECISION": precision_of(q.dtype), **strides(q=q, k=k, v=v)}
    settings |= zip(names, values, strict=True)
    choices = []
    for bm, bn, warps, stages in blocks_of(name, q.dtype, wide, deep):
        # A band of the table's gradient also has up to bn - 1 smaller distances.
        reached = extent + bn - 1 if name == "table" else extent
        blocks = triton.cdiv(reached, bm if name in ("forward", "query") else bn)
        tiles = {"BM": bm, "BN": bn, "EVEN": length % bm == 0 and keys % bn == 0}
        choices.append(((blocks * programs,), settings | tiles | {"num_warps": warps, "num_stages": stages}))
    return Launch(KERNELS[name], *choices)


def launch(name: str, extent: int, programs: int, q: Tensor, k: Tensor, v: Tensor, **arguments) -> None:
    """Launch a kernel over blocks of queries, keys or distances, with the first block sizes that fit the GPU.

    Args:
        name: the kernel, a key of `KERNELS`.
        extent: number of queries; of keys if `name` is "key", of distances if it is "table".
        programs: programs per block: sequences times heads.
        q, k, v: inputs of the attention.
        arguments: launch arguments of the kernel that do not follow from q, k, v and the block sizes.

    Raises:
        RuntimeError: no block sizes fit the shared memory of the GPU.
    """
    tensors, settings = split(arguments)
    layouts = layout_of(q), layout_of(k), layout_of(v)
    ready = prepared(name, extent, programs, *layouts, tuple(settings), tuple(settings.values()))
    ready(Q=q, K=k, V=v, **tensors)


def flash_forward(
    q: Tensor, k: Tensor, v: Tensor, scale: float, sums: Tensor | None, table: Tensor | None, borders: Tensor | None,
    causal: bool = True,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Causal attention of `q [B, T, H, W]` over `k [B, S, Hkv, W]`, `v [B, S, Hkv, D]`, bottom-right aligned.

    Args:
        sums: cumulative log-gates c, `[B, S, H]` float64; c_t - c_s is added to the scaled score.
        table: bias by distance, `[H, N]`; table[h, min(t - s, N - 1)] is added to the scaled score.
        borders: limits of the visible keys, `[2, B, S]`; see `Documents`.
        causal: False if all S keys precede all queries, which then have the cumulative log-gate 0. It excludes `table`
            and `borders`.

    Returns:
        The output, `[B, T, H, D]`, and the log-sum-exp of each row in base 2, `[B, H, T]` float32. With gates it is
        that of the scores as `add_gates` returns them.
    """
    (batch, length, heads), depth = q.shape[:3], v.shape[3]
    out = q.new_empty(batch, length, heads, depth)
    lse = torch.empty(batch, heads, length, device=q.device)
    high, low = gates_of(sums)
    launch(
        "forward", length, batch * heads, q, k, v,
        HIGH=high, LOW=low, **bias_for(table, k.shape[1]), STARTS=None if borders is None else borders[0], OUT=out,
        LSE=lse, scale=scale, GATED=sums is not None, LIMITED=borders is not None, CAUSAL=causal,
    )  # fmt: skip
    return out, lse


def flash_backward(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, lse_grad: Tensor | None, scale: float,
    sums: Tensor | None, table: Tensor | None, borders: Tensor | None, table_needs_gradient: bool, causal: bool = True,
) -> tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor | None]:  # fmt: skip
    """Gradients of q, k, v, sums and table. `lse_grad [B, H, T]` is the gradient of the log-sum-exp in base 2."""
    (batch, length, heads), (keys, kv_heads) = q.shape[:3], k.shape[1:3]
    dq, dk, dv, inner = *(x.new_empty(x.shape) for x in (q, k, v)), torch.empty_like(lse)
    row_sums = column_sums = None
    if sums is not None:
        # Each row of dS sums to 0 up to rounding. Both parts are rounded in the same way, so they cancel.
        row_sums, column_sums = (sums.new_empty(batch, n, heads) for n in (length, keys))
    starts, ends = (None, None) if borders is None else borders
    high, low = gates_of(sums)
    shared = {"STARTS": starts, "LSE": lse, "GRAD": grad, "INNER": inner, **strides(g=grad)}
    shared |= {"scale": scale, "LIMITED": borders is not None}
    bias = bias_for(table, keys)
    both = {**shared, **bias, "HIGH": high, "LOW": low, "GATED": sums is not None, "CAUSAL": causal}
    programs = batch * heads
    launch(
        "query", length, programs, q, k, v, **both,
        OUT=out, LSE_GRAD=lse_grad, DQ=dq, DSUMS=row_sums,
    )  # fmt: skip
    launch(
        "key", keys, batch * kv_heads, q, k, v, **both,
        ENDS=ends, DK=dk, DV=dv, DSUMS=column_sums,
    )  # fmt: skip
    if row_sums is not None and column_sums is not None and causal:
        column_sums[:, keys - length :] += row_sums
    dtable = None
    if table is not None and table_needs_gradient:
        dtable = torch.zeros(table.shape, device=q.device)
        count = table.shape[1] - 1 if bias["TAIL"] else keys  # distances that do not share an entry
        if count:
            dtable[:, :count] = sums_by_distance(q, k, v, count, bias, shared)
        if bias["TAIL"]:  # over each row dS sums to the gradient of the log-sum-exp
            total = 0.0 if lse_grad is None else lse_grad.sum((0, 2)) * LOG2E.value
            dtable[:, count] = total - dtable[:, :count].sum(1)
    return dq, dk, dv, column_sums, dtable


def sums_by_distance(q: Tensor, k: Tensor, v: Tensor, count: int, bias: dict, shared: dict) -> Tensor:
    """Sums of dS over all pairs at each distance below `count`, `[H, count]`. Needs INNER of the query kernel."""
    batch, length, heads, keys = *q.shape[:3], k.shape[1]
    starts, blocks = shared["STARTS"], triton.cdiv(length, LARGEST)
    splits = splits_for(q.device, WAVES, batch * heads * triton.cdiv(count, LARGEST), blocks)
    # The greatest distance that each sequence sees. Bands beyond it end at once.
    reach = None
    if starts is not None:
        positions = torch.arange(keys - length, keys, device=q.device)
        reach = (positions - starts[:, keys - length :]).amax(1).int()
    partial = torch.zeros(batch * splits, 2, heads, count + 2 * LARGEST, device=q.device)
    launch(
        "table", count, batch * heads * splits, q, k, v, **shared,
        BIAS=bias["BIAS"], REACH=reach, PARTIAL=partial, zero=bias["zero"], batch=batch, stride=partial.shape[3],
        SPLITS=splits,
    )  # fmt: skip
    return partial.sum((0, 1))[:, :count]
