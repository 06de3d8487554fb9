"""PaTH attention with a cache: prefill, chunked prefill and decoding."""

import torch
from torch import Tensor

from ..attention.blocks import by_group, by_head, gates
from ..attention.plain import check_shapes, differentiated, refuse_shapes
from ..choice import Implementation, Plan
from ..precision import wide
from .attention import path_attention, planned
from .cache import WINDOW, Turns, add_token, add_windows, by_window, newest, spread
from .chunks import one_block, path_block, pushed


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
    """PaTH attention of T new tokens over the cached and the new tokens (Yang et al., arXiv 2505.16381).

    Updates `keys` and `turns` in place. A single token without gradients uses a decoding kernel if `implementation`
    selects Triton. Several tokens after an empty cache are computed like a whole sequence; otherwise PyTorch operations
    are used. Inputs may have any floating-point dtype.

    Args:
        q: queries of the new tokens, `[B, T, H, D]`.
        w: directions of their Householder transforms, `[B, T, Hkv, D]`, with |w| <= 1.
        beta: strengths of their transforms, `[B, T, Hkv]`, in [0, 2].
        scale: factor of the scores; it does not apply to the gates.
        keys: key cache, `[B, capacity, Hkv, D]`. The caller has written the new keys after the cached ones. A window of
            keys is rewritten when it is complete.
        values: value cache, `[B, capacity, Hkv, Dv]`, including the new values.
        turns: state of the cache (kernels/path/cache.py).
        sums: cumulative log-gates of PaTH-FoX, `[B, capacity, H]` float64, including those of the new tokens. Default:
            None, no gates.
        implementation: "auto" (fastest supported), "triton", "torch", or a `Plan` that was already chosen. Default:
            "auto".

    Returns:
        `[B, T, H, Dv]` in the dtype of `values`.

    Raises:
        ValueError: incompatible shapes, no room for the tokens in the cache, or a requested implementation that does
            not support the inputs.
    """
    _check(q, w, beta, keys, values, turns, sums)
    held, pending, tokens = turns.held, turns.pending, q.shape[1]
    if tokens == 1:
        decode = decode_in_torch
        by_kernel = planned(implementation, q, values).implementation == "triton"
        if by_kernel and not differentiated(q, keys, values, w, beta, sums):
            from .decode import decode_token as decode  # imports Triton, which is not available on every platform

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


def _check(q: Tensor, w: Tensor, beta: Tensor, keys: Tensor, values: Tensor, turns: Turns, sums: Tensor | None) -> None:
    """Raise ValueError for inputs with which the decoding kernel would read or write out of bounds."""
    (batch, tokens, heads, width), (_, capacity, kv_heads, _) = q.shape, keys.shape
    if turns.held + turns.pending + tokens > capacity:
        raise ValueError(
            f"{tokens} tokens after {turns.held + turns.pending} in a cache of {capacity}: create a larger cache"
        )
    check_shapes(q, keys, None)
    wanted = {
        "keys": (keys, (batch, capacity, kv_heads, width)),
        "values": (values, (batch, capacity, kv_heads, values.shape[-1])),
        "w": (w, (batch, tokens, kv_heads, width)),
        "beta": (beta, (batch, tokens, kv_heads)),
        "sums": (sums, (batch, capacity, heads)),
    }
    refuse_shapes(q, keys, wanted)


def decode_in_torch(q, w, beta, scale: float, keys, values, turns: Turns, sums: Tensor | None) -> Tensor:
    """Attention of one new token, which is added to `turns`."""
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
    """Attention of `q [B, T, H, D]`, the last T of L tokens, over these L and the keys, values and sums of `past`."""
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
    return softmax.result(length)[:, length - tokens :].to(v.dtype)
