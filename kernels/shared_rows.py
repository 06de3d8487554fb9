"""Rows of a weight that has another use: the gradients of both in one tensor."""

import torch
from torch import Tensor


class SharedRows(torch.autograd.Function):
    """Rows `tokens [B, T]` of `weight [V, C]`, and the weight itself for its other use.

    The gradients of the rows are added to that of the other use where it lies; PyTorch would fill a tensor with zeros
    for them, and add the two. An embedding's gradient sorts its rows first, this adds them up at once, on a GPU by
    atomics in no fixed order: equal runs are equal bit for bit where PyTorch is told to be deterministic alone.
    """

    @staticmethod
    def forward(ctx, weight: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(tokens)
        ctx.shape = weight.shape
        ctx.set_materialize_grads(False)
        return weight.index_select(0, tokens.flatten()).unflatten(0, tokens.shape), weight.view_as(weight)

    @staticmethod
    def backward(ctx, rows: Tensor, weight: Tensor | None) -> tuple[Tensor, None]:
        (tokens,) = ctx.saved_tensors
        weight = rows.new_zeros(ctx.shape) if weight is None else weight
        return weight.index_add_(0, tokens.flatten(), rows.flatten(0, 1)), None
