"""SwiGLU's product, silu(gate) * up, of halves that lie side by side, and its gradient, in one pass each.

For what a single matrix product has made. PyTorch's compiler writes the two halves of the gradient by a kernel that
reads everything for each of them: 296 us for 32,768 x 2,048 on an H200, beside 157 for halves apart.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from ..choice import INSTALLED


def silu_product(x: Tensor) -> Tensor:
    """`x [..., 2 H]`, gate and up, to `[..., H]`; float64, which Triton would compute in float32, by PyTorch."""
    if x.device.type == "cuda" and INSTALLED and x.dtype != torch.float64:
        return silu_product_op(x)
    gate, up = x.chunk(2, -1)
    return F.silu(gate) * up


@torch.library.custom_op("bearings::silu_product", mutates_args=())
def silu_product_op(x: Tensor) -> Tensor:
    """As `silu_product`, by Triton."""
    from .swiglu_halves import forward

    return forward(x.contiguous())


@silu_product_op.register_fake
def _(x):
    return x.new_empty(*x.shape[:-1], x.shape[-1] // 2)


@torch.library.custom_op("bearings::silu_product_backward", mutates_args=())
def silu_product_backward(grad: Tensor, x: Tensor) -> Tensor:
    """Gradient of `x [..., 2 H]` from that of what was made of it."""
    from .swiglu_halves import backward

    return backward(grad.contiguous(), x.contiguous())


@silu_product_backward.register_fake
def _(grad, x):
    return x.new_empty(x.shape)


def _setup_context(ctx, inputs, output) -> None:
    ctx.save_for_backward(*inputs)


def _backward(ctx, grad):
    return silu_product_backward(grad, *ctx.saved_tensors)


silu_product_op.register_autograd(_backward, setup_context=_setup_context)
