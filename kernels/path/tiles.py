"""Tiles of PaTH's kernels: how they are read and multiplied."""

import triton
import triton.language as tl


@triton.jit
def dot(x, y):
    """x @ y in the dtype of y; float32 stays as precise as float32."""
    return tl.dot(x.to(y.dtype), y, input_precision="tf32x3")


@triton.jit
def halves(x):
    """float32 of moderate size as two float16. The lower is held 2^11 times larger: else it would be subnormal."""
    high = x.to(tl.float16)
    return high, ((x - high.to(tl.float32)) * 2048).to(tl.float16)


@triton.jit
def dot_halves(x_hi, x_lo, y_hi, y_lo):
    """x @ y as precise as 22 bits, in three products."""
    return tl.dot(x_hi, y_hi) + tl.dot(x_lo, y_hi, tl.dot(x_hi, y_lo)) * (1 / 2048)


@triton.jit
def dot_split(x, y):
    """The same of float32 x and y."""
    x_hi, x_lo = halves(x)
    y_hi, y_lo = halves(y)
    return dot_halves(x_hi, x_lo, y_hi, y_lo)


@triton.jit
def unit_rows(x):
    """Rows of a gradient brought to at most 1, so that float16 holds them, and their sizes `[rows, 1]`."""
    size = tl.max(tl.abs(x), 1)
    size = tl.where(size > 1e-37, size, 1.0)[:, None]
    return x * (1 / size), size


@triton.jit
def load_tokens(X, b, h, rows, length, row, SIZE: tl.constexpr, PADDED: tl.constexpr):
    """`[rows, PADDED]` of head `h` of `X [B, T, heads, SIZE]`, whose tokens are `row` heads apart; zero beyond it."""
    columns = tl.arange(0, PADDED)
    mask = (rows[:, None] < length) & (columns[None, :] < SIZE)
    at = head_at(X, b, h, length, row, SIZE) + rows[:, None].to(tl.int64) * (row * SIZE) + columns[None, :]
    return tl.load(at, mask=mask, other=0.0)


@triton.jit
def load_columns(X, b, h, rows, length, row, part, SIZE: tl.constexpr):
    """64 columns of the same, from 64 part on."""
    columns = part * 64 + tl.arange(0, 64)
    mask = (rows[:, None] < length) & (columns[None, :] < SIZE)
    at = head_at(X, b, h, length, row, SIZE) + rows[:, None].to(tl.int64) * (row * SIZE) + columns[None, :]
    return tl.load(at, mask=mask, other=0.0)


@triton.jit
def store_tokens(X, b, h, rows, length, row, SIZE: tl.constexpr, x):
    """`x [rows, PADDED]` to the same."""
    columns = tl.arange(0, x.shape[1])
    mask = (rows[:, None] < length) & (columns[None, :] < SIZE)
    at = head_at(X, b, h, length, row, SIZE) + rows[:, None].to(tl.int64) * (row * SIZE) + columns[None, :]
    tl.store(at, x, mask=mask)


@triton.jit
def load_block(
    base, start, length, stride, ROWS: tl.constexpr, SIZE: tl.constexpr, PADDED: tl.constexpr, INSIDE: tl.constexpr
):
    """ROWS tokens from `start` on of the head at `base`, for inner loops: nothing is masked that needs no mask."""
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
def head_at(X, b, h, length, row, SIZE: tl.constexpr):
    """Where head `h` of sequence `b` of a tensor of the caller's begins."""
    return X + (b * length * row + h) * SIZE


@triton.jit
def query_head(bh, heads, kv_heads):
    """Sequence, head, key head, and which of the key heads of all sequences, of query head `bh` of all."""
    b, h = bh // heads, bh % heads
    hk = h // (heads // kv_heads)
    return b, h, hk, b * kv_heads + hk


@triton.jit
def key_block(all_blocks):
    """Which of all key heads' blocks a program takes; the key head and its block."""
    pid = tl.program_id(0).to(tl.int64)
    return pid, pid // all_blocks, (pid % all_blocks).to(tl.int32)


@triton.jit
def tile(base, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Pointers to a contiguous matrix."""
    return base + tl.arange(0, ROWS)[:, None] * COLUMNS + tl.arange(0, COLUMNS)[None, :]


@triton.jit
def level_of(bits, LEVELS: tl.constexpr):
    """The highest bit set in `bits`, which are fewer than LEVELS."""
    level = bits * 0
    for other in tl.static_range(1, LEVELS):
        level += ((bits >> other) > 0).to(tl.int32)
    return level


@triton.jit
def count_of(bits, LEVELS: tl.constexpr):
    """How many of `bits` are set."""
    count = bits * 0
    for level in tl.static_range(LEVELS):
        count += (bits >> level) & 1
    return count


@triton.jit
def slot_of(block, level, R: tl.constexpr):
    """Where what a node at `level` keeps of its `block` stands, among LEVELS R / 2 of a chunk: one of two siblings."""
    return level * (R // 2) + (((block >> (level + 1)) << level) | (block & ((1 << level) - 1)))


@triton.jit
def node_of(block, level, R: tl.constexpr):
    """Where the product of the node at `level` that holds `block` stands, among 2 R - 2 of a chunk."""
    return 2 * R - ((2 * R) >> level) + (block >> level)


@triton.jit
def slots_at(X, chunk, R: tl.constexpr, LEVELS: tl.constexpr, DP: tl.constexpr):
    """Where what a chunk's nodes keep of its blocks begins."""
    return X + chunk * (LEVELS * (R // 2)) * 64 * DP


@triton.jit
def slot_tile(block, level, R: tl.constexpr, DP: tl.constexpr):
    """Offsets `[64, DP]` from there."""
    return tile(slot_of(block, level, R) * 64 * DP, 64, DP)


@triton.jit
def nodes_at(X, chunk, R: tl.constexpr, DP: tl.constexpr):
    """Where the products of a chunk's nodes begin."""
    return X + chunk * (2 * R - 1) * DP * DP


@triton.jit
def node_tile(block, level, R: tl.constexpr, DP: tl.constexpr):
    """Offsets `[DP, DP]` from there."""
    return tile(node_of(block, level, R) * DP * DP, DP, DP)


@triton.jit
def place_of(pid, blocks, together):
    """Which of a head's `blocks` a program takes, and which head: `together` heads at a time, one block of all of them
    behind the other. Few heads share L2 with few; all of them let all long walks start before the short ones.
    """
    many = together * blocks
    size = tl.minimum(together, tl.num_programs(0) // blocks - pid // many * together)
    return pid % many // size, (pid // many * together + pid % many % size).to(tl.int64)
