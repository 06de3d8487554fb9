"""From a public operator to the fused kernels: choose, check, and tell decoding from the rest."""

import torch
from torch import Tensor

from ..choice import choose
from .plain import check_shapes

FEW, ROWS = 16, 64  # new tokens, and times query heads that share a key head, that the decoding kernel takes at most


def fused_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scale: float,
    documents: Tensor | None,
    implementation: str,
    form: str = "plain",
    base: float = 1.0,
    delta: Tensor | None = None,
    sums: Tensor | None = None,
) -> Tensor | None:
    """The operator by Triton or cuDNN, `[B, T, H, D]`; None where PyTorch's own operations shall compute it.

    Arguments as `kernels/attention/fused.py` has them. Under autocast q, k and v are computed in its dtype, as in
    PyTorch's own attention.

    Raises:
        ValueError: shapes that do not fit, or a named implementation that does not serve them.
    """
    check_shapes(q, k, documents)
    if scale <= 0:
        raise ValueError(f"scale={scale}: it must be above 0")
    if documents is not None and documents.shape != q.shape[:2]:
        raise ValueError(f"documents {list(documents.shape)} beside queries {list(q.shape)}: [B, T] is needed")
    if v.shape != k.shape or not q.numel():
        if implementation in ("triton", "cudnn"):
            raise ValueError(
                f"implementation={implementation}: queries {list(q.shape)}, keys {list(k.shape)} and values "
                f"{list(v.shape)} are served by torch alone; use implementation=auto or torch"
            )
        return None
    kind = q.device.type
    if torch.is_autocast_enabled(kind) and q.dtype != torch.float64:
        q, k, v = (x.to(torch.get_autocast_dtype(kind)) for x in (q, k, v))
    length, keys = q.shape[1], k.shape[1]
    polar = form in ("polar", "magnitude")
    given = {"documents": documents is not None, "gates": sums is not None, "polar": polar}
    choice = choose(implementation, q.device, q.dtype, q.shape[-1], length, keys, **given)
    if choice.implementation == "torch":
        return None
    delta = None if delta is None else delta.float().contiguous()
    few = length < keys and length <= FEW and length * q.shape[2] // k.shape[2] <= ROWS
    if few and documents is None and not _differentiated(q, k, v, delta, sums):
        from .decode import decode

        return decode(q, k, v, delta, sums, form, base, scale)
    from .fused import attention  # Triton, which not every platform has, begins here

    return attention(q, k, v, delta, sums, documents, form, base, scale, choice.implementation, choice.gradient)[0]


def _differentiated(*tensors: Tensor | None) -> bool:
    return torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in tensors)
