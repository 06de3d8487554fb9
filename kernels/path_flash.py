"""PaTH attention by Triton kernels, as one PyTorch operator: linear memory, deterministic, any length.

The scheme is in kernels/path_prepare.py. The backward pass keeps q, k, v, w, beta, output and lse, and prepares anew.
"""

import torch
import triton
from torch import Tensor

from bearings.kernels.attention import document_runs
from bearings.kernels.path_backward import far_dkv_kernel, far_dq_kernel, near_dkv_kernel, near_dq_kernel, pull_kernel
from bearings.kernels.path_forward import LOG2E, forward
from bearings.kernels.path_prepare import BLOCK, Sizes, pairs_of, prepare, sizes_of
from bearings.kernels.path_unprepare import (
    block_backward_kernel,
    compose_backward_kernel,
    dproduct_kernel,
    moments_kernel,
)


def backward(q, k, v, w, beta, scale, out, lse, dout, gates, documents, sizes: Sizes) -> tuple[Tensor, ...]:
    """dq, dk, dv, dw, dbeta as their inputs, and dc `[B H, Tp]` in float32 (None without gates)."""
    first, end = (None, None) if documents is None else documents
    c, c_lo = (None, None) if gates is None else gates
    gated, packed = gates is not None, documents is not None
    n, bh = sizes.batch * sizes.kv_heads, sizes.batch * sizes.heads
    tokens, width, r = sizes.padded, sizes.width, sizes.blocks
    length, heads, kv_heads, chunks, pairs = sizes.length, sizes.heads, sizes.kv_heads, sizes.chunks, sizes.pairs
    widths = {"DP": width, "DV": sizes.value_dim, "DVP": sizes.value_width, "R": r}
    near = {"D": sizes.head_dim, **widths}
    warps = 8 if max(width, sizes.value_width) > 64 else 4

    def single(*shape: int) -> Tensor:
        return q.new_empty(shape, dtype=torch.float32)

    p = prepare(k, w, beta, sizes, backward=True)
    m = pairs_of(p, sizes)
    seen, dseen = (q.new_empty(bh, chunks, r * (r - 1) // 2, BLOCK, width) for _ in range(2))
    q_bar, dq_bar, dq_block = (q.new_empty(bh, tokens, width) for _ in range(3))
    delta, dq = single(bh, tokens), torch.empty_like(q)
    pull_kernel[(chunks * r * bh,)](
        q, w, p.u, p.u_lo, out, dout, seen, q_bar, delta,
        length, heads, kv_heads, chunks, scale * LOG2E, **near, num_warps=4,
    )  # fmt: skip

    size = r * BLOCK
    bm, bn = min(128, size), BLOCK
    moments, e = single(bh, pairs, size // bm, width, width), torch.empty_like(m)
    dc_query, dc_key = (single(bh, tokens) if gated else None for _ in range(2))
    far_dq_kernel[(tokens // bm * bh,)](
        q_bar, p.k_bar, v, m, dout, lse, delta, c, c_lo, first, dq_bar, moments, dc_query,
        length, heads, kv_heads, chunks, pairs,
        **widths, BM=bm, BN=bn, GATED=gated, PACKED=packed, STAGES=2, num_warps=8,
    )  # fmt: skip
    rows = min(width, 64)
    grid = (n * chunks * (width // rows),)
    moments_kernel[grid](
        moments, p.p, p.p_lo, e, heads, kv_heads, chunks, pairs, DP=width, PARTS=size // bm, ROWS=rows, num_warps=4
    )
    dproduct = single(n, chunks, width, width)
    dproduct_kernel[grid](m, e, dproduct, chunks, pairs, DP=width, ROWS=rows, num_warps=4)
    del moments, e

    dk_bar, dv_far = q.new_empty(n, tokens, width), single(n, tokens, sizes.value_width)
    far_dkv_kernel[(tokens // bm * n,)](
        q_bar, p.k_bar, v, m, dout, lse, delta, c, c_lo, first, end, dk_bar, dv_far, dc_key,
        length, heads, kv_heads, chunks, pairs,
        **widths, BM=BLOCK, BN=bm, GATED=gated, PACKED=packed, STAGES=2, num_warps=8,
    )  # fmt: skip
    dw_chunk, du_chunk, dk_end = (single(n, tokens, width) for _ in range(3))
    compose_backward_kernel[(n * chunks,)](
        w, p.u, p.u_lo, p.k_end, p.after, dk_bar, dproduct, dw_chunk, du_chunk, dk_end,
        length, kv_heads, chunks, D=sizes.head_dim, DP=width, R=r, num_warps=warps,
    )  # fmt: skip

    weights, dscores = (q.new_empty(bh, tokens, BLOCK) for _ in range(2))
    near_dq_kernel[(chunks * r * bh,)](
        q, k, v, w, p.u, p.u_lo, p.z, p.z_lo, p.k_end, dout, lse, delta, c, c_lo, first, seen, dq_bar,
        dseen, dq_block, weights, dscores, dq, dc_query,
        length, heads, kv_heads, chunks, scale * LOG2E, **near, GATED=gated, PACKED=packed, num_warps=warps,
    )  # fmt: skip
    dv = torch.empty_like(v)
    near_dkv_kernel[(chunks * r * n,)](
        v, p.k_end, dout, lse, delta, c, c_lo, first, seen, weights, dscores, dv_far, dk_end, dv, dc_key,
        length, heads, kv_heads, chunks, **widths, GATED=gated, PACKED=packed, num_warps=warps,
    )  # fmt: skip
    dk, dw, dbeta = torch.empty_like(k), torch.empty_like(w), torch.empty_like(beta)
    block_backward_kernel[(chunks * r * n,)](
        q, k, w, beta, p.u, p.z, p.inverse, seen, dseen, dq_block, dscores, dw_chunk, du_chunk, dk_end, dk, dw, dbeta,
        length, heads, kv_heads, chunks, scale * LOG2E, D=sizes.head_dim, DP=width, R=r, num_warps=warps,
    )  # fmt: skip
    return dq, dk, dv, dw, dbeta, dc_query - dc_key if gated else None
