"""Preprocessing of the PaTH kernels: UT forms of blocks, products of nodes and chunks, keys pushed to their ends.

The algorithm (model.py has it in plain PyTorch): each block of 64 tokens uses the UT transform of chunks.py. R =
2^levels blocks are the leaves of a binary tree of nodes whose root is a chunk. The product of a node is that of its
right child times that of its left child. Scores between two siblings are computed at their border: queries of the right
one are pulled back to its start, keys of the left one are pushed to its end. So each query is stored once per right
node that contains it and each key once per left node, levels / 2 times on average. The product P of a chunk pulls a
query over all its tokens at once. A sequence of one chunk needs only the tree.

Internal shapes: N = B Hkv; tokens are padded to complete chunks, D to a power of two (zero columns change nothing).
For 16-bit inputs, factors of long products are in float16: reflections and their products never exceed 2, and the
rounding errors of bfloat16 would accumulate. float32 inputs stay float32 throughout.
"""

import functools
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..launching import LAYOUTS, Launch
from .sizes import BLOCK, Sizes
from .tiles import (
    count_of,
    dot,
    dot_halves,
    dot_split,
    halves,
    key_block,
    level_of,
    load_columns,
    load_tokens,
    node_tile,
    nodes_at,
    slot_tile,
    slots_at,
    tile,
)


@triton.jit
def unit_lower_inverse(n, STEPS: tl.constexpr):
    """(I + n)^-1 of a strictly lower `n [64, 64]`, by merging diagonal blocks, which avoids growing powers of n.

    Given the inverse x within diagonal blocks of 2^l rows, the inverse within blocks of twice the size adds -x n x
    between the halves of each, where l is the highest bit in which row and column differ. This is computed in float16.
    Each Newton step, x + x (I - (I + n) x), then squares the error.
    """
    rows, columns = tl.arange(0, 64)[:, None], tl.arange(0, 64)[None, :]
    differ = rows ^ columns
    low = n.to(tl.float16)
    x = tl.where(differ == 0, 1.0, tl.where(differ == 1, -low, 0.0)).to(tl.float16)
    # Not unrolled: otherwise tensor cores wait after every 16 channels for lack of registers.
    for level in range(1, 6):
        between = tl.dot(x, tl.dot(low, x).to(tl.float16)).to(tl.float16)
        x = tl.where((differ >> level) == 1, -between, x)
    x = x.to(tl.float32)
    for _ in tl.static_range(STEPS):
        n_hi, n_lo = halves(n)
        x_hi, x_lo = halves(x)
        if STEPS == 1:  # x has only float16 precision
            y = tl.dot(n_hi, x_hi, x + tl.dot(n_lo, x_hi) * (1 / 2048))
        else:
            y = x + dot_halves(n_hi, n_lo, x_hi, x_lo)
        x = tl.dot(x_hi, tl.where(rows == columns, 1.0 - y, -y).to(tl.float16), x)
    return x


@triton.jit
def times(x, y, PRECISE: tl.constexpr):
    """x @ y of float32 of moderate size, to 22 bits if `PRECISE`, otherwise to 11."""
    return dot_split(x, y) if PRECISE else tl.dot(x.to(tl.float16), y.to(tl.float16))


