"""Triton: silu(gate) * up and its gradient for rows `[gate, up]`."""

import triton
import triton.language as tl
from torch import Tensor

from ..common import LOG2E

BLOCK, WARPS = 2048, 8  # elements of a row per program, warps; measured on an H200


@triton.jit
def sigmoid(x):
    return 1 / (1 + tl.exp2(-x * LOG2E))


@triton.jit
def gate_and_up(X, H, BLOCK: tl.constexpr):
    """Row and columns of a program, and the values of both halves there."""
    row, c = tl.program_id(0).to(tl.int64), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    gate = tl.load(X + row * 2 * H + c, mask=c < H, other=0.0).to(tl.float32)
    up = tl.load(X + row * 2 * H + H + c, mask=c < H, other=0.0).to(tl.float32)
    return row, c, gate, up


@triton.jit
def product_kernel(X, OUT, H, BLOCK: tl.constexpr):
    row, c, gate, up = gate_and_up(X, H, BLOCK)
    tl.store(OUT + row * H + c, (gate * sigmoid(gate) * up).to(OUT.dtype.element_ty), mask=c < H)


@triton.jit
def product_backward_kernel(G, X, DX, H, BLOCK: tl.constexpr):
    row, c, gate, up = gate_and_up(X, H, BLOCK)
    g = tl.load(G + row * H + c, mask=c < H, other=0.0).to(tl.float32)
    share = sigmoid(gate)
    slope = share * (1 + gate * (1 - share))
    tl.store(DX + row * 2 * H + c, (g * up * slope).to(DX.dtype.element_ty), mask=c < H)
    tl.store(DX + row * 2 * H + H + c, (g * gate * share).to(DX.dtype.element_ty), mask=c < H)


def forward(x: Tensor) -> Tensor:
    """silu(gate) * up, from contiguous `x [..., 2 H]` to `[..., H]`."""
    hidden = x.shape[-1] // 2
    out = x.new_empty(*x.shape[:-1], hidden)
    grid = (out.numel() // hidden, triton.cdiv(hidden, BLOCK))
    product_kernel[grid](X=x, OUT=out, H=hidden, BLOCK=BLOCK, num_warps=WARPS)
    return out


def backward(grad: Tensor, x: Tensor) -> Tensor:
    """The gradient of `x` from the gradient of `forward(x)`, both contiguous."""
    hidden, dx = grad.shape[-1], x.new_empty(x.shape)
    grid = (grad.numel() // hidden, triton.cdiv(hidden, BLOCK))
    product_backward_kernel[grid](G=grad, X=x, DX=dx, H=hidden, BLOCK=BLOCK, num_warps=WARPS)
    return dx
