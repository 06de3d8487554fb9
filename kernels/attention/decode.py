"""Triton: attention of a few new tokens over a long cache of keys without their phase, split along the keys.

The phase of key s = n + j of the tile that starts at n is applied as it is read: its place in the tile turns the key,
by a table that stays in registers, and the tile's own turns the query back,

    score = f(k_s) cos(j theta) . a + f(k_s) sin(j theta) . b,

with a, b the query's channels turned by t - n (RoPE, f the identity) or its magnitudes at that phase less delta (PoPE,
f the softplus, or the identity of a cache that holds magnitudes). So a cache is D wide for every encoding.
"""

import functools

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..angles import LOG2E, cos_sin, softplus, turns_per_token
from .flash import UNSEEN

KEYS, WARPS, STAGES, WAVES = 64, 4, 3, 4  # keys of a tile, warps and pipeline stages of a program, programs a processor
# For one query a key head: keys of a tile, and the registers of a thread, of which 16 warps then fill a processor.
ROW_KEYS, ROW_REGISTERS, ROW_WARPS = 32, 128, 16


@triton.jit
def query_form(Q, at, kept, position, c, TURNS, DELTA, kv, D: tl.constexpr, FORM: tl.constexpr):
    """a and b above, `[BR, BD]` float32, for rows that stand `position` tokens behind the tile's first key."""
    half: tl.constexpr = D // 2
    phase = c % half if FORM == "rotary" else c
    turns = tl.load(TURNS + phase, mask=c < D, other=0)[None, :]
    cos, sin = cos_sin(position.to(tl.int64)[:, None] * turns)
    x = tl.load(Q + at + c[None, :], mask=kept, other=0.0).to(tl.float32)
    if FORM == "rotary":
        y = tl.load(Q + at + ((c + half) % D)[None, :], mask=kept, other=0.0).to(tl.float32)
        y = tl.where((c < half)[None, :], y, -y)
        a, b = x * cos - y * sin, y * cos + x * sin
    else:
        delta = tl.load(DELTA + kv * D + c, mask=c < D, other=0.0)[None, :]
        mu = tl.where(kept, softplus(x, False), 0.0)
        turn_cos, turn_sin = tl.cos(delta), tl.sin(delta)
        a, b = mu * (cos * turn_cos + sin * turn_sin), mu * (sin * turn_cos - cos * turn_sin)
    return a, b


