"""Memory layout of kernel inputs, copies where a layout is unsupported, and packed gradients of q, k and v."""

import functools
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor


class Layout(NamedTuple):
    """The properties of a tensor that a launch depends on: all except its device and values."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype

    def stride(self) -> tuple[int, ...]:
        """Like `Tensor.stride`."""
        return self.strides


def layout_of(x: Tensor) -> Layout:
    """The layout of `x`."""
    return Layout(x.shape, x.stride(), x.dtype)


def dense(x: Tensor) -> Tensor:
    """`x`, copied if its rows are not contiguous, not 16-byte aligned or expanded."""
    fine = x.data_ptr() % 16 == 0 and _dense_rows(x.stride(), x.element_size())
    return x if fine else x.clone(memory_format=torch.contiguous_format)


@functools.lru_cache(1024)
def _dense_rows(strides: tuple[int, ...], size: int) -> bool:
    return strides[-1] == 1 and all(stride * size % 16 == 0 and stride > 0 for stride in strides[:-1])


def with_rows(x: Tensor) -> Tensor:
    """`x`, copied if its rows are not contiguous."""
    return x if x.stride(-1) == 1 else x.contiguous()


def row_of(x: Tensor) -> int:
    """Heads per token of the tensor that `x [B, T, H, D]` is a slice of; 0 if x is not a slice of contiguous heads."""
    return _row(x.shape, x.stride())


@functools.lru_cache(1024)
def _row(shape: tuple[int, ...], strides: tuple[int, ...]) -> int:
    _, length, heads, depth = shape
    row = max(strides[1] // depth, heads)
    expected = length * row * depth, row * depth, depth, 1
    return row if all(size == 1 or strides[i] == expected[i] for i, size in enumerate(shape)) else 0


def in_rows(q: Tensor, k: Tensor, v: Tensor, *others: Tensor) -> list[Tensor]:
    """The inputs in a layout for which `row_of` is positive.

    Slices of larger tensors are not copied if k and v have the same layout. `others` are made contiguous.
    """
    if row_of(q) == 0:
        q = q.contiguous()
    if row_of(k) == 0 or row_of(k) != row_of(v):
        k, v = k.contiguous(), v.contiguous()
    return [q, k, v, *(x.contiguous() for x in others)]


def packed_shape(q: Tensor, k: Tensor, v: Tensor) -> tuple[int, ...]:
    """Shape of one tensor that holds the gradients of q, k and v.

    If q, k and v have the same length and head dimension it is `[B, T, H + 2 Hkv, D]`. If they are slices of one matrix
    product, this tensor is the gradient of the product without a copy. Otherwise the shape is one-dimensional.
    """
    batch, length, heads, depth = q.shape
    if length == k.shape[1] and depth == v.shape[3]:
        return batch, length, heads + k.shape[2] + v.shape[2], depth
    return (q.numel() + k.numel() + v.numel(),)


def parts(packed: Tensor, q: Tensor, k: Tensor, v: Tensor) -> Sequence[Tensor]:
    """The gradients of q, k and v as views of `packed`."""
    if packed.ndim > 1:
        # The compiler recognises a split as the inverse of a concatenation and removes both.
        return packed.split_with_sizes([x.shape[2] for x in (q, k, v)], 2)
    sizes = [x.numel() for x in (q, k, v)]
    return [part.view(x.shape) for part, x in zip(packed.split_with_sizes(sizes), (q, k, v), strict=True)]
