"""First stage of the PaTH backward pass: pulled queries, and the dot product of each output row and its gradient."""

import functools
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..common import LOG2E
from ..launching import LAYOUTS, Launch
from .call import Call, Form, Upstream
from .prepare import Prepared
from .sizes import BLOCK, Sizes
from .tiles import (
    count_of,
    dot,
    level_of,
    load_tokens,
    node_tile,
    nodes_at,
    place_of,
    query_head,
    slot_tile,
    slots_at,
    tile,
)


@triton.jit
def pull_kernel(
    Q, W, U, NODES, OUT, DOUT, SEEN, Q_BAR, DELTA,
    length, heads, kv_heads, q_row, out_row, w_row, chunks, together, scale,
    D: tl.constexpr, DP: tl.constexpr, DV: tl.constexpr, DVP: tl.constexpr, R: tl.constexpr, LEVELS: tl.constexpr,
    FAR: tl.constexpr, KEPT: tl.constexpr,
):  # fmt: skip
    """The dot product of each output row and its gradient.

    Unless the forward kernel has stored them, it also stores one block of queries pulled back to the start of each
    right node that contains it, and to the start of its chunk.
    """
    pid = tl.program_id(0)
    all_blocks = chunks * R
    block, bh = place_of(pid, all_blocks, together)
    b, h, hk, n = query_head(bh, heads, kv_heads)
    tokens = all_blocks * 64
    local = tl.arange(0, 64)
    rows = block * 64 + local
    wide = tile(block * 64 * DP, 64, DP)
    DELTA += bh * tokens
    if block * 64 >= length:
        if FAR and not KEPT:
            tl.store(Q_BAR + bh * tokens * DP + wide, tl.full([64, DP], 0.0, Q_BAR.dtype.element_ty))
        tl.store(DELTA + rows, tl.full([64], 0.0, tl.float32))
        return
    out = load_tokens(OUT, b, h, rows, length, out_row, DV, DVP)
    dout = load_tokens(DOUT, b, h, rows, length, out_row, DV, DVP)
    tl.store(DELTA + rows, tl.sum(out.to(tl.float32) * dout.to(tl.float32), 1))

    c, i = block // R, block % R
    if (FAR or i > 0) and not KEPT:
        q = load_tokens(Q, b, h, rows, length, q_row, D, DP)
        w = load_tokens(W, b, hk, rows, length, w_row, D, DP)
        read = tl.where(local[:, None] >= local[None, :], dot(q, tl.trans(w)) * -scale, 0.0)
        x = q.to(tl.float32) * scale + dot(read, tl.load(U + n * tokens * DP + wide))
        SEEN, NODES = slots_at(SEEN, bh * chunks + c, R, LEVELS, DP), nodes_at(NODES, n * chunks + c, R, DP)
        low, bits = x.to(U.dtype.element_ty), i
        for _ in range(count_of(i, LEVELS)):
            bit = bits & -bits
            level = level_of(bit, LEVELS)
            bits -= bit
            tl.store(SEEN + slot_tile(i, level, R, DP), low.to(SEEN.dtype.element_ty))
            low = dot(low, tl.load(NODES + node_tile(bits, level, R, DP))).to(low.dtype)
        if FAR:
            tl.store(Q_BAR + bh * tokens * DP + wide, low.to(Q_BAR.dtype.element_ty))


class Pulled(NamedTuple):
    """Pulled queries, in the dtype of q."""

    seen: Tensor  # [B H, n, levels, R / 2, 64, DP], at the starts of right nodes
    q_bar: Tensor | None  # [B H, Tp, DP], at the starts of chunks; None unless `Sizes.far`


def empty_queries(like: Tensor, sizes: Sizes) -> Pulled:
    """Uninitialised tensors on the device of `like`."""
    rows, width = sizes.batch * sizes.heads, sizes.width
    seen = like.new_empty(rows, sizes.chunks, sizes.levels, sizes.blocks // 2, BLOCK, width)
    return Pulled(seen, like.new_empty(rows, sizes.padded, width) if sizes.far else None)


@functools.lru_cache(LAYOUTS)
def launch_of(form: Form, kept: bool) -> Launch:
    """The launch of `pull_kernel`."""
    sizes = form.sizes
    settings = sizes.named("length", "heads", "kv_heads", "q_row", "out_row", "w_row", "chunks", "together")
    settings |= sizes.constants("D", "DP", "DV", "DVP", "R", "LEVELS", "FAR")
    settings |= {"scale": form.scale * LOG2E.value, "KEPT": kept, "num_warps": 4, "num_stages": 1}
    return Launch(pull_kernel, ((sizes.all_blocks * sizes.batch * sizes.heads,), settings))


def pull(
    call: Call, prepared: Prepared, pulled: Pulled | None, out: Tensor, dout: Tensor, lse: Tensor
) -> tuple[Pulled, Upstream]:
    """Pulled queries, computed unless the forward pass has saved them, and the inputs that later stages need.

    Args:
        call: the inputs.
        prepared: preprocessed blocks and nodes.
        pulled: pulled queries saved by the forward pass, or None.
        out, dout: the output and its gradient, `[B, T, H, Dv]`.
        lse: log-sum-exp in base 2, `[B H, Tp]`.
    """
    sizes, kept = call.sizes, pulled is not None
    pulled = pulled or empty_queries(call.q, sizes)
    delta = torch.empty_like(lse)
    launch_of(call.form, kept)(
        Q=call.q, W=call.w, U=prepared.u, NODES=prepared.nodes, OUT=out, DOUT=dout, SEEN=pulled.seen,
        Q_BAR=pulled.q_bar, DELTA=delta,
    )  # fmt: skip
    return pulled, Upstream(dout, lse, delta)
