"""Triton: PaTH attention of one new token over its cache (kernels/path/cache.py).

A single launch does all the work. Reader programs each process a split of the keys in complete windows, as in
kernels/attention/decode.py. They pull the query back through the new token's reflection, the pending ones, and the S of
each piece that they read. One more program per key head attends to the pending keys and adds the new token to them. It
writes the new product to a second buffer, because readers need the old one. The last program of a key head to finish
combines the partial outputs, always in the same order.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..attention.splits import combine, fold_places, fold_rows, splits_for, store_places, store_rows, tile_at
from ..choice import INTERPRETED
from ..common import LOG2E, UNSEEN, precision_of, strides
from ..launching import launch
from ..layout import with_rows
from ..operator import on_its_gpu
from . import cache as path_cache
from .cache import WINDOW, Turns

# For several query heads per key head: keys per tile, warps, pipeline stages, programs per multiprocessor.
KEYS, WARPS, STAGES, WAVES = 64, 4, 3, 4
# For one query per key head, with one warp per 16 channels, by whether there are more than 64 channels: keys per tile,
# pipeline stages, warps per multiprocessor, registers per thread.
ROW_TILES = {False: (64, 3, 8, None), True: (32, 3, 16, 128)}
SIMULATED = tl.constexpr(INTERPRETED)  # the interpreter does not support prefetching
AHEAD = tl.constexpr(128)  # keys that a reader prefetches before it pulls its query back


@triton.jit
def passed(Q, W, BETA, b, h, n, q_b, q_h, inside, scale, D: tl.constexpr, BD: tl.constexpr):
    """Queries `[BD, BR]` of heads `h [BR]`, pulled back to the newest pending token, scaled for base 2, in float32."""
    c = tl.arange(0, BD)
    kept = (c < D)[:, None] & inside[None, :]
    q = tl.load(Q + b * q_b + c[:, None] + (h * q_h)[None, :], mask=kept, other=0.0).to(tl.float32) * (scale * LOG2E)
    w = tl.load(W + n * D + c, mask=c < D, other=0.0).to(tl.float32)[:, None]
    return q - tl.load(BETA + n).to(tl.float32) * tl.sum(q * w, 0)[None, :] * w


@triton.jit
def matrix(M, D: tl.constexpr, BD: tl.constexpr):
    """Load a product of reflections `[BD, BD]`."""
    c = tl.arange(0, BD)
    return tl.load(M + c[:, None] * D + c[None, :], mask=(c < D)[:, None] & (c < D)[None, :], other=0.0)


@triton.jit
def turned(q, m, SINGLE: tl.constexpr):
    """`q [BD, BR]` pulled back through a product of reflections."""
    if SINGLE:
        return tl.sum(q * m.to(tl.float32), 0)[:, None]
    else:
        return tl.dot(tl.trans(m), q.to(m.dtype), input_precision="tf32x3")


@triton.jit
def touch(X, rows, there, stride, BD: tl.constexpr):
    """Prefetch rows of X into the L2 cache."""
    if not SIMULATED:
        line: tl.constexpr = 1024 // X.dtype.element_ty.primitive_bitwidth
        c = tl.arange(0, BD // line if line < BD else 1) * line
        at = X + rows.to(tl.int64)[:, None] * stride + c[None, :]
        tl.inline_asm_elementwise(
            "{ .reg .pred p; setp.ne.s32 p, $2, 0; @p prefetch.global.L2 [$1]; mov.u32 $0, 0; }",
            "=r,l,r", [at.to(tl.int64), tl.broadcast_to(there[:, None], at.shape).to(tl.int32)],
            dtype=tl.int32, is_pure=False, pack=1,
        )  # fmt: skip


@triton.jit
def attend_pending(
    Q, K, V, W, BETA, KEYS, SUMS, PARTIAL, LSE, row, n,
    q_b, q_h, k_b, k_t, k_h, v_b, v_t, v_h, c_b, c_t, c_h, heads, kv_heads, pending, scale,
    D: tl.constexpr, BD: tl.constexpr, DV: tl.constexpr, BDV: tl.constexpr, SIZE: tl.constexpr, SHARES: tl.constexpr,
    GATED: tl.constexpr,
):  # fmt: skip
    """Partial output of head `row` over the pending keys and the new one. K, V and SUMS start at the oldest pending."""
    local, c, cv, one = tl.arange(0, SIZE), tl.arange(0, BD), tl.arange(0, BDV), tl.zeros([1], tl.int32)
    b, h = row // heads, row % heads
    q = tl.load(Q + b * q_b + h * q_h + c, mask=c < D, other=0.0).to(tl.float32) * (scale * LOG2E)
    before = tl.trans(passed(Q, W, BETA, b, one + h, n, q_b, q_h, one == 0, scale, D, BD))
    kept = (local < pending)[:, None] & (c < D)[None, :]
    keys = tl.load(KEYS + n * SIZE * D + local[:, None] * D + c[None, :], mask=kept, other=0.0)
    K += b * k_b + (n % kv_heads) * k_h + tl.cast(pending, tl.int64) * k_t
    k = tl.load(K + c, mask=c < D, other=0.0).to(tl.float32)
    scores = tl.where(local == pending, tl.sum(q * k, 0), tl.sum(keys * before, 1))
    seen = local <= pending
    if GATED:
        SUMS += b * c_b + h * c_h
        sums = tl.load(SUMS + local * c_t, mask=seen, other=0.0)
        scores += ((tl.load(SUMS + pending * c_t) - sums) * LOG2E).to(tl.float32)
    scores = tl.where(seen, scores, UNSEEN)
    highest = tl.max(scores, 0)
    p = tl.where(seen, tl.exp2(scores - highest), 0.0)
    at = V + b * v_b + (n % kv_heads) * v_h + local[:, None] * v_t + cv[None, :]
    v = tl.load(at, mask=seen[:, None] & (cv < DV)[None, :], other=0.0).to(tl.float32)
    weight = tl.sum(p, 0)
    out = row * SHARES + SHARES - 1
    tl.store(PARTIAL + out * DV + cv, tl.sum(p[:, None] * v, 0) / weight, mask=cv < DV)
    tl.store(LSE + out, highest + tl.log2(weight))


@triton.jit
def attend(
    q, K, V, SUMS, own, begin, end, k_t, v_t, c_t, highest, weight, acc,
    D: tl.constexpr, BD: tl.constexpr, DV: tl.constexpr, BDV: tl.constexpr, BN: tl.constexpr,
    SINGLE: tl.constexpr, GATED: tl.constexpr, STAGES: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Process the keys from begin to end, which are complete tiles of one piece.

    The running softmax has one entry per place for a single query (SINGLE, `q [BD, 1]`), otherwise one per row (see
    kernels/attention/splits.py).
    """
    keys, c, cv = tl.arange(0, BN), tl.arange(0, BD), tl.arange(0, BDV)
    if SINGLE:
        q = tl.trans(q)
    for start in tl.range(begin, end, BN, num_stages=STAGES):
        at = tl.cast(start, tl.int64)
        k, v = tile_at(K, at, keys, c, k_t, (c < D)[None, :]), tile_at(V, at, keys, cv, v_t, (cv < DV)[None, :])
        if GATED:
            decay = ((own - tl.load(SUMS + (at + keys)[:, None] * c_t)) * LOG2E).to(tl.float32)
        if SINGLE:
            scores = tl.sum(k.to(tl.float32) * q, 1)
            if GATED:
                scores += tl.sum(decay, 1)
            highest, weight, acc = fold_places(scores, v, None, highest, weight, acc)
        else:
            scores = tl.dot(k.to(q.dtype), q, input_precision=PRECISION)
            if GATED:
                scores += decay
            highest, weight, acc = fold_rows(scores, v, None, highest, weight, acc, PRECISION)
    return highest, weight, acc


