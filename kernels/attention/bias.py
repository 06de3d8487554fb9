"""Triton: a bias by head and distance in tiles of scores, and the gradient of its table.

A tile of scores needs `table[h, t - s]`, which is constant along its diagonals. Kernels read it from a copy of the
table in base 2 with reversed distances, in which neighbouring keys are neighbours in memory. If the table has fewer
entries than there are distances, the last one applies to all greater distances, and tiles of these add one number.

The gradient of an entry is the sum of dS along a diagonal of the matrix of scores. A program owns a band of diagonals
of one head. All its tiles have the same distances, so it accumulates them element by element and sums the diagonals of
one tile at the end. There are no atomics, so results are deterministic.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..choice import INTERPRETED
from ..common import LOG2E
from .tiles import rows_of

# Entries before the greatest distance: tiles reach beyond it by less than their height plus their width.
MARGIN = 256
# Load each bias into the register where it is added. A `tl.load` of a tile passes through shared memory, which costs
# occupancy and, in the key gradient, spills registers. The interpreter has no inline assembly.
DIRECT = tl.constexpr(not INTERPRETED)


@triton.jit
def bias_kernel(TABLE, BIAS, t_h, t_d, N, zero, BLOCK: tl.constexpr):
    """BIAS[h, zero - d] = table[h, min(d, N - 1)] in base 2, for d from 0 to `zero`."""
    blocks = tl.cdiv(zero + 1, BLOCK)
    h, x = (tl.program_id(0) // blocks).to(tl.int64), tl.program_id(0) % blocks * BLOCK + tl.arange(0, BLOCK)
    distance = tl.minimum(zero - x, N - 1)
    bias = tl.load(TABLE + h * t_h + distance * t_d, mask=x <= zero, other=0.0).to(tl.float32)
    tl.store(BIAS + h * (zero + 1) + x, bias * LOG2E, mask=x <= zero)


@triton.jit
def bias_of(BIAS, key, row, zero, MASKED: tl.constexpr):
    """Biases of a tile; `key` and `row` are positions, one a column and the other a row of the tile.

    A tile that is `MASKED` may contain pairs that do not see each other. Their biases are arbitrary.
    """
    at = key - row + zero
    if MASKED:
        at = tl.minimum(tl.maximum(at, 0), zero)
    if DIRECT:
        bias = tl.inline_asm_elementwise(
            "ld.global.nc.f32 $0, [$1];", "=f,l", [(BIAS + at).to(tl.int64)], dtype=tl.float32, is_pure=True, pack=1
        )
    else:
        bias = tl.load(BIAS + at)
    return bias


@triton.jit
def table_gradient_kernel(
    Q, K, V, BIAS, STARTS, REACH, LSE, GRAD, INNER, PARTIAL,
    q_b, q_t, q_h, k_b, k_t, k_h, v_b, v_t, v_h, g_b, g_t, g_h, T, S, H, GROUP, scale, zero, batch, stride,
    W: tl.constexpr, D: tl.constexpr, BW: tl.constexpr, BD: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
    SPLITS: tl.constexpr, LIMITED: tl.constexpr, EVEN: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Sums of dS over the rows of one sequence, or a part of them, in PARTIAL `[batch * SPLITS, 2, H, stride]`.

    The first half has distances of at least `base`, and the second the smaller ones; BM equals BN.
    """
    pid = tl.program_id(0)
    split, h = pid % SPLITS, (pid // SPLITS % H).to(tl.int64)
    b, base = (pid // SPLITS // H % batch).to(tl.int64), pid // SPLITS // H // batch * BN  # longest bands first
    rows, keys, wide, deep = tl.arange(0, BM), tl.arange(0, BN), tl.arange(0, BW), tl.arange(0, BD)
    past = S - T
    first_block, blocks = max(base - past, 0) // BM, tl.cdiv(T, BM)
    if LIMITED:
        blocks = tl.where(base - BN < tl.load(REACH + b), blocks, first_block)
    share = tl.cdiv(max(blocks - first_block, 0), SPLITS)
    low = first_block + split * share
    high = min(low + share, blocks)
    Q += b * q_b + h * q_h
    GRAD += b * g_b + h * g_h
    K += b * k_b + h // GROUP * k_h
    V += b * v_b + h // GROUP * v_h
    LSE += (b * H + h) * T
    INNER += (b * H + h) * T
    bias = bias_of(BIAS + h * (zero + 1), keys[None, :], base + rows[:, None], zero, True)
    acc = tl.zeros([BM, BN], tl.float32)
    for block in range(low, high):
        m0 = block * BM
        n0 = past + m0 - base
        t, n = m0 + rows, n0 + keys
        row, at = tl.cast(m0, tl.int64), tl.cast(n0, tl.int64)
        there = (n >= 0) & (n < S)
        q = rows_of(Q + row * q_t, rows, q_t, wide, t < T, W, EVEN)
        grad = rows_of(GRAD + row * g_t, rows, g_t, deep, t < T, D, EVEN)
        k = rows_of(K + at * k_t, keys, k_t, wide, there, W, EVEN)
        v = rows_of(V + at * v_t, keys, v_t, deep, there, D, EVEN)
        lse = tl.load(LSE + t, mask=t < T, other=float("inf"))
        inner = tl.load(INNER + t, mask=t < T, other=0.0)
        scores = tl.dot(q, tl.trans(k), input_precision=PRECISION) * (scale * LOG2E)
        p = tl.exp2(scores + (bias - lse[:, None]))
        if LIMITED:
            first = tl.load(STARTS + b * S + past + t, mask=t < T, other=0)
            p = tl.where(n[None, :] >= first[:, None], p, 0.0)
        elif not EVEN:
            p = tl.where((n >= 0)[None, :], p, 0.0)
        dp = tl.dot(grad, tl.trans(v), input_precision=PRECISION)
        acc += p * (dp - inner[:, None])
    # Keys after the query have negative distances. Their sums are arbitrary, even NaN, until here.
    acc = tl.where(base + rows[:, None] >= keys[None, :], acc, 0.0)
    # Column j of the shifted rows has the pairs whose distance is base + j, or base + j - BN above the diagonal.
    shifted = tl.gather(acc, ((rows[:, None] - keys[None, :]) & (BN - 1)), 1)
    below = rows[:, None] >= keys[None, :]
    PARTIAL += ((b * SPLITS + split) * 2 * H + h) * stride + base
    tl.store(PARTIAL + keys, tl.sum(tl.where(below, shifted, 0.0), 0))
    if base > 0:
        tl.store(PARTIAL + H * stride - BN + keys, tl.sum(tl.where(below, 0.0, shifted), 0))


def bias_for(table: Tensor | None, keys: int) -> dict:
    """Launch arguments that kernels take for `table [H, N]` and S keys.

    BIAS is the reversed table, `[H, zero + 1]` with distance 0 at `zero`, and N the number of entries. `BIASED` is
    whether there is a table, `TAIL` whether its last entry applies to greater distances too.
    """
    if table is None:
        return {"BIAS": None, "zero": 0, "N": 0, "BIASED": False, "TAIL": False}
    heads, n = table.shape
    zero = min(n, keys) - 1 + MARGIN
    bias = torch.empty(heads, zero + 1, device=table.device)
    bias_kernel[(heads * triton.cdiv(zero + 1, 512),)](
        TABLE=table, BIAS=bias, t_h=table.stride(0), t_d=table.stride(1), N=n, zero=zero, BLOCK=512
    )
    return {"BIAS": bias, "zero": zero, "N": n, "BIASED": True, "TAIL": n < keys}
