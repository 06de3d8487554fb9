"""Triton: attention of a few new tokens over a long cache of unrotated keys, split along the keys.

Phases are applied while keys are read. For key s = n + j of the tile that starts at n, a table in registers rotates the
key by its place j in the tile, and the query is rotated back by the start n of the tile:

    score = f(k_s) cos(j theta) . a + f(k_s) sin(j theta) . b

For RoPE, a and b are the query channels rotated by t - n, and f is the identity. For PoPE, a and b are the query
magnitudes at the phase of t - n minus delta, and f is softplus, or the identity if the cache holds magnitudes. So a
cache has D channels for every encoding.
"""

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..angles import cos_sin, softplus, turns_per_token
from ..common import LOG2E, UNSEEN, precision_of, strides
from ..launching import launch
from ..layout import with_rows
from ..operator import operator
from .splits import combine_kernel, fold_places, fold_rows, splits_for, store_places, store_rows, tile_at
from .tiles import visible

# Keys per tile, warps and pipeline stages per program, programs per multiprocessor.
KEYS, WARPS, STAGES, WAVES = 64, 4, 3, 4
# For one query per key head: keys per tile, registers per thread, and the warps that then fill a multiprocessor.
ROW_KEYS, ROW_REGISTERS, ROW_WARPS = 32, 128, 16


@triton.jit
def keys_of(split, STARTS, b, T, S, BN: tl.constexpr, SPLITS: tl.constexpr, LIMITED: tl.constexpr):
    """Begin and end of one split of the keys that T queries see, of S keys. Splits begin at tile boundaries."""
    low = 0
    if LIMITED:
        low = tl.load(STARTS + b * S + S - T) // BN * BN
    share = tl.cdiv(tl.cdiv(S - low, BN), SPLITS) * BN
    begin = low + split * share
    return begin, min(begin + share, S)


@triton.jit
def turns_per_channel(TURNS, c, D: tl.constexpr, FORM: tl.constexpr):
    """Fractions of a turn per token for channels `c`. In the rotary form both halves have the same frequencies."""
    half: tl.constexpr = D // 2
    return tl.load(TURNS + (c % half if FORM == "rotary" else c), mask=c < D, other=0)[None, :]


@triton.jit
def turns_of_tile(TURNS, c, D: tl.constexpr, BN: tl.constexpr, FORM: tl.constexpr):
    """Cosines and sines for each place in a tile, `[BN, BD]`, and for a step of one tile, `[1, BD]`."""
    turns = turns_per_channel(TURNS, c, D, FORM)
    cos, sin = cos_sin(tl.arange(0, BN).to(tl.int64)[:, None] * turns)
    step_cos, step_sin = cos_sin(BN * turns)
    return cos, sin, step_cos, step_sin


