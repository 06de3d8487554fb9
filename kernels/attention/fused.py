"""Fused attention as PyTorch operators: encode q and k, compute attention with Triton or a library, and the gradients.

Saved for the backward pass are q, k, v, the output and its log-sum-exp. q and k are saved encoded for RoPE, but raw for
the polar forms, whose encoded tensors are twice as large.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from ..common import LOG2E
from ..layout import dense, packed_shape, parts
from ..operator import operator, traced
from .encode import encode, encode_backward, unit_circle
from .fa4 import fa4_backward, fa4_forward
from .flash import flash_backward, flash_forward
from .place import place

# A resolved overload takes less CPU time to call.
CUDNN_FORWARD = torch.ops.aten._scaled_dot_product_cudnn_attention.default
CUDNN_BACKWARD = torch.ops.aten._scaled_dot_product_cudnn_attention_backward.default


@operator("bearings::attention")
def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    delta: Tensor | None,
    sums: Tensor | None,
    table: Tensor | None,
    borders: Tensor | None,
    cu_seqlens: Tensor | None,
    window: int | None,
    form: str,
    frequencies: Sequence[float],
    scale: float,
    implementation: str,
    gradient: str,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Causal attention of `q [B, T, H, W]` at the last T positions of `k [B, S, Hkv, W]` and `v [B, S, Hkv, D]`.

    W is D, or in the plain form a larger multiple of 16 or half of D.

    Args:
        delta: phase offset of the polar forms, `[Hkv, D]`.
        sums: cumulative log-gates of FoX, `[B, S, H]` float64. Triton only.
        table: bias by head and distance, `[H, N]`; the last entry applies to all greater distances. Triton only.
        borders: limits of the visible keys, `[2, B, S]`; see `Documents`. Triton only.
        cu_seqlens: ends of documents, `[N + 1]`; see `Documents`. FlashAttention-4 only.
        window: number of keys that each query sees; only with `cu_seqlens`.
        form: "plain", "rotary", "polar" or "magnitude"; see kernels/attention/encode.py.
        frequencies: radians per token, one per channel pair (rotary) or channel (polar forms); empty for "plain".
        scale: factor of the scores.
        implementation: "triton", "cudnn" or "fa4" for the forward pass.
        gradient: the same for the backward pass.

    Returns:
        The output, `[B, T, H, D]`; the log-sum-exp, `[B, H, T]`, or `[H, B * T]` with `cu_seqlens`, in base 2 for a
        Triton backward pass, otherwise natural; encoded q and k for the rotary form, `unit_circle(delta)` and an empty
        tensor for the polar forms, otherwise two empty tensors.
    """
    q, k, v = dense(q), dense(k), dense(v)
    circle = None if delta is None else unit_circle(delta)
    if form != "plain":
        q, k = encode(q, k, circle, frequencies, form)
    turned = (q, k) if form == "rotary" else (q.new_empty(0) if circle is None else circle, q.new_empty(0))
    if implementation == "cudnn":
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        out, lse, *_ = CUDNN_FORWARD(q, k, v, None, True, 0.0, True, False, scale=scale)
        lse = lse.squeeze(-1)
        return out.transpose(1, 2).contiguous(), lse if gradient == "cudnn" else lse * LOG2E.value, *turned
    if implementation == "fa4":
        return *fa4_forward(q, k, v, scale, cu_seqlens, window), *turned
    return *flash_forward(q, k, v, scale, None if sums is None else sums.contiguous(), table, borders), *turned


@attention.register_fake
def _(
    q, k, v, delta, sums, table, borders, cu_seqlens, window, form, frequencies, scale, implementation, gradient
):  # fmt: skip
    batch, length, heads, _ = q.shape
    rows = (batch, heads, length) if cu_seqlens is None else (heads, batch * length)
    lse = q.new_empty(rows, dtype=torch.float32)
    turned = map(q.new_empty, (q.shape, k.shape) if form == "rotary" else (0, 0))
    if delta is not None:
        turned = delta.new_empty(2, *delta.shape), q.new_empty(0)
    return q.new_empty(batch, length, heads, v.shape[3]), lse, *turned


