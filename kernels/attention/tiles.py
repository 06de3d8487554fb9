"""Triton: loading tiles of rows, and the visible query-key pairs in tiles of flash attention."""

import triton
import triton.language as tl

# Parts of the walk over tiles: every query sees every key and all biases are equal; every query sees every key; rest.
FAR, NEAR, MASKED = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2)


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
def last_seen(m0, rows, T, S, CAUSAL: tl.constexpr):
    """The last key that each query sees: T queries are at the last T of S positions, or with CAUSAL=False after all."""
    if CAUSAL:
        return S - T + m0 + rows
    else:
        return tl.full(rows.shape, 0, tl.int32) + (S - 1)


@triton.jit
def keys_seen(
    STARTS, b, m0, last, inside, T, S, BM: tl.constexpr, BN: tl.constexpr, LIMITED: tl.constexpr, CAUSAL: tl.constexpr
):  # fmt: skip
    """The first visible key of each of BM queries from m0 on, and key tiles `begin`, `clear`, `full` and `end`.

    `last [BM]` are the last visible keys. The queries see no key before `begin` or from `end` on. Every query sees
    every key from `clear` to `full`, so these tiles need no mask. Limits never decrease along a row.
    """
    past = S - T
    end = past + min(m0 + BM, T)
    begin, clear, full = 0, 0, (past + m0 + 1) // BN * BN
    first = last
    if not CAUSAL:
        full, end = S // BN * BN, S
    if LIMITED:
        STARTS += b * S
        first = tl.load(STARTS + last, mask=inside, other=0)
        begin = tl.load(STARTS + past + m0) // BN * BN
        clear = min(tl.cdiv(tl.load(STARTS + end - 1), BN) * BN, full)
    return first, begin, clear, full, end


@triton.jit
def tiles_of(part: tl.constexpr, begin, clear, near, full, end, LIMITED: tl.constexpr):
    """Begin and end of one part of the tiles of `keys_seen`. Biases before `near` are equal.

    The masked part leaves out the tiles from `clear` to `full`: its tiles from `clear` on are moved up by their length.
    """
    if part == FAR:
        low, high = clear, near
    elif part == NEAR:
        low, high = near, full
    elif LIMITED:
        low, high = begin, end - (full - clear)
    else:
        low, high = full, end
    return low, high


@triton.jit
def queries_seeing(
    ENDS, b, n0, T, S, BM: tl.constexpr, BN: tl.constexpr, LIMITED: tl.constexpr, CAUSAL: tl.constexpr
):  # fmt: skip
    """Query tiles `begin`, `full`, `clear` and `end` for BN keys from n0 on, the counterpart of `keys_seen`.

    No query before `begin` or from `end` on sees a key. Every query from `full` to `clear` sees every key.
    """
    past = S - T
    begin, end = max(n0 - past, 0) // BM * BM, T
    full = tl.cdiv(max(n0 + BN - 1 - past, 0), BM) * BM
    if not CAUSAL:
        begin, full = 0, 0
    clear = T
    if LIMITED:
        ENDS += b * S
        end = max(tl.load(ENDS + min(n0 + BN, S) - 1) - past, 0)
        clear = max(tl.load(ENDS + n0) - past, 0) // BM * BM
    full = min(full, tl.cdiv(end, BM) * BM)
    return begin, full, max(clear, full), end


@triton.jit
def query_tiles_of(part: tl.constexpr, begin, full, near, clear, end, LIMITED: tl.constexpr):
    """`tiles_of` for the tiles of `queries_seeing`. Biases from `near` on are equal."""
    if part == FAR:
        low, high = near, clear
    elif part == NEAR:
        low, high = full, near
    elif LIMITED:
        low, high = begin, end - (clear - full)
    else:
        low, high = begin, full
    return low, high


@triton.jit
def visible(key, last, first, LIMITED: tl.constexpr):
    """Whether `key` is visible to a query that sees the keys from `first` to `last`."""
    seen = key <= last
    if LIMITED:
        seen = seen & (key >= first)
    return seen
