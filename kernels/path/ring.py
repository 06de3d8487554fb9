"""The ring of shared memory in which hopper.py's partitions pass tiles on, and the producer that fills it.

A visit to n tiles is a sequence of n + 1 items in a ring of slots. Each holds a tile of keys and the values of the tile
before: the two products that run at the same time. In the last item the product of what was visited replaces the keys.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma

from . import tiles

level_of, slot_of, node_of = (gluon.jit(function.fn) for function in (tiles.level_of, tiles.slot_of, tiles.node_of))


@gluon.constexpr_function
def shared(rows, columns):
    """Layout of 16-bit values in shared memory that TMA writes and tensor cores read."""
    return gl.NVMMASharedLayout.get_default_for([rows, columns], gl.float16)


@gluon.jit
def visit_of(visit, near, bits, c, R: gl.constexpr, LEVELS: gl.constexpr):
    """What a program visits: first block, number of blocks, level, remaining bits, and whether it is a chunk."""
    # Triton 3.6 takes a value that a loop carries for unused if only the bounds of an inner loop depend on it.
    gl.assume(bits >= 0)
    bit = bits & -bits
    beyond = visit >= near
    bits = bits - bit
    there = gl.where(beyond, (c - 1 - visit + near) * R, c * R + bits)
    return there, gl.where(beyond, R, bit), level_of(bit, LEVELS), bits, beyond


@gluon.jit
def claim(ring, it):
    """Wait for a free slot. Returns its keys, its values and the barrier that announces them."""
    keys, values, full, empty = ring
    STAGES: gl.constexpr = keys.shape[0]
    slot = it % STAGES
    mbarrier.wait(empty.index(slot), ((it // STAGES) & 1) ^ 1)
    return keys.index(slot), values.index(slot), full.index(slot)


@gluon.jit
def arrived(ring, it):
    """Wait for an item. Returns its keys, its values and the barrier that releases them."""
    keys, values, full, empty = ring
    STAGES: gl.constexpr = keys.shape[0]
    slot = it % STAGES
    mbarrier.wait(full.index(slot), (it // STAGES) & 1)
    return keys.index(slot), values.index(slot), empty.index(slot)


@gluon.jit
def as_product(keys, DP: gl.constexpr):
    """A tile of keys whose memory holds a product instead."""
    return keys._reinterpret(gl.float16, [DP, DP], shared(DP, DP))


@gluon.jit
def produce(
    sources, ring, place, bases,
    DP: gl.constexpr, R: gl.constexpr, LEVELS: gl.constexpr, FAR: gl.constexpr, BN: gl.constexpr,
):  # fmt: skip
    """Copy items in the order of `consume`: the left block, which only the right one visits, then what both visit."""
    KEYS, K_BAR, VALUES, PRODUCTS = sources
    c, i, near, visits, _block, _bh = place
    key_base, far_base, value_base, value_column, node_base = bases
    key_bytes: gl.constexpr = KEYS.block_type.nbytes
    value_bytes: gl.constexpr = VALUES.block_type.nbytes
    product_bytes: gl.constexpr = PRODUCTS.block_type.nbytes
    keys, values, full = claim(ring, 0)
    mbarrier.expect(full, key_bytes)
    tma.async_copy_global_to_shared(KEYS, [key_base + slot_of(i, 0, R) * 64, 0], full, keys)
    keys, values, full = claim(ring, 1)
    mbarrier.expect(full, value_bytes + product_bytes)
    tma.async_copy_global_to_shared(VALUES, [value_base + (c * R + i) * 64, value_column], full, values)
    node = node_base + c * (2 * R - 1) + node_of(i, 0, R)
    tma.async_copy_global_to_shared(PRODUCTS, [node * DP, 0], full, as_product(keys, DP))
    it = 2
    bits = i
    for visit in range(visits):
        there, count, level, bits, beyond = visit_of(visit, near, bits, c, R, LEVELS)
        key_row = key_base + slot_of(bits, level, R) * 64
        value_row = value_base + there * 64
        node = node_base + c * (2 * R - 1) + node_of(bits, level, R)
        if FAR:
            key_row = gl.where(beyond, far_base + there * 64, key_row)
            node = gl.where(beyond, node_base + (there // R) * (2 * R - 1) + 2 * R - 2, node)
        for start in range(0, count * 64, BN):
            keys, values, full = claim(ring, it)
            mbarrier.expect(full, key_bytes, pred=start == 0)
            mbarrier.expect(full, key_bytes + value_bytes, pred=start > 0)
            if FAR:
                tma.async_copy_global_to_shared(K_BAR, [key_row + start, 0], full, keys, pred=beyond)
                tma.async_copy_global_to_shared(KEYS, [key_row + start, 0], full, keys, pred=visit < near)
            else:
                tma.async_copy_global_to_shared(KEYS, [key_row + start, 0], full, keys)
            tma.async_copy_global_to_shared(
                VALUES, [value_row + start - BN, value_column], full, values, pred=start > 0
            )
            it += 1
        keys, values, full = claim(ring, it)
        mbarrier.expect(full, value_bytes + product_bytes)
        tma.async_copy_global_to_shared(VALUES, [value_row + count * 64 - BN, value_column], full, values)
        tma.async_copy_global_to_shared(PRODUCTS, [node * DP, 0], full, as_product(keys, DP))
        it += 1