@triton.jit
def prepare_kernel(
    K, W, BETA, U, Z, NODES, INVERSE,
    length, kv_heads, kv_row, w_row, all_blocks,
    D: tl.constexpr, DP: tl.constexpr, R: tl.constexpr, KEEP_INVERSE: tl.constexpr,
):  # fmt: skip
    """UT form of one block: U, Z and its product."""
    pid, n, block = key_block(all_blocks)
    b, h = n // kv_heads, n % kv_heads
    rows = block * 64 + tl.arange(0, 64)
    w = load_tokens(W, b, h, rows, length, w_row, D, DP)
    beta = tl.load(BETA + (b * length + rows) * w_row + h, mask=rows < length, other=0.0)
    below = tl.arange(0, 64)[:, None] > tl.arange(0, 64)[None, :]
    # The float16 error of products is far below the rounding error of bfloat16, but not below that of float16.
    dtype: tl.constexpr = K.dtype.element_ty
    steps: tl.constexpr = 2 if dtype == tl.float32 else 1 if dtype == tl.float16 else 0
    # Computed before the inverse, so that w and k do not occupy registers meanwhile.
    y = tl.where(below, dot(w, tl.trans(load_tokens(K, b, h, rows, length, kv_row, D, DP))), 0.0)
    y = y.to(tl.float32 if steps > 0 else tl.float16)
    inverse = unit_lower_inverse(tl.where(below, beta[:, None] * dot(w, tl.trans(w)), 0.0), steps)
    square = tile(pid * 64 * 64, 64, 64)
    if KEEP_INVERSE:
        tl.store(INVERSE + square, inverse.to(INVERSE.dtype.element_ty))
    inverse *= beta[None, :]
    z = times(inverse, y, steps > 0)
    tl.store(Z + square, z.to(Z.dtype.element_ty))
    # Computed by columns, so that few tiles are live at a time.
    local, step_at = tl.arange(0, 64), (pid // R * (2 * R - 1) + pid % R) * DP * DP
    for part in tl.static_range(DP // 64):
        mine = local[:, None] * DP + part * 64 + local[None, :]
        w_part = load_columns(W, b, h, rows, length, w_row, part, D)
        low = w_part.to(U.dtype.element_ty)
        u = times(inverse, w_part.to(tl.float32), steps > 0).to(U.dtype.element_ty)
        tl.store(U + pid * 64 * DP + mine, u)
        for across in tl.static_range(DP // 64):
            if DP > 64:
                low = load_columns(W, b, h, rows, length, w_row, across, D).to(u.dtype)
            step = dot(tl.trans(low), u)
            step = tl.where((local[:, None] == local[None, :]) & (across == part), 1.0 - step, -step)
            tl.store(NODES + step_at + across * 64 * DP + mine, step.to(NODES.dtype.element_ty))


@triton.jit
def nodes_kernel(NODES, level, DP: tl.constexpr, R: tl.constexpr, ROWS: tl.constexpr, FOUR: tl.constexpr):
    """Rows of the products of four neighbours at `level` (both pairs, and all four), or of two neighbours."""
    pid = tl.program_id(0).to(tl.int64)
    parts: tl.constexpr = DP // ROWS
    children: tl.constexpr = 4 if FOUR else 2
    part, pid = pid % parts, pid // parts
    groups = (R >> level) // children
    group = (pid % groups).to(tl.int32)
    NODES += pid // groups * (2 * R - 1) * DP * DP
    mine = (part * ROWS + tl.arange(0, ROWS))[:, None] * DP + tl.arange(0, DP)[None, :]
    child = NODES + (2 * R - ((2 * R) >> level) + group * children) * DP * DP
    pair = NODES + (2 * R - ((2 * R) >> (level + 1)) + group * (children // 2)) * DP * DP
    x = dot(tl.load(child + DP * DP + mine), tl.load(tile(child, DP, DP)))
    tl.store(pair + mine, x.to(NODES.dtype.element_ty))
    if FOUR:
        x = dot(tl.load(child + 3 * DP * DP + mine), tl.load(tile(child + 2 * DP * DP, DP, DP)))
        tl.store(pair + DP * DP + mine, x.to(NODES.dtype.element_ty))
        x = dot(x, tl.load(tile(child + DP * DP, DP, DP)))
        x = dot(x, tl.load(tile(child, DP, DP)))
        all_four = NODES + (2 * R - ((2 * R) >> (level + 2)) + group) * DP * DP
        tl.store(all_four + mine, x.to(NODES.dtype.element_ty))


@triton.jit
def push_kernel(
    K, W, Z, NODES, KEYS, K_BAR,
    length, kv_heads, kv_row, w_row, all_blocks,
    D: tl.constexpr, DP: tl.constexpr, R: tl.constexpr, LEVELS: tl.constexpr, FAR: tl.constexpr,
):  # fmt: skip
    """Keys of one block pushed to the ends of the left nodes that contain it, and to the end of their chunk."""
    pid, n, block = key_block(all_blocks)
    if block * 64 >= length:
        return
    b, h = n // kv_heads, n % kv_heads
    rows = block * 64 + tl.arange(0, 64)
    k = load_tokens(K, b, h, rows, length, kv_row, D, DP)
    w = load_tokens(W, b, h, rows, length, w_row, D, DP)
    z = tl.load(Z + tile(pid * 64 * 64, 64, 64))
    low = (k.to(tl.float32) - dot(tl.trans(z), w.to(z.dtype))).to(z.dtype)
    j, chunk = block % R, pid // R
    NODES, KEYS = nodes_at(NODES, chunk, R, DP), slots_at(KEYS, chunk, R, LEVELS, DP)
    bits = (R - 1) & ~j
    for _ in range(count_of(bits, LEVELS)):
        bit = bits & -bits
        level = level_of(bit, LEVELS)
        tl.store(KEYS + slot_tile(j, level, R, DP), low.to(KEYS.dtype.element_ty))
        sibling = tl.load(NODES + node_tile(j + bit, level, R, DP))
        low = dot(low, tl.trans(sibling)).to(low.dtype)
        bits -= bit
    if FAR:
        tl.store(K_BAR + tile(pid * 64 * DP, 64, DP), low.to(K_BAR.dtype.element_ty))


@triton.jit
def pairs_kernel(NODES, M, chunks, pairs, DP: tl.constexpr, R: tl.constexpr, ROWS: tl.constexpr):
    """Rows of the products between one chunk and each earlier chunk."""
    pid = tl.program_id(0).to(tl.int64)
    parts: tl.constexpr = DP // ROWS
    part, chunk = pid % parts, pid // parts
    n, c = chunk // chunks, (chunk % chunks).to(tl.int32)
    mine, columns = part * ROWS + tl.arange(0, ROWS), tl.arange(0, DP)
    x = tl.where(mine[:, None] == columns[None, :], 1.0, 0.0)
    for back in range(c):
        e = c - 1 - back
        at = (n * pairs + c * (c - 1) // 2 + e) * DP * DP + mine[:, None] * DP + columns[None, :]
        tl.store(M + at, x.to(M.dtype.element_ty))
        x = dot(x, tl.load(NODES + tile(((n * chunks + e) * (2 * R - 1) + 2 * R - 2) * DP * DP, DP, DP)))


class Prepared(NamedTuple):
    """Preprocessed blocks and nodes, in float16 for 16-bit inputs.

    Keys for a backward pass keep their dtype instead: they are multiplied by gradients, which may overflow float16.
    """

    u: Tensor  # [N, Tp, DP]
    z: Tensor  # [N, Tp, 64]
    nodes: Tensor  # [N, n, 2 R - 1, DP, DP], products of nodes: R blocks, R / 2 pairs, ... the chunk
    keys: Tensor  # [N, n, levels, R / 2, 64, DP], keys pushed to the ends of left nodes
    k_bar: Tensor | None  # [N, Tp, DP], keys pushed to the ends of chunks; None unless `Sizes.far`
    inverse: Tensor | None  # [N, Tp, 64], for a backward pass


def empty(like: Tensor, sizes: Sizes, backward: bool = True) -> Prepared:
    """Uninitialised tensors on the device of `like`."""
    n, tokens, width, r = sizes.batch * sizes.kv_heads, sizes.padded, sizes.width, sizes.blocks
    chain = torch.float32 if like.dtype == torch.float32 else torch.float16
    u, z, nodes = (
        like.new_empty(n, *shape, dtype=chain)
        for shape in ((tokens, width), (tokens, BLOCK), (sizes.chunks, 2 * r - 1, width, width))
    )
    keys = u.new_empty(n, sizes.chunks, sizes.levels, r // 2, BLOCK, width, dtype=like.dtype if backward else chain)
    k_bar = torch.empty_like(u, dtype=keys.dtype) if sizes.far else None
    return Prepared(u, z, nodes, keys, k_bar, torch.empty_like(z) if backward else None)


def prepare(k: Tensor, w: Tensor, beta: Tensor, sizes: Sizes, backward: bool = False) -> Prepared:
    """Preprocess `k, w [B, T, Hkv, D]` and float32 `beta [B, T, Hkv]` in the layout of `layout.in_rows`."""
    prepared = empty(k, sizes, backward)
    block_forms(k, w, beta, prepared, sizes)
    products_of_nodes(prepared.nodes, sizes)
    push_keys(k, w, prepared, sizes)
    return prepared


@functools.lru_cache(LAYOUTS)
def block_launch(sizes: Sizes, exact: bool, keep_inverse: bool) -> Launch:
    """The launch of `prepare_kernel`."""
    settings = sizes.named("length", "kv_heads", "kv_row", "w_row", "all_blocks") | sizes.constants("D", "DP", "R")
    settings |= {"KEEP_INVERSE": keep_inverse, "num_warps": 4, "num_stages": 1, "maxnreg": None if exact else 128}
    return Launch(prepare_kernel, ((sizes.batch * sizes.kv_heads * sizes.all_blocks,), settings))


@functools.lru_cache(LAYOUTS)
def node_launches(sizes: Sizes) -> list[Launch]:
    """The launches of `nodes_kernel`, two levels at a time."""
    trees, rows, far, level = sizes.batch * sizes.kv_heads * sizes.chunks, min(sizes.width, 64), sizes.far, 0
    found = []
    while (left := sizes.blocks >> level) > (1 if far else 2):  # the product of a single chunk is rarely needed
        four = left > (2 if far else 4)
        grid = (trees * (left // (4 if four else 2)) * (sizes.width // rows),)
        settings = {"level": level, **sizes.constants("DP", "R"), "ROWS": rows, "FOUR": four}
        found.append(Launch(nodes_kernel, (grid, settings | {"num_warps": 4, "num_stages": 1})))
        level += 2 if four else 1
    return found


@functools.lru_cache(LAYOUTS)
def push_launch(sizes: Sizes) -> Launch:
    """The launch of `push_kernel`."""
    settings = sizes.named("length", "kv_heads", "kv_row", "w_row", "all_blocks")
    settings |= sizes.constants("D", "DP", "R", "LEVELS", "FAR") | {"num_warps": 4, "num_stages": 1}
    return Launch(push_kernel, ((sizes.batch * sizes.kv_heads * sizes.all_blocks,), settings))


@functools.lru_cache(LAYOUTS)
def pair_launch(sizes: Sizes) -> Launch:
    """The launch of `pairs_kernel`."""
    rows = min(sizes.width, 64)
    settings = {**sizes.named("chunks", "pairs"), **sizes.constants("DP", "R"), "ROWS": rows}
    grid = (sizes.batch * sizes.kv_heads * sizes.chunks * (sizes.width // rows),)
    return Launch(pairs_kernel, (grid, settings | {"num_warps": 4, "num_stages": 2}))


def block_forms(k: Tensor, w: Tensor, beta: Tensor, prepared: Prepared, sizes: Sizes) -> None:
    """Fill u, z, the block products in `nodes`, and the inverses if they are saved."""
    block_launch(sizes, k.dtype == torch.float32, prepared.inverse is not None)(
        K=k, W=w, BETA=beta, U=prepared.u, Z=prepared.z, NODES=prepared.nodes, INVERSE=prepared.inverse
    )


def products_of_nodes(nodes: Tensor, sizes: Sizes) -> None:
    """Fill the nodes above the blocks."""
    for launch in node_launches(sizes):
        launch(NODES=nodes)


def push_keys(k: Tensor, w: Tensor, prepared: Prepared, sizes: Sizes) -> None:
    """Fill keys and k_bar."""
    push_launch(sizes)(K=k, W=w, Z=prepared.z, NODES=prepared.nodes, KEYS=prepared.keys, K_BAR=prepared.k_bar)


def pairs_of(nodes: Tensor, sizes: Sizes, dtype: torch.dtype) -> Tensor:
    """Products between every two chunks, `[N, pairs, DP, DP]`. The pair (c, e) has index c (c - 1) / 2 + e."""
    m = nodes.new_empty(sizes.batch * sizes.kv_heads, sizes.pairs, sizes.width, sizes.width, dtype=dtype)
    if sizes.pairs:
        pair_launch(sizes)(NODES=nodes, M=m)
    return m