@triton.jit
def query_form(Q, at, kept, position, c, TURNS, DELTA, kv, D: tl.constexpr, FORM: tl.constexpr):
    """a and b (see the top of this file), `[BR, BD]` float32, for rows `position` tokens after the tile's first key."""
    half: tl.constexpr = D // 2
    cos, sin = cos_sin(position.to(tl.int64)[:, None] * turns_per_channel(TURNS, c, D, FORM))
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
    Q, K, V, DELTA, TURNS, SUMS, TABLE, STARTS, PARTIAL, LSE,
    q_b, q_t, q_h, k_b, k_t, k_h, v_b, v_t, v_h, c_b, c_t, c_h, T, S, H, KV, N, scale,
    D: tl.constexpr, BD: tl.constexpr, BR: tl.constexpr, BN: tl.constexpr, SPLITS: tl.constexpr,
    STAGES: tl.constexpr, FORM: tl.constexpr, GATED: tl.constexpr, BIASED: tl.constexpr, LIMITED: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    split = tl.program_id(0) % SPLITS
    b, kv = (tl.program_id(0) // SPLITS // KV).to(tl.int64), (tl.program_id(0) // SPLITS % KV).to(tl.int64)
    begin, end = keys_of(split, STARTS, b, T, S, BN, SPLITS, LIMITED)
    group = H // KV
    r, keys, c = tl.arange(0, BR), tl.arange(0, BN), tl.arange(0, BD)
    t, h = r // group, kv * group + r % group
    inside, position = t < T, S - T + t
    at = (b * q_b + t * q_t + h * q_h)[:, None]
    kept = inside[:, None] & (c < D)[None, :]
    if FORM == "plain":
        a = tl.load(Q + at + c[None, :], mask=kept, other=0.0)
    else:
        a, b_ = query_form(Q, at, kept, position - begin, c, TURNS, DELTA, kv, D, FORM)
        table_cos, table_sin, step_cos, step_sin = turns_of_tile(TURNS, c, D, BN, FORM)
    if GATED:
        SUMS += b * c_b
        row_sums = tl.load(SUMS + position.to(tl.int64) * c_t + h * c_h, mask=inside, other=0.0)
    first = position
    if LIMITED:
        first = tl.load(STARTS + b * S + position, mask=inside, other=0)
    K += b * k_b + kv * k_h
    V += b * v_b + kv * v_h
    highest = tl.full([BR], UNSEEN, tl.float32)
    weight = tl.zeros([BR], tl.float32)
    acc = tl.zeros([BD, BR], tl.float32)
    for n0 in tl.range(begin, end, BN, num_stages=STAGES):
        n, row = n0 + keys, tl.cast(n0, tl.int64)
        there = (n < end)[:, None] & (c < D)[None, :]
        k, v = tile_at(K, row, keys, c, k_t, there), tile_at(V, row, keys, c, v_t, there)
        # Scores are [keys, rows], so that the many keys fill the tensor cores.
        if FORM == "plain":
            scores = tl.dot(k, tl.trans(a), input_precision=PRECISION)
        else:
            x = k.to(tl.float32)
            if FORM == "polar":
                x = softplus(x, k.dtype == tl.bfloat16)
            near, far = tl.trans(a.to(k.dtype)), tl.trans(b_.to(k.dtype))
            scores = tl.dot((x * table_cos).to(k.dtype), near, input_precision=PRECISION)
            scores = tl.dot((x * table_sin).to(k.dtype), far, scores, input_precision=PRECISION)
            # A rotation by BN tokens leads to the next tile. It is cheaper than a new phase and rounds a few dozen
            # times per split.
            a, b_ = a * step_cos + b_ * step_sin, b_ * step_cos - a * step_sin  # pyright: ignore[reportOperatorIssue]
        scores *= scale * LOG2E
        if GATED:
            passed = (n < end)[:, None] & inside[None, :]
            columns = tl.load(SUMS + n.to(tl.int64)[:, None] * c_t + (h * c_h)[None, :], mask=passed, other=0.0)
            scores += ((row_sums[None, :] - columns) * LOG2E).to(tl.float32)
        if BIASED:
            distance = tl.minimum(tl.maximum(position[None, :] - n[:, None], 0), N - 1)
            scores += tl.load(TABLE + h[None, :] * N + distance, mask=inside[None, :], other=0.0) * LOG2E
        seen = (n < end)[:, None] & visible(n[:, None], position[None, :], first[None, :], LIMITED)
        scores = tl.where(seen, scores, UNSEEN)
        highest, weight, acc = fold_rows(scores, v, seen, highest, weight, acc, PRECISION)
    out_row = ((b * T + t) * H + h) * SPLITS + split
    store_rows(PARTIAL, LSE, out_row, c, inside, highest, weight, acc, D)


@triton.jit(do_not_specialize=["S"])
def decode_row_kernel(
    Q, K, V, DELTA, TURNS, SUMS, TABLE, STARTS, PARTIAL, LSE,
    q_b, q_h, k_b, k_t, k_h, v_b, v_t, v_h, c_b, c_t, c_h, S, H, N, scale,
    D: tl.constexpr, BD: tl.constexpr, BN: tl.constexpr, SPLITS: tl.constexpr,
    STAGES: tl.constexpr, FORM: tl.constexpr, GATED: tl.constexpr, BIASED: tl.constexpr, LIMITED: tl.constexpr,
):  # fmt: skip
    """`decode_kernel` for one query per key head, with one running softmax per place in a tile."""
    split = tl.program_id(0) % SPLITS
    b, h = (tl.program_id(0) // SPLITS // H).to(tl.int64), (tl.program_id(0) // SPLITS % H).to(tl.int64)
    begin, end = keys_of(split, STARTS, b, 1, S, BN, SPLITS, LIMITED)
    keys, c, one = tl.arange(0, BN), tl.arange(0, BD), tl.zeros([1], tl.int32)
    at, kept = b * q_b + (one + h * q_h)[:, None], (one == 0)[:, None] & (c < D)[None, :]
    if FORM == "plain":
        a = tl.load(Q + at + c[None, :], mask=kept, other=0.0).to(tl.float32)
    else:
        a, b_ = query_form(Q, at, kept, one + S - 1 - begin, c, TURNS, DELTA, h, D, FORM)
        table_cos, table_sin, step_cos, step_sin = turns_of_tile(TURNS, c, D, BN, FORM)
    if GATED:
        SUMS += b * c_b + h * c_h
        row_sum = tl.load(SUMS + (S - 1).to(tl.int64) * c_t)
    if LIMITED:
        first = tl.load(STARTS + b * S + S - 1)
    K += b * k_b + h * k_h
    V += b * v_b + h * v_h
    highest = tl.full([BN], UNSEEN, tl.float32)
    weight = tl.zeros([BN], tl.float32)
    acc = tl.zeros([BN, BD], tl.float32)
    for n0 in tl.range(begin, end, BN, num_stages=STAGES):
        seen, row = n0 + keys < end, tl.cast(n0, tl.int64)
        if LIMITED:
            seen = seen & (n0 + keys >= first)
        there = seen[:, None] & (c < D)[None, :]
        k, v = tile_at(K, row, keys, c, k_t, there), tile_at(V, row, keys, c, v_t, there)
        x = k.to(tl.float32)
        if FORM == "plain":
            scores = tl.sum(x * a, 1)
        else:
            if FORM == "polar":
                x = softplus(x, k.dtype == tl.bfloat16)
            scores = tl.sum(x * (table_cos * a + table_sin * b_), 1)  # pyright: ignore[reportOperatorIssue]
            a, b_ = a * step_cos + b_ * step_sin, b_ * step_cos - a * step_sin  # pyright: ignore[reportOperatorIssue]
        scores *= scale * LOG2E
        if GATED:
            sums = tl.load(SUMS + (row + keys) * c_t, mask=seen, other=0.0)
            scores += ((row_sum - sums) * LOG2E).to(tl.float32)
        if BIASED:
            distance = tl.minimum(S - 1 - n0 - keys, N - 1)
            scores += tl.load(TABLE + h * N + distance, mask=seen, other=0.0) * LOG2E
        scores = tl.where(seen, scores, UNSEEN)
        highest, weight, acc = fold_places(scores, v, seen, highest, weight, acc)
    store_places(PARTIAL, LSE, (b * H + h) * SPLITS + split, c, highest, weight, acc, D)


@operator("bearings::decode")
def decode(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    delta: Tensor | None,
    sums: Tensor | None,
    table: Tensor | None,
    borders: Tensor | None,
    form: str,
    frequencies: Sequence[float],
    scale: float,
) -> Tensor:
    """Causal attention of a few new queries over cached keys. Limits make the cost proportional to the visible keys.

    Args:
        q: queries of the newest T tokens, `[B, T, H, D]`.
        k, v: keys without phase and values, `[B, S, Hkv, D]`.
        delta: phase offset of the polar forms, `[Hkv, D]` float32.
        sums: cumulative log-gates of FoX, `[B, S, H]` float64. Reading is fastest if each head is contiguous.
        table: bias by head and distance, `[H, N]`; the last entry applies to all greater distances.
        borders: limits of the visible keys, `[2, B, S]`; see `Documents`.
        form, frequencies: see kernels/attention/fused.py.
        scale: factor of the scores.

    Returns:
        `[B, T, H, D]`.
    """
    q, k, v = with_rows(q), with_rows(k), with_rows(v)
    (batch, tokens, heads, depth), (places, kv_heads) = q.shape, k.shape[1:3]
    padded, single = triton.next_power_of_2(depth), tokens * heads == kv_heads
    warps, block = (max(padded // 16, 1), ROW_KEYS) if single else (WARPS, KEYS)
    waves = ROW_WARPS // warps if single else WAVES
    splits = splits_for(q.device, waves, batch * kv_heads, triton.cdiv(places, block))
    partial = torch.empty(batch, tokens, heads, splits, depth, device=q.device)
    lse = torch.empty(batch, tokens, heads, splits, device=q.device)
    turns = None if form == "plain" else turns_per_token(tuple(frequencies), q.device)
    tensors = {"Q": q, "K": k, "V": v, "DELTA": delta, "TURNS": turns, "SUMS": sums, "PARTIAL": partial, "LSE": lse}
    tensors |= {"TABLE": None if table is None else table.float().contiguous()}
    tensors |= {"STARTS": None if borders is None else borders[0].contiguous()}
    settings = {"S": places, "H": heads, **strides(k=k, v=v, c=sums), "scale": scale, "FORM": form}
    settings |= {
        "D": depth,
        "BD": padded,
        "SPLITS": splits,
        "num_warps": warps,
        "N": 0 if table is None else table.shape[1],
    }
    settings |= {"GATED": sums is not None, "BIASED": table is not None, "LIMITED": borders is not None}
    if single:
        kernel = decode_row_kernel
        settings |= {"q_b": q.stride(0), "q_h": q.stride(2), "maxnreg": ROW_REGISTERS}
    else:
        kernel = decode_kernel
        rows = max(8, triton.next_power_of_2(tokens * heads // kv_heads))
        settings |= {"T": tokens, "KV": kv_heads, "BR": rows, "PRECISION": precision_of(q.dtype), **strides(q=q)}
    grid = (batch * kv_heads * splits,)
    tiles = ((block, STAGES), (block, 2), (block, 1), (block // 2, 1))  # for less and less shared memory
    launch(kernel, ((grid, settings | {"BN": size, "STAGES": stages}) for size, stages in tiles), tensors)
    out = torch.empty_like(q, memory_format=torch.contiguous_format)
    combine_kernel[(batch * tokens * heads,)](
        PARTIAL=partial, LSE=lse, OUT=out, D=depth, BD=padded, SPLITS=splits, BS=triton.next_power_of_2(splits)
    )
    return out


@decode.register_fake
def _(q, k, v, delta, sums, table, borders, form, frequencies, scale):
    return q.new_empty(q.shape)
