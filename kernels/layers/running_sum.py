"""Running sums over the tokens of a row, as an operator that PyTorch's compiler does not look into.

The compiler fails to generate code for some long sums in float64 (PyTorch 2.11).
"""

from torch import Tensor

from ..operator import operator


@operator("bearings::running_sum")
def running_sum(x: Tensor) -> Tensor:
    """`y_t = x_1 + ... + x_t` over dimension 1 of `[B, T, ...]`, in the dtype of x."""
    return x.transpose(1, -1).contiguous().cumsum(-1).transpose(1, -1).contiguous()  # sums over adjacent numbers


@running_sum.register_fake
def _(x):
    return x.new_empty(x.shape)


def _backward(ctx, grad):
    return running_sum(grad.flip(1)).flip(1)


running_sum.register_autograd(_backward)
