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

from ..attention.blocks import Blocks, Chunks, attend_in_blocks, by_group, by_head, gates
from ..attention.plain import check_shapes
from ..choice import Implementation, Needs, Plan, choose
from ..documents import Documents
from ..precision import wide
from .cache import WINDOW, Turns, add_token, add_windows, by_window, newest, spread


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


def path_attention_cached(
    q: Tensor,
    w: Tensor,
    beta: Tensor,
    scale: float,
    keys: Tensor,
    values: Tensor,
    turns: Turns,
    sums: Tensor | None = None,
    implementation: Implementation | Plan = "auto",
) -> Tensor:
    """The same for T tokens behind those that `turns` knows (kernels/path/cache.py), and notes them there.

    One token without gradients goes to a kernel that reads the cache, where `implementation` has one; more are computed
    as a whole sequence where nothing was cached, else by PyTorch's operations.

    Args:
        q: `[B, T, H, D]`; w: `[B, T, Hkv, D]`, beta: `[B, T, Hkv]`, of the new tokens.
        keys: `[B, capacity, Hkv, D]`, values: `[B, capacity, Hkv, Dv]`, sums: `[B, capacity, H]`, of all tokens. The
            new ones' stand there as they came. Keys are written whenever a window of them is whole.

    Returns:
        `[B, T, H, Dv]`.
    """
    held, pending, tokens = turns.held, turns.pending, q.shape[1]
    if tokens == 1:
        decode = decode_in_torch
        differentiated = torch.is_grad_enabled() and any(
            x is not None and x.requires_grad for x in (q, keys, values, w, beta, sums)
        )
        if planned(implementation, q, values).implementation == "triton" and not differentiated:
            from .decode import decode_token as decode  # Triton, which not every platform has

        with torch.autocast(q.device.type, enabled=False):
            out = decode(q, w[:, 0], beta[:, 0], scale, keys, values, turns, sums)
            if turns.pending == WINDOW:
                add_windows(turns, keys, turns.window.unsqueeze(2), turns.product.unsqueeze(2))
        return out
    w, beta = torch.cat([turns.w[:, :pending], w], 1), torch.cat([turns.beta[:, :pending], beta], 1)
    length, whole = w.shape[1], w.shape[1] // WINDOW * WINDOW
    here = slice(held, held + length)
    k, v, c = keys[:, here], values[:, here], None if sums is None else sums[:, here]
    if held or pending:
        with torch.autocast(q.device.type, enabled=False):
            before = None if sums is None else sums[:, :held]
            past = (newest(turns, keys), values[:, :held], before) if held else None
            out = attend_behind(q, k, v, w, beta, scale, c, past)
    else:
        out = path_attention(q, k, v, w, beta, scale, None, c, implementation)
    with torch.autocast(q.device.type, enabled=False):
        dtype = turns.product.dtype
        if whole:
            parts = (by_window(x[:, :whole]).to(dtype) for x in (k, w, beta.unsqueeze(-1)))
            add_windows(turns, keys, *pushed(*parts))
        rest = length - whole
        turns.pending, turns.w[:, :rest], turns.beta[:, :rest] = rest, w[:, whole:], beta[:, whole:]
        if rest:
            parts = (one_block(x[:, whole:], dtype) for x in (k, w, beta.unsqueeze(-1)))
            for old, new in zip((turns.window[:, :, :rest], turns.product), pushed(*parts), strict=True):
                old.copy_(new.squeeze(2))
    return out


def planned(implementation: Implementation | Plan, q: Tensor, v: Tensor) -> Plan:
    """What computes PaTH attention on `q [B, T, H, D]` and values as wide as `v`."""
    if isinstance(implementation, Plan):
        return implementation
    head_dim, length = q.shape[-1], q.shape[1]
    needs = Needs(head_dim, head_dim, v.shape[-1], reflections=True)
    return choose(implementation, q.device, q.dtype, needs, length, length)


