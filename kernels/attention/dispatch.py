"""Dispatch of the attention operators: checks inputs, chooses an implementation, and selects the decoding kernel."""

from torch import Tensor

from ..choice import Needs, Plan, choose
from ..documents import Documents
from ..precision import compute_dtype
from .plain import check_shapes, differentiated

FEW, ROWS = 16, 64  # limits of the decoding kernel: new tokens; new tokens times query heads per key head


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
) -> Tensor | None:
    """Compute attention with Triton or cuDNN. Under autocast, q, k and v are cast to its dtype, as PyTorch does.

    Args:
        q: queries, `[B, T, H, D]`.
        k: keys, `[B, S, Hkv, D]`, S >= T.
        v: values, `[B, S, Hkv, D]`.
        scale: factor of the dot products, above 0.
        documents: limits of attention over the S keys; see `Documents`.
        plan: a `Plan`, or the name of an implementation.
        form: "plain", "rotary", "polar" or "magnitude" (kernels/attention/encode.py).
        frequencies: radians per token, one per channel pair (rotary) or channel (polar forms).
        delta: learned phase offset of the polar forms, `[Hkv, D]`.
        sums: cumulative log-gates of FoX, `[B, S, H]`.

    Returns:
        `[B, T, H, D]`, or None if the caller has to use PyTorch operations.

    Raises:
        ValueError: incompatible shapes, or a requested implementation that does not support the inputs.
    """
    check_shapes(q, k, documents)
    if scale <= 0:
        raise ValueError(f"scale={scale}: it must be above 0")
    name = plan.implementation if isinstance(plan, Plan) else plan
    if v.shape != k.shape or not q.numel():
        if name in ("triton", "cudnn"):
            raise ValueError(
                f"implementation={name}: only torch supports queries {list(q.shape)} with keys {list(k.shape)} and "
                f"values {list(v.shape)}; use implementation=auto or torch"
            )
        return None
    length, keys, head_dim = q.shape[1], k.shape[1], q.shape[-1]
    if not isinstance(plan, Plan):
        wide = 2 * head_dim if form in ("polar", "magnitude") else head_dim
        needs = Needs(head_dim, wide, head_dim, gates=sums is not None)
        plan = choose(plan, q.device, compute_dtype(q), needs, length, keys, documents is not None)
    if plan.implementation == "torch":
        return None
    dtype = compute_dtype(q)
    q, k, v = (x.to(dtype) for x in (q, k, v))
    delta = None if delta is None else delta.float().contiguous()
    few = length < keys and length <= FEW and length * q.shape[2] // k.shape[2] <= ROWS
    if few and documents is None and not differentiated(q, k, v, delta, sums):
        from .decode import decode

        return decode(q, k, v, delta, sums, form, frequencies, scale)
    from .fused import attention  # imports Triton, which is not available on every platform

    borders = None if documents is None else documents.borders
    return attention(q, k, v, delta, sums, borders, form, frequencies, scale, plan.implementation, plan.gradient)[0]
