"""The inner loops of PaTH's backward kernels: pulled queries against pushed keys, whose product is the score.

Scores are in powers of two: queries hold scale log2(e), so what is bilinear in queries and gradients is multiplied by
ln 2 in the end. Gradients of queries leave the scale to the end.
"""

import triton
import triton.language as tl

from ..attention.gates import add_gates
from .tiles import dot, head_at, load_block, tile


@triton.jit
def from_keys(
    x, q, KEYS, V, dout, lse, delta, HIGH, LOW, row_high, row_low, origin, first,
    begin, end, length, kv_row, DP: tl.constexpr, DV: tl.constexpr, DVP: tl.constexpr, BN: tl.constexpr,
    GATED: tl.constexpr, EXACT: tl.constexpr, PACKED: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """`x`, the gradient of the queries `q`, and what keys `begin` to `end` add to it.

    KEYS and V are those of the head, HIGH and LOW its gates; what there is one of for every query is given as a tile.
    """
    for start in tl.range(begin, end, BN, num_stages=STAGES):
        keys = start + tl.arange(0, BN)
        k = tl.load(KEYS + tile(start * DP, BN, DP))
        v = load_block(V, start, length, kv_row * DV, BN, DV, DVP, True)
        s = dot(q, tl.trans(k)) - lse[:, None]
        if GATED:
            key_high, key_low = tl.load(HIGH + keys)[None, :], tl.load(LOW + keys)[None, :]
            s = add_gates(s, row_high, row_low, key_high, key_low, origin, EXACT)
        if PACKED:
            s = tl.where(keys[None, :] >= first[:, None], s, float("-inf"))
        ds = tl.exp2(s) * (dot(dout, tl.trans(v)) - delta[:, None])
        x += dot(ds, k)
    return x


@triton.jit
def from_queries(
    y, dv, k, v, QUERIES, DOUT, LSE, DELTA, HIGH, LOW, FIRST, DC,
    b, h, heads, keys, c, begin, end, length, tokens, out_row,
    DP: tl.constexpr, DV: tl.constexpr, DVP: tl.constexpr, SIZE: tl.constexpr, BM: tl.constexpr,
    GATED: tl.constexpr, EXACT: tl.constexpr, PACKED: tl.constexpr, WHOLE: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """`y` and `dv`, the gradients of the keys `k` and of their values, and what queries `begin` to `end` add to them.

    The queries are of chunk `c`, SIZE tokens long, and of head `h`, whose QUERIES are given. Adds to DC, too.
    """
    bh = b * heads + h
    douts = head_at(DOUT, b, h, length, out_row, DV)
    if GATED:
        highs, lows = HIGH + bh * tokens, LOW + bh * tokens
        key_high, key_low = tl.load(highs + keys)[:, None], tl.load(lows + keys)[:, None]
        origin = tl.load(highs + c * SIZE)
        dc = tl.load(DC + bh * tokens + keys)
    for start in tl.range(begin, end, BM, num_stages=STAGES):
        rows = start + tl.arange(0, BM)
        q = tl.load(QUERIES + tile(start * DP, BM, DP))
        dout = load_block(douts, start, length, out_row * DV, BM, DV, DVP, WHOLE)
        lse, delta = tl.load(LSE + bh * tokens + rows), tl.load(DELTA + bh * tokens + rows)
        s = dot(k, tl.trans(q)) - lse[None, :]
        if GATED:
            row_high, row_low = tl.load(highs + rows)[None, :], tl.load(lows + rows)[None, :]
            s = add_gates(s, row_high, row_low, key_high, key_low, origin, EXACT)
        if PACKED:
            s = tl.where(keys[:, None] >= tl.load(FIRST + b * tokens + rows)[None, :], s, float("-inf"))
        p = tl.exp2(s)
        dv += dot(p, dout)
        ds = p * (dot(v, tl.trans(dout)) - delta[None, :])
        if GATED:
            dc -= tl.sum(ds, 1)
        y += dot(ds, q)
    if GATED:
        tl.store(DC + bh * tokens + keys, dc)
    return y, dv
