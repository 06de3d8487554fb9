"""Attention with a bias that depends on the head and on the distance between query and key."""

from collections.abc import Callable

from torch import Tensor

from ..choice import Implementation, Plan
from ..documents import Documents
from .dispatch import fused_attention
from .plain import check_shapes, scale_of
from .rows import Rows, attend_rows


def distance_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    table: Tensor,
    documents: Documents | None = None,
    scale: float | None = None,
    implementation: Implementation | Plan = "auto",
) -> Tensor:
    """Causal softmax attention, score(t, s) = scale q_t . k_s + table[h, t - s].

    T queries attend to S >= T keys; the last query is at the position of the last key. Inputs may have any
    floating-point dtype. Under autocast "triton" casts q, k and v to its dtype, except float64.

    Args:
        q: queries, `[B, T, H, D]`.
        k: keys, `[B, S, Hkv, D]`. Hkv must divide H; each key head serves H / Hkv query heads.
        v: values, `[B, S, Hkv, D]`.
        table: bias of each query head by distance, `[H, N]`, float32 or wider. The last entry applies to all greater
            distances too; a short table is faster. An entry of -inf hides the keys at its distance; the entry of
            distance 0 must be finite. The scale does not apply to it.
        documents: boundaries of packed documents and windows, for all S tokens. Default: None, each row is one
            document.
        scale: factor of the dot products, above 0. Default: None, 1/sqrt(D).
        implementation: "auto" (fastest supported), "triton", "torch", or a `Plan` that was already chosen. cuDNN does
            not support a bias. Default: "auto".

    Returns:
        `[B, T, H, D]`: with "torch" in the dtype of v, with "triton" in the dtype in which attention was computed.

    Raises:
        ValueError: incompatible shapes, scale <= 0, or a requested implementation that does not support the inputs.
    """
    scale = scale_of(q, scale)
    check_distance(q, k, table, documents, scale)
    out = fused_attention(q, k, v, scale, documents, implementation, table=table)
    if out is not None:
        return out
    return attend_rows(q, k, v, distance_scores(scale), (table,), documents)


def check_distance(q: Tensor, k: Tensor, table: Tensor, documents: Documents | None, scale: float) -> None:
    """Raise ValueError for incompatible shapes of the inputs of `distance_attention`, or scale <= 0."""
    check_shapes(q, k, documents)
    if not scale > 0:  # also for NaN
        raise ValueError(f"scale={scale}: it must be above 0")
    if table.dim() != 2 or table.shape[0] != q.shape[2] or table.shape[1] < min(k.shape[1], 1):
        raise ValueError(
            f"table {list(table.shape)} with {q.shape[2]} query heads: it needs one row per query head and one column "
            f"per distance"
        )


def distance_scores(scale: float) -> Callable[[Rows, Tensor], Tensor]:
    """The scores of `distance_attention` for `attend_rows`."""

    def scores(block: Rows, table: Tensor) -> Tensor:
        return block.dots(scale) + block.by_distance(table.unsqueeze(1))

    return scores
