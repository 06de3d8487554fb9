"""The SwiGLU product silu(gate) * up of adjacent halves, and its gradient, in one pass each.

The halves are adjacent because one matrix product computes both. For this layout PyTorch's compiler generates a
backward kernel that reads all inputs once per half: 296 us for 32,768 x 2,048 on an H200, compared with 157 us for
separate halves.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from ..choice import INSTALLED
from ..operator import operator


def silu_product(x: Tensor) -> Tensor:
    """The gated product of SwiGLU, silu(gate) * up (Shazeer, arXiv 2002.05202).

    Uses Triton on a CUDA GPU, otherwise PyTorch. float64 always uses PyTorch, because the kernel computes in float32.

    Args:
        x: gate and up concatenated, `[..., 2 H]`, any floating-point dtype.

    Returns:
        `[..., H]` in the dtype of x.

    Raises:
        ValueError: an odd number of channels.
    """
    if x.shape[-1] % 2:
        raise ValueError(f"x {list(x.shape)}: gate and up need an even number of channels")
    if x.device.type == "cuda" and INSTALLED and x.dtype != torch.float64:
        return silu_product_op(x)
    gate, up = x.chunk(2, -1)
    return F.silu(gate) * up


@operator("bearings::silu_product")
def silu_product_op(x: Tensor) -> Tensor:
    """`silu_product` in Triton."""
    from .swiglu_halves import forward

    return forward(x.contiguous())


@silu_product_op.register_fake
def _(x):
    return x.new_empty(*x.shape[:-1], x.shape[-1] // 2)


@operator("bearings::silu_product_backward")
def silu_product_backward(grad: Tensor, x: Tensor) -> Tensor:
    """Gradient of `x [..., 2 H]` from the gradient of the product, `[..., H]`."""
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