@triton.jit(do_not_specialize=["S"])
def decode_kernel(
    Q, K, V, DELTA, TURNS, SUMS, PARTIAL, LSE,
    q_b, q_t, q_h, k_b, k_s, k_h, v_b, v_s, v_h, c_b, c_s, c_h, T, S, H, KV, scale,
    D: tl.constexpr, BD: tl.constexpr, BR: tl.constexpr, BN: tl.constexpr, SPLITS: tl.constexpr,
    STAGES: tl.constexpr, FORM: tl.constexpr, GATED: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    split = tl.program_id(0) % SPLITS
    b, kv = (tl.program_id(0) // SPLITS // KV).to(tl.int64), (tl.program_id(0) // SPLITS % KV).to(tl.int64)
    share = tl.cdiv(tl.cdiv(S, BN), SPLITS) * BN
    begin, end = split * share, min(split * share + share, S)
    group = H // KV
    r, keys, c = tl.arange(0, BR), tl.arange(0, BN), tl.arange(0, BD)
    t, h = r // group, kv * group + r % group
    inside, position = t < T, S - T + t
    at = (b * q_b + t * q_t + h * q_h)[:, None]
    kept = inside[:, None] & (c < D)[None, :]
    if FORM == "plain":
        a = tl.load(Q + at + c[None, :], mask=kept, other=0.0)
    else:
        half: tl.constexpr = D // 2
        a, b_ = query_form(Q, at, kept, position - begin, c, TURNS, DELTA, kv, D, FORM)
        turns = tl.load(TURNS + (c % half if FORM == "rotary" else c), mask=c < D, other=0)
        table_cos, table_sin = cos_sin(keys.to(tl.int64)[:, None] * turns[None, :])
        step_cos, step_sin = cos_sin(BN * turns[None, :])
    if GATED:
        SUMS += b * c_b
        row_sums = tl.load(SUMS + position.to(tl.int64) * c_s + h * c_h, mask=inside, other=0.0)
    K += b * k_b + kv * k_h
    V += b * v_b + kv * v_h
    highest = tl.full([BR], UNSEEN, tl.float32)
    weight = tl.zeros([BR], tl.float32)
    acc = tl.zeros([BD, BR], tl.float32)
    for n0 in tl.range(begin, end, BN, num_stages=STAGES):
        n, row = n0 + keys, tl.cast(n0, tl.int64)
        there = (n < end)[:, None] & (c < D)[None, :]
        k = tl.load(K + row * k_s + keys[:, None] * k_s + c[None, :], mask=there, other=0.0)
        v = tl.load(V + row * v_s + keys[:, None] * v_s + c[None, :], mask=there, other=0.0)
        # Scores are [keys, rows]: the many keys fill the matrix unit.
        if FORM == "plain":
            scores = tl.dot(k, tl.trans(a), input_precision=PRECISION)
        else:
            x = k.to(tl.float32)
            if FORM == "polar":
                x = softplus(x, k.dtype == tl.bfloat16)
            near, far = tl.trans(a.to(k.dtype)), tl.trans(b_.to(k.dtype))
            scores = tl.dot((x * table_cos).to(k.dtype), near, input_precision=PRECISION)
            scores = tl.dot((x * table_sin).to(k.dtype), far, scores, input_precision=PRECISION)
            # On to the next tile: a rotation by BN tokens, cheaper than a new phase and rounded a few dozen times.
            a, b_ = a * step_cos + b_ * step_sin, b_ * step_cos - a * step_sin
        scores *= scale * LOG2E
        if GATED:
            passed = (n < end)[:, None] & inside[None, :]
            columns = tl.load(SUMS + n.to(tl.int64)[:, None] * c_s + (h * c_h)[None, :], mask=passed, other=0.0)
            scores += ((row_sums[None, :] - columns) * LOG2E).to(tl.float32)
        seen = (n < end)[:, None] & (n[:, None] <= position[None, :])
        scores = tl.where(seen, scores, UNSEEN)
        above = tl.maximum(highest, tl.max(scores, 0))
        p = tl.where(seen, tl.exp2(scores - above[None, :]), 0.0)
        rescale = tl.exp2(highest - above)
        weight = weight * rescale + tl.sum(p, 0)
        acc = tl.dot(tl.trans(v), p.to(v.dtype), acc * rescale[None, :], input_precision=PRECISION)
        highest = above
    out_row = ((b * T + t) * H + h) * SPLITS + split
    tl.store(LSE + out_row, tl.where(weight > 0, highest + tl.log2(weight), float("-inf")), mask=inside)
    share_of_rows = acc / tl.where(weight > 0, weight, 1.0)[None, :]
    tl.store(PARTIAL + out_row[None, :] * D + c[:, None], share_of_rows, mask=inside[None, :] & (c < D)[:, None])


@triton.jit(do_not_specialize=["S"])
def decode_row_kernel(
    Q, K, V, DELTA, TURNS, SUMS, PARTIAL, LSE,
    q_b, q_h, k_b, k_s, k_h, v_b, v_s, v_h, c_b, c_s, c_h, S, H, scale,
    D: tl.constexpr, BD: tl.constexpr, BN: tl.constexpr, SPLITS: tl.constexpr,
    STAGES: tl.constexpr, FORM: tl.constexpr, GATED: tl.constexpr,
):  # fmt: skip
    """As `decode_kernel` for one query a key head, which is too little for the matrix unit.

    Each of a tile's BN places has a softmax of its own over the tiles, so that no thread waits for another; they meet
    after the last tile.
    """
    split = tl.program_id(0) % SPLITS
    b, h = (tl.program_id(0) // SPLITS // H).to(tl.int64), (tl.program_id(0) // SPLITS % H).to(tl.int64)
    share = tl.cdiv(tl.cdiv(S, BN), SPLITS) * BN
    begin, end = split * share, min(split * share + share, S)
    keys, c, one = tl.arange(0, BN), tl.arange(0, BD), tl.zeros([1], tl.int32)
    at, kept = b * q_b + (one + h * q_h)[:, None], (one == 0)[:, None] & (c < D)[None, :]
    if FORM == "plain":
        a = tl.load(Q + at + c[None, :], mask=kept, other=0.0).to(tl.float32)
    else:
        half: tl.constexpr = D // 2
        a, b_ = query_form(Q, at, kept, one + S - 1 - begin, c, TURNS, DELTA, h, D, FORM)
        turns = tl.load(TURNS + (c % half if FORM == "rotary" else c), mask=c < D, other=0)
        table_cos, table_sin = cos_sin(keys.to(tl.int64)[:, None] * turns[None, :])
        step_cos, step_sin = cos_sin(BN * turns[None, :])
    if GATED:
        SUMS += b * c_b + h * c_h
        row_sum = tl.load(SUMS + (S - 1).to(tl.int64) * c_s)
    K += b * k_b + h * k_h
    V += b * v_b + h * v_h
    highest = tl.full([BN], UNSEEN, tl.float32)
    weight = tl.zeros([BN], tl.float32)
    acc = tl.zeros([BN, BD], tl.float32)
    for n0 in tl.range(begin, end, BN, num_stages=STAGES):
        seen, row = n0 + keys < end, tl.cast(n0, tl.int64)
        there = seen[:, None] & (c < D)[None, :]
        k = tl.load(K + row * k_s + keys[:, None] * k_s + c[None, :], mask=there, other=0.0)
        v = tl.load(V + row * v_s + keys[:, None] * v_s + c[None, :], mask=there, other=0.0)
        x = k.to(tl.float32)
        if FORM == "plain":
            scores = tl.sum(x * a, 1)
        else:
            if FORM == "polar":
                x = softplus(x, k.dtype == tl.bfloat16)
            scores = tl.sum(x * (table_cos * a + table_sin * b_), 1)
            a, b_ = a * step_cos + b_ * step_sin, b_ * step_cos - a * step_sin
        scores *= scale * LOG2E
        if GATED:
            sums = tl.load(SUMS + (row + keys) * c_s, mask=seen, other=0.0)
            scores += ((row_sum - sums) * LOG2E).to(tl.float32)
        scores = tl.where(seen, scores, UNSEEN)
        above = tl.maximum(highest, scores)
        p, rescale = tl.where(seen, tl.exp2(scores - above), 0.0), tl.exp2(highest - above)
        weight = weight * rescale + p
        acc = acc * rescale[:, None] + p[:, None] * v.to(tl.float32)
        highest = above
    top = tl.max(highest, 0)
    rescale = tl.exp2(highest - top)
    total = tl.sum(weight * rescale, 0)
    out_row = (b * H + h) * SPLITS + split
    tl.store(LSE + out_row, tl.where(total > 0, top + tl.log2(total), float("-inf")))
    out = tl.sum(acc * rescale[:, None], 0) / tl.where(total > 0, total, 1.0)
    tl.store(PARTIAL + out_row * D + c, out, mask=c < D)


@triton.jit
def combine(PARTIAL, LSE, OUT, row, D: tl.constexpr, BD: tl.constexpr, SPLITS: tl.constexpr, BS: tl.constexpr):
    """One row of the output from its SPLITS shares and their log-sum-exps."""
    split, c = tl.arange(0, BS), tl.arange(0, BD)
    lse = tl.load(LSE + row * SPLITS + split, mask=split < SPLITS, other=float("-inf"))
    there = (split < SPLITS)[:, None] & (c < D)[None, :]
    partial = tl.load(PARTIAL + (row * SPLITS + split)[:, None] * D + c[None, :], mask=there, other=0.0)
    share = tl.exp2(lse - tl.max(lse, 0))
    out = tl.sum(partial * share[:, None], 0) / tl.sum(share, 0)
    tl.store(OUT + row * D + c, out.to(OUT.dtype.element_ty), mask=c < D)


@triton.jit
def combine_kernel(PARTIAL, LSE, OUT, D: tl.constexpr, BD: tl.constexpr, SPLITS: tl.constexpr, BS: tl.constexpr):
    combine(PARTIAL, LSE, OUT, tl.program_id(0).to(tl.int64), D, BD, SPLITS, BS)


@functools.cache
def processors(device: torch.device) -> int:
    """Multiprocessors of a GPU; the interpreter gets a few, so that it splits as well."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 4


@torch.library.custom_op("bearings::decode", mutates_args=())
def decode(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    delta: Tensor | None,
    sums: Tensor | None,
    form: str,
    base: float,
    scale: float,
) -> Tensor:
    """Causal attention of `q [B, T, H, D]` on the newest T of the keys in `k, v [B, S, Hkv, D]`.

    Args:
        delta: `[Hkv, D]` float32, of the polar form; sums: `[B, S, H]` float64, FoX's cumulative log-gates,
            read fastest where a head's lie side by side.
        form, base: as `kernels/attention/fused.py` has them.
    """
    q, k, v = (x if x.stride(-1) == 1 else x.contiguous() for x in (q, k, v))
    (batch, tokens, heads, depth), (places, kv_heads) = q.shape, k.shape[1:3]
    padded, alone = triton.next_power_of_2(depth), tokens * heads == kv_heads
    warps, block = (max(padded // 16, 1), ROW_KEYS) if alone else (WARPS, KEYS)
    programs = (ROW_WARPS // warps if alone else WAVES) * processors(q.device)
    splits = max(1, min(programs // (batch * kv_heads), triton.cdiv(places, block)))
    splits = 1 << splits.bit_length() - 1  # a power of two is a constant of the kernels: each is compiled once
    partial = torch.empty(batch, tokens, heads, splits, depth, device=q.device)
    lse = torch.empty(batch, tokens, heads, splits, device=q.device)
    turns = lse if form == "plain" else turns_per_token(depth // 2 if form == "rotary" else depth, base, q.device)
    pointers = (
        q, k, v, lse if delta is None else delta, turns, lse if sums is None else sums, partial, lse,
    )  # fmt: skip
    strides = (*k.stride()[:3], *v.stride()[:3], *((0, 0, 0) if sums is None else sums.stride()))
    flags = {"D": depth, "BD": padded, "BN": block, "SPLITS": splits, "STAGES": STAGES, "FORM": form}
    flags |= {"GATED": sums is not None, "num_warps": warps}
    grid = (batch * kv_heads * splits,)
    if alone:
        flags["maxnreg"] = ROW_REGISTERS
        decode_row_kernel[grid](*pointers, q.stride(0), q.stride(2), *strides, places, heads, scale, **flags)
    else:
        flags["BR"] = max(8, triton.next_power_of_2(tokens * heads // kv_heads))
        flags["PRECISION"] = "ieee" if q.dtype == torch.float32 else "tf32"
        sizes = (tokens, places, heads, kv_heads, scale)
        decode_kernel[grid](*pointers, *q.stride()[:3], *strides, *sizes, **flags)
    out = torch.empty_like(q, memory_format=torch.contiguous_format)
    sizes = {"D": depth, "BD": padded, "SPLITS": splits, "BS": triton.next_power_of_2(splits)}
    combine_kernel[(batch * tokens * heads,)](partial, lse, out, **sizes)
    return out


@decode.register_fake
def _(q, k, v, delta, sums, form, base, scale):
    return q.new_empty(q.shape)
