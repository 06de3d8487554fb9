"""Forward kernel of PaTH: pulls each block of queries back over nodes of increasing size, then over whole chunks.

With KEEP it stores the pulled queries, which the backward pass otherwise recomputes (pull.py). Calls that
`suits_hopper` accepts are computed by another kernel, in hopper.py.
"""

import functools
import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..attention.gates import add_gates
from ..common import LOG2E, UNSEEN
from ..launching import LAYOUTS, Launch
from .call import Call, Form
from .hopper_calls import on_hopper
from .prepare import Prepared
from .pull import Pulled, empty_queries
from .sizes import Tiles
from .tiles import (
    count_of,
    dot,
    head_at,
    level_of,
    load_block,
    load_tokens,
    node_of,
    place_of,
    query_head,
    slot_of,
    slot_tile,
    slots_at,
    store_tokens,
    tile,
)

# By padded width; measured on an H200, see benchmarks/results/path_log.md.
TILES = {64: Tiles(64, 64, 4, 3, 128), 128: Tiles(64, 64, 4, 3)}
GATED_TILES = {64: Tiles(64, 64, 4, 3, 168), 128: Tiles(64, 64, 4, 3)}
FLOAT32_TILES = Tiles(64, 32, 4, 1)  # limited by shared memory
# By channels: tokens from which hopper.py was measured to be faster, without and with gates.
HOPPER_FROM = {64: 16384, 128: 1024}
GATED_HOPPER_FROM = {64: 8192, 128: 1024}


