"""Preprocessing of the PaTH kernels: UT form of every block, products and pushed keys of every chunk.

The scheme has two levels (its plain model, forward and backward, is tests/path_model.py): inside a block of 64 tokens
the UT transform of kernels/path.py; R blocks make a chunk, whose product P pulls a query over all its tokens at once.

Shapes inside: N = B Hkv, tokens padded to whole chunks, D padded to a power of two (zero columns change nothing).
What a chain of products passes through is in float16 where the inputs have 16 bits: reflections and their products
never exceed 2, and bfloat16, rounded at every step, would drift. float32 inputs stay float32 throughout.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from bearings.kernels.path_tiles import dot, dot_halves, dot_split, halves, load_columns, load_tokens, tile

BLOCK = 64


class Sizes(NamedTuple):
    """All sizes of one call.

    Attributes:
        blocks: R, blocks a chunk.
        chunks: n, chunks a sequence.
        width, value_width: D and Dv padded to powers of two, at least 64.
        q_row, kv_row: heads a token has in the caller's tensors, of which a call may take some.
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
    q_row: int
    kv_row: int

    @property
    def padded(self) -> int:
        """Tokens of whole chunks."""
        return self.chunks * self.blocks * BLOCK

    @property
    def pairs(self) -> int:
        """Pairs of different chunks."""
        return self.chunks * (self.chunks - 1) // 2


def sizes_of(q: Tensor, k: Tensor, v: Tensor, longest: int | None = None) -> Sizes:
    """A sequence that fits is one chunk; others have chunks of `longest` blocks.

    What the backward pass keeps of a token grows with T / longest^2 for pairs of chunks, with longest within chunks.
    """
    batch, length, heads, head_dim = q.shape
    if longest is None:
        longest = 8 if length <= 8192 else 16
    blocks = min(triton.next_power_of_2(triton.cdiv(length, BLOCK)), longest)
    chunks = triton.cdiv(length, blocks * BLOCK)
    width, value_width = (max(triton.next_power_of_2(size), 64) for size in (head_dim, v.shape[-1]))
    kv_heads = k.shape[2]
    plan = blocks, chunks, width, value_width, heads, kv_heads
    return Sizes(batch, length, heads, kv_heads, head_dim, v.shape[-1], *plan)


@triton.jit
def unit_lower_inverse(n, STEPS: tl.constexpr):
    """(I + n)^-1 of a strictly lower `n [64, 64]`, by merging diagonal blocks: no power of n ever grows.

    Beside the inverse x inside diagonal blocks of 2^l rows, that inside blocks of twice as many has -x n x between the
    halves of each, where l is the highest bit in which row and column differ. All in float16; each of Newton's steps,
    x + x (I - (I + n) x), then squares the error.
    """
    rows, columns = tl.arange(0, 64)[:, None], tl.arange(0, 64)[None, :]
    apart = rows ^ columns
    x = tl.where(apart == 0, 1.0, tl.where(apart == 1, -n, 0.0))
    low = n.to(tl.float16)
    for level in range(1, 6):  # not unrolled: else the matrix unit waits after every 16 channels for want of registers
        small = x.to(tl.float16)
        between = tl.dot(small, tl.dot(low, small).to(tl.float16))
        x = tl.where((apart >> level) == 1, -between, x)
    for _ in tl.static_range(STEPS):
        n_hi, n_lo = halves(n)
        x_hi, x_lo = halves(x)
        if STEPS == 1:  # from the rounded inverse, which is as good to begin with
            x = x_hi.to(tl.float32)
            y = tl.dot(n_hi, x_hi, x + tl.dot(n_lo, x_hi) * (1 / 2048))
        else:
            y = x + dot_halves(n_hi, n_lo, x_hi, x_lo)
        x = tl.dot(x_hi, tl.where(rows == columns, 1.0 - y, -y).to(tl.float16), x)
    return x


@triton.jit
def times(x, y, PRECISE: tl.constexpr):
    """x @ y of float32 of moderate size, to 22 bits or to 11."""
    return dot_split(x, y) if PRECISE else tl.dot(x.to(tl.float16), y.to(tl.float16))


