"""Forward kernel of PaTH for Hopper: two blocks of queries share every tile of keys, which a producer warp fetches.

The algorithm is that of forward.py. A program owns two sibling blocks. Each is computed by a warp group with its own
running softmax; a third partition copies tiles of keys, values and products into shared memory with TMA. So the L2
cache, which limits the portable kernel, is read once for 128 queries, and while one warp group computes exponentials
the tensor cores multiply for the other.
"""

from typing import NamedTuple

import torch
from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from ..common import LOG2E
from . import tiles
from .call import Call
from .consumer import consume
from .prepare import Prepared
from .pull import Pulled, empty_queries
from .ring import produce, shared

place_of, query_head, count_of = (
    gluon.jit(function.fn) for function in (tiles.place_of, tiles.query_head, tiles.count_of)
)


# Compiled once for all sizes.
COUNTS = ["length", "heads", "kv_heads", "q_row", "kv_row", "out_row", "w_row", "chunks", "together"]


@gluon.jit(do_not_specialize=COUNTS)
def hopper_kernel(
    Q, K, V, W, U, Z, HIGH, LOW, OUT, LSE, KEYS, K_BAR, VALUES, PRODUCTS, SEEN, Q_BAR,
    length, heads, kv_heads, q_row, kv_row, out_row, w_row, chunks, together, scale,
    DP: gl.constexpr, DVP: gl.constexpr, R: gl.constexpr, LEVELS: gl.constexpr, FAR: gl.constexpr,
    KEEP: gl.constexpr, BN: gl.constexpr, STAGES: gl.constexpr, CONSUMER: gl.constexpr,
):  # fmt: skip
    """Attention of two sibling blocks of one head. Scores are in base 2: `scale` includes log2(e)."""
    gl.static_assert(BN >= DP)
    pairs = chunks * (R // 2)
    rank, bh = place_of(gl.program_id(0), pairs, together)
    bh = bh.to(gl.int32)
    block = (pairs - 1 - rank) * 2  # programs with the most blocks to process start first
    b, h, hk, n = query_head(bh, heads, kv_heads)
    tokens = pairs * 128
    c, i = block // R, block % R
    inside = block * 64 < length
    near = gl.where(inside, count_of(i, LEVELS), 0)
    visits = near
    if FAR:
        visits += gl.where(inside, c, 0)

    keys = gl.allocate_shared_memory(KEYS.dtype, [STAGES, BN, DP], shared(BN, DP))
    values = gl.allocate_shared_memory(VALUES.dtype, [STAGES, BN, DVP], shared(BN, DVP))
    left = gl.allocate_shared_memory(KEYS.dtype, [64, DP], shared(64, DP))
    right = gl.allocate_shared_memory(KEYS.dtype, [64, DP], shared(64, DP))
    left_one = gl.allocate_shared_memory(gl.float16, [64, DP], shared(64, DP))
    left_two = gl.allocate_shared_memory(gl.float16, [64, DP], shared(64, DP))
    right_one = gl.allocate_shared_memory(gl.float16, [64, DP], shared(64, DP))
    right_two = gl.allocate_shared_memory(gl.float16, [64, DP], shared(64, DP))
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for slot in gl.static_range(STAGES):
        mbarrier.init(full.index(slot), count=1)
        mbarrier.init(empty.index(slot), count=2)
    fence_async_shared()

    first = b.to(gl.int64) * length
    levels: gl.constexpr = LEVELS * (R // 2) * 64  # rows of keys and queries of a chunk
    given, results, ring = (Q, K, V, W, U, Z), (OUT, LSE, SEEN, Q_BAR), (keys, values, full, empty)
    place = (c, i, near, visits, block, bh)
    offsets = (
        (first * q_row + h) * DP, (first * kv_row + hk) * DP, (first * kv_row + hk) * DVP, (first * w_row + hk) * DP,
        n.to(gl.int64) * tokens,
    )  # fmt: skip
    steps = (q_row * DP, kv_row * DP, kv_row * DVP, w_row * DP)
    targets = ((first * out_row + h) * DVP, out_row * DVP, (bh * chunks + c) * levels, tokens)
    bases = ((n * chunks + c) * levels, n * tokens, b * length, hk * DVP, n * chunks * (2 * R - 1))
    if HIGH is None:
        gates = (None, None, None)
    else:
        at = bh.to(gl.int64) * tokens
        gates = (HIGH + at, LOW + at, gl.load(HIGH + at + c * R * 64))
    gl.warp_specialize([
        (consume, (
            given, results, (left, left_one, left_two), ring, place, offsets, steps, gates, targets, length,
            scale, 0, DP, DVP, R, LEVELS, FAR, KEEP, BN,
        )),
        (consume, (
            given, results, (right, right_one, right_two), ring, place, offsets, steps, gates, targets, length,
            scale, 1, DP, DVP, R, LEVELS, FAR, KEEP, BN,
        )),
        (produce, ((KEYS, K_BAR, VALUES, PRODUCTS), ring, place, bases, DP, R, LEVELS, FAR, BN)),
    ], [4, 1], [CONSUMER, 24])  # fmt: skip


def rows_of(x: Tensor | None, rows: int) -> TensorDescriptor | None:
    """Descriptor of tiles of `rows` rows of a contiguous tensor `[..., width]`; None for None."""
    if x is None:
        return None
    width = x.shape[-1]
    layout = gl.NVMMASharedLayout.get_default_for([rows, width], gl.float16)
    return TensorDescriptor(x, [x.numel() // width, width], [width, 1], [rows, width], layout)


class HopperTiles(NamedTuple):
    """Keys per tile, tiles in flight, and registers of a thread: of all partitions on average, and of consumers."""

    step: int
    stages: int
    registers: int = 168
    consumer: int = 240


TILES = {64: HopperTiles(128, 3), 128: HopperTiles(128, 2)}


def hopper_forward(
    call: Call, prepared: Prepared, keep: bool = False, tiles: HopperTiles | None = None, together: int | None = None
) -> tuple[Tensor, Tensor, Pulled | None]:
    """The same as `forward.portable_forward`."""
    sizes, v = call.sizes, call.v
    out = v.new_empty(sizes.batch, sizes.length, sizes.heads, sizes.value_dim)
    lse = torch.empty(sizes.batch * sizes.heads, sizes.padded, dtype=torch.float32, device=v.device)
    tiles = tiles or TILES[sizes.widest]
    pulled = empty_queries(call.q, sizes) if keep else None
    seen, q_bar = (rows_of(x, 64) for x in pulled or (None, None))
    width = sizes.value_width
    layout = gl.NVMMASharedLayout.get_default_for([tiles.step, width], gl.float16)
    shape, row = [sizes.batch * sizes.length, sizes.kv_heads * width], sizes.kv_row * width
    hopper_kernel[(sizes.all_blocks // 2 * sizes.batch * sizes.heads,)](
        Q=call.q, K=call.k, V=v, W=call.w, U=prepared.u, Z=prepared.z, HIGH=call.high, LOW=call.low, OUT=out, LSE=lse,
        KEYS=rows_of(prepared.keys, tiles.step),
        K_BAR=rows_of(prepared.k_bar, tiles.step),
        VALUES=TensorDescriptor(v, shape, [row, 1], [tiles.step, width], layout),
        PRODUCTS=rows_of(prepared.nodes, sizes.width), SEEN=seen, Q_BAR=q_bar,
        **sizes.named("length", "heads", "kv_heads", "q_row", "kv_row", "out_row", "w_row", "chunks"),
        together=together or sizes.together, scale=call.scale * LOG2E.value,
        **sizes.constants("DP", "DVP", "R", "LEVELS", "FAR"), KEEP=keep, BN=tiles.step, STAGES=tiles.stages,
        CONSUMER=tiles.consumer, num_warps=4, maxnreg=tiles.registers,
    )  # fmt: skip
    return out, lse, pulled
