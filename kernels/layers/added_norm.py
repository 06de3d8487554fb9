"""Fused residual addition and RMSNorm: one pass over memory forward and one backward.

PyTorch's compiler needs two more backward passes: one sums the gradient of the weight, one rounds that of the branch.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from ..choice import INSTALLED
from ..operator import operator
from ..precision import compute_dtype

WIDEST = 8192  # a row is held in registers


def added_norm(x: Tensor, branch: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Add a branch to the residual stream and normalise the sum (RMSNorm, Zhang and Sennrich, arXiv 1910.07467).

    Uses Triton on a CUDA GPU if `weight` is float32, `x` is not float64 and C <= 8192, otherwise PyTorch operations.

    Args:
        x: residual stream, `[..., C]`, any floating-point dtype.
        branch: output of a layer, the shape of x, any floating-point dtype.
        weight: gain of the norm, `[C]`.
        eps: added to the mean square.

    Returns:
        The sum `x + branch`, `[..., C]`, and its norm, `[..., C]`. The Triton norm has the dtype of the matrix products
        that follow (autocast's if enabled), because they would round it anyway; the PyTorch norm has that of the sum.

    Raises:
        ValueError: incompatible shapes.
    """
    if branch.shape != x.shape or weight.shape != x.shape[-1:]:
        raise ValueError(
            f"branch {list(branch.shape)} and weight {list(weight.shape)} with x {list(x.shape)}: the shapes must be "
            f"{list(x.shape)} and {list(x.shape[-1:])}"
        )
    fits = weight.dtype == torch.float32 and x.dtype != torch.float64 and x.shape[-1] <= WIDEST
    if x.device.type == "cuda" and INSTALLED and fits:
        return added_norm_op(x, branch, weight, eps, compute_dtype(x))[:2]
    total = x + branch
    return total, F.rms_norm(total, weight.shape, weight, eps)


@operator("bearings::added_norm")
def added_norm_op(
    x: Tensor, branch: Tensor, weight: Tensor, eps: float, dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor]:
    """The sum, its norm in `dtype`, and 1 / RMS of each row, in Triton."""
    from .norm_rows import forward

    return forward(x.contiguous(), branch.contiguous(), weight.contiguous(), eps, dtype)


@added_norm_op.register_fake
def _(x, branch, weight, eps, dtype):
    return x.new_empty(x.shape), x.new_empty(x.shape, dtype=dtype), weight.new_empty(x.numel() // x.shape[-1])


@operator("bearings::added_norm_backward")
def added_norm_backward(
    grad: Tensor, normed_grad: Tensor, total: Tensor, rstd: Tensor, weight: Tensor, dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of x, branch and weight; see `backward` in kernels/layers/norm_rows.py."""
    from .norm_rows import backward

    return backward(grad.contiguous(), normed_grad.contiguous(), total, rstd, weight.contiguous(), dtype)


@added_norm_backward.register_fake
def _(grad, normed_grad, total, rstd, weight, dtype):
    dbranch = total.new_empty(total.shape if dtype != total.dtype else 0, dtype=dtype)
    return total.new_empty(total.shape), dbranch, weight.new_empty(weight.shape)


def _setup_context(ctx, inputs, output) -> None:
    _, branch, weight, _, _ = inputs
    total, _, rstd = output
    ctx.dtype = branch.dtype
    ctx.save_for_backward(total, rstd, weight)
    ctx.mark_non_differentiable(rstd)


def _backward(ctx, grad, normed_grad, _):
    total, rstd, weight = ctx.saved_tensors
    dx, dbranch, dweight = added_norm_backward(grad, normed_grad, total, rstd, weight, ctx.dtype)
    return dx, dx if ctx.dtype == total.dtype else dbranch, dweight, None, None


added_norm_op.register_autograd(_backward, setup_context=_setup_context)
