"""Attention on q and k as they are: no encoding, or one that has transformed them beforehand."""

from torch import Tensor

from ..choice import Implementation, Plan
from ..documents import Documents
from .dispatch import fused_attention
from .plain import causal_attention, scale_of


def nope_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    documents: Documents | None = None,
    scale: float | None = None,
    implementation: Implementation | Plan = "auto",
) -> Tensor:
    """Causal attention of T queries over S >= T keys, the last query on the last key.

    Args:
        q: `[B, T, H, D]`; k, v: `[B, S, Hkv, D]`, Hkv divides H.
        documents: of packed rows; attention stays inside each. Needs S == T.
        scale: of the dot products, 1/sqrt(D) by default.
        implementation: as `kernels/choice.py` has it; a `Plan` has chosen already.

    Returns:
        `[B, T, H, D]`.

    Raises:
        ValueError: shapes that do not fit, or an implementation that does not serve them.
    """
    scale = scale_of(q, scale)
    out = fused_attention(q, k, v, scale, documents, implementation)
    return causal_attention(q, k, v, documents, scale) if out is None else out
