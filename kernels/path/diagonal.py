"""Backward kernel of PaTH for queries and keys of the same block, in UT form."""

import functools
from typing import NamedTuple

import triton
import triton.language as tl
from torch import Tensor

from ..attention.gates import add_gates
from ..common import LN2, LOG2E
from ..launching import LAYOUTS, Launch
from ..layout import row_of
from .call import Call, Form, Upstream
from .prepare import Prepared
from .sizes import BLOCK
from .tiles import dot, load_tokens, place_of, query_head, store_tokens, tile, unit_rows


@triton.jit
def diagonal_kernel(
    Q, K, V, W, U, Z, DOUT, LSE, DELTA, HIGH, LOW, FIRST, DQ_BAR, DW, DK, DZ, DV_OWN, DQ, DC,
    length, heads, kv_heads, q_row, kv_row, out_row, w_row, dq_row, chunks, together, scale,
    D: tl.constexpr, DP: tl.constexpr, DV: tl.constexpr, DVP: tl.constexpr, R: tl.constexpr,
    GATED: tl.constexpr, EXACT: tl.constexpr, PACKED: tl.constexpr,
):  # fmt: skip
    """dQ of one block and head, and contributions of its queries to the gradients of W, K, Z, V and U of the block.

    The contribution to U overwrites DQ_BAR, the gradient at the start of the block.
    """
    pid = tl.program_id(0)
    all_blocks = chunks * R
    block, bh = place_of(pid, all_blocks, together)
    if block * 64 >= length:
        return
    b, h, hk, n = query_head(bh, heads, kv_heads)
    tokens = all_blocks * 64
    local = tl.arange(0, 64)
    rows = block * 64 + local
    here = tile(bh * tokens * DP + block * 64 * DP, 64, DP)
    seen = local[:, None] >= local[None, :]
    square = tile((n * all_blocks + block) * 64 * 64, 64, 64)
    q = load_tokens(Q, b, h, rows, length, q_row, D, DP)
    read = tl.where(seen, dot(q, tl.trans(load_tokens(W, b, hk, rows, length, w_row, D, DP))) * -scale, 0.0)
    read = read.to(Z.dtype.element_ty)
    lse, delta = tl.load(LSE + bh * tokens + rows), tl.load(DELTA + bh * tokens + rows)
    s = dot(q, tl.trans(load_tokens(K, b, hk, rows, length, kv_row, D, DP))) * scale - lse[:, None]
    s += dot(read, tl.load(Z + square))
    if GATED:
        origin = tl.load(HIGH + bh * tokens + block // R * R * 64)
        gate_high, gate_low = tl.load(HIGH + bh * tokens + rows), tl.load(LOW + bh * tokens + rows)
        s = add_gates(s, gate_high[:, None], gate_low[:, None], gate_high[None, :], gate_low[None, :], origin, EXACT)
    visible = seen
    if PACKED:
        visible = seen & (rows[None, :] >= tl.load(FIRST + b * tokens + rows)[:, None])
    p = tl.exp2(tl.where(visible, s, float("-inf")))
    v = load_tokens(V, b, hk, rows, length, kv_row, DV, DVP)
    dout = load_tokens(DOUT, b, h, rows, length, out_row, DV, DVP)
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
    # From here on tiles are loaded a second time instead of being held in registers.
    unit, unit_size = unit_rows(x.to(tl.float32))
    u = tl.load(U + tile(n * tokens * DP + block * 64 * DP, 64, DP))
    back = dot(unit, tl.trans(u)) * -unit_size - dot(low, tl.trans(tl.load(Z + square).to(q.dtype)))
    back = tl.where(seen, back, 0.0)
    q = load_tokens(Q, b, h, rows, length, q_row, D, DP)
    tl.store(DW + here, (dot(tl.trans(back.to(q.dtype)), q) * (scale * LN2)).to(DW.dtype.element_ty))
    unit, unit_size = unit_rows(back)
    dq = dot(unit, load_tokens(W, b, hk, rows, length, w_row, D, DP).to(u.dtype)) * unit_size
    dq += x.to(tl.float32) + dot(low, load_tokens(K, b, hk, rows, length, kv_row, D, DP))
    # The gradient of q' = scale log2(e) q is ln 2 dq; hence the gradient of q has the plain scale.
    store_tokens(DQ, b, h, rows, length, dq_row, D, dq * (scale * LN2))


class Shares(NamedTuple):
    """Contributions of the queries of each head to gradients of their own block, `[B H, Tp, ...]` in their dtype."""

    dw: Tensor  # [..., DP]
    dk: Tensor  # [..., DP]
    dz: Tensor  # [..., 64]


@functools.lru_cache(LAYOUTS)
def launch_of(form: Form, dq_row: int) -> Launch:
    """The launch of `diagonal_kernel`."""
    sizes = form.sizes
    settings = form.scored() | sizes.constants("D")
    settings |= sizes.named("length", "heads", "kv_heads", "q_row", "kv_row", "out_row", "w_row", "chunks", "together")
    settings |= {"dq_row": dq_row, "scale": form.scale * LOG2E.value, "num_warps": 4, "num_stages": 1}
    settings["maxnreg"] = 168 if sizes.widest == 64 and not form.exact else None
    return Launch(diagonal_kernel, ((sizes.all_blocks * sizes.batch * sizes.heads,), settings))


def diagonal(
    call: Call, up: Upstream, p: Prepared, dq_bar: Tensor, dq: Tensor, dc: Tensor | None
) -> tuple[Shares, Tensor]:
    """Contributions of queries to their own block: `Shares`, and the gradient of its values, `[B H, Tp, DVP]`.

    Writes `dq [B, T, H, D]` and adds the pairs within blocks to `dc [B H, Tp]`, the gradient of the gates. On entry
    `dq_bar [B H, Tp, DP]` holds the gradients of queries at the start of their block; on return, contributions to u.
    """
    sizes = call.sizes
    widths = sizes.width, sizes.width, BLOCK, sizes.value_width
    dw, dk, dz, dv = (call.q.new_empty(sizes.batch * sizes.heads, sizes.padded, width) for width in widths)
    launch_of(call.form, row_of(dq))(
        Q=call.q, K=call.k, W=call.w, U=p.u, Z=p.z, DQ_BAR=dq_bar, DW=dw, DK=dk, DZ=dz, DV_OWN=dv, DQ=dq, DC=dc,
        **call.scored(), **up.named(),
    )  # fmt: skip
    return Shares(dw, dk, dz), dv