@triton.jit
def fold(s, v, acc, weight, highest):
    """Update a running softmax with a tile of base-2 scores. All scores of a row may be -inf."""
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
    """Attention of one block of queries of one head. Scores are in base 2: `scale` includes log2(e).

    With KEEP it stores the same queries as `pull_kernel`; without, only those in Q_BAR if it is given. All passes add
    gates with `gates.add_gates`; unless EXACT, gates are relative to the start of the chunk of the queries.
    """
    pid = tl.program_id(0)
    all_blocks = chunks * R
    rank, bh = place_of(pid, all_blocks, together)
    block = all_blocks - 1 - rank  # programs with the most blocks to process start first
    b, h, hk, n = query_head(bh, heads, kv_heads)
    tokens = all_blocks * 64
    rows = block * 64 + tl.arange(0, 64)
    if block * 64 >= length:
        tl.store(LSE + bh * tokens + rows, tl.full([64], float("inf"), tl.float32))
        if Q_BAR is not None:
            nothing = tl.full([64, DP], 0.0, Q_BAR.dtype.element_ty)
            tl.store(Q_BAR + tile((bh * tokens + block * 64) * DP, 64, DP), nothing)
        return
    c, i = block // R, block % R
    NODES += n * chunks * (2 * R - 1) * DP * DP
    KEYS = slots_at(KEYS, n * chunks + c, R, LEVELS, DP)

    lowest = 0
    if PACKED:
        first = tl.load(FIRST + b * tokens + rows)
        lowest = tl.load(FIRST + b * tokens + block * 64)
    if GATED:
        HIGH, LOW = HIGH + bh * tokens, LOW + bh * tokens
        origin = tl.load(HIGH + c * R * 64)
        row_high, row_low = tl.load(HIGH + rows), tl.load(LOW + rows)

    # The keys of the same block, in UT form.
    chain: tl.constexpr = U.dtype.element_ty
    low = load_tokens(Q, b, h, rows, length, q_row, D, DP)
    low = (low.to(tl.float32) * scale).to(chain)
    k = load_tokens(K, b, hk, rows, length, kv_row, D, DP)
    w = load_tokens(W, b, hk, rows, length, w_row, D, DP)
    v = load_tokens(V, b, hk, rows, length, kv_row, DV, DVP)
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

    # The left siblings of the nodes that contain the block, then earlier chunks.
    near, visits, bits = count_of(i, LEVELS), count_of(i, LEVELS), i
    if FAR:
        visits += tl.maximum(c - lowest // (R * 64), 0)
    if KEEP:
        SEEN = slots_at(SEEN, bh * chunks + c, R, LEVELS, DP)
    if Q_BAR is not None:
        Q_BAR += (bh * tokens + block * 64) * DP
        last = tl.full([64, 1], near, tl.int32) == 0
        tl.store(Q_BAR + tile(0, 64, DP), low.to(Q_BAR.dtype.element_ty), mask=last)
    V = head_at(V, b, hk, length, kv_row, DV)
    for visit in range(visits):
        bit = bits & -bits
        level = level_of(bit, LEVELS)
        bits -= bit
        there, count = c * R + bits, bit  # blocks
        keys = KEYS + slot_of(bits, level, R) * 64 * DP
        node = c * (2 * R - 1) + node_of(bits, level, R)
        if KEEP:
            inside = tl.full([64, 1], visit, tl.int32) < near
            tl.store(SEEN + slot_tile(i, level, R, DP), low.to(SEEN.dtype.element_ty), mask=inside)
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
            values = load_block(V, start, length, kv_row * DV, BN, DV, DVP, True)
            acc, weight, highest = fold(scores, values, acc, weight, highest)
        low = dot(low, tl.load(NODES + tile(node.to(tl.int64) * DP * DP, DP, DP))).to(chain)
        if Q_BAR is not None:
            last = tl.full([64, 1], visit, tl.int32) == near - 1
            tl.store(Q_BAR + tile(0, 64, DP), low.to(Q_BAR.dtype.element_ty), mask=last)

    store_tokens(OUT, b, h, rows, length, out_row, DV, acc / weight[:, None])
    lse = highest + tl.log2(weight)
    tl.store(LSE + bh * tokens + rows, tl.where(rows < length, lse, float("inf")))


@functools.lru_cache(LAYOUTS)
def launch_of(form: Form, keep: bool) -> Launch:
    """The launch of `forward_kernel`."""
    sizes = form.sizes
    tiles = FLOAT32_TILES if form.exact else (GATED_TILES if form.gated else TILES)[sizes.widest]
    settings = form.scored() | sizes.constants("D", "LEVELS", "FAR")
    settings |= sizes.named("length", "heads", "kv_heads", "q_row", "kv_row", "out_row", "w_row", "chunks", "together")
    settings |= {"scale": form.scale * LOG2E.value, "BN": tiles.step, "KEEP": keep, "STAGES": tiles.stages}
    settings |= {"num_warps": tiles.warps, "num_stages": 1, "maxnreg": tiles.registers}
    return Launch(forward_kernel, ((sizes.all_blocks * sizes.batch * sizes.heads,), settings))


def suits_hopper(call: Call) -> bool:
    """Whether hopper.py supports this call and was measured to be faster."""
    sizes, since = call.sizes, HOPPER_FROM if call.high is None else GATED_HOPPER_FROM
    return on_hopper(call) and sizes.length >= since.get(sizes.head_dim, math.inf)


def forward(call: Call, prepared: Prepared, keep: bool = False) -> tuple[Tensor, Tensor, Pulled | None]:
    """Output `[B, T, H, Dv]`, log-sum-exp `[B H, Tp]` in base 2 (inf in the padding), and pulled queries.

    They are those that the backward pass needs if `keep`; only those at the starts of chunks if `sizes.bordered`.
    """
    if suits_hopper(call):
        from .hopper import hopper_forward  # Gluon is imported only where it is used

        return hopper_forward(call, prepared, keep)
    return portable_forward(call, prepared, keep)


def portable_forward(call: Call, prepared: Prepared, keep: bool = False) -> tuple[Tensor, Tensor, Pulled | None]:
    """The same as `forward`, with the kernel of this file."""
    sizes = call.sizes
    out = call.v.new_empty(sizes.batch, sizes.length, sizes.heads, sizes.value_dim)
    lse = torch.empty(sizes.batch * sizes.heads, sizes.padded, dtype=torch.float32, device=call.q.device)
    pulled = empty_queries(call.q, sizes) if keep else None
    if sizes.bordered and pulled is None:
        q_bar = call.q.new_empty(sizes.batch * sizes.heads, sizes.padded, sizes.width)
        pulled = Pulled(call.q.new_empty(0), q_bar)
    seen, q_bar = pulled or (None, None)
    launch_of(call.form, keep)(
        Q=call.q, K=call.k, W=call.w, U=prepared.u, Z=prepared.z, NODES=prepared.nodes, KEYS=prepared.keys,
        K_BAR=prepared.k_bar, OUT=out, LSE=lse, SEEN=seen, Q_BAR=q_bar, **call.scored(),
    )  # fmt: skip
    return out, lse, pulled
