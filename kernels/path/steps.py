"""Inner loops of the PaTH backward kernels over pulled queries and pushed keys, whose dot product is the score.

Scores are in base 2: queries include the factor scale log2(e), so terms that are bilinear in queries and gradients are
multiplied by ln 2 at the end. Gradients of queries are multiplied by the scale at the end.
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
    """Add the contributions of keys `begin` to `end` to `x`, the gradient of the queries `q`.

    KEYS, V, HIGH and LOW are keys, values and gates of the head. Inputs with one entry per query are tiles.
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
    """Add the contributions of queries `begin` to `end` to `y` and `dv`, the gradients of the keys `k` and values.

    QUERIES are those of head `h`; they belong to chunk `c` of SIZE tokens. Also adds to DC.
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