@triton.jit
def prepare_kernel(
    K, W, BETA, U, Z, STEP, K_END, INVERSE,
    length, kv_heads, kv_row, all_blocks,
    D: tl.constexpr, DP: tl.constexpr, KEEP_INVERSE: tl.constexpr,
):  # fmt: skip
    """UT form of one block: U, Z, its product, and its keys pushed to its end."""
    pid = tl.program_id(0).to(tl.int64)
    n, block = pid // all_blocks, pid % all_blocks
    b, h = n // kv_heads, n % kv_heads
    rows = (block * 64 + tl.arange(0, 64)).to(tl.int32)
    outside, stride = (b * length * kv_row + h) * D, kv_row * D
    w = load_tokens(W + outside, rows, length, stride, D, DP)
    beta = tl.load(BETA + (b * length + rows) * kv_row + h, mask=rows < length, other=0.0)
    below = tl.arange(0, 64)[:, None] > tl.arange(0, 64)[None, :]
    # What the float16 of chains adds is far below one rounding of bfloat16, not of float16.
    dtype: tl.constexpr = K.dtype.element_ty
    steps: tl.constexpr = 2 if dtype == tl.float32 else 1 if dtype == tl.float16 else 0
    inverse = unit_lower_inverse(tl.where(below, beta[:, None] * dot(w, tl.trans(w)), 0.0), steps)
    square = tile(pid * 64 * 64, 64, 64)
    if KEEP_INVERSE:
        tl.store(INVERSE + square, inverse.to(INVERSE.dtype.element_ty))
    k = load_tokens(K + outside, rows, length, stride, D, DP)
    inverse *= beta[None, :]
    z = times(inverse, tl.where(below, dot(w, tl.trans(k)), 0.0), steps > 0).to(Z.dtype.element_ty)
    tl.store(Z + square, z)
    # By columns, so that few tiles live at a time.
    local = tl.arange(0, 64)
    for part in tl.static_range(DP // 64):
        mine = local[:, None] * DP + part * 64 + local[None, :]
        w_part = load_columns(W + outside, rows, length, stride, part, D)
        low = w_part.to(z.dtype)
        k_part = load_columns(K + outside, rows, length, stride, part, D).to(tl.float32)
        tl.store(K_END + pid * 64 * DP + mine, (k_part - dot(tl.trans(z), low)).to(K_END.dtype.element_ty))
        u = times(inverse, w_part.to(tl.float32), steps > 0).to(U.dtype.element_ty)
        tl.store(U + pid * 64 * DP + mine, u)
        for across in tl.static_range(DP // 64):
            if DP > 64:
                low = load_columns(W + outside, rows, length, stride, across, D).to(z.dtype)
            step = dot(tl.trans(low), u)
            step = tl.where((local[:, None] == local[None, :]) & (across == part), 1.0 - step, -step)
            tl.store(STEP + pid * DP * DP + across * 64 * DP + mine, step.to(STEP.dtype.element_ty))


@triton.jit
def compose_kernel(
    STEP, K_END, K_BAR, P, AFTER, DP: tl.constexpr, R: tl.constexpr, ROWS: tl.constexpr, KEEP_AFTER: tl.constexpr
):
    """Rows of one chunk's product, pulled block by block from its end; columns of its keys, pushed to its end."""
    pid = tl.program_id(0).to(tl.int64)
    parts: tl.constexpr = DP // ROWS
    part, chunk = pid % parts, pid // parts
    mine, columns = part * ROWS + tl.arange(0, ROWS), tl.arange(0, DP)
    x = tl.where(mine[:, None] == columns[None, :], 1.0, 0.0)
    for back in range(R):
        j = R - 1 - back
        k_end = tl.load(K_END + tile((chunk * R + j) * 64 * DP, 64, DP))
        pushed = dot(k_end, tl.trans(x.to(k_end.dtype)))
        where = (chunk * R + j) * 64 * DP + tl.arange(0, 64)[:, None] * DP + mine[None, :]
        tl.store(K_BAR + where, pushed.to(K_BAR.dtype.element_ty))
        if KEEP_AFTER:
            kept = (chunk * R + j) * DP * DP + mine[:, None] * DP + columns[None, :]
            tl.store(AFTER + kept, x.to(AFTER.dtype.element_ty))
        x = dot(x, tl.load(STEP + tile((chunk * R + j) * DP * DP, DP, DP)))
    tl.store(P + chunk * DP * DP + mine[:, None] * DP + columns[None, :], x.to(P.dtype.element_ty))


@triton.jit
def pairs_kernel(P, M, chunks, pairs, DP: tl.constexpr, ROWS: tl.constexpr):
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
        x = dot(x, tl.load(P + tile((n * chunks + e) * DP * DP, DP, DP)))


class Prepared(NamedTuple):
    """What queries and keys need of blocks and chunks. The chains' own are float16 for 16-bit inputs."""

    u: Tensor  # [N, Tp, DP]
    z: Tensor  # [N, Tp, 64]
    step: Tensor  # [N, nb, DP, DP], product of each block
    p: Tensor  # [N, n, DP, DP], of each chunk
    k_end: Tensor  # [N, Tp, DP], keys at their block's end
    k_bar: Tensor  # [N, Tp, DP], at their chunk's end
    inverse: Tensor | None  # [N, Tp, 64]
    after: Tensor | None  # [N, nb, DP, DP], products of the blocks behind each in its chunk


def prepare(k: Tensor, w: Tensor, beta: Tensor, sizes: Sizes, backward: bool = False) -> Prepared:
    """Of `k, w [B, T, Hkv, D]` and float32 `beta [B, T, Hkv]`, contiguous but for their heads.

    A `backward` pass multiplies keys by gradients, which float16 would not hold: they keep the dtype of k there.
    """
    n, tokens, width = sizes.batch * sizes.kv_heads, sizes.padded, sizes.width
    chain = torch.float32 if k.dtype == torch.float32 else torch.float16
    all_blocks = sizes.chunks * sizes.blocks
    squares = ((n, count, width, width) for count in (all_blocks, sizes.chunks))
    u, z, step, p = (k.new_empty(s, dtype=chain) for s in ((n, tokens, width), (n, tokens, BLOCK), *squares))
    k_end, k_bar = (k.new_empty(n, tokens, width, dtype=k.dtype if backward else chain) for _ in range(2))
    inverse = after = None
    if backward:
        inverse = torch.empty_like(z)
        after = k.new_empty(n, all_blocks, width, width)
    prepare_kernel[(n * all_blocks,)](
        k, w, beta, u, z, step, k_end, inverse,
        sizes.length, sizes.kv_heads, sizes.kv_row, all_blocks,
        D=sizes.head_dim, DP=width, KEEP_INVERSE=backward, num_warps=4, num_stages=1,
        maxnreg=None if chain == torch.float32 else 168,
    )  # fmt: skip
    rows = min(width, 64)
    compose_kernel[(n * sizes.chunks * (width // rows),)](
        step, k_end, k_bar, p, after,
        DP=width, R=sizes.blocks, ROWS=rows, KEEP_AFTER=backward, num_warps=4, num_stages=3 if width == 64 else 2,
    )  # fmt: skip
    return Prepared(u, z, step, p, k_end, k_bar, inverse, after)


def pairs_of(p: Tensor, sizes: Sizes, dtype: torch.dtype) -> Tensor:
    """Products between every two chunks `[N, pairs, DP, DP]`; the pair (c, e) stands at c (c - 1) / 2 + e."""
    n, width, rows = sizes.batch * sizes.kv_heads, sizes.width, min(sizes.width, 64)
    m = p.new_empty(n, sizes.pairs, width, width, dtype=dtype)
    if sizes.pairs:
        pairs_kernel[(n * sizes.chunks * (width // rows),)](
            p, m, sizes.chunks, sizes.pairs, DP=width, ROWS=rows, num_warps=4, num_stages=2
        )
    return m
