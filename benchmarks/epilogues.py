"""SwiGLU's MLP with the gated product and its gradient as epilogues of quack-kernels' matrix products.

For the benchmark of layers: it shows what a fusion of `silu_product` with the products around it would gain.
"""

import torch
from torch import Tensor


class EpilogueMLP(torch.autograd.Function):
    """`down(silu(gate(x)) * up(x))`, in which only the first product and the gradient of the last are quack's.

    The products of quack's gated epilogues have gate and up in adjacent columns. Here rows of the weight are put in
    this order when they are rounded, which is a copy anyway, so that cuBLAS can compute all other products. The gated
    product is not saved: the epilogue of the backward pass computes it again.
    """

    @staticmethod
    def forward(ctx, x: Tensor, gate_up: Tensor, down: Tensor) -> Tensor:
        """From `x [N, C]`, `gate_up [2 H, C]` and `down [C, H]` to `[N, C]`, in the dtype of x."""
        from quack.gemm_interface import gemm_gated  # pyright: ignore[reportMissingImports]

        gate_up, down = interleaved(gate_up, x.dtype), down.to(x.dtype)
        both, product = gemm_gated(x, gate_up.T, activation="swiglu", tuned=False)
        ctx.save_for_backward(x, both, gate_up, down)
        return product @ down.T

    @staticmethod
    def backward(ctx, *grads: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Gradients of x and, in float32, of both weights."""
        from quack.gemm_interface import gemm_dgated  # pyright: ignore[reportMissingImports]

        (grad,), (x, both, gate_up, down) = grads, ctx.saved_tensors
        grad = grad.contiguous()
        dboth, product = gemm_dgated(grad, down, both, activation="swiglu", tuned=False, dynamic_scheduler=False)
        return dboth @ gate_up, separated(dboth.T @ x), grad.T @ product


def interleaved(weight: Tensor, dtype: torch.dtype) -> Tensor:
    """Rows 0, H, 1, H + 1, ... of `weight [2 H, C]`, rounded to `dtype` in the same pass."""
    out = weight.new_empty(weight.shape, dtype=dtype)
    out.unflatten(0, (-1, 2)).copy_(weight.unflatten(0, (2, -1)).transpose(0, 1))
    return out


def separated(weight: Tensor) -> Tensor:
    """The inverse of `interleaved`, in float32 or wider."""
    out = torch.empty_like(weight, dtype=torch.promote_types(weight.dtype, torch.float32))
    out.unflatten(0, (2, -1)).copy_(weight.unflatten(0, (-1, 2)).transpose(0, 1))
    return out
