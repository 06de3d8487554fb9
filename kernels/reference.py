"""Reference implementations: every operator directly from its equation, for tests only.

Shapes: q `[B, T, H, D]`, k and v `[B, S, Hkv, D]`, w `[B, S, Hkv, D]`, beta `[B, S, Hkv]`, log_gates `[B, S, H]`,
documents `[B, S]`. S >= T, and the last query is at the position of the last key. Per-position arguments cover all S
tokens. The files of the operators give the equations and papers.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

ROWS = 64  # queries whose scores are computed at once where that takes a tensor by query, key, head and channel


def nope_attention(q: Tensor, k: Tensor, v: Tensor, documents: Tensor | None = None) -> Tensor:
    """score = q_t . k_s"""
    return attend(dots(q, k), q, v, documents)


def rope_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    positions: Tensor,
    base: float | Sequence[float] = 10000.0,
    documents: Tensor | None = None,
) -> Tensor:
    """score = sum over pairs c of Re(q_t[c] conj(k_s[c]) exp(i (t - s) theta_c)), `positions [S]` or `[B, S]`.

    `base` may be the D/2 frequencies theta instead.
    """
    half = q.shape[-1] // 2
    k = k.repeat_interleave(q.shape[2] // k.shape[2], 2)
    k_pairs = torch.complex(k[..., :half], k[..., half:])

    def scores(q: Tensor, angles: Tensor) -> Tensor:
        q_pairs, angles = torch.complex(q[..., :half], q[..., half:]), angles.to(q.dtype).expand(q.shape[0], -1, -1, -1)
        turns = torch.polar(torch.ones_like(angles), angles)
        return torch.einsum("bthc,bshc,btsc->bhts", q_pairs, k_pairs.conj(), turns).real

    return attend(by_rows(scores, q, positions, base, half), q, v, documents)


def turned_attention(q: Tensor, k: Tensor, v: Tensor, phases: Tensor, documents: Tensor | None = None) -> Tensor:
    """score = sum over pairs c of Re(q_t[c] conj(k_s[c]) exp(i (p_t[c] - p_s[c]))), `phases` p `[B, S, Hkv, D/2]`."""
    half, group = q.shape[-1] // 2, q.shape[2] // k.shape[2]
    k, turns = (x.repeat_interleave(group, 2) for x in (k, torch.polar(torch.ones_like(phases), phases)))
    q_pairs, k_pairs = (torch.complex(x[..., :half], x[..., half:]) for x in (q, k))
    q_pairs, k_pairs = q_pairs * turns[:, -q.shape[1] :], k_pairs * turns
    return attend(torch.einsum("bthc,bshc->bhts", q_pairs, k_pairs.conj()).real, q, v, documents)


def pope_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    positions: Tensor,
    delta: Tensor,
    base: float = 10000.0,
    documents: Tensor | None = None,
) -> Tensor:
    """score = sum_c softplus(q_t[c]) softplus(k_s[c]) cos((s - t) theta_c + delta[c]), `delta [Hkv, D]`."""
    group = q.shape[2] // k.shape[2]
    k, delta = k.repeat_interleave(group, 2), delta.repeat_interleave(group, 0)
    q_size, k_size = (torch.logaddexp(x, torch.zeros_like(x)) for x in (q, k))

    def scores(q_size: Tensor, angles: Tensor) -> Tensor:
        cosine = (delta.double() - angles.unsqueeze(3)).cos().to(q.dtype).expand(q.shape[0], -1, -1, -1, -1)
        return torch.einsum("bthc,bshc,btshc->bhts", q_size, k_size, cosine)

    return attend(by_rows(scores, q_size, positions, base, q.shape[-1]), q, v, documents)


def path_attention(q: Tensor, k: Tensor, v: Tensor, w: Tensor, beta: Tensor, documents: Tensor | None = None) -> Tensor:
    """score = q_t . H_t H_{t-1} ... H_{s+1} k_s"""
    return attend(chained_dots(q, k, w, beta), q, v, documents)


def fox_attention(q: Tensor, k: Tensor, v: Tensor, log_gates: Tensor, documents: Tensor | None = None) -> Tensor:
    """score = q_t . k_s scale + sum_{u=s+1..t} log_gates_u"""
    return attend(dots(q, k), q, v, documents, decays(log_gates, q.shape[1]))


def path_fox_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    w: Tensor,
    beta: Tensor,
    log_gates: Tensor,
    documents: Tensor | None = None,
) -> Tensor:
    """score = q_t . H_t H_{t-1} ... H_{s+1} k_s scale + sum_{u=s+1..t} log_gates_u"""
    return attend(chained_dots(q, k, w, beta), q, v, documents, decays(log_gates, q.shape[1]))


def biased_attention(q: Tensor, k: Tensor, v: Tensor, bias: Tensor, documents: Tensor | None = None) -> Tensor:
    """score = q_t . k_s scale + bias, `bias [H, T, S]`"""
    return attend(dots(q, k), q, v, documents, bias)


def embedded_attention(q: Tensor, k: Tensor, v: Tensor, embedding: Tensor, documents: Tensor | None = None) -> Tensor:
    """score = q_t . (k_s + embedding[t, s]), `embedding [T, S, D]`"""
    return attend(dots(q, k) + torch.einsum("bthc,tsc->bhts", q, embedding), q, v, documents)


def stick_breaking_attention(q: Tensor, k: Tensor, v: Tensor, documents: Tensor | None = None) -> Tensor:
    """weight(t, s) = share_s of what s+1..t-1 have left, share = sigmoid(q_t . k_s scale); t itself takes the rest"""
    shares, rows = (dots(q, k) / q.shape[-1] ** 0.5).sigmoid(), []
    if documents is not None:
        same = documents[:, -q.shape[1] :, None] == documents[:, None, :]
        shares = shares * same.unsqueeze(1)
    for row, t in enumerate(range(k.shape[1] - q.shape[1], k.shape[1])):
        share = shares[:, :, row, :t].flip(-1)  # from the nearest key to the farthest
        left = torch.nn.functional.pad((1 - share).cumprod(-1), (1, 0), value=1.0)
        weights = torch.cat([(left[..., :-1] * share).flip(-1), left[..., -1:]], -1)
        rows.append(torch.nn.functional.pad(weights, (0, k.shape[1] - t - 1)))
    return torch.einsum("bhts,bshd->bthd", torch.stack(rows, 2), v.repeat_interleave(q.shape[2] // v.shape[2], 2))


def kernelized_attention(q: Tensor, k: Tensor, v: Tensor, factors: Tensor, documents: Tensor | None = None) -> Tensor:
    """weight(t, s) = factors[h, t - s] q_t . k_s, normalised, `factors [H, N]`, for features q and k"""
    weights, rows = dots(q, k), q.shape[1]
    keys = torch.arange(k.shape[1], device=q.device)
    distance = keys[-rows:, None] - keys
    weights = weights * factors[:, distance.clamp(0, factors.shape[1] - 1)] * (distance >= 0)
    if documents is not None:
        weights = weights * (documents[:, -rows:, None] == documents[:, None, :]).unsqueeze(1)
    weights = weights / weights.sum(-1, keepdim=True)
    return torch.einsum("bhts,bshd->bthd", weights, v.repeat_interleave(q.shape[2] // v.shape[2], 2))


def attend(scores: Tensor, q: Tensor, v: Tensor, documents: Tensor | None, bias: Tensor | float = 0.0) -> Tensor:
    """Softmax of `scores [B, H, T, S] / sqrt(D) + bias` over the visible keys of each query, times `v`."""
    length, keys = scores.shape[-2:]
    seen = torch.arange(keys, device=q.device) <= torch.arange(keys - length, keys, device=q.device).unsqueeze(1)
    if documents is not None:
        seen = seen & (documents[:, keys - length :, None] == documents[:, None, :]).unsqueeze(1)
    weights = (scores / q.shape[-1] ** 0.5 + bias).masked_fill(~seen, float("-inf")).softmax(-1)
    return torch.einsum("bhts,bshd->bthd", weights, v.repeat_interleave(q.shape[2] // v.shape[2], 2))


def dots(q: Tensor, k: Tensor) -> Tensor:
    """q_t . k_s, `[B, H, T, S]`."""
    return torch.einsum("bthc,bshc->bhts", q, k.repeat_interleave(q.shape[2] // k.shape[2], 2))


def by_rows(
    scores: Callable[[Tensor, Tensor], Tensor],
    q: Tensor,
    positions: Tensor,
    base: float | Sequence[float],
    count: int,
) -> Tensor:
    """`scores(q, angles)` `[B, H, T, S]`, from angles (t - s) theta_c `[1 or B, T, S, count]` in float64.

    theta_c is base^(-c/count), or given. A few queries are passed at a time, and the backward pass computes their
    scores again: 1,000 queries and keys of 64 channels would otherwise take 10 to 20 GiB.
    """
    positions = positions.reshape(-1, positions.shape[-1]).double()
    given = base if isinstance(base, Sequence) else [base ** (-c / count) for c in range(count)]
    theta = torch.tensor(given, dtype=torch.float64, device=q.device)

    def of_block(q: Tensor, t: Tensor) -> Tensor:
        return scores(q, (t[:, :, None] - positions[:, None, :]).unsqueeze(-1) * theta)

    blocks = zip(q.split(ROWS, 1), positions[:, -q.shape[1] :].split(ROWS, 1), strict=True)
    return torch.cat([checkpoint(of_block, *block, use_reentrant=False) for block in blocks], 2)


def chained_dots(q: Tensor, k: Tensor, w: Tensor, beta: Tensor) -> Tensor:
    """q_t . H_t ... H_{s+1} k_s, `[B, H, T, S]`, 0 for s > t. Each token transforms all earlier keys."""
    group, past = q.shape[2] // k.shape[2], k.shape[1] - q.shape[1]
    k, w, beta = (x.repeat_interleave(group, 2) for x in (k, w, beta))
    rows, keys = [], k[:, :0]
    for t in range(k.shape[1]):
        reflected = beta[:, t, None, :, None] * (keys * w[:, t, None]).sum(-1, keepdim=True) * w[:, t, None]
        keys = torch.cat([keys - reflected, k[:, t, None]], 1)
        if t >= past:
            row = torch.einsum("bhc,bshc->bhs", q[:, t - past], keys)
            rows.append(torch.nn.functional.pad(row, (0, k.shape[1] - t - 1)))
    return torch.stack(rows, 2)


def decays(log_gates: Tensor, length: int) -> Tensor:
    """sum_{u=s+1..t} log_gates_u for the last `length` tokens t, `[B, H, T, S]`; 0 for s >= t."""
    keys, rows = log_gates.shape[1], []
    for t in range(keys - length, keys):
        backwards = log_gates[:, 1 : t + 1].flip(1).cumsum(1).flip(1)  # entry s: sum from s + 1 to t
        rows.append(torch.nn.functional.pad(backwards.transpose(1, 2), (0, keys - t)))
    return torch.stack(rows, 2)
