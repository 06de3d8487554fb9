"""Preprocessing of the PaTH kernels: UT form of every block, products and pushed keys of every chunk.

The scheme has two levels (its plain model, forward and backward, is tests/path_model.py): inside a block of 64 tokens
the UT transform of kernels/path.py; R blocks make a chunk, whose product P pulls a query over all its tokens at once.

Shapes inside: N = B Hkv, tokens padded to whole chunks, D padded to a power of two (zero columns change nothing).
What a chain passes through is kept as `hi + lo`, two tensors of the inputs' 16-bit dtype: a chain rounded to
bfloat16 at each step would drift. float32 inputs have `hi` alone.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 64


class Sizes(NamedTuple):
    """All sizes of one call.

    Attributes:
        blocks: R, blocks a chunk.
        chunks: n, chunks a sequence.
        width, value_width: D and Dv padded to powers of two, at least 16.
    """

    batch: int
    length: int
    heads: int
    kv_heads: int
    head_dim: int
    value_dim: int
    blocks: int
    chunks: int
    width: int
    value_width: int

    @property
    def padded(self) -> int:
        """Tokens of whole chunks."""
        return self.chunks * self.blocks * BLOCK

    @property
    def pairs(self) -> int:
        """Pairs of different chunks."""
        return self.chunks * (self.chunks - 1) // 2


def sizes_of(q: Tensor, k: Tensor, v: Tensor, longest: int = 8) -> Sizes:
    """A sequence that fits is one chunk; others have chunks of `longest` blocks."""
    batch, length, heads, head_dim = q.shape
    blocks = min(triton.next_power_of_2(triton.cdiv(length, BLOCK)), longest)
    chunks = triton.cdiv(length, blocks * BLOCK)
    width, value_width = (max(triton.next_power_of_2(size), 16) for size in (head_dim, v.shape[-1]))
    return Sizes(batch, length, heads, k.shape[2], head_dim, v.shape[-1], blocks, chunks, width, value_width)


@triton.jit
def dot(x, y):
    """x @ y in the dtype of y; float32 stays as precise as float32."""
    return tl.dot(x.to(y.dtype), y, input_precision="tf32x3")


@triton.jit
def dot_exact(x, y):
    """float32 x @ y without rounding x to 16 bits."""
    if y.dtype == tl.float32:
        return tl.dot(x, y, input_precision="tf32x3")
    else:
        top = x.to(y.dtype)
        rest = (x - top.to(tl.float32)).to(y.dtype)
        return tl.dot(top, y, tl.dot(rest, y))


@triton.jit
def dot_split(x, hi, lo):
    """float32 x @ (hi + lo), without rounding either to 16 bits."""
    if hi.dtype == tl.float32:
        return tl.dot(x, hi, input_precision="tf32x3")
    else:
        top = x.to(hi.dtype)
        rest = (x - top.to(tl.float32)).to(hi.dtype)
        return tl.dot(top, hi, tl.dot(rest, hi, tl.dot(top, lo)))


@triton.jit
def load_tokens(base, rows, length, stride, SIZE: tl.constexpr, PADDED: tl.constexpr):
    """`[rows, PADDED]` of a tensor of the caller's, zero beyond its tokens and columns."""
    columns = tl.arange(0, PADDED)
    mask = (rows[:, None] < length) & (columns[None, :] < SIZE)
    return tl.load(base + rows[:, None].to(tl.int64) * stride + columns[None, :], mask=mask, other=0.0)


@triton.jit
def load_block(
    base, start, length, stride, ROWS: tl.constexpr, SIZE: tl.constexpr, PADDED: tl.constexpr, INSIDE: tl.constexpr
):
    """The same for ROWS tokens from `start` on, for inner loops: nothing is masked that needs no mask."""
    local, columns = tl.arange(0, ROWS), tl.arange(0, PADDED)
    pointers = base + tl.cast(start, tl.int64) * stride + local[:, None] * stride + columns[None, :]
    if INSIDE:
        if SIZE == PADDED:
            return tl.load(pointers)
        else:
            return tl.load(pointers, mask=columns[None, :] < SIZE, other=0.0)
    else:
        return tl.load(pointers, mask=(start + local[:, None] < length) & (columns[None, :] < SIZE), other=0.0)


