"""Sizes of one call of the PaTH kernels, and the division of its tokens into blocks and chunks."""

from typing import NamedTuple

import triton
from torch import Tensor

from .slices import SHORT

BLOCK = 64
# Maximum blocks per chunk, for several chunks and for a single one: see benchmarks/results/path_log.md.
LONGEST, LONGEST_SINGLE = 16, 64
WIDE_HEADS = 8  # at a time


class Sizes(NamedTuple):
    """All sizes of one call.

    Attributes:
        blocks: R, blocks per chunk.
        chunks: n, chunks per sequence.
        width, value_width: D and Dv padded to powers of two, at least 64.
        q_row, kv_row, out_row, w_row: heads per token in the caller's tensors, of which a call may process only some:
            q; k and v; the output and its gradient; w, beta and their gradients.
        bordered: whether queries, keys and products at the borders of chunks are results too.
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
    out_row: int
    w_row: int
    bordered: bool = False

    @property
    def padded(self) -> int:
        """Tokens including the padding to complete chunks."""
        return self.chunks * self.blocks * BLOCK

    @property
    def all_blocks(self) -> int:
        """Blocks including the padding to complete chunks."""
        return self.chunks * self.blocks

    @property
    def levels(self) -> int:
        """Levels of nodes below a chunk."""
        return self.blocks.bit_length() - 1

    @property
    def together(self) -> int:
        """Number of heads whose programs are interleaved.

        Short sequences: 1, so that tensors shared by blocks stay in the L2 cache. Longer ones: all heads, because
        otherwise the longest programs would start last and run while the rest of the GPU is idle. Wide heads: 8,
        because the L2 cache does not hold more.
        """
        if self.length <= SHORT:
            return 1
        return self.batch * self.heads if self.widest == 64 else WIDE_HEADS

    @property
    def pairs(self) -> int:
        """Number of pairs of different chunks."""
        return self.chunks * (self.chunks - 1) // 2

    @property
    def far(self) -> bool:
        """Whether queries and keys at the borders of chunks are needed."""
        return self.pairs > 0 or self.bordered

    @property
    def widest(self) -> int:
        """The larger padded width, which determines the tiles of the kernels."""
        return max(self.width, self.value_width)

    def named(self, *names: str) -> dict[str, int]:
        """Some of these sizes as launch arguments."""
        return {name: getattr(self, name) for name in names}

    def constants(self, *names: str) -> dict[str, int]:
        """Some of these sizes as kernel constants, by their names in the kernels."""
        every = {"D": self.head_dim, "DP": self.width, "DV": self.value_dim, "DVP": self.value_width}
        every |= {"R": self.blocks, "LEVELS": self.levels, "GROUP": self.heads // self.kv_heads, "FAR": self.far}
        return {name: every[name] for name in names}


def sizes_of(q: Tensor, k: Tensor, v: Tensor, longest: int | None = None, bordered: bool = False) -> Sizes:
    """Sizes for inputs q, k, v. A sequence that fits is a single chunk; others have chunks of `longest` blocks.

    Memory of the backward pass per token grows with T / longest^2 for pairs of chunks, and with log2(longest) for
    nodes within chunks.
    """
    batch, length, heads, head_dim = q.shape
    width, value_width = (max(triton.next_power_of_2(size), 64) for size in (head_dim, v.shape[-1]))
    filled = -(-length // BLOCK)
    whole = triton.next_power_of_2(filled)
    if longest is None:
        # A single chunk needs no pairs of chunks, but pads to a power of two. For wide heads its nodes take more memory
        # than pairs would.
        pads_alike = LONGEST * -(-filled // LONGEST) == whole
        single = whole <= LONGEST_SINGLE and pads_alike and max(width, value_width) == 64
        longest = LONGEST_SINGLE if single else LONGEST
    blocks = max(min(whole, longest), 1 + bordered)  # at least one level, through which gradients of products pass
    chunks = -(-length // (blocks * BLOCK))
    kv_heads = k.shape[2]
    plan = blocks, chunks, width, value_width, heads, kv_heads, heads, kv_heads, bordered
    return Sizes(batch, length, heads, kv_heads, head_dim, v.shape[-1], *plan)


class Tiles(NamedTuple):
    """Tile sizes of an inner loop.

    Attributes:
        own: tokens per program.
        step: tokens per iteration.
        warps, stages: warps and pipeline stages.
        registers: maximum registers per thread; None for no limit.
    """

    own: int
    step: int
    warps: int
    stages: int
    registers: int | None = None

    def smaller(self) -> "list[Tiles]":
        """These tiles and some that need less shared memory, for GPUs on which these do not fit."""
        half = self._replace(own=max(self.own // 2, 32), warps=max(self.warps // 2, 4))
        return list(dict.fromkeys([self, half, half._replace(step=32, stages=min(self.stages, 2))]))
