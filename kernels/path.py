"""PaTH attention in plain PyTorch: chunks in UT form, joined into blocks by their products.

PaTH (Yang et al., arXiv 2505.16381): with H_s = I - beta_s w_s w_s^T,

    score(t, s) = q_t^T H_t H_{t-1} ... H_{s+1} k_s.

Inside one chunk (rows of W are w_s, Dg = diag(beta)), with the UT transform
U = (I + strict_lower(Dg W W^T))^{-1} Dg W and Z = (I + strict_lower(Dg W W^T))^{-1} Dg strict_lower(W K^T):

    scores                                lower(Q K^T) - lower(Q W^T) Z
    queries pulled back to its start      Q - lower(Q W^T) U
    keys pushed forward to its end        K - Z^T W
    its whole product H_last ... H_first  P = I - W^T U

Two neighbouring blocks meet at their border, where q^T k is the score; the pair is such a block itself, with
P = P_right P_left. So the chains cost O(T D^2 log T) beside the scores. A padded token has w = 0: H = I, exactly.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from bearings.kernels.blocks import Blocks, Chunks, attend_in_blocks, by_group, by_head, gates
from bearings.kernels.precision import wide


def path_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    w: Tensor,
    beta: Tensor,
    scale: float,
    documents: Tensor | None = None,
    sums: Tensor | None = None,
) -> Tensor:
    """Causal PaTH attention over a whole sequence. The chains run in float32 at least, whatever autocast says.

    Args:
        q: `[B, T, H, D]`; k, w: `[B, T, Hkv, D]`; v: `[B, T, Hkv, Dv]`; beta: `[B, T, Hkv]`. |w| <= 1, beta in [0, 2].
        scale: of the scores, before the gates.
        documents: `[B, T]`, constant within a document; attention stays inside each run.
        sums: `[B, T, H]` in float64, cumulative log-gates c of PaTH-FoX: c_t - c_s is added to the score.

    Returns:
        `[B, T, H, Dv]` in the dtype of v.
    """
    with torch.autocast(q.device.type, enabled=False):
        return path_block(q, k, v, w, beta, scale, documents, sums).softmax.result(q.shape[1]).to(v.dtype)


def path_attention_cached(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    w: Tensor,
    beta: Tensor,
    scale: float,
    cached_keys: Tensor,
    cached_values: Tensor,
    sums: Tensor | None = None,
    cached_sums: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """The same for T tokens behind S >= 0 cached ones, whose keys stand in the frame of the newest cached token.

    Args:
        cached_keys: `[B, S, Hkv, D]`, each already multiplied by the H of every cached token after it.
        cached_values: `[B, S, Hkv, Dv]`; cached_sums: `[B, S, H]`.

    Returns:
        `[B, T, H, Dv]`, and all keys `[B, S + T, Hkv, D]` in the frame of the newest token, in float32 at least.
    """
    length, held, dtype = q.shape[1], cached_keys.shape[1], wide(q)
    with torch.autocast(q.device.type, enabled=False):
        block = path_block(q, k, v, w, beta, scale, None, sums)
        softmax, keys = block.softmax, block.keys[:, :, 0, :length].transpose(1, 2)
        if held:
            past = cached_keys.to(dtype)
            scores = by_group(block.queries, past.permute(0, 2, 3, 1).unsqueeze(2))
            if sums is not None:
                later, earlier = by_head(sums, k.shape[2], scores.shape[-2]), by_head(cached_sums, k.shape[2], held)
                scores = scores + gates(later, earlier, earlier[..., -1:], dtype).unsqueeze(2)
            softmax = softmax.fold(scores, cached_values.to(dtype).transpose(1, 2).unsqueeze(2))
            if length == 1:  # one reflection costs O(D) a key, its D x D matrix O(D^2)
                w, beta = w.to(dtype), beta.to(dtype).unsqueeze(-1)
                past = past - (past * w).sum(-1, keepdim=True) * beta * w
            else:
                past = (past.transpose(1, 2) @ block.product[:, :, 0].mT).transpose(1, 2)
            keys = torch.cat([past, keys], 1)
        return softmax.result(length).to(v.dtype), keys


def path_block(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    w: Tensor,
    beta: Tensor,
    scale: float,
    documents: Tensor | None,
    sums: Tensor | None,
) -> Blocks:
    """All tokens as one block: queries pulled back to the sequence's start, keys pushed to its end, its product."""

    def first(queries: Tensor, keys: Tensor, chunked: Callable[[Tensor], Tensor]) -> Chunks:
        return ut_form(queries, keys, chunked(w), chunked(beta.unsqueeze(-1)))

    return attend_in_blocks(q, k, v, first, scale, documents, sums)


def ut_form(queries: Tensor, keys: Tensor, w: Tensor, beta: Tensor) -> Chunks:
    """`queries [B, Hkv, n, G, L, D]`, `keys, w [B, Hkv, n, L, D]`, `beta [B, Hkv, n, L, 1]`."""
    right = beta * torch.cat([w, (w @ keys.mT).tril(-1)], -1)
    # `unitriangular` reads the strictly lower part alone and takes the diagonal as ones.
    solved = torch.linalg.solve_triangular(beta * (w @ w.mT), right, upper=False, unitriangular=True)
    u, z = solved.split([w.shape[-1], keys.shape[-2]], -1)
    read = by_group(queries, w.mT).tril()
    return Chunks(
        scores=by_group(queries, keys.mT) - by_group(read, z),
        queries=queries - by_group(read, u),
        keys=keys - z.mT @ w,
        product=torch.eye(w.shape[-1], dtype=w.dtype, device=w.device) - w.mT @ u,
    )
