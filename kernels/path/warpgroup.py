"""Layouts and steps of one warp group of the kernels for Hopper."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, tma, warpgroup_mma


@gluon.constexpr_function
def accumulator(columns):
    """Layout of `[64, columns]` accumulators of one warp group."""
    return gl.NVMMADistributedLayout([3, 0], [4, 1], [16, columns, 16])


@gluon.constexpr_function
def operand(columns):
    """Layout of the left operand of a product with `columns` columns, in registers."""
    return gl.DotOperandLayout(0, accumulator(columns), 2)


@gluon.constexpr_function
def coalesced(columns):
    """Layout of `[64, columns]` 16-bit values in which a thread loads 16 bytes."""
    across = columns // 8
    return gl.BlockedLayout([1, 8], [32 // across, across], [4, 1], [1, 0])


@gluon.jit
def soften(s, weight, highest):
    """Weights of a tile of base-2 scores, and the updated sum, maximum and factor of a running softmax."""
    new = gl.maximum(highest, gl.max(s, 1))
    p, rescale = gl.exp2(s - gl.expand_dims(new, 1)), gl.exp2(highest - new)
    return p, weight * rescale + gl.sum(p, 1), new, rescale


@gluon.jit
def rescaled(acc, rescale):
    layout: gl.constexpr = acc.type.layout
    return acc * gl.expand_dims(gl.convert_layout(rescale, gl.SliceLayout(1, layout)), 1)


@gluon.jit
def start_product(x, y, COLUMNS: gl.constexpr):
    """Start `x @ y`, which has `COLUMNS` columns."""
    zero = gl.full([64, COLUMNS], 0.0, gl.float32, accumulator(COLUMNS))
    return warpgroup_mma(x, y, zero, use_acc=False, is_async=True)


@gluon.jit
def bias_of(gates, at, COLUMNS: gl.constexpr):
    """What the scores of the keys from `at` on start from: see `gates.add_gates`."""
    high, low, origin = gates
    columns = gl.arange(0, COLUMNS, gl.SliceLayout(0, accumulator(COLUMNS)))
    return origin - gl.load(high + at + columns) - gl.load(low + at + columns)


@gluon.jit
def start_scores(queries, keys, bias):
    """Start `queries @ keys.T`, added to `bias [keys]` unless it is None."""
    KEYS: gl.constexpr = keys.shape[0]
    if bias is None:
        return start_product(queries, keys.permute((1, 0)), KEYS)
    else:
        start = gl.full([64, KEYS], 0.0, gl.float32, accumulator(KEYS)) + gl.expand_dims(bias, 0)
        return warpgroup_mma(queries, keys.permute((1, 0)), start, is_async=True)


@gluon.jit
def load_rows(X, at, rows, columns, length, stride):
    """Load rows of a caller's tensor. `at` is the offset of this head and sequence."""
    pointers = X + at + gl.expand_dims(rows, 1).to(gl.int64) * stride + gl.expand_dims(columns, 0)
    return gl.load(pointers, mask=gl.expand_dims(rows < length, 1), other=0.0)


@gluon.jit
def put(buffer, x):
    """Store a tile for the tensor cores to read."""
    buffer.store(x.to(buffer.dtype))
    fence_async_shared()


@gluon.jit
def save(X, row, own, wanted):
    """Start to copy pulled queries out of shared memory, if wanted."""
    if wanted:
        tma.async_copy_shared_to_global(X, [row, 0], own)


@gluon.jit
def saved():
    """Wait until queries are copied, so that they may be overwritten."""
    tma.store_wait(0)
    gl.thread_barrier()  # only one thread waits