@triton.jit
def tile(base, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Pointers to a contiguous matrix."""
    return base + tl.arange(0, ROWS)[:, None] * COLUMNS + tl.arange(0, COLUMNS)[None, :]


@triton.jit
def store_split(hi, lo, at, x):
    """x as hi + lo at the pointers `hi + at`, `lo + at`."""
    top = x.to(hi.dtype.element_ty)
    tl.store(hi + at, top)
    if hi.dtype.element_ty != tl.float32:
        tl.store(lo + at, (x - top.to(tl.float32)).to(top.dtype))


@triton.jit
def unit_lower_inverse(n):
    """(I + n)^-1 of a strictly lower `n [64, 64]`: substitution in 16 x 16 blocks; for those below them E^4 = 0."""
    fours, sixteens, rows = tl.arange(0, 4), tl.arange(0, 16), tl.arange(0, 64)
    same = (fours[:, None] == fours[None, :])[:, None, :, None]
    small = tl.sum(tl.where(same, tl.reshape(n, (4, 16, 4, 16)), 0.0), 2)
    x = -small
    for i in range(2, 16):
        here = (sixteens == i)[None, :, None]
        row = tl.sum(tl.where(here, small, 0.0), 1)
        new = -(row + tl.sum(row[:, :, None] * x, 1))
        x = tl.where(here, new[:, None, :], x)
    identity = tl.where(rows[:, None] == rows[None, :], 1.0, 0.0)
    diagonal = tl.reshape(tl.where(same, x[:, :, None, :], 0.0), (64, 64)) + identity
    below = tl.where(rows[:, None] // 16 > rows[None, :] // 16, n, 0.0)
    e = tl.dot(diagonal, below, input_precision="tf32x3")
    squared = tl.dot(e, e, input_precision="tf32x3")
    left = identity - e
    left += tl.dot(left, squared, input_precision="tf32x3")
    return tl.dot(left, diagonal, input_precision="tf32x3")


@triton.jit
def prepare_kernel(
    K, W, BETA, U, U_LO, Z, Z_LO, K_END, INVERSE,
    length, kv_heads, all_blocks,
    D: tl.constexpr, DP: tl.constexpr, KEEP_INVERSE: tl.constexpr,
):  # fmt: skip
    """UT form of one block: U, Z, and its keys pushed to its end."""
    pid = tl.program_id(0).to(tl.int64)
    n, block = pid // all_blocks, pid % all_blocks
    b, h = n // kv_heads, n % kv_heads
    rows = (block * 64 + tl.arange(0, 64)).to(tl.int32)
    outside, stride = (b * length * kv_heads + h) * D, kv_heads * D
    k = load_tokens(K + outside, rows, length, stride, D, DP)
    w = load_tokens(W + outside, rows, length, stride, D, DP)
    beta = tl.load(BETA + (b * length + rows) * kv_heads + h, mask=rows < length, other=0.0)
    below = tl.arange(0, 64)[:, None] > tl.arange(0, 64)[None, :]
    inverse = unit_lower_inverse(tl.where(below, beta[:, None] * dot(w, tl.trans(w)), 0.0))
    y = tl.where(below, beta[:, None] * dot(w, tl.trans(k)), 0.0)
    u = tl.dot(inverse, beta[:, None] * w.to(tl.float32), input_precision="tf32x3")
    z = tl.dot(inverse, y, input_precision="tf32x3")
    k_end = k.to(tl.float32) - dot_exact(tl.trans(z), w)
    wide, square = tile(pid * 64 * DP, 64, DP), tile(pid * 64 * 64, 64, 64)
    store_split(U, U_LO, wide, u)
    store_split(Z, Z_LO, square, z)
    tl.store(K_END + wide, k_end.to(K_END.dtype.element_ty))
    if KEEP_INVERSE:
        tl.store(INVERSE + square, inverse)


@triton.jit
def compose_kernel(
    W, U, U_LO, K_END, K_BAR, P, P_LO, AFTER,
    length, kv_heads, chunks,
    D: tl.constexpr, DP: tl.constexpr, R: tl.constexpr, ROWS: tl.constexpr, KEEP_AFTER: tl.constexpr,
):  # fmt: skip
    """Rows of one chunk's product, pulled block by block from its end; columns of its keys, pushed to its end."""
    pid = tl.program_id(0).to(tl.int64)
    parts: tl.constexpr = DP // ROWS
    part, chunk = pid % parts, pid // parts
    n, c = chunk // chunks, chunk % chunks
    b, h = n // kv_heads, n % kv_heads
    mine, columns = part * ROWS + tl.arange(0, ROWS), tl.arange(0, DP)
    x = tl.where(mine[:, None] == columns[None, :], 1.0, 0.0)
    for back in range(R):
        j = R - 1 - back
        rows = (c * R + j).to(tl.int32) * 64 + tl.arange(0, 64)
        at = tile((chunk * R + j) * 64 * DP, 64, DP)
        w = load_tokens(W + (b * length * kv_heads + h) * D, rows, length, kv_heads * D, D, DP)
        u, u_lo, k_end = tl.load(U + at), tl.load(U_LO + at), tl.load(K_END + at)
        pushed = tl.trans(dot_exact(x, tl.trans(k_end)))
        where = (chunk * R + j) * 64 * DP + tl.arange(0, 64)[:, None] * DP + mine[None, :]
        tl.store(K_BAR + where, pushed.to(K_BAR.dtype.element_ty))
        if KEEP_AFTER:
            kept = (chunk * R + j) * DP * DP + mine[:, None] * DP + columns[None, :]
            tl.store(AFTER + kept, x.to(AFTER.dtype.element_ty))
        x -= dot_split(dot_exact(x, tl.trans(w)), u, u_lo)
    store_split(P, P_LO, chunk * DP * DP + mine[:, None] * DP + columns[None, :], x)


@triton.jit
def pairs_kernel(P, P_LO, M, chunks, pairs, DP: tl.constexpr, ROWS: tl.constexpr):
    """Rows of the products between one chunk and each earlier one."""
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
        product = tile((n * chunks + e) * DP * DP, DP, DP)
        x = dot_split(x, tl.load(P + product), tl.load(P_LO + product))


class Prepared(NamedTuple):
    """What queries and keys need of blocks and chunks; `*_lo` of float32 are their `hi` and unread."""

    u: Tensor  # [N, Tp, DP]
    u_lo: Tensor
    z: Tensor  # [N, Tp, 64]
    z_lo: Tensor
    k_end: Tensor  # [N, Tp, DP], keys at their block's end
    k_bar: Tensor  # [N, Tp, DP], at their chunk's end
    p: Tensor  # [N, n, DP, DP]
    p_lo: Tensor
    inverse: Tensor | None  # [N, Tp, 64] in float32
    after: Tensor | None  # [N, nb, DP, DP], products of the blocks behind each in its chunk


def prepare(k: Tensor, w: Tensor, beta: Tensor, sizes: Sizes, backward: bool = False) -> Prepared:
    """Of contiguous `k, w [B, T, Hkv, D]` and float32 `beta [B, T, Hkv]`; with what only a `backward` pass needs."""
    n, tokens, width = sizes.batch * sizes.kv_heads, sizes.padded, sizes.width

    def halves(*shape: int) -> tuple[Tensor, Tensor]:
        hi = k.new_empty(shape)
        return hi, hi if k.dtype == torch.float32 else k.new_empty(shape)

    (u, u_lo), (z, z_lo), (p, p_lo) = (
        halves(n, tokens, width),
        halves(n, tokens, BLOCK),
        halves(n, sizes.chunks, width, width),
    )
    k_end, k_bar = k.new_empty(n, tokens, width), k.new_empty(n, tokens, width)
    all_blocks = sizes.chunks * sizes.blocks
    inverse = after = None
    if backward:
        inverse = k.new_empty(n, tokens, BLOCK, dtype=torch.float32)
        after = k.new_empty(n, all_blocks, width, width)
    prepare_kernel[(n * all_blocks,)](
        k, w, beta, u, u_lo, z, z_lo, k_end, inverse,
        sizes.length, sizes.kv_heads, all_blocks,
        D=sizes.head_dim, DP=width, KEEP_INVERSE=backward, num_warps=4, num_stages=1,
    )  # fmt: skip
    rows = min(width, 64)
    compose_kernel[(n * sizes.chunks * (width // rows),)](
        w, u, u_lo, k_end, k_bar, p, p_lo, after,
        sizes.length, sizes.kv_heads, sizes.chunks,
        D=sizes.head_dim, DP=width, R=sizes.blocks, ROWS=rows, KEEP_AFTER=backward, num_warps=4, num_stages=1,
    )  # fmt: skip
    return Prepared(u, u_lo, z, z_lo, k_end, k_bar, p, p_lo, inverse, after)


def pairs_of(prepared: Prepared, sizes: Sizes) -> Tensor:
    """Products between every two chunks `[N, pairs, DP, DP]`; the pair (c, e) stands at c (c - 1) / 2 + e."""
    n, width, rows = sizes.batch * sizes.kv_heads, sizes.width, min(sizes.width, 64)
    m = prepared.p.new_empty(n, sizes.pairs, width, width)
    if sizes.pairs:
        pairs_kernel[(n * sizes.chunks * (width // rows),)](
            prepared.p, prepared.p_lo, m, sizes.chunks, sizes.pairs, DP=width, ROWS=rows, num_warps=4, num_stages=1
        )
    return m
