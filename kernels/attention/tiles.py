"""Triton: tiles of rows in memory, and which pairs of queries and keys flash attention's tiles hold."""

import triton
import triton.language as tl


@triton.jit
def rows_of(X, rows, stride, columns, inside, WIDTH: tl.constexpr, EVEN: tl.constexpr):
    """`[rows, columns]` of X, zero outside. `EVEN`: all rows exist; a padded width is masked in any case."""
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
    """First query, sequence and head of a program that owns BM queries of one head: the longest rows first."""
    blocks = tl.cdiv(T, BM)
    m0 = (blocks - 1 - tl.program_id(0) % blocks) * BM
    return m0, (tl.program_id(0) // blocks // H).to(tl.int64), (tl.program_id(0) // blocks % H).to(tl.int64)


@triton.jit
def keys_seen(
    STARTS, b, m0, last, inside, T, S, BM: tl.constexpr, BN: tl.constexpr, PACKED: tl.constexpr
):  # fmt: skip
    """Of BM queries from m0 on, whose last keys are `last [BM]`: the first key of each, and a range of keys for all.

    The range is from `begin` to `end`; before `full` each query sees every key, so that no tile needs a mask.
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
    """Whether a query whose keys are those from `first` to `last` sees `key`."""
    seen = key <= last
    if PACKED:
        seen = seen & (key >= first)
    return seen
