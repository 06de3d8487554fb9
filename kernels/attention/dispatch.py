"""Dispatch of the attention operators: checks inputs, chooses an implementation, and selects the decoding kernel."""

import math
from typing import Any

import torch
from torch import Tensor

from ..choice import LIBRARIES, UNBOUNDED, Needs, Plan, choose
from ..compiling import cached
from ..documents import Documents, bounded
from ..precision import compute_dtype
from .plain import check_shapes, differentiated, refuse_shapes

FEW, ROWS = 16, 64  # limits of the decoding kernel: new tokens; new tokens times query heads per key head


def planned(*given: Any) -> Plan:
    """`choose`, cached because it takes longer than a small kernel."""
    return _chosen(torch.are_deterministic_algorithms_enabled(), *given)


@cached
def _chosen(deterministic: bool, *given: Any) -> Plan:
    return choose(*given)


def fused_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scale: float,
    documents: Documents | None,
    plan: Plan | str,
    form: str = "plain",
    frequencies: tuple[float, ...] = (),
    delta: Tensor | None = None,
    sums: Tensor | None = None,
    table: Tensor | None = None,
) -> Tensor | None:
    """Compute attention with kernels. Under autocast, q, k and v are cast to its dtype, as PyTorch does.

    Args:
        q: queries, `[B, T, H, W]`. W is D, or in the plain form more or half of D if `choose` supports it.
        k: keys, `[B, S, Hkv, W]`, S >= T.
        v: values, `[B, S, Hkv, D]`.
        scale: factor of the dot products, above 0.
        documents: limits of attention over the S keys; see `Documents`.
        plan: a `Plan`, or the name of an implementation.
        form: "plain", "rotary", "polar" or "magnitude" (kernels/attention/encode.py).
        frequencies: radians per token, one per channel pair (rotary) or channel (polar forms).
        delta: learned phase offset of the polar forms, `[Hkv, D]`.
        sums: cumulative log-gates of FoX, `[B, S, H]`.
        table: bias by head and distance, `[H, N]`; the last entry applies to all greater distances.

    Returns:
        `[B, T, H, D]`, or None if the caller has to use PyTorch operations.

    Raises:
        ValueError: incompatible shapes, or a requested implementation that does not support the inputs.
    """
    _check(q, k, v, scale, documents, delta, sums)
    if not q.numel():
        return None
    name = plan.implementation if isinstance(plan, Plan) else plan
    widths = v.shape[3] <= k.shape[3] or v.shape[3] == 2 * k.shape[3]
    fits = v.shape == k.shape or (form == "plain" and widths)
    if not fits:
        if name in ("triton", *LIBRARIES):
            raise ValueError(
                f"implementation={name}: only torch supports queries {list(q.shape)} with keys {list(k.shape)} and "
                f"values {list(v.shape)}; use implementation=auto or torch"
            )
        return None
    length, keys, width, head_dim, dtype = q.shape[1], k.shape[1], q.shape[-1], v.shape[-1], compute_dtype(q)
    if not isinstance(plan, Plan):
        score = 2 * head_dim if form in ("polar", "magnitude") else width
        needs = Needs(width, score, head_dim, gates=sums is not None, bias=table is not None)
        plan = planned(plan, q.device, dtype, needs, length, keys, documents is not None, bounded(documents))
    if plan.implementation == "torch":
        return None
    q, k, v = (x if x.dtype == dtype else x.to(dtype) for x in (q, k, v))  # calling `to` takes longer than comparing
    delta = None if delta is None else delta.float().contiguous()
    few = length < keys and length <= FEW and length * q.shape[2] // k.shape[2] <= ROWS and width <= head_dim
    borders = None if documents is None else documents.borders.contiguous()
    if few and not differentiated(q, k, v, delta, sums, table):
        from .decode import decode

        outs = [
            decode(q, k, part, delta, sums, table, borders, form, frequencies, scale) for part in v.split(width, -1)
        ]
        return outs[0] if len(outs) == 1 else torch.cat(outs, -1)
    from .fused import attention  # imports Triton, which is not available on every platform

    limits = borders, None, None
    if plan.implementation == "fa4" and documents is not None:
        if not bounded(documents):
            raise ValueError(f"implementation=fa4: {UNBOUNDED}; use implementation=auto or triton")
        limits = None, documents.cu_seqlens, documents.window
    settings = form, frequencies, scale, plan.implementation, plan.gradient
    return attention(q, k, v, delta, sums, table, *limits, *settings)[0]


def fused_attention_lse(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scale: float,
    documents: Documents | None,
    plan: Plan | str,
    table: Tensor | None = None,
) -> tuple[Tensor, Tensor] | None:
    """`fused_attention` and the natural log-sum-exp of each row, `[B, T, H]` float32, both differentiable."""
    _check(q, k, v, scale, documents)
    if not q.numel():
        return None
    if not isinstance(plan, Plan):
        needs = Needs(q.shape[-1], q.shape[-1], v.shape[-1], bias=table is not None, lse=True)
        lengths, limits = (q.shape[1], k.shape[1]), (documents is not None, bounded(documents))
        plan = planned(plan, q.device, compute_dtype(q), needs, *lengths, *limits)
    if plan.implementation == "torch":
        return None
    if plan.implementation in LIBRARIES:
        library = LIBRARIES[plan.implementation]
        raise ValueError(
            f"implementation={plan.implementation}: {library} is not used with a gradient of the log-sum-exp; use "
            "triton or torch"
        )
    from .fused import attention

    q, k, v = (x.to(compute_dtype(q)) for x in (q, k, v))
    borders = None if documents is None else documents.borders.contiguous()
    out, lse, *_ = attention(q, k, v, None, None, table, borders, None, None, "plain", (), scale, "triton", "triton")
    return out, lse.transpose(1, 2) * math.log(2)


def _check(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scale: float,
    documents: Documents | None,
    delta: Tensor | None = None,
    sums: Tensor | None = None,
) -> None:
    """Raise ValueError for inputs of `fused_attention` with which kernels would read out of bounds, or a scale that is
    not above 0."""
    check_shapes(q, k, documents)
    if not scale > 0:  # also for NaN
        raise ValueError(f"scale={scale}: it must be above 0")
    (batch, _, heads, width), (_, keys, kv_heads, _) = q.shape, k.shape
    wanted = {
        "keys": (k, (batch, keys, kv_heads, width)),
        "values": (v, (batch, keys, kv_heads, v.shape[-1])),
        "delta": (delta, (kv_heads, width)),
        "sums": (sums, (batch, keys, heads)),
    }
    refuse_shapes(q, k, wanted)
