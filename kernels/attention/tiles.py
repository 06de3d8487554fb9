"""Triton: loading tiles of rows, and the visible query-key pairs in tiles of flash attention."""

import triton
import triton.language as tl


@triton.jit
def rows_of(X, rows, stride, columns, inside, WIDTH: tl.constexpr, EVEN: tl.constexpr):
    """Load `[rows, columns]` of X, zero outside. `EVEN` means all rows exist; padding columns are always masked."""
    at = X + rows[:, None] * stride + columns[None, :]
    if EVEN and columns.shape[0] == WIDTH:
        x = tl.load(at)
    elif EVEN:
        x = tl.load(at, mask=(columns < WIDTH)[None, :], other=0.0)
    else:
        x = tl.load(at, mask=inside[:, None] & (columns < WIDTH)[None, :], other=0.0)
    return x


@triton.jit
def query_block(T, H, BM: tl.constexpr):
    """First query, sequence and head of a program that processes BM queries of one head. Longest rows come first."""
    blocks = tl.cdiv(T, BM)
    m0 = (blocks - 1 - tl.program_id(0) % blocks) * BM
    return m0, (tl.program_id(0) // blocks // H).to(tl.int64), (tl.program_id(0) // blocks % H).to(tl.int64)


@triton.jit
def keys_seen(
    STARTS, b, m0, last, inside, T, S, BM: tl.constexpr, BN: tl.constexpr, PACKED: tl.constexpr
):  # fmt: skip
    """The first visible key of each of BM queries from m0 on, and the range `begin` to `end` of keys for all of them.

    `last [BM]` are the last visible keys. Before `full` every query sees every key, so tiles need no mask.
    """
    past = S - T
    end = past + min(m0 + BM, T)
    begin, full = 0, (past + m0 + 1) // BN * BN
    first = last
    if PACKED:
        first = tl.load(STARTS + b * S + last, mask=inside, other=0)
        begin = tl.load(STARTS + b * S + past + m0) // BN * BN
        full = begin
    return first, begin, full, end


@triton.jit
def visible(key, last, first, PACKED: tl.constexpr):
    """Whether `key` is visible to a query that sees the keys from `first` to `last`."""
    seen = key <= last
    if PACKED:
        seen = seen & (key >= first)
    return seen
