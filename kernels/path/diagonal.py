"""Backward kernel of PaTH where queries meet the keys of their own block, in the UT form."""

import triton
import triton.language as tl

from ..attention.gates import add_gates
from .backward import LN2
from .tiles import dot, load_tokens, place_of, tile, unit_rows


@triton.jit
def diagonal_kernel(
    Q, K, V, W, U, Z, DOUT, LSE, DELTA, HIGH, LOW, FIRST, DQ_BAR, DW, DK, DZ, DV_OWN, DQ, DC,
    length, heads, kv_heads, q_row, kv_row, out_row, w_row, dq_row, chunks, together, scale,
    D: tl.constexpr, DP: tl.constexpr, DV: tl.constexpr, DVP: tl.constexpr, R: tl.constexpr,
    GATED: tl.constexpr, EXACT: tl.constexpr, PACKED: tl.constexpr,
):  # fmt: skip
    """dQ of one block and head, and what its queries leave to the block's W, K, Z, V and U.

    The last stands in the place of DQ_BAR, the gradient at the block's start.
    """
    pid = tl.program_id(0)
    all_blocks = chunks * R
    block, bh = place_of(pid, all_blocks, together)
    if block * 64 >= length:
        return
    b, h = bh // heads, bh % heads
    hk = h // (heads // kv_heads)
    n, tokens = b * kv_heads + hk, all_blocks * 64
    kv = b * length * kv_row + hk
    local = tl.arange(0, 64)
    rows = block * 64 + local
    here = tile(bh * tokens * DP + block * 64 * DP, 64, DP)
    queries, keys, directions = Q + (b * length * q_row + h) * D, K + kv * D, W + (b * length * w_row + hk) * D
    seen = local[:, None] >= local[None, :]
    square = tile((n * all_blocks + block) * 64 * 64, 64, 64)
    q = load_tokens(queries, rows, length, q_row * D, D, DP)
    read = tl.where(seen, dot(q, tl.trans(load_tokens(directions, rows, length, w_row * D, D, DP))) * -scale, 0.0)
    read = read.to(Z.dtype.element_ty)
    lse, delta = tl.load(LSE + bh * tokens + rows), tl.load(DELTA + bh * tokens + rows)
    s = dot(q, tl.trans(load_tokens(keys, rows, length, kv_row * D, D, DP))) * scale - lse[:, None]
    s += dot(read, tl.load(Z + square))
    if GATED:
        origin = tl.load(HIGH + bh * tokens + block // R * R * 64)
        gate_high, gate_low = tl.load(HIGH + bh * tokens + rows), tl.load(LOW + bh * tokens + rows)
        s = add_gates(s, gate_high[:, None], gate_low[:, None], gate_high[None, :], gate_low[None, :], origin, EXACT)
    visible = seen
    if PACKED:
        visible = seen & (rows[None, :] >= tl.load(FIRST + b * tokens + rows)[:, None])
    p = tl.exp2(tl.where(visible, s, float("-inf")))
    v = load_tokens(V + kv * DV, rows, length, kv_row * DV, DV, DVP)
    dout = load_tokens(DOUT + (b * length * out_row + h) * DV, rows, length, out_row * DV, DV, DVP)
    here_v = tile(bh * tokens * DVP + block * 64 * DVP, 64, DVP)
    tl.store(DV_OWN + here_v, dot(tl.trans(p.to(dout.dtype)), dout).to(DV_OWN.dtype.element_ty))
    ds = p * (dot(dout, tl.trans(v)) - delta[:, None])
    if GATED:
        tl.store(DC + bh * tokens + rows, tl.load(DC + bh * tokens + rows) - tl.sum(ds, 0))
    low = ds.to(q.dtype)
    tl.store(DK + here, (dot(tl.trans(low), q) * (scale * LN2)).to(DK.dtype.element_ty))
    read = tl.trans(read.to(q.dtype))
    kept = tile((bh * all_blocks + block) * 64 * 64, 64, 64)
    tl.store(DZ + kept, (dot(read, low) * LN2).to(DZ.dtype.element_ty))
    x = tl.load(DQ_BAR + here)
    tl.store(DQ_BAR + here, (dot(read, x.to(q.dtype)) * LN2).to(DQ_BAR.dtype.element_ty))
    # From here on tiles are read a second time, so that no register holds them meanwhile.
    unit, unit_size = unit_rows(x.to(tl.float32))
    u = tl.load(U + tile(n * tokens * DP + block * 64 * DP, 64, DP))
    back = dot(unit, tl.trans(u)) * -unit_size - dot(low, tl.trans(tl.load(Z + square).to(q.dtype)))
    back = tl.where(seen, back, 0.0)
    q = load_tokens(queries, rows, length, q_row * D, D, DP)
    tl.store(DW + here, (dot(tl.trans(back.to(q.dtype)), q) * (scale * LN2)).to(DW.dtype.element_ty))
    unit, unit_size = unit_rows(back)
    dq = dot(unit, load_tokens(directions, rows, length, w_row * D, D, DP).to(u.dtype)) * unit_size
    dq += x.to(tl.float32) + dot(low, load_tokens(keys, rows, length, kv_row * D, D, DP))
    columns = tl.arange(0, DP)
    out = DQ + (b * length * dq_row + h) * D + rows[:, None].to(tl.int64) * dq_row * D + columns[None, :]
    # The gradient of q' = scale log2(e) q is ln 2 x, so that of q is scale x, with the plain scale.
    tl.store(out, dq * (scale * LN2), mask=(rows[:, None] < length) & (columns[None, :] < D))
