"""All sizes of one call of PaTH's kernels, and how its tokens are cut into blocks and chunks."""

from typing import NamedTuple

import triton
from torch import Tensor

from .slices import SHORT

BLOCK = 64
# Blocks a chunk, and a sequence that is a single one: see benchmarks/results/path_log.md.
LONGEST, LONGEST_ALONE = 16, 64
WIDE_HEADS = 8  # at a time


class Sizes(NamedTuple):
    """All sizes of one call.

    Attributes:
        blocks: R, blocks a chunk.
        chunks: n, chunks a sequence.
        width, value_width: D and Dv padded to powers of two, at least 64.
        q_row, kv_row, out_row, w_row: heads a token has in the caller's tensors, of which a call may take some: in q;
            in k and v; in output and its gradient; in w, beta and their gradients.
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

    @property
    def padded(self) -> int:
        """Tokens of whole chunks."""
        return self.chunks * self.blocks * BLOCK

    @property
    def all_blocks(self) -> int:
        """Blocks of whole chunks."""
        return self.chunks * self.blocks

    @property
    def levels(self) -> int:
        """Of nodes below a chunk."""
        return self.blocks.bit_length() - 1

    @property
    def together(self) -> int:
        """Heads whose programs run beside each other.

        One of a short sequence, so that what its blocks share stays in L2; all of others, whose longest walks would
        else begin near the end and run on alone, but eight of wide heads, of which L2 holds no more.
        """
        if self.length <= SHORT:
            return 1
        return self.batch * self.heads if self.widest == 64 else WIDE_HEADS

    @property
    def pairs(self) -> int:
        """Pairs of different chunks."""
        return self.chunks * (self.chunks - 1) // 2

    @property
    def widest(self) -> int:
        """What the tiles of the kernels are chosen by."""
        return max(self.width, self.value_width)

    def named(self, *names: str) -> dict[str, int]:
        """Some of these sizes as launch arguments."""
        return {name: getattr(self, name) for name in names}

    def constants(self, *names: str) -> dict[str, int]:
        """Some of these sizes as constants of the kernels, by the names that they have there."""
        every = {"D": self.head_dim, "DP": self.width, "DV": self.value_dim, "DVP": self.value_width}
        every |= {"R": self.blocks, "LEVELS": self.levels, "GROUP": self.heads // self.kv_heads, "FAR": self.pairs > 0}
        return {name: every[name] for name in names}


def sizes_of(q: Tensor, k: Tensor, v: Tensor, longest: int | None = None) -> Sizes:
    """A sequence that fits is one chunk; others have chunks of `longest` blocks.

    What the backward pass keeps of a token grows with T / longest^2 for pairs of chunks, with log2(longest) inside.
    """
    batch, length, heads, head_dim = q.shape
    width, value_width = (max(triton.next_power_of_2(size), 64) for size in (head_dim, v.shape[-1]))
    filled = triton.cdiv(length, BLOCK)
    whole = triton.next_power_of_2(filled)
    if longest is None:
        # Alone it needs no pairs of chunks, but room for a power of two; wide heads' nodes take more than pairs would.
        pads_alike = LONGEST * triton.cdiv(filled, LONGEST) == whole
        alone = whole <= LONGEST_ALONE and pads_alike and max(width, value_width) == 64
        longest = LONGEST_ALONE if alone else LONGEST
    blocks = min(whole, longest)
    chunks = triton.cdiv(length, blocks * BLOCK)
    kv_heads = k.shape[2]
    plan = blocks, chunks, width, value_width, heads, kv_heads, heads, kv_heads
    return Sizes(batch, length, heads, kv_heads, head_dim, v.shape[-1], *plan)


class Tiles(NamedTuple):
    """How one of the inner loops is cut: tokens that a program owns, tokens a step, warps, pipeline stages.

    `registers` a thread at most, where that was worth it.
    """

    own: int
    step: int
    warps: int
    stages: int
    registers: int | None = None
