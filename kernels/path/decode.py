"""Triton: one new token of PaTH over its cache (kernels/path/cache.py), which is read and not written.

One launch: readers each take a split of the held keys, as kernels/attention/decode.py, and pull the query back
themselves, over the token, the pending reflections and the S of each piece that they come to. One program more a key
head attends to the pending keys, and notes the token among them; the product over all of them goes to a second place,
since readers want the old one. The last of a key head's programs to finish adds their shares up, always in the same
order.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..attention.splits import combine, fold_places, fold_rows, splits_for, store_places, store_rows, tile_at
from ..choice import INTERPRETED
from ..common import LOG2E, UNSEEN, precision_of, strides
from ..layout import with_rows
from . import cache as path_cache
from .cache import WINDOW, Turns

# Keys of a tile, warps and pipeline stages where several query heads share a key head, and programs a processor.
KEYS, WARPS, STAGES, WAVES = 64, 4, 3, 4
# The same for one query a key head, whose programs have a warp for every 16 channels, by whether those exceed 64: keys
# of a tile, pipeline stages, warps a processor, registers of a thread.
ROW_TILES = {False: (64, 3, 8, None), True: (32, 3, 16, 128)}
SIMULATED = tl.constexpr(INTERPRETED)  # without a cache
AHEAD = tl.constexpr(128)  # keys that a reader asks for before it has pulled its query back


@triton.jit
def passed(Q, W, BETA, b, h, n, q_b, q_h, inside, scale, D: tl.constexpr, BD: tl.constexpr):
    """Queries `[BD, BR]` of heads `h [BR]` as the newest pending token sees them, in powers of two, float32."""
    c = tl.arange(0, BD)
    kept = (c < D)[:, None] & inside[None, :]
    q = tl.load(Q + b * q_b + c[:, None] + (h * q_h)[None, :], mask=kept, other=0.0).to(tl.float32) * (scale * LOG2E)
    w = tl.load(W + n * D + c, mask=c < D, other=0.0).to(tl.float32)[:, None]
    return q - tl.load(BETA + n).to(tl.float32) * tl.sum(q * w, 0)[None, :] * w


@triton.jit
def matrix(M, D: tl.constexpr, BD: tl.constexpr):
    """A product `[BD, BD]`."""
    c = tl.arange(0, BD)
    return tl.load(M + c[:, None] * D + c[None, :], mask=(c < D)[:, None] & (c < D)[None, :], other=0.0)


@triton.jit
def turned(q, m, ALONE: tl.constexpr):
    """`q [BD, BR]` pulled back by a product."""
    if ALONE:
        return tl.sum(q * m.to(tl.float32), 0)[:, None]
    else:
        return tl.dot(tl.trans(m), q.to(m.dtype), input_precision="tf32x3")


@triton.jit
def touch(X, rows, there, stride, BD: tl.constexpr):
    """Lets rows of X come to the level-2 cache while nobody waits for them."""
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
    """The share of the pending keys and of the new one in head `row`. K, V and SUMS begin at the oldest of them."""
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
    ALONE: tl.constexpr, GATED: tl.constexpr, STAGES: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """The keys from begin to end, whole tiles of one piece.

    The softmax of one query (ALONE, `q [BD, 1]`) is of places, else of rows (kernels/attention/splits.py).
    """
    keys, c, cv = tl.arange(0, BN), tl.arange(0, BD), tl.arange(0, BDV)
    if ALONE:
        q = tl.trans(q)
    for start in tl.range(begin, end, BN, num_stages=STAGES):
        at = tl.cast(start, tl.int64)
        k, v = tile_at(K, at, keys, c, k_t, (c < D)[None, :]), tile_at(V, at, keys, cv, v_t, (cv < DV)[None, :])
        if GATED:
            apart = ((own - tl.load(SUMS + (at + keys)[:, None] * c_t)) * LOG2E).to(tl.float32)
        if ALONE:
            scores = tl.sum(k.to(tl.float32) * q, 1)
            if GATED:
                scores += tl.sum(apart, 1)
            highest, weight, acc = fold_places(scores, v, None, highest, weight, acc)
        else:
            scores = tl.dot(k.to(q.dtype), q, input_precision=PRECISION)
            if GATED:
                scores += apart
            highest, weight, acc = fold_rows(scores, v, None, highest, weight, acc, PRECISION)
    return highest, weight, acc


@triton.jit
def attend_held(
    Q, K, V, W, BETA, PRODUCT, S, SUMS, PARTIAL, LSE, split, n,
    q_b, q_h, k_b, k_t, k_h, v_b, v_t, v_h, c_b, c_t, c_h, heads, kv_heads, slots, frames, windows, pending, scale,
    D: tl.constexpr, BD: tl.constexpr, DV: tl.constexpr, BDV: tl.constexpr, BR: tl.constexpr, BN: tl.constexpr,
    SIZE: tl.constexpr, BLOCKS: tl.constexpr, SPLITS: tl.constexpr, STAGES: tl.constexpr,
    ALONE: tl.constexpr, GATED: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """One split of the keys held, for all query heads of a key head: of whole frames in one go, of windows in turn."""
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
    q = turned(passed(Q, W, BETA, b, h, n, q_b, q_h, inside, scale, D, BD), product, ALONE)
    own = 0.0
    if GATED:
        SUMS += b * c_b + (h * c_h)[None, :]
        now = tl.cast(frames * frame + windows * SIZE + pending, tl.int64)
        own = tl.load(SUMS + now * c_t, mask=inside[None, :], other=0.0)
    if ALONE:
        highest, weight = tl.full([BN], UNSEEN, tl.float32), tl.zeros([BN], tl.float32)
        acc = tl.zeros([BN, BDV], tl.float32)
    else:
        highest, weight = tl.full([BR], UNSEEN, tl.float32), tl.zeros([BR], tl.float32)
        acc = tl.zeros([BDV, BR], tl.float32)
    for piece in range(begin // frame, tl.cdiv(end, frame)):
        seen = turned(q, matrix(S + piece * D * D, D, BD), ALONE).to(q.dtype if ALONE else S.dtype.element_ty)
        first, last = max(begin, piece * frame), min(end, piece * frame + frame)
        highest, weight, acc = attend(
            seen, K, V, SUMS, own, first, last, k_t, v_t, c_t, highest, weight, acc,
            D, BD, DV, BDV, BN, ALONE, GATED, STAGES, PRECISION,
        )  # fmt: skip
    for piece in range(split, windows, SPLITS):
        slot = S + (slots - BLOCKS + piece) * D * D
        seen = turned(q, matrix(slot, D, BD), ALONE).to(q.dtype if ALONE else S.dtype.element_ty)
        first = frames * frame + piece * SIZE
        highest, weight, acc = attend(
            seen, K, V, SUMS, own, first, first + SIZE, k_t, v_t, c_t, highest, weight, acc,
            D, BD, DV, BDV, BN, ALONE, GATED, STAGES, PRECISION,
        )  # fmt: skip
    if ALONE:
        store_places(PARTIAL, LSE, n * (SPLITS + 1) + split, cv, highest, weight, acc, DV)
    else:
        store_rows(PARTIAL, LSE, (b * heads + h) * (SPLITS + 1) + split, cv, inside, highest, weight, acc, DV)


@triton.jit
def note(
    K, W, BETA, PRODUCT, NEXT, KEYS, KEPT_W, KEPT_BETA, n, k_b, k_t, k_h, kv_heads, pending,
    D: tl.constexpr, BD: tl.constexpr, SIZE: tl.constexpr,
):  # fmt: skip
    """A key head's pending keys, w and beta take the token in; NEXT gets the product with it."""
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
    ALONE: tl.constexpr, GATED: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """SPLITS programs a key head read the keys held; behind all of those, one a key head does the rest."""
    group = heads // kv_heads
    readers, pid = tl.num_programs(0) // (SPLITS + 1) * SPLITS, tl.program_id(0).to(tl.int64)
    if pid < readers:
        n = pid // SPLITS
        attend_held(
            Q, K, V, W, BETA, PRODUCT, S, SUMS, PARTIAL, LSE, (pid % SPLITS).to(tl.int32), n,
            q_b, q_h, k_b, k_t, k_h, v_b, v_t, v_h, c_b, c_t, c_h, heads, kv_heads, slots, frames, windows, pending,
            scale, D, BD, DV, BDV, BR, BN, SIZE, BLOCKS, SPLITS, STAGES, ALONE, GATED, PRECISION,
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
        tl.debug_barrier()  # all threads have read the pending keys
        note(
            K + held * k_t, W, BETA, PRODUCT, NEXT, KEYS, KEPT_W, KEPT_BETA, n, k_b, k_t, k_h, kv_heads, pending,
            D, BD, SIZE,
        )  # fmt: skip
    tl.debug_barrier()  # all threads have written their part of the shares
    if tl.atomic_add(ARRIVED + n, 1) == SPLITS:
        for g in range(group):
            combine(PARTIAL, LSE, OUT, n * group + g, DV, BDV, SPLITS + 1, BS)
        tl.store(ARRIVED + n, 0)


@torch.library.custom_op("bearings::path_decode", mutates_args=("after", "window", "kept_w", "kept_beta", "arrived"))
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
    """Attention of `q [B, 1, H, D]` on the held + pending + 1 first of `keys [B, S, Hkv, D]`; its own is the last.

    Args:
        values: `[B, S, Hkv, Dv]`; w: `[B, Hkv, D]`, beta: `[B, Hkv]`, of the token.
        product, window, kept_w, kept_beta, pieces: `path_cache.Turns` and its S; window, kept_w and kept_beta take the
            token in, and `after` gets the product with it.
        arrived: `[B, Hkv]` int32, 0 before and after.
        sums: `[B, S, H]` float64, cumulative log-gates.
    """
    q, keys, values, w, beta = with_rows(q), with_rows(keys), with_rows(values), w.contiguous(), beta.contiguous()
    (batch, _, heads, depth), kv_heads, value_dim = q.shape, keys.shape[2], values.shape[-1]
    frames, windows = divmod(held // WINDOW, path_cache.PER)
    padded, alone, single = triton.next_power_of_2(depth), heads == kv_heads, keys.dtype == torch.float32
    block, warps, stages, waves, registers = KEYS, WARPS, STAGES, WAVES, None
    if alone:
        warps = max(padded // 16, 1)
        block, stages, together, registers = ROW_TILES[padded > 64]
        waves = max(together // warps, 1)
    splits = splits_for(q.device, waves, batch * kv_heads, held // WINDOW) if held else 0
    partial = torch.empty(batch, heads, splits + 1, value_dim, device=q.device)
    lse = torch.empty(batch, heads, splits + 1, device=q.device)
    out = torch.empty(batch, 1, heads, value_dim, dtype=values.dtype, device=q.device)
    decode_kernel[(batch * kv_heads * (splits + 1),)](
        Q=q, K=keys, V=values, W=w, BETA=beta, PRODUCT=product, NEXT=after, KEYS=window, KEPT_W=kept_w,
        KEPT_BETA=kept_beta, S=pieces, SUMS=sums, PARTIAL=partial, LSE=lse, OUT=out, ARRIVED=arrived,
        q_b=q.stride(0), q_h=q.stride(2), **strides(k=keys, v=values, c=sums), heads=heads, kv_heads=kv_heads,
        slots=pieces.shape[2], frames=frames, windows=windows, pending=pending, scale=scale,
        D=depth, BD=padded, DV=value_dim, BDV=triton.next_power_of_2(value_dim), SIZE=WINDOW, BLOCKS=path_cache.PER,
        BR=1 if alone else max(8, triton.next_power_of_2(heads // kv_heads)), BN=block,
        SPLITS=splits, BS=triton.next_power_of_2(splits + 1), STAGES=2 if single else stages,
        ALONE=alone, GATED=sums is not None, PRECISION=precision_of(keys.dtype), num_warps=warps, maxnreg=registers,
    )  # fmt: skip
    return out


@path_decode.register_fake
def _(q, keys, values, w, beta, product, after, window, kept_w, kept_beta, pieces, arrived, sums, scale, held, pending):
    return values.new_empty(*q.shape[:3], values.shape[-1])


def decode_token(q, w, beta, scale: float, keys, values, turns: Turns, sums: Tensor | None) -> Tensor:
    """`path_decode` of the token behind the pending ones, `w [B, Hkv, D]`, `beta [B, Hkv]`, noted in `turns`."""
    known = turns.product, turns.spare, turns.window, turns.w, turns.beta, turns.high, turns.arrived
    out = path_decode(q, keys, values, w, beta, *known, sums, scale, turns.held, turns.pending)
    turns.product, turns.spare = turns.spare, turns.product
    turns.pending += 1
    return out
