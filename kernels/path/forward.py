"""Forward kernel of PaTH: each block of queries walks left, pulled back over ever larger nodes, then over whole chunks.

For the backward pass `pull_kernel` walks again, inside the chunk alone, and keeps what it passes.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..attention.gates import add_gates
from .prepare import BLOCK, Prepared, Sizes
from .tiles import (
    count_of,
    dot,
    level_of,
    load_block,
    load_tokens,
    node_of,
    place_of,
    slot_of,
    tile,
)

LOG2E = 1.4426950408889634
UNSEEN = tl.constexpr(-1.0e30)  # below any score, and finite


class Tiles(NamedTuple):
    """How one of the inner loops is cut: tokens that a program owns, tokens a step, warps, pipeline stages.

    `registers` a thread at most, where that was worth it.
    """

    own: int
    step: int
    warps: int
    stages: int
    registers: int | None = None


# By padded width; measured on an H200, see benchmarks/results/path_log.md.
TILES = {64: Tiles(64, 64, 4, 3, 128), 128: Tiles(64, 64, 4, 3)}
GATED_TILES = {64: Tiles(64, 64, 4, 3, 168), 128: Tiles(64, 64, 4, 3)}
FLOAT32_TILES = Tiles(64, 32, 4, 1)  # what shared memory holds of them


@triton.jit
def fold(s, v, acc, weight, highest):
    """One more tile of scores, in powers of two, into a running softmax; a row may be -inf throughout."""
    new = tl.maximum(highest, tl.max(s, 1))
    p, rescale = tl.exp2(s - new[:, None]), tl.exp2(highest - new)
    return acc * rescale[:, None] + dot(p, v), weight * rescale + tl.sum(p, 1), new


@triton.jit
def forward_kernel(
    Q, K, V, W, U, Z, NODES, KEYS, K_BAR, HIGH, LOW, FIRST, OUT, LSE, SEEN, Q_BAR,
    length, heads, kv_heads, q_row, kv_row, out_row, w_row, chunks, together, scale,
    D: tl.constexpr, DP: tl.constexpr, DV: tl.constexpr, DVP: tl.constexpr, R: tl.constexpr, LEVELS: tl.constexpr,
    BN: tl.constexpr, GATED: tl.constexpr, EXACT: tl.constexpr, PACKED: tl.constexpr, FAR: tl.constexpr,
    KEEP: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """One block of queries of one head. Scores are in powers of two; `scale` holds the log2(e).

    With KEEP it keeps of the queries what `pull_kernel` would. The gates of all passes are those of `gates.add_gates`;
    unless EXACT they are seen from the start of the queries' chunk.
    """
    pid = tl.program_id(0)
    all_blocks = chunks * R
    rank, bh = place_of(pid, all_blocks, together)
    block = all_blocks - 1 - rank  # the longest walks start first
    b, h = bh // heads, bh % heads
    hk = h // (heads // kv_heads)
    n = b * kv_heads + hk
    tokens = all_blocks * 64
    rows = block * 64 + tl.arange(0, 64)
    if block * 64 >= length:
        tl.store(LSE + bh * tokens + rows, tl.full([64], float("inf"), tl.float32))
        if KEEP and FAR:
            nothing = tl.full([64, DP], 0.0, Q_BAR.dtype.element_ty)
            tl.store(Q_BAR + tile((bh * tokens + block * 64) * DP, 64, DP), nothing)
        return
    K += (b * length * kv_row + hk) * D
    W += (b * length * w_row + hk) * D
    V += (b * length * kv_row + hk) * DV
    kv_stride, v_stride = kv_row * D, kv_row * DV
    c, i = block // R, block % R
    NODES += n * chunks * (2 * R - 1) * DP * DP
    KEYS += (n * chunks + c) * (LEVELS * (R // 2)) * 64 * DP

    lowest = 0
    if PACKED:
        first = tl.load(FIRST + b * tokens + rows)
        lowest = tl.load(FIRST + b * tokens + block * 64)
    if GATED:
        HIGH, LOW = HIGH + bh * tokens, LOW + bh * tokens
        origin = tl.load(HIGH + c * R * 64)
        row_high, row_low = tl.load(HIGH + rows), tl.load(LOW + rows)

    # The program's own block, in the UT form.
    chain: tl.constexpr = U.dtype.element_ty
    low = load_tokens(Q + (b * length * q_row + h) * D, rows, length, q_row * D, D, DP)
    low = (low.to(tl.float32) * scale).to(chain)
    k = load_tokens(K, rows, length, kv_stride, D, DP)
    w = load_tokens(W, rows, length, w_row * D, D, DP)
    v = load_tokens(V, rows, length, v_stride, DV, DVP)
    seen = rows[:, None] >= rows[None, :]
    read = -tl.where(seen, dot(low, tl.trans(w.to(chain))), 0.0).to(chain)
    s = dot(low, tl.trans(k.to(chain))) + dot(read, tl.load(Z + tile((n * all_blocks + block) * 64 * 64, 64, 64)))
    low = (low.to(tl.float32) + dot(read, tl.load(U + tile((n * tokens + block * 64) * DP, 64, DP)))).to(chain)
    if GATED:
        s = add_gates(s, row_high[:, None], row_low[:, None], row_high[None, :], row_low[None, :], origin, EXACT)
    if PACKED:
        seen = seen & (rows[None, :] >= first[:, None])
    acc, weight = tl.zeros([64, DVP], tl.float32), tl.zeros([64], tl.float32)
    highest = tl.full([64], UNSEEN, tl.float32)
    acc, weight, highest = fold(tl.where(seen, s, float("-inf")), v, acc, weight, highest)

    # The left siblings of the nodes that hold it, then earlier chunks.
    near, visits, bits = count_of(i, LEVELS), count_of(i, LEVELS), i
    if FAR:
        visits += tl.maximum(c - lowest // (R * 64), 0)
    if KEEP:
        SEEN += (bh * chunks + c) * (LEVELS * (R // 2)) * 64 * DP
        if FAR:
            Q_BAR += (bh * tokens + block * 64) * DP
            last = tl.full([64, 1], near, tl.int32) == 0
            tl.store(Q_BAR + tile(0, 64, DP), low.to(Q_BAR.dtype.element_ty), mask=last)
    for visit in range(visits):
        bit = bits & -bits
        level = level_of(bit, LEVELS)
        bits -= bit
        there, count = c * R + bits, bit  # blocks
        keys = KEYS + slot_of(bits, level, R) * 64 * DP
        node = c * (2 * R - 1) + node_of(bits, level, R)
        if KEEP:
            slot = tile(slot_of(i, level, R) * 64 * DP, 64, DP)
            tl.store(SEEN + slot, low.to(SEEN.dtype.element_ty), mask=tl.full([64, 1], visit, tl.int32) < near)
        if FAR:
            e, beyond = tl.minimum(c - 1 - visit + near, c), visit >= near
            there, count = tl.where(beyond, e * R, there), tl.where(beyond, R, count)
            keys = tl.where(beyond, K_BAR + (n * tokens + e * R * 64) * DP, keys)
            node = tl.where(beyond, e * (2 * R - 1) + 2 * R - 2, node)
        keys -= there * 64 * DP
        begin = tl.minimum(tl.maximum(there * 64, lowest // BN * BN), (there + count) * 64)
        for start in tl.range(begin, (there + count) * 64, BN, num_stages=STAGES):
            columns = start + tl.arange(0, BN)
            scores = dot(low, tl.trans(tl.load(tile(keys + start * DP, BN, DP))))
            if GATED:
                key_high, key_low = tl.load(HIGH + columns)[None, :], tl.load(LOW + columns)[None, :]
                scores = add_gates(scores, row_high[:, None], row_low[:, None], key_high, key_low, origin, EXACT)
            if PACKED:
                scores = tl.where(columns[None, :] >= first[:, None], scores, float("-inf"))
            values = load_block(V, start, length, v_stride, BN, DV, DVP, True)
            acc, weight, highest = fold(scores, values, acc, weight, highest)
        low = dot(low, tl.load(NODES + tile(node.to(tl.int64) * DP * DP, DP, DP))).to(chain)
        if KEEP and FAR:
            last = tl.full([64, 1], visit, tl.int32) == near - 1
            tl.store(Q_BAR + tile(0, 64, DP), low.to(Q_BAR.dtype.element_ty), mask=last)

    wide = tl.arange(0, DVP)
    out = OUT + (b * length * out_row + h) * DV + rows[:, None].to(tl.int64) * out_row * DV + wide[None, :]
    tl.store(out, acc / weight[:, None], mask=(rows[:, None] < length) & (wide[None, :] < DV))
    lse = highest + tl.log2(weight)
    tl.store(LSE + bh * tokens + rows, tl.where(rows < length, lse, float("inf")))


@triton.jit
def pull_kernel(
    Q, W, U, NODES, OUT, DOUT, SEEN, Q_BAR, DELTA,
    length, heads, kv_heads, q_row, out_row, w_row, chunks, together, scale,
    D: tl.constexpr, DP: tl.constexpr, DV: tl.constexpr, DVP: tl.constexpr, R: tl.constexpr, LEVELS: tl.constexpr,
    FAR: tl.constexpr, KEPT: tl.constexpr,
):  # fmt: skip
    """The product of each row's output and its gradient. And, unless the forward kernel has, it keeps one block of
    queries as the left siblings of the right nodes that hold it see them, and as their chunk's start does.
    """
    pid = tl.program_id(0)
    all_blocks = chunks * R
    block, bh = place_of(pid, all_blocks, together)
    b, h = bh // heads, bh % heads
    hk = h // (heads // kv_heads)
    n, tokens = b * kv_heads + hk, all_blocks * 64
    local = tl.arange(0, 64)
    rows = block * 64 + local
    wide = tile(block * 64 * DP, 64, DP)
    DELTA += bh * tokens
    if block * 64 >= length:
        if FAR and not KEPT:
            tl.store(Q_BAR + bh * tokens * DP + wide, tl.full([64, DP], 0.0, Q_BAR.dtype.element_ty))
        tl.store(DELTA + rows, tl.full([64], 0.0, tl.float32))
        return
    out = load_tokens(OUT + (b * length * out_row + h) * DV, rows, length, out_row * DV, DV, DVP)
    dout = load_tokens(DOUT + (b * length * out_row + h) * DV, rows, length, out_row * DV, DV, DVP)
    tl.store(DELTA + rows, tl.sum(out.to(tl.float32) * dout.to(tl.float32), 1))

    c, i = block // R, block % R
    if (FAR or i > 0) and not KEPT:
        q = load_tokens(Q + (b * length * q_row + h) * D, rows, length, q_row * D, D, DP)
        w = load_tokens(W + (b * length * w_row + hk) * D, rows, length, w_row * D, D, DP)
        read = tl.where(local[:, None] >= local[None, :], dot(q, tl.trans(w)) * -scale, 0.0)
        x = q.to(tl.float32) * scale + dot(read, tl.load(U + n * tokens * DP + wide))
        SEEN += (bh * chunks + c) * (LEVELS * (R // 2)) * 64 * DP
        NODES += (n * chunks + c) * (2 * R - 1) * DP * DP
        low, bits = x.to(U.dtype.element_ty), i
        for _ in range(count_of(i, LEVELS)):
            bit = bits & -bits
            level = level_of(bit, LEVELS)
            bits -= bit
            tl.store(SEEN + tile(slot_of(i, level, R) * 64 * DP, 64, DP), low.to(SEEN.dtype.element_ty))
            low = dot(low, tl.load(NODES + tile(node_of(bits, level, R) * DP * DP, DP, DP))).to(low.dtype)
        if FAR:
            tl.store(Q_BAR + bh * tokens * DP + wide, low.to(Q_BAR.dtype.element_ty))


class Pulled(NamedTuple):
    """Queries, in their dtype."""

    seen: Tensor  # [B H, n, levels, R / 2, 64, DP], at the starts of right nodes
    q_bar: Tensor | None  # [B H, Tp, DP], at the starts of chunks, where there are several


def empty_queries(like: Tensor, sizes: Sizes) -> Pulled:
    """On the device of `like`."""
    rows, width = sizes.batch * sizes.heads, sizes.width
    seen = like.new_empty(rows, sizes.chunks, sizes.levels, sizes.blocks // 2, BLOCK, width)
    return Pulled(seen, like.new_empty(rows, sizes.padded, width) if sizes.pairs else None)


def forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    w: Tensor,
    scale: float,
    prepared: Prepared,
    gates: tuple[Tensor, Tensor] | None,
    first: Tensor | None,
    sizes: Sizes,
    keep: bool = False,
) -> tuple[Tensor, Tensor, Pulled | None]:
    """Output `[B, T, H, Dv]`, lse `[B H, Tp]` in powers of two, inf beyond the tokens, and what it keeps of queries.

    Args:
        gates: cumulative log-gates in powers of two as `gates.gates_of` lays them out, `[B, H, Tp]` each.
        first: `[B, Tp]` int32, where each token's document starts.
    """
    out = v.new_empty(sizes.batch, sizes.length, sizes.heads, sizes.value_dim)
    lse = torch.empty(sizes.batch * sizes.heads, sizes.padded, dtype=torch.float32, device=q.device)
    tiles = (TILES if gates is None else GATED_TILES)[max(sizes.width, sizes.value_width)]
    exact = q.dtype == torch.float32
    if exact:
        tiles = FLOAT32_TILES
    p, far = prepared, sizes.pairs > 0
    pulled = empty_queries(q, sizes) if keep else None
    forward_kernel[(sizes.chunks * sizes.blocks * sizes.batch * sizes.heads,)](
        q, k, v, w, p.u, p.z, p.nodes, p.keys, p.k_bar,
        *(gates or (None, None)), first, out, lse, *(pulled or (None, None)),
        sizes.length, sizes.heads, sizes.kv_heads, sizes.q_row, sizes.kv_row, sizes.out_row, sizes.w_row, sizes.chunks,
        sizes.together, scale * LOG2E,
        D=sizes.head_dim, DP=sizes.width, DV=sizes.value_dim, DVP=sizes.value_width,
        R=sizes.blocks, LEVELS=sizes.levels, BN=tiles.step,
        GATED=gates is not None, EXACT=exact, PACKED=first is not None, FAR=far, KEEP=keep, STAGES=tiles.stages,
        num_warps=tiles.warps, num_stages=1, maxnreg=tiles.registers,
    )  # fmt: skip
    return out, lse, pulled
