"""Triton: attention without a causal mask as a PyTorch operator, for keys that all precede the queries."""

import torch
from torch import Tensor

from ..layout import dense
from ..operator import operator
from .flash import flash_backward, flash_forward


@operator("bearings::past_attention")
def past_forward(q: Tensor, k: Tensor, v: Tensor, sums: Tensor | None) -> tuple[Tensor, Tensor]:
    """Output `[B, T, H, Dv]` and log-sum-exp `[B, H, T]` in base 2; for arguments see `past.past_attention`."""
    q, k, v = dense(q), dense(k), dense(v)
    return flash_forward(q, k, v, 1.0, None if sums is None else sums.contiguous(), None, None, causal=False)


@operator("bearings::past_attention_backward")
def past_backward(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, sums: Tensor | None, out: Tensor, lse: Tensor, lse_grad: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """dq, dk, dv and dsums (empty without sums)."""
    grad, q, k, v = dense(grad), dense(q), dense(k), dense(v)
    sums = None if sums is None else sums.contiguous()
    dq, dk, dv, dsums, _ = flash_backward(
        grad, q, k, v, out, lse, lse_grad.contiguous(), 1.0, sums, None, None, False, causal=False
    )
    return dq, dk, dv, lse.new_empty(0) if dsums is None else dsums


@past_forward.register_fake
def _(q, k, v, sums):
    batch, length, heads, _ = q.shape
    return q.new_empty(batch, length, heads, v.shape[3]), q.new_empty(batch, heads, length, dtype=torch.float32)


@past_backward.register_fake
def _(grad, q, k, v, sums, out, lse, lse_grad):
    dsums = lse.new_empty(0) if sums is None else sums.new_empty(sums.shape)
    return q.new_empty(q.shape), k.new_empty(k.shape), v.new_empty(v.shape), dsums


def _setup_context(ctx, inputs, output) -> None:
    ctx.save_for_backward(*inputs, *output)


def _backward(ctx, grad, lse_grad):
    q, k, v, sums, out, lse = ctx.saved_tensors
    dq, dk, dv, dsums = past_backward(grad, q, k, v, sums, out, lse, lse_grad)
    return dq, dk, dv, None if sums is None else dsums


past_forward.register_autograd(_backward, setup_context=_setup_context)