@triton.jit
def attend_held(
    Q, K, V, W, BETA, PRODUCT, S, SUMS, PARTIAL, LSE, split, n,
    q_b, q_h, k_b, k_t, k_h, v_b, v_t, v_h, c_b, c_t, c_h, heads, kv_heads, slots, frames, windows, pending, scale,
    D: tl.constexpr, BD: tl.constexpr, DV: tl.constexpr, BDV: tl.constexpr, BR: tl.constexpr, BN: tl.constexpr,
    SIZE: tl.constexpr, BLOCKS: tl.constexpr, SPLITS: tl.constexpr, STAGES: tl.constexpr,
    SINGLE: tl.constexpr, GATED: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Partial outputs for one split of the keys in complete windows, for all query heads of a key head."""
    b, kv = n // kv_heads, n % kv_heads
    group, frame = heads // kv_heads, SIZE * BLOCKS
    r, cv = tl.arange(0, BR), tl.arange(0, BDV)
    h, inside = kv * group + tl.minimum(r, group - 1), r < group  # rows beyond the group repeat its last
    K, V, S = K + b * k_b + kv * k_h, V + b * v_b + kv * v_h, S + n * slots * D * D
    share = tl.cdiv(frames * BLOCKS, SPLITS) * SIZE
    begin = split * share
    end = min(begin + share, frames * frame)
    product = matrix(PRODUCT + n * D * D, D, BD)
    soon = tl.arange(0, AHEAD)
    touch(K, begin + soon, begin + soon < end, k_t, BD)
    touch(V, begin + soon, begin + soon < end, v_t, BDV)
    for piece in range(begin // frame, tl.cdiv(end, frame)):
        touch(S + piece * D * D, tl.arange(0, BD), tl.arange(0, BD) < D, D, BD)
    q = turned(passed(Q, W, BETA, b, h, n, q_b, q_h, inside, scale, D, BD), product, SINGLE)
    own = 0.0
    if GATED:
        SUMS += b * c_b + (h * c_h)[None, :]
        now = tl.cast(frames * frame + windows * SIZE + pending, tl.int64)
        own = tl.load(SUMS + now * c_t, mask=inside[None, :], other=0.0)
    if SINGLE:
        highest, weight = tl.full([BN], UNSEEN, tl.float32), tl.zeros([BN], tl.float32)
        acc = tl.zeros([BN, BDV], tl.float32)
    else:
        highest, weight = tl.full([BR], UNSEEN, tl.float32), tl.zeros([BR], tl.float32)
        acc = tl.zeros([BDV, BR], tl.float32)
    for piece in range(begin // frame, tl.cdiv(end, frame)):
        seen = turned(q, matrix(S + piece * D * D, D, BD), SINGLE).to(q.dtype if SINGLE else S.dtype.element_ty)
        first, last = max(begin, piece * frame), min(end, piece * frame + frame)
        highest, weight, acc = attend(
            seen, K, V, SUMS, own, first, last, k_t, v_t, c_t, highest, weight, acc,
            D, BD, DV, BDV, BN, SINGLE, GATED, STAGES, PRECISION,
        )  # fmt: skip
    for piece in range(split, windows, SPLITS):
        slot = S + (slots - BLOCKS + piece) * D * D
        seen = turned(q, matrix(slot, D, BD), SINGLE).to(q.dtype if SINGLE else S.dtype.element_ty)
        first = frames * frame + piece * SIZE
        highest, weight, acc = attend(
            seen, K, V, SUMS, own, first, first + SIZE, k_t, v_t, c_t, highest, weight, acc,
            D, BD, DV, BDV, BN, SINGLE, GATED, STAGES, PRECISION,
        )  # fmt: skip
    if SINGLE:
        store_places(PARTIAL, LSE, n * (SPLITS + 1) + split, cv, highest, weight, acc, DV)
    else:
        store_rows(PARTIAL, LSE, (b * heads + h) * (SPLITS + 1) + split, cv, inside, highest, weight, acc, DV)


@triton.jit
def note(
    K, W, BETA, PRODUCT, NEXT, KEYS, KEPT_W, KEPT_BETA, n, k_b, k_t, k_h, kv_heads, pending,
    D: tl.constexpr, BD: tl.constexpr, SIZE: tl.constexpr,
):  # fmt: skip
    """Add the token to the pending keys, w and beta of a key head. NEXT receives the updated product."""
    c, local = tl.arange(0, BD), tl.arange(0, SIZE)
    w = tl.load(W + n * D + c, mask=c < D, other=0.0).to(tl.float32)
    beta = tl.load(BETA + n).to(tl.float32)
    at = (n // kv_heads * SIZE + pending) * kv_heads + n % kv_heads
    tl.store(KEPT_W + at * D + c, w, mask=c < D)
    tl.store(KEPT_BETA + at, beta)
    product = matrix(PRODUCT + n * D * D, D, BD)
    product -= beta * w[:, None] * tl.sum(w[:, None] * product, 0)[None, :]
    square = NEXT + n * D * D + c[:, None] * D + c[None, :]
    tl.store(square, product, mask=(c < D)[:, None] & (c < D)[None, :])
    at, kept = KEYS + n * SIZE * D + local[:, None] * D + c[None, :], (local < pending)[:, None] & (c < D)[None, :]
    keys = tl.load(at, mask=kept, other=0.0)
    keys -= beta * tl.sum(keys * w[None, :], 1)[:, None] * w[None, :]
    K += n // kv_heads * k_b + n % kv_heads * k_h + tl.cast(pending, tl.int64) * k_t
    k = tl.load(K + c, mask=c < D, other=0.0).to(tl.float32)
    keys = tl.where((local == pending)[:, None], k[None, :], keys)
    tl.store(at, keys, mask=(local <= pending)[:, None] & (c < D)[None, :])


@triton.jit(do_not_specialize=["frames", "windows", "pending"])
def decode_kernel(
    Q, K, V, W, BETA, PRODUCT, NEXT, KEYS, KEPT_W, KEPT_BETA, S, SUMS, PARTIAL, LSE, OUT, ARRIVED,
    q_b, q_h, k_b, k_t, k_h, v_b, v_t, v_h, c_b, c_t, c_h, heads, kv_heads, slots, frames, windows, pending, scale,
    D: tl.constexpr, BD: tl.constexpr, DV: tl.constexpr, BDV: tl.constexpr, BR: tl.constexpr, BN: tl.constexpr,
    SIZE: tl.constexpr, BLOCKS: tl.constexpr, SPLITS: tl.constexpr, BS: tl.constexpr, STAGES: tl.constexpr,
    SINGLE: tl.constexpr, GATED: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """SPLITS programs per key head read keys of complete windows. After them, one per key head does the rest."""
    group = heads // kv_heads
    readers, pid = tl.num_programs(0) // (SPLITS + 1) * SPLITS, tl.program_id(0).to(tl.int64)
    if pid < readers:
        n = pid // SPLITS
        attend_held(
            Q, K, V, W, BETA, PRODUCT, S, SUMS, PARTIAL, LSE, (pid % SPLITS).to(tl.int32), n,
            q_b, q_h, k_b, k_t, k_h, v_b, v_t, v_h, c_b, c_t, c_h, heads, kv_heads, slots, frames, windows, pending,
            scale, D, BD, DV, BDV, BR, BN, SIZE, BLOCKS, SPLITS, STAGES, SINGLE, GATED, PRECISION,
        )  # fmt: skip
    else:
        n = pid - readers
        held = tl.cast(frames * BLOCKS + windows, tl.int64) * SIZE
        for g in range(group):
            attend_pending(
                Q, K + held * k_t, V + held * v_t, W, BETA, KEYS, SUMS + held * c_t if GATED else SUMS, PARTIAL, LSE,
                n * group + g, n, q_b, q_h, k_b, k_t, k_h, v_b, v_t, v_h, c_b, c_t, c_h, heads, kv_heads, pending,
                scale, D, BD, DV, BDV, SIZE, SPLITS + 1, GATED,
            )  # fmt: skip
        tl.debug_barrier()  # wait until all threads have read the pending keys
        note(
            K + held * k_t, W, BETA, PRODUCT, NEXT, KEYS, KEPT_W, KEPT_BETA, n, k_b, k_t, k_h, kv_heads, pending,
            D, BD, SIZE,
        )  # fmt: skip
    tl.debug_barrier()  # wait until all threads have written their part of the output
    if tl.atomic_add(ARRIVED + n, 1) == SPLITS:
        for g in range(group):
            combine(PARTIAL, LSE, OUT, n * group + g, DV, BDV, SPLITS + 1, BS)
        tl.store(ARRIVED + n, 0)


@torch.library.custom_op("bearings::path_decode", mutates_args=("after", "window", "kept_w", "kept_beta", "arrived"))
@on_its_gpu
def path_decode(
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    w: Tensor,
    beta: Tensor,
    product: Tensor,
    after: Tensor,
    window: Tensor,
    kept_w: Tensor,
    kept_beta: Tensor,
    pieces: Tensor,
    arrived: Tensor,
    sums: Tensor | None,
    scale: float,
    held: int,
    pending: int,
) -> Tensor:
    """Attention of one new token over the first held + pending + 1 keys of its cache; the last key is its own.

    Args:
        q: query, `[B, 1, H, D]`.
        keys, values: caches, `[B, S, Hkv, D]` and `[B, S, Hkv, Dv]`.
        w, beta: direction `[B, Hkv, D]` and strength `[B, Hkv]` of the token.
        product, pieces: `product` and `high` of the cache state (kernels/path/cache.py).
        after: receives the product including the token.
        window, kept_w, kept_beta: `window`, `w` and `beta` of the cache state; the token is added in place.
        arrived: counters, `[B, Hkv]` int32, 0 before and after the call.
        sums: cumulative log-gates, `[B, S, H]` float64.
        scale: factor of the scores.
        held, pending: numbers of tokens in complete windows and after them.

    Returns:
        `[B, 1, H, Dv]`.
    """
    q, keys, values, w, beta = with_rows(q), with_rows(keys), with_rows(values), w.contiguous(), beta.contiguous()
    (batch, _, heads, depth), kv_heads, value_dim = q.shape, keys.shape[2], values.shape[-1]
    frames, windows = divmod(held // WINDOW, path_cache.PER)
    padded, single, full = triton.next_power_of_2(depth), heads == kv_heads, keys.dtype == torch.float32
    block, warps, stages, waves, registers = KEYS, WARPS, STAGES, WAVES, None
    if single:
        warps = max(padded // 16, 1)
        block, stages, together, registers = ROW_TILES[padded > 64]
        waves = max(together // warps, 1)
    splits = splits_for(q.device, waves, batch * kv_heads, held // WINDOW) if held else 0
    partial = torch.empty(batch, heads, splits + 1, value_dim, device=q.device)
    lse = torch.empty(batch, heads, splits + 1, device=q.device)
    out = torch.empty(batch, 1, heads, value_dim, dtype=values.dtype, device=q.device)
    tensors = {"Q": q, "K": keys, "V": values, "W": w, "BETA": beta, "PRODUCT": product, "NEXT": after, "KEYS": window}
    tensors |= {"KEPT_W": kept_w, "KEPT_BETA": kept_beta, "S": pieces, "SUMS": sums, "PARTIAL": partial, "LSE": lse}
    tensors |= {"OUT": out, "ARRIVED": arrived}
    settings = {"q_b": q.stride(0), "q_h": q.stride(2), **strides(k=keys, v=values, c=sums), "heads": heads}
    settings |= {"kv_heads": kv_heads, "slots": pieces.shape[2], "frames": frames, "windows": windows}
    settings |= {"pending": pending, "scale": scale, "D": depth, "BD": padded, "DV": value_dim}
    settings |= {"BDV": triton.next_power_of_2(value_dim), "SIZE": WINDOW, "BLOCKS": path_cache.PER}
    settings |= {"BR": 1 if single else max(8, triton.next_power_of_2(heads // kv_heads)), "BN": block}
    settings |= {"SPLITS": splits, "BS": triton.next_power_of_2(splits + 1), "SINGLE": single}
    settings |= {"GATED": sums is not None, "PRECISION": precision_of(keys.dtype), "num_warps": warps}
    settings |= {"maxnreg": registers}
    most, grid = 2 if full else stages, (batch * kv_heads * (splits + 1),)
    launch(decode_kernel, ((grid, settings | {"STAGES": count}) for count in range(most, 0, -1)), tensors)
    return out


@path_decode.register_fake
def _(q, keys, values, w, beta, product, after, window, kept_w, kept_beta, pieces, arrived, sums, scale, held, pending):
    return values.new_empty(*q.shape[:3], values.shape[-1])


def decode_token(q, w, beta, scale: float, keys, values, turns: Turns, sums: Tensor | None) -> Tensor:
    """`path_decode` of the next token with `w [B, Hkv, D]` and `beta [B, Hkv]`. Updates `turns`."""
    known = turns.product, turns.spare, turns.window, turns.w, turns.beta, turns.high, turns.arrived
    out = path_decode(q, keys, values, w, beta, *known, sums, scale, turns.held, turns.pending)
    turns.product, turns.spare = turns.spare, turns.product
    turns.pending += 1
    return out
