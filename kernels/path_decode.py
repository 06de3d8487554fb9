"""Triton: one new token of PaTH over its cache (kernels/path_cache.py), which is read and not written.

Three launches: the query pulled back over the pending reflections and by every piece's S, and its attention to the
pending keys; flash attention of the held keys in splits, as kernels/decode.py; their sum, with the token noted among
the pending. None needs the host to wait.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from bearings.kernels import path_cache
from bearings.kernels.decode import processors
from bearings.kernels.path_cache import WINDOW, Turns, note_token
from bearings.kernels.path_forward import LOG2E, UNSEEN

WARPS, STAGES, WAVES = 4, 4, 4  # of the kernel that reads the keys; programs of it a processor


@triton.jit(do_not_specialize=["frames", "windows", "pending"])
def pull_query_kernel(
    Q, K, V, W, BETA, PRODUCT, KEYS, PIECES, SUMS, PULLED, PARTIAL, LSE,
    q_b, q_h, k_b, k_h, v_b, v_s, v_h, sums_b, heads, kv_heads, slots, frames, windows, pending, scale,
    D: tl.constexpr, BD: tl.constexpr, DV: tl.constexpr, BDV: tl.constexpr,
    SIZE: tl.constexpr, BLOCKS: tl.constexpr, GATED: tl.constexpr, SHARES: tl.constexpr,
):  # fmt: skip
    """One head's query as the keys of one piece see it; the last program of a head attends to the pending keys.

    K and V begin at the oldest pending token.
    """
    used = frames + windows + 1
    row, piece = (tl.program_id(0) // used).to(tl.int64), tl.program_id(0) % used
    b, h = row // heads, row % heads
    n = b * kv_heads + h // (heads // kv_heads)
    c = tl.arange(0, BD)
    q = tl.load(Q + b * q_b + h * q_h + c, mask=c < D, other=0.0).to(tl.float32) * scale
    w = tl.load(W + n * D + c, mask=c < D, other=0.0)
    passed = tl.load(BETA + n) * tl.sum(q * w, 0)
    inside = (c < D)[:, None] & (c < D)[None, :]
    square = c[:, None] * D + c[None, :]
    if piece < used - 1:
        product = tl.load(PRODUCT + n * D * D + square, mask=inside, other=0.0)
        x = tl.sum((q - passed * w)[:, None] * product, 0)
        slot = tl.where(piece < frames, piece, slots - BLOCKS + piece - frames)
        s = tl.load(PIECES + (n * slots + slot) * D * D + square, mask=inside, other=0.0).to(tl.float32)
        y = tl.sum(x[:, None] * s, 0)
        tl.store(PULLED + (row * slots + slot) * D + c, y.to(PULLED.dtype.element_ty), mask=c < D)
    else:
        local = tl.arange(0, SIZE)
        kept = (local < pending)[:, None] & (c < D)[None, :]
        keys = tl.load(KEYS + n * SIZE * D + local[:, None] * D + c[None, :], mask=kept, other=0.0)
        k = tl.load(K + b * k_b + (n % kv_heads) * k_h + c, mask=c < D, other=0.0).to(tl.float32)
        scores = tl.sum(keys * (q - passed * w)[None, :], 1)
        scores = tl.where(local == pending, tl.sum(q * k, 0), scores)
        seen = local <= pending
        if GATED:
            c_s = tl.load(SUMS + b * sums_b + local * heads + h, mask=seen, other=0.0)
            c_t = tl.load(SUMS + b * sums_b + pending * heads + h)
            scores += ((c_t - c_s) * LOG2E).to(tl.float32)
        scores = tl.where(seen, scores, float("-inf"))
        highest = tl.max(scores, 0)
        p = tl.exp2(scores - highest)
        cv = tl.arange(0, BDV)
        at = V + b * v_b + (n % kv_heads) * v_h + local[:, None] * v_s + cv[None, :]
        v = tl.load(at, mask=seen[:, None] & (cv < DV)[None, :], other=0.0).to(tl.float32)
        weight = tl.sum(p, 0)
        out = row * SHARES + SHARES - 1
        tl.store(PARTIAL + out * DV + cv, tl.sum(p[:, None] * v, 0) / weight, mask=cv < DV)
        tl.store(LSE + out, highest + tl.log2(weight))


@triton.jit(do_not_specialize=["frames", "held", "now"])
def read_kernel(
    PULLED, K, V, SUMS, PARTIAL, LSE,
    k_b, k_s, k_h, v_b, v_s, v_h, sums_b, heads, kv_heads, slots, frames, held, now,
    D: tl.constexpr, BD: tl.constexpr, DV: tl.constexpr, BDV: tl.constexpr, BR: tl.constexpr,
    SIZE: tl.constexpr, BLOCKS: tl.constexpr, SPLITS: tl.constexpr, STAGES: tl.constexpr,
    GATED: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """One split of the keys held, for all query heads of a key head."""
    split, n = tl.program_id(0) % SPLITS, (tl.program_id(0) // SPLITS).to(tl.int64)
    b, kv = n // kv_heads, n % kv_heads
    group = heads // kv_heads
    r, local, c, cv = tl.arange(0, BR), tl.arange(0, SIZE), tl.arange(0, BD), tl.arange(0, BDV)
    h, inside = kv * group + r, r < group
    PULLED += (b * heads + h)[:, None] * slots * D + c[None, :]
    kept = inside[:, None] & (c < D)[None, :]
    K += b * k_b + kv * k_h + local[:, None].to(tl.int64) * k_s + c[None, :]
    V += b * v_b + kv * v_h + local[:, None].to(tl.int64) * v_s + cv[None, :]
    if GATED:
        SUMS += b * sums_b
        c_t = tl.load(SUMS + tl.cast(now, tl.int64) * heads + h, mask=inside, other=0.0)
    highest, weight = tl.full([BR], UNSEEN, tl.float32), tl.zeros([BR], tl.float32)
    acc = tl.zeros([BDV, BR], tl.float32)
    blocks = held // SIZE
    share = tl.cdiv(blocks, SPLITS)
    for block in tl.range(split * share, min(split * share + share, blocks), num_stages=STAGES):
        slot = tl.where(block < frames * BLOCKS, block // BLOCKS, slots - BLOCKS + block - frames * BLOCKS)
        q = tl.load(PULLED + slot * D, mask=kept, other=0.0)
        at = tl.cast(block, tl.int64) * SIZE
        k = tl.load(K + at * k_s, mask=(c < D)[None, :], other=0.0)
        v = tl.load(V + at * v_s, mask=(cv < DV)[None, :], other=0.0)
        # Scores are [keys, rows]: the many keys fill the matrix unit.
        scores = tl.dot(k.to(q.dtype), tl.trans(q), input_precision=PRECISION)
        if GATED:
            places = (at + local)[:, None] * heads + h[None, :]
            scores += ((c_t[None, :] - tl.load(SUMS + places, mask=inside[None, :], other=0.0)) * LOG2E).to(tl.float32)
        above = tl.maximum(highest, tl.max(scores, 0))
        p, rescale = tl.exp2(scores - above[None, :]), tl.exp2(highest - above)
        weight = weight * rescale + tl.sum(p, 0)
        acc = tl.dot(tl.trans(v), p.to(v.dtype), acc * rescale[None, :], input_precision=PRECISION)
        highest = above
    out = (b * heads + h) * (SPLITS + 1) + split
    some = weight > 0
    weight = tl.where(some, weight, 1.0)
    tl.store(LSE + out, tl.where(some, highest + tl.log2(weight), float("-inf")), mask=inside)
    acc /= weight[None, :]
    tl.store(PARTIAL + out[None, :] * DV + cv[:, None], acc, mask=inside[None, :] & (cv < DV)[:, None])


@triton.jit(do_not_specialize=["pending"])
def close_kernel(
    PARTIAL, LSE, OUT, K, W, BETA, PRODUCT, KEYS, k_b, k_h, rows, kv_heads, pending,
    D: tl.constexpr, BD: tl.constexpr, DV: tl.constexpr, BDV: tl.constexpr, SIZE: tl.constexpr,
    SHARES: tl.constexpr, BS: tl.constexpr,
):  # fmt: skip
    """A head's output from its shares; behind the heads, the pending keys and product of one key head each."""
    row = tl.program_id(0).to(tl.int64)
    if row < rows:
        share, c = tl.arange(0, BS), tl.arange(0, BDV)
        lse = tl.load(LSE + row * SHARES + share, mask=share < SHARES, other=float("-inf"))
        weight = tl.exp2(lse - tl.max(lse, 0))
        there = (share < SHARES)[:, None] & (c < DV)[None, :]
        partial = tl.load(PARTIAL + (row * SHARES + share)[:, None] * DV + c[None, :], mask=there, other=0.0)
        out = tl.sum(partial * weight[:, None], 0) / tl.sum(weight, 0)
        tl.store(OUT + row * DV + c, out.to(OUT.dtype.element_ty), mask=c < DV)
    else:
        n = row - rows
        c, local = tl.arange(0, BD), tl.arange(0, SIZE)
        w, beta = tl.load(W + n * D + c, mask=c < D, other=0.0), tl.load(BETA + n)
        inside, square = (c < D)[:, None] & (c < D)[None, :], PRODUCT + n * D * D + c[:, None] * D + c[None, :]
        product = tl.load(square, mask=inside, other=0.0)
        product -= beta * w[:, None] * tl.sum(w[:, None] * product, 0)[None, :]
        tl.store(square, product, mask=inside)
        at, kept = KEYS + n * SIZE * D + local[:, None] * D + c[None, :], (local < pending)[:, None] & (c < D)[None, :]
        keys = tl.load(at, mask=kept, other=0.0)
        keys -= beta * tl.sum(keys * w[None, :], 1)[:, None] * w[None, :]
        k = tl.load(K + n // kv_heads * k_b + n % kv_heads * k_h + c, mask=c < D, other=0.0).to(tl.float32)
        keys = tl.where((local == pending)[:, None], k[None, :], keys)
        tl.store(at, keys, mask=(local <= pending)[:, None] & (c < D)[None, :])


@torch.library.custom_op("bearings::path_decode", mutates_args=("product", "window"))
def path_decode(
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    w: Tensor,
    beta: Tensor,
    product: Tensor,
    window: Tensor,
    pieces: Tensor,
    sums: Tensor | None,
    scale: float,
    held: int,
    pending: int,
) -> Tensor:
    """Attention of `q [B, 1, H, D]` on the held + pending + 1 first of `keys [B, S, Hkv, D]`; its own is the last.

    Args:
        values: `[B, S, Hkv, Dv]`; w: `[B, Hkv, D]`, beta: `[B, Hkv]`, float32, of the token.
        product, window, pieces: as `path_cache.Turns` has them; the first two take the token in.
        sums: `[B, S, H]` float64, cumulative log-gates.
    """
    q, keys, values = (x if x.stride(-1) == 1 else x.contiguous() for x in (q, keys, values))
    (batch, _, heads, depth), kv_heads, value_dim = q.shape, keys.shape[2], values.shape[-1]
    slots, (frames, windows) = pieces.shape[2], divmod(held // WINDOW, path_cache.PER)
    splits = 0
    if held:
        programs = WAVES * processors(q.device)
        splits = max(1, min(triton.cdiv(programs, batch * kv_heads), held // WINDOW))
        splits = triton.next_power_of_2(splits)  # a constant of the kernels: each value is compiled once
    pulled = torch.empty(batch, heads, slots, depth, dtype=pieces.dtype, device=q.device)
    partial = torch.empty(batch, heads, splits + 1, value_dim, device=q.device)
    lse = torch.empty(batch, heads, splits + 1, device=q.device)
    if sums is not None and sums.stride()[1:] != (heads, 1):
        sums = sums.contiguous()
    sums_b = 0 if sums is None else sums.stride(0)
    widths = {"D": depth, "BD": triton.next_power_of_2(depth), "DV": value_dim}
    widths |= {"BDV": triton.next_power_of_2(value_dim), "SIZE": WINDOW}
    new_key, waiting = keys[:, held + pending], values[:, held:]
    gated, single = {"GATED": sums is not None}, keys.dtype == torch.float32
    pull_query_kernel[(batch * heads * (frames + windows + 1),)](
        q, new_key, waiting, w, beta, product, window, pieces, None if sums is None else sums[:, held:],
        pulled, partial, lse,
        q.stride(0), q.stride(2), new_key.stride(0), new_key.stride(1), *waiting.stride()[:3], sums_b,
        heads, kv_heads, slots, frames, windows, pending, scale * LOG2E,
        **widths, **gated, BLOCKS=path_cache.PER, SHARES=splits + 1, num_warps=4,
    )  # fmt: skip
    if splits:
        read_kernel[(batch * kv_heads * splits,)](
            pulled, keys, values, sums, partial, lse, *keys.stride()[:3], *values.stride()[:3], sums_b,
            heads, kv_heads, slots, frames, held, held + pending,
            **widths, **gated, BR=max(8, triton.next_power_of_2(heads // kv_heads)), BLOCKS=path_cache.PER,
            SPLITS=splits, STAGES=2 if single else STAGES, PRECISION="ieee" if single else "tf32", num_warps=WARPS,
        )  # fmt: skip
    out = torch.empty(batch, 1, heads, value_dim, dtype=values.dtype, device=q.device)
    close_kernel[(batch * (heads + kv_heads),)](
        partial, lse, out, new_key, w, beta, product, window, new_key.stride(0), new_key.stride(1),
        batch * heads, kv_heads, pending,
        **widths, SHARES=splits + 1, BS=triton.next_power_of_2(splits + 1), num_warps=4,
    )  # fmt: skip
    return out


@path_decode.register_fake
def _(q, keys, values, w, beta, product, window, pieces, sums, scale, held, pending):
    return values.new_empty(*q.shape[:3], values.shape[-1])


def decode_token(q, w, beta, scale: float, keys, values, turns: Turns, sums: Tensor | None) -> Tensor:
    """`path_decode` of the token behind the pending ones, `w [B, Hkv, D]`, `beta [B, Hkv]`, noted in `turns`."""
    w, beta = w.float().contiguous(), beta.float().contiguous()
    pieces = turns.pieces if turns.low is None else turns.low
    out = path_decode(
        q, keys, values, w, beta, turns.product, turns.window, pieces, sums, scale, turns.held, turns.pending
    )
    note_token(turns, w, beta)
    return out
