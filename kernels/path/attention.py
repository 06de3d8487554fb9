"""PaTH attention over a whole sequence, by Triton's kernels or PyTorch's operations.

PaTH (Yang et al., arXiv 2505.16381): with H_s = I - beta_s w_s w_s^T,

    score(t, s) = q_t^T H_t H_{t-1} ... H_{s+1} k_s.
"""

import torch
from torch import Tensor

from ..attention.plain import check_shapes
from ..choice import Implementation, Needs, Plan, choose
from ..documents import Documents
from .chunks import path_block


def path_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    w: Tensor,
    beta: Tensor,
    scale: float,
    documents: Documents | None = None,
    sums: Tensor | None = None,
    implementation: Implementation | Plan = "auto",
) -> Tensor:
    """Causal PaTH attention over a whole sequence. The chains run in float32 at least, whatever autocast says.

    PyTorch's operations keep about T^2 / 2 numbers a head for the backward pass, Triton's kernels none of them
    (kernels/path/flash.py; of pairs of chunks those hold T^2 D^2 / 2^21 for a while).

    Args:
        q: `[B, T, H, D]`; k, w: `[B, T, Hkv, D]`; v: `[B, T, Hkv, Dv]`; beta: `[B, T, Hkv]`. |w| <= 1, beta in [0, 2].
        scale: of the scores, before the gates.
        documents: of packed rows; attention stays inside each.
        sums: `[B, T, H]` in float64, cumulative log-gates c of PaTH-FoX: c_t - c_s is added to the score.
        implementation: auto, triton or torch; a `Plan` has chosen already.

    Returns:
        `[B, T, H, Dv]` in the dtype of v.

    Raises:
        ValueError: shapes that do not fit, or a named implementation that does not serve them.
    """
    check_shapes(q, k, documents)
    wanted = {"v": (v, k.shape[:3]), "w": (w, k.shape), "beta": (beta, k.shape[:3]), "sums": (sums, q.shape[:3])}
    for name, (x, shape) in wanted.items():
        if x is not None and x.shape[: len(shape)] != shape:
            raise ValueError(
                f"{name} {list(x.shape)} beside q {list(q.shape)}, k {list(k.shape)}: {list(shape)} is needed"
            )
    if planned(implementation, q, v).implementation == "triton":
        # Triton, which not every platform has, begins here.
        from .flash import path_flash_attention

        return path_flash_attention(q, k, v, w, beta, scale, None if documents is None else documents.borders, sums)
    with torch.autocast(q.device.type, enabled=False):
        return path_block(q, k, v, w, beta, scale, documents, sums).softmax.result(q.shape[1]).to(v.dtype)


def planned(implementation: Implementation | Plan, q: Tensor, v: Tensor) -> Plan:
    """What computes PaTH attention on `q [B, T, H, D]` and values as wide as `v`."""
    if isinstance(implementation, Plan):
        return implementation
    head_dim, length = q.shape[-1], q.shape[1]
    needs = Needs(head_dim, head_dim, v.shape[-1], reflections=True)
    return choose(implementation, q.device, q.dtype, needs, length, length)
