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

A token rewrites every earlier key. So a cache holds keys as one token saw them, with the reflections since beside it: a
query is pulled back over those, and the keys are pushed forward once in WINDOW tokens.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from bearings.kernels.attention import check_shapes
from bearings.kernels.blocks import Blocks, Chunks, Softmax, attend_in_blocks, by_group, by_head, gates
from bearings.kernels.choice import Choice, Implementation, choose
from bearings.kernels.precision import wide

WINDOW = 64


def choose_path(
    implementation: str, device: torch.device, dtype: torch.dtype, head_dim: int, value_dim: int | None = None
) -> Choice:
    """What computes a whole sequence: Triton's kernels where they can, PyTorch's operations elsewhere.

    Raises:
        ValueError: a named implementation does not serve these inputs. It never falls back to another.
    """
    unknown = "cuDNN's attention knows no reflections between query and key"
    if implementation == "cudnn":
        raise ValueError(f"implementation=cudnn: {unknown}; use implementation=auto, triton or torch")
    choice = choose(implementation, device, dtype, head_dim, 1, 1)
    if choice.implementation == "torch":
        return choice
    wide, most = max(head_dim, value_dim or head_dim), 64 if dtype == torch.float32 else 128
    reason = None
    if wide > most:
        reason = f"PaTH's kernels take heads of up to {most} in {str(dtype).removeprefix('torch.')}, not {wide}"
    elif device.type == "cuda" and torch.cuda.get_device_capability(device)[0] not in (9, 10):
        reason = "PaTH's kernels need the shared memory of compute capability 9.0 or 10.0"
    if reason and implementation == "auto":
        return Choice("torch", "torch", reason)
    if reason:
        raise ValueError(f"implementation=triton: {reason}; use implementation=auto or torch")
    return Choice("triton", "triton", unknown) if implementation == "auto" else choice


def path_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    w: Tensor,
    beta: Tensor,
    scale: float,
    documents: Tensor | None = None,
    sums: Tensor | None = None,
    implementation: Implementation = "auto",
) -> Tensor:
    """Causal PaTH attention over a whole sequence. The chains run in float32 at least, whatever autocast says.

    PyTorch's operations keep about T^2 / 2 numbers a head for the backward pass, Triton's kernels none of them
    (kernels/path_flash.py; of pairs of chunks those keep T^2 D^2 / 2^19).

    Args:
        q: `[B, T, H, D]`; k, w: `[B, T, Hkv, D]`; v: `[B, T, Hkv, Dv]`; beta: `[B, T, Hkv]`. |w| <= 1, beta in [0, 2].
        scale: of the scores, before the gates.
        documents: `[B, T]`, constant within a document; attention stays inside each run.
        sums: `[B, T, H]` in float64, cumulative log-gates c of PaTH-FoX: c_t - c_s is added to the score.
        implementation: auto, triton or torch.

    Returns:
        `[B, T, H, Dv]` in the dtype of v.

    Raises:
        ValueError: shapes that do not fit, or a named implementation that does not serve them.
    """
    check_shapes(q, k, documents)
    if choose_path(implementation, q.device, q.dtype, q.shape[-1], v.shape[-1]).implementation == "triton":
        # Triton, which not every platform has, begins here.
        from bearings.kernels.path_flash import path_flash_attention

        return path_flash_attention(q, k, v, w, beta, scale, documents, sums)
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
    implementation: Implementation = "auto",
) -> tuple[Tensor, Tensor | None]:
    """The same for the last T of L tokens behind S >= 0 cached ones, whose keys stand as the last of those saw them.

    Args:
        q: `[B, T, H, D]`; k, v, w, beta, sums: of all L tokens.
        cached_keys: `[B, S, Hkv, D]`; cached_values: `[B, S, Hkv, Dv]`; cached_sums: `[B, S, H]`.
        implementation: of a prompt's attention: a whole sequence with nothing cached.

    Returns:
        `[B, T, H, Dv]`; and, once L has reached WINDOW, all keys `[B, S + L, Hkv, D]` as the newest token sees them, in
        float32 at least, for the cache: None before.
    """
    tokens, length, held, dtype = q.shape[1], k.shape[1], cached_keys.shape[1], wide(q)
    prompt = tokens == length >= WINDOW and not held
    if prompt and choose_path(implementation, q.device, q.dtype, q.shape[-1], v.shape[-1]).implementation == "triton":
        from bearings.kernels.path_flash import newest_keys, path_flash_attention

        out = path_flash_attention(q, k, v, w, beta, scale, None, sums)
        with torch.autocast(q.device.type, enabled=False):
            return out, newest_keys(k.to(q.dtype), w, beta)
    with torch.autocast(q.device.type, enabled=False):
        if tokens == 1:
            softmax, queries = last_query(q, k, v, w, beta, scale, sums)
        else:
            padded = torch.cat([q.new_zeros(q.shape[0], length - tokens, *q.shape[2:]), q], 1)
            block = path_block(padded, k, v, w, beta, scale, None, sums)
            softmax, queries = block.softmax, block.queries
        past = cached_keys.to(dtype).permute(0, 2, 1, 3).unsqueeze(2)
        if held:
            scores = by_group(queries, past.mT)
            if sums is not None:
                later = sums[:, -1:] if tokens == 1 else sums
                later = by_head(later, k.shape[2], scores.shape[-2])
                earlier = by_head(cached_sums, k.shape[2], held)
                scores = scores + gates(later, earlier, earlier[..., -1:], dtype).unsqueeze(2)
            softmax = softmax.fold(scores, cached_values.to(dtype).transpose(1, 2).unsqueeze(2))
        out = softmax.result(1 if tokens == 1 else length)[:, -tokens:].to(v.dtype)
        if length < WINDOW:
            return out, None
        if tokens == 1:
            keys, product = pushed(*(one_block(x, dtype) for x in (k, w, beta.unsqueeze(-1))))
        else:
            keys, product = block.keys[..., :length, :], block.product
        return out, torch.cat([past @ product.mT, keys], 3)[:, :, 0].transpose(1, 2)


def last_query(q, k, v, w, beta, scale: float, sums: Tensor | None) -> tuple[Softmax, Tensor]:
    """One query `[B, 1, H, D]` over L tokens up to its own, and pulled back over them, `[B, Hkv, 1, G, 1, D]`.

    Its row of the UT form alone, read (I + strict_lower(Dg W W^T))^-1 Dg: a triangular solve with one right-hand side.
    """
    dtype = wide(q)
    queries = one_block(q.unflatten(2, (k.shape[2], -1)) * scale, dtype).movedim(4, 3)
    k, v, w, beta = (one_block(x, dtype) for x in (k, v, w, beta.unsqueeze(-1)))
    read = by_group(queries, w.mT).squeeze(-2)
    row = torch.linalg.solve_triangular(beta * (w @ w.mT), read, upper=False, left=False, unitriangular=True)
    row = (row * beta.mT).unsqueeze(-2)
    scores = by_group(queries, k.mT) - by_group(row, (w @ k.mT).tril(-1))
    if sums is not None:
        c = by_head(sums, k.shape[1], sums.shape[1])
        scores = scores + gates(c[..., -1:], c, c[..., -1:], dtype).unsqueeze(2)
    highest = scores.amax(-1, keepdim=True)
    exponentials = (scores - highest).exp()
    softmax = Softmax(by_group(exponentials, v), exponentials.sum(-1, keepdim=True), highest)
    return softmax, queries - by_group(row, w)


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
    documents: Tensor | None,
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
