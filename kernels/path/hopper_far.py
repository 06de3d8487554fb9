"""What the Hopper kernels for queries and keys of different chunks share: items of their ring, and tiles.

A program owns 128 rows: 64 for each of two warp groups. A third partition copies tiles into a ring of shared memory
with TMA. While one warp group computes exponentials, the tensor cores multiply for the other. The algorithms are those
of far.py. The accumulators of scores start from minus the log-sum-exp (and gates), those of the gradients of weights
from minus delta.
"""

from typing import NamedTuple

from torch import Tensor
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from .ring import shared


@gluon.jit
def item(ring, it):
    """The memory of an item, the barriers that announce and release it, and their phase."""
    slots, full, empty = ring
    STAGES: gl.constexpr = slots.shape[0]
    slot = it % STAGES
    return slots.index(slot), full.index(slot), empty.index(slot), (it // STAGES) & 1


@gluon.jit
def claim(ring, it, size: gl.constexpr):
    """Wait for a free slot. Returns its memory, and the barrier that announces an item of `size` bytes."""
    memory, full, empty, phase = item(ring, it)
    mbarrier.wait(empty, phase ^ 1)
    mbarrier.expect(full, size)
    return memory, full


@gluon.jit
def as_pair(memory, BM: gl.constexpr):
    """An item that is a tile of queries and the gradients of their outputs."""
    DP: gl.constexpr = memory.shape[1]
    pair = memory._reinterpret(memory.dtype, [2, BM, DP], shared(BM, DP))
    return pair.index(0), pair.index(1)


@gluon.jit
def as_matrix(memory, dtype: gl.constexpr):
    """An item that is a product of chunks."""
    DP: gl.constexpr = memory.shape[1]
    return memory._reinterpret(dtype, [DP, DP], shared(DP, DP))


@gluon.jit
def copy_rows(first, second, own, loaded, row, second_row, column):
    """Copy the 128 rows of a program from two tensors: `own` holds the left and the right rows of both."""
    left, left_second, right, right_second = own
    mbarrier.expect(loaded, 2 * first.block_type.nbytes + 2 * second.block_type.nbytes)
    tma.async_copy_global_to_shared(first, [row, 0], loaded, left)
    tma.async_copy_global_to_shared(second, [second_row, column], loaded, left_second)
    tma.async_copy_global_to_shared(first, [row + 64, 0], loaded, right)
    tma.async_copy_global_to_shared(second, [second_row + 64, column], loaded, right_second)


@gluon.jit
def copy_products(NODES, M, node, pair, ring, it):
    """Copy two items: the product of a chunk, and that of the chunks between it and the program's own."""
    DP: gl.constexpr = NODES.block_type.shape[1]
    memory, full = claim(ring, it, NODES.block_type.nbytes)
    tma.async_copy_global_to_shared(NODES, [node * DP, 0], full, as_matrix(memory, NODES.dtype))
    memory, full = claim(ring, it + 1, M.block_type.nbytes)
    tma.async_copy_global_to_shared(M, [pair * DP, 0], full, as_matrix(memory, M.dtype))


class FarTiles(NamedTuple):
    """Queries per tile, tiles in flight, and registers of a thread: of all partitions on average, and of consumers."""

    step: int
    stages: int
    registers: int = 168
    consumer: int = 240


TILES = FarTiles(64, 4)


def heads_of(x: Tensor, rows: int, row: int) -> TensorDescriptor:
    """Descriptor of tiles of `rows` tokens of one head of a caller's tensor `[B, T, heads, D]`."""
    batch, length, heads, width = x.shape
    layout = gl.NVMMASharedLayout.get_default_for([rows, width], gl.float16)
    return TensorDescriptor(x, [batch * length, heads * width], [row * width, 1], [rows, width], layout)