@operator("bearings::attention_backward")
def attention_backward(
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    lse_grad: Tensor | None,
    circle: Tensor | None,
    sums: Tensor | None,
    table: Tensor | None,
    borders: Tensor | None,
    cu_seqlens: Tensor | None,
    window: int | None,
    form: str,
    frequencies: Sequence[float],
    scale: float,
    implementation: str,
    table_needs_gradient: bool,
    packed: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients of q, k, v, delta, sums and table; empty for absent inputs.

    If `packed`, the first tensor holds the gradients of q, k and v (see `layout.parts`), and the next two are empty.
    `q` and `k` are the inputs of `attention`; for the rotary form they are encoded. `circle` is `unit_circle(delta)`.
    Only Triton takes `lse_grad`. The gradient of the table is empty unless `table_needs_gradient`.
    """
    grad, q, k, v = dense(grad), dense(q), dense(k), dense(v)
    turned_q, turned_k = (q, k) if form in ("plain", "rotary") else encode(q, k, circle, frequencies, form)
    dsums = dtable = None
    if implementation == "cudnn":
        heads_first = (x.transpose(1, 2) for x in (grad, turned_q, turned_k, v, out))
        unused = torch.empty((), dtype=torch.int64, device=q.device)  # random state of the unused dropout
        gradients = CUDNN_BACKWARD(
            *heads_first, lse.unsqueeze(-1), unused, unused, None, None, None,
            q.shape[1], k.shape[1], 0.0, True, scale=scale,
        )  # fmt: skip
        turned_dq, turned_dk, turned_dv = (gradient.transpose(1, 2).contiguous() for gradient in gradients)
    elif implementation == "fa4":
        gradients = fa4_backward(grad, turned_q, turned_k, v, out, lse, scale, cu_seqlens, window)
        turned_dq, turned_dk, turned_dv = (gradient.contiguous() for gradient in gradients)
    else:
        sums = None if sums is None else sums.contiguous()
        lse_grad = None if lse_grad is None else lse_grad.contiguous()
        turned_dq, turned_dk, turned_dv, dsums, dtable = flash_backward(
            grad, turned_q, turned_k, v, out, lse, lse_grad, scale, sums, table, borders, table_needs_gradient
        )
    ddelta = whole = None
    if packed:
        whole = q.new_empty(packed_shape(q, k, v))
        dq, dk, dv = parts(whole, q, k, v)
        place(turned_dv, dv)
        if form == "plain":
            place(turned_dq, dq)
            place(turned_dk, dk)
    elif form == "plain":
        dq, dk, dv = turned_dq, turned_dk, turned_dv
    else:
        dq, dk, dv = q.new_empty(q.shape), k.new_empty(k.shape), turned_dv
    if form != "plain":
        ddelta = encode_backward(q, k, circle, frequencies, form, turned_dq, turned_dk, dq, dk)
    if whole is not None:
        dq, dk, dv = whole, q.new_empty(0), q.new_empty(0)
    ddelta, dsums, dtable = (lse.new_empty(0) if x is None else x for x in (ddelta, dsums, dtable))
    return dq, dk, dv, ddelta, dsums, dtable


@attention_backward.register_fake
def _(
    grad, q, k, v, out, lse, lse_grad, circle, sums, table, borders, cu_seqlens, window, form, frequencies, scale,
    implementation, table_needs_gradient, packed,
):  # fmt: skip
    gradients = map(q.new_empty, (packed_shape(q, k, v), 0, 0) if packed else (q.shape, k.shape, v.shape))
    ddelta = lse.new_empty(0 if circle is None else circle.shape[1:])
    dsums = lse.new_empty(0) if sums is None else sums.new_empty(sums.shape)
    dtable = lse.new_empty(table.shape if table_needs_gradient else 0)
    return *gradients, ddelta, dsums, dtable


def _setup_context(ctx, inputs, output) -> None:
    q, k, v, delta, sums, table, borders, cu_seqlens, *settings, _, gradient = inputs
    ctx.settings = *settings, gradient
    ctx.delta_dtype = None if delta is None else delta.dtype
    out, lse, *turned = output
    if settings[1] == "rotary":
        q, k = turned
    circle = None if delta is None else turned[0]
    ctx.save_for_backward(q, k, v, out, lse, circle, sums, table, borders, cu_seqlens)
    ctx.mark_non_differentiable(*turned)
    ctx.set_materialize_grads(False)


def _backward(ctx, grad, lse_grad, *_):
    q, k, v, out, lse, *others = ctx.saved_tensors
    circle, sums, table, *_ = others
    grad = torch.zeros_like(out) if grad is None else grad
    packed = traced()  # only the compiler makes use of it
    dq, dk, dv, ddelta, dsums, dtable = attention_backward(
        grad, q, k, v, out, lse, lse_grad, *others, *ctx.settings, ctx.needs_input_grad[5], packed
    )
    if packed:
        dq, dk, dv = parts(dq, q, k, v)
    ddelta = None if circle is None else ddelta.to(ctx.delta_dtype)
    dtable = dtable.to(table.dtype) if ctx.needs_input_grad[5] else None
    return dq, dk, dv, ddelta, None if sums is None else dsums, dtable, *[None] * 8


attention.register_autograd(_backward, setup_context=_setup_context)
