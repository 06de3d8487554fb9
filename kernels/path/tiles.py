"""Loading, storing and multiplying tiles in the PaTH kernels."""

import triton
import triton.language as tl


@triton.jit
def dot(x, y):
    """x @ y in the dtype of y, with full precision for float32."""
    return tl.dot(x.to(y.dtype), y, input_precision="tf32x3")


@triton.jit
def halves(x):
    """Split float32 of moderate size into two float16. The lower is scaled by 2^11, otherwise it would be subnormal."""
    high = x.to(tl.float16)
    return high, ((x - high.to(tl.float32)) * 2048).to(tl.float16)


@triton.jit
def dot_halves(x_hi, x_lo, y_hi, y_lo):
    """x @ y with 22 bits of precision, from three float16 products."""
    return tl.dot(x_hi, y_hi) + tl.dot(x_lo, y_hi, tl.dot(x_hi, y_lo)) * (1 / 2048)


@triton.jit
def dot_split(x, y):
    """`dot_halves` for float32 x and y."""
    x_hi, x_lo = halves(x)
    y_hi, y_lo = halves(y)
    return dot_halves(x_hi, x_lo, y_hi, y_lo)


@triton.jit
def unit_rows(x):
    """Rows of a gradient scaled to at most 1, so that they fit float16, and their scales `[rows, 1]`."""
    size = tl.max(tl.abs(x), 1)
    size = tl.where(size > 1e-37, size, 1.0)[:, None]
    return x * (1 / size), size


@triton.jit
def load_tokens(X, b, h, rows, length, row, SIZE: tl.constexpr, PADDED: tl.constexpr):
    """Load `[rows, PADDED]` of head `h` of `X [B, T, heads, SIZE]` with a token stride of `row` heads; zero outside."""
    columns = tl.arange(0, PADDED)
    mask = (rows[:, None] < length) & (columns[None, :] < SIZE)
    at = head_at(X, b, h, length, row, SIZE) + rows[:, None].to(tl.int64) * (row * SIZE) + columns[None, :]
    return tl.load(at, mask=mask, other=0.0)


@triton.jit
def load_columns(X, b, h, rows, length, row, part, SIZE: tl.constexpr):
    """Load 64 columns of the same tensor, starting at 64 part."""
    columns = part * 64 + tl.arange(0, 64)
    mask = (rows[:, None] < length) & (columns[None, :] < SIZE)
    at = head_at(X, b, h, length, row, SIZE) + rows[:, None].to(tl.int64) * (row * SIZE) + columns[None, :]
    return tl.load(at, mask=mask, other=0.0)


@triton.jit
def store_tokens(X, b, h, rows, length, row, SIZE: tl.constexpr, x):
    """Store `x [rows, PADDED]` to a tensor of the same layout."""
    columns = tl.arange(0, x.shape[1])
    mask = (rows[:, None] < length) & (columns[None, :] < SIZE)
    at = head_at(X, b, h, length, row, SIZE) + rows[:, None].to(tl.int64) * (row * SIZE) + columns[None, :]
    tl.store(at, x, mask=mask)


@triton.jit
def load_block(
    base, start, length, stride, ROWS: tl.constexpr, SIZE: tl.constexpr, PADDED: tl.constexpr, INSIDE: tl.constexpr
):
    """Load ROWS tokens from `start` on of the head at `base`, in inner loops. Masks are used only where needed."""
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
    """Pointer to head `h` of sequence `b` of a caller's tensor."""
    return X + (b * length * row + h) * SIZE


@triton.jit
def query_head(bh, heads, kv_heads):
    """Sequence, head, key head, and index among key heads of all sequences, for index `bh` among all query heads."""
    b, h = bh // heads, bh % heads
    hk = h // (heads // kv_heads)
    return b, h, hk, b * kv_heads + hk


@triton.jit
def key_block(all_blocks):
    """Index of a program among the blocks of all key heads, its key head, and its block within that head."""
    pid = tl.program_id(0).to(tl.int64)
    return pid, pid // all_blocks, (pid % all_blocks).to(tl.int32)


@triton.jit
def tile(base, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Pointers to a contiguous matrix."""
    return base + tl.arange(0, ROWS)[:, None] * COLUMNS + tl.arange(0, COLUMNS)[None, :]


@triton.jit
def level_of(bits, LEVELS: tl.constexpr):
    """The index of the highest bit set in `bits`, which has at most LEVELS bits."""
    level = bits * 0
    for other in tl.static_range(1, LEVELS):
        level += ((bits >> other) > 0).to(tl.int32)
    return level


@triton.jit
def count_of(bits, LEVELS: tl.constexpr):
    """The number of bits set in `bits`."""
    count = bits * 0
    for level in tl.static_range(LEVELS):
        count += (bits >> level) & 1
    return count


@triton.jit
def slot_of(block, level, R: tl.constexpr):
    """Index of the stored keys or queries of `block` at `level`, among LEVELS R / 2 of a chunk.

    Half of the nodes at each level are used: keys are stored at left nodes, queries at right ones.
    """
    return level * (R // 2) + (((block >> (level + 1)) << level) | (block & ((1 << level) - 1)))


@triton.jit
def node_of(block, level, R: tl.constexpr):
    """Index of the product of the node at `level` that contains `block`, among the nodes of a chunk."""
    return 2 * R - ((2 * R) >> level) + (block >> level)


@triton.jit
def slots_at(X, chunk, R: tl.constexpr, LEVELS: tl.constexpr, DP: tl.constexpr):
    """Pointer to the stored keys or queries of a chunk."""
    return X + chunk * (LEVELS * (R // 2)) * 64 * DP


@triton.jit
def slot_tile(block, level, R: tl.constexpr, DP: tl.constexpr):
    """Offsets `[64, DP]` of one block from `slots_at`."""
    return tile(slot_of(block, level, R) * 64 * DP, 64, DP)


@triton.jit
def nodes_at(X, chunk, R: tl.constexpr, DP: tl.constexpr):
    """Pointer to the node products of a chunk."""
    return X + chunk * (2 * R - 1) * DP * DP


@triton.jit
def node_tile(block, level, R: tl.constexpr, DP: tl.constexpr):
    """Offsets `[DP, DP]` of one product from `nodes_at`."""
    return tile(node_of(block, level, R) * DP * DP, DP, DP)


@triton.jit
def place_of(pid, blocks, together):
    """The rank of a program among the `blocks` of its head, and its head.

    `together` heads are processed at a time: all of them at one block, then at the next. Few heads reuse the L2 cache
    better; many heads let long programs start before short ones.
    """
    many = together * blocks
    size = tl.minimum(together, tl.num_programs(0) // blocks - pid // many * together)
    return pid % many // size, (pid // many * together + pid % many % size).to(tl.int64)