def decode_in_torch(q, w, beta, scale: float, keys, values, turns: Turns, sums: Tensor | None) -> Tensor:
    """One token; takes it into `turns`."""
    held, dtype = turns.held, turns.product.dtype
    count = held + turns.pending + 1
    add_token(turns, keys[:, count - 1], w, beta)
    q = q[:, 0].unflatten(1, (keys.shape[2], -1)).to(dtype) * scale
    scores = q @ turns.window[:, :, : turns.pending].mT
    if held:
        queries = spread(turns, (q @ turns.product).unsqueeze(2) @ turns.pieces())
        past = queries @ by_window(keys[:, :held]).to(dtype).mT
        scores = torch.cat([past.transpose(2, 3).flatten(3), scores], -1)
    if sums is not None:
        c = by_head(sums[:, :count], keys.shape[2], count)
        scores = scores + (c[..., -1:] - c).to(dtype)
    out = scores.softmax(-1) @ values[:, :count].to(dtype).transpose(1, 2)
    return out.flatten(1, 2).unsqueeze(1).to(values.dtype)


def attend_behind(q, k, v, w, beta, scale: float, sums: Tensor | None, past: tuple | None) -> Tensor:
    """The last T of L tokens, `q [B, T, H, D]`, behind the keys, values and sums of `past`."""
    tokens, length, dtype = q.shape[1], k.shape[1], wide(q)
    padded = torch.cat([q.new_zeros(q.shape[0], length - tokens, *q.shape[2:]), q], 1)
    block = path_block(padded, k, v, w, beta, scale, None, sums)
    softmax = block.softmax
    if past is not None:
        keys, values, earlier = past
        scores = by_group(block.queries, one_block(keys, dtype).mT)
        if sums is not None:
            later = by_head(sums, k.shape[2], scores.shape[-2])
            earlier = by_head(earlier, k.shape[2], keys.shape[1])
            scores = scores + gates(later, earlier, earlier[..., -1:], dtype).unsqueeze(2)
        softmax = softmax.fold(scores, one_block(values, dtype))
    return softmax.result(length)[:, -tokens:].to(v.dtype)


def one_block(x: Tensor, dtype: torch.dtype) -> Tensor:
    """`[B, L, Hkv, ...]` as one block `[B, Hkv, 1, L, ...]`."""
    return x.to(dtype).transpose(1, 2).unsqueeze(2)


def path_block(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    w: Tensor,
    beta: Tensor,
    scale: float,
    documents: Documents | None,
    sums: Tensor | None,
) -> Blocks:
    """All tokens as one block: queries pulled back to the sequence's start, keys pushed to its end, its product."""

    def first(queries: Tensor, keys: Tensor, chunked: Callable[[Tensor], Tensor]) -> Chunks:
        return ut_form(queries, keys, chunked(w), chunked(beta.unsqueeze(-1)))

    return attend_in_blocks(q, k, v, first, scale, documents, sums)


def ut_form(queries: Tensor, keys: Tensor, w: Tensor, beta: Tensor) -> Chunks:
    """`queries [B, Hkv, n, G, L, D]`, `keys, w [B, Hkv, n, L, D]`, `beta [B, Hkv, n, L, 1]`."""
    u, z = solved(keys, w, beta)
    read = by_group(queries, w.mT).tril()
    return Chunks(by_group(queries, keys.mT) - by_group(read, z), queries - by_group(read, u), *ends(keys, w, u, z))


def pushed(keys: Tensor, w: Tensor, beta: Tensor) -> tuple[Tensor, Tensor]:
    """Keys at their chunk's end, and its product."""
    return ends(keys, w, *solved(keys, w, beta))


def solved(keys: Tensor, w: Tensor, beta: Tensor) -> tuple[Tensor, Tensor]:
    """U and Z."""
    right = beta * torch.cat([w, (w @ keys.mT).tril(-1)], -1)
    # `unitriangular` reads the strictly lower part alone and takes the diagonal as ones.
    both = torch.linalg.solve_triangular(beta * (w @ w.mT), right, upper=False, unitriangular=True)
    return both.split([w.shape[-1], keys.shape[-2]], -1)


def ends(keys: Tensor, w: Tensor, u: Tensor, z: Tensor) -> tuple[Tensor, Tensor]:
    return keys - z.mT @ w, torch.eye(w.shape[-1], dtype=w.dtype, device=w.device) - w.mT @ u
