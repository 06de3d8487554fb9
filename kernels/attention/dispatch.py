"""From a public operator to the fused kernels: check, plan where nobody has, and tell decoding from the rest."""

from torch import Tensor

from ..choice import Needs, Plan, choose
from ..documents import Documents
from ..precision import compute_dtype
from .plain import check_shapes, differentiated

FEW, ROWS = 16, 64  # new tokens, and times query heads that share a key head, that the decoding kernel takes at most


def fused_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scale: float,
    documents: Documents | None,
    plan: Plan | str,
    form: str = "plain",
    base: float = 1.0,
    delta: Tensor | None = None,
    sums: Tensor | None = None,
) -> Tensor | None:
    """The operator by Triton or cuDNN, `[B, T, H, D]`; None where PyTorch's own operations shall compute it.

    Arguments as `kernels/attention/fused.py` has them; `plan` as of `kernels/attention/nope.py`. Under autocast q, k
    and v are computed in its dtype, as in PyTorch's own attention.

    Raises:
        ValueError: shapes that do not fit, or a named implementation that does not serve them.
    """
    check_shapes(q, k, documents)
    if scale <= 0:
        raise ValueError(f"scale={scale}: it must be above 0")
    if documents is not None and documents.runs.shape != q.shape[:2]:
        raise ValueError(f"documents {list(documents.runs.shape)} beside queries {list(q.shape)}: [B, T] is needed")
    name = plan.implementation if isinstance(plan, Plan) else plan
    if v.shape != k.shape or not q.numel():
        if name in ("triton", "cudnn"):
            raise ValueError(
                f"implementation={name}: queries {list(q.shape)}, keys {list(k.shape)} and values "
                f"{list(v.shape)} are served by torch alone; use implementation=auto or torch"
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

        return decode(q, k, v, delta, sums, form, base, scale)
    from .fused import attention  # Triton, which not every platform has, begins here

    borders = None if documents is None else documents.borders
    return attention(q, k, v, delta, sums, borders, form, base, scale, plan.implementation, plan.gradient)[0]
