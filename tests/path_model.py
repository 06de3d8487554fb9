"""The two-level scheme of kernels/path_*.py in plain float64 PyTorch, forward and backward by hand: their map.

Shapes: N stands for batch and key heads, G for query heads a key head; q `[N, G, T, D]`, k, w `[N, T, D]`,
v `[N, T, Dv]`, beta `[N, T]`, c `[N, G, T]`; T is a multiple of the chunk. Names are the kernels' own.
"""

from typing import NamedTuple

import torch
from torch import Tensor


class Scheme(NamedTuple):
    """Tokens a block (one UT form), blocks a chunk (one product)."""

    block: int
    blocks: int

    @property
    def chunk(self) -> int:
        return self.block * self.blocks


def cut(x: Tensor, size: int) -> Tensor:
    """`[..., T, D]` as `[..., n, size, D]`."""
    return x.unflatten(-2, (-1, size))


class Prepared(NamedTuple):
    """Of each block, `[N, nb, ...]`."""

    inverse: Tensor  # (I + strict_lower(Dg W W^T))^-1
    u: Tensor  # inverse Dg W
    z: Tensor  # inverse Dg strict_lower(W K^T)
    k_end: Tensor  # keys pushed to the block's end
    step: Tensor  # the block's product


def prepare(k: Tensor, w: Tensor, beta: Tensor, scheme: Scheme) -> Prepared:
    k, w, beta = (cut(x, scheme.block) for x in (k, w, beta.unsqueeze(-1)))
    inverse = torch.linalg.inv(torch.eye(scheme.block, dtype=k.dtype) + (beta * (w @ w.mT)).tril(-1))
    u, z = inverse @ (beta * w), inverse @ (beta * (w @ k.mT).tril(-1))
    return Prepared(inverse, u, z, k - z.mT @ w, torch.eye(k.shape[-1], dtype=k.dtype) - w.mT @ u)


def prepare_backward(k, w, beta, p: Prepared, dk, dw, du, dz, dk_end, dstep, scheme: Scheme):
    """Adds to `dk, dw` what came through `u, z, k_end, step`; all by block. Returns dk, dw, dbeta `[N, T, ...]`."""
    k, w, beta = (cut(x, scheme.block) for x in (k, w, beta.unsqueeze(-1)))
    dk, dz, dw = dk + dk_end, dz - w @ dk_end.mT, dw - p.z @ dk_end - p.u @ dstep.mT
    du = du - w @ dstep
    gram, y = w @ w.mT, (w @ k.mT).tril(-1)
    bu, bz = p.inverse.mT @ du, p.inverse.mT @ dz
    dn = -(bu @ p.u.mT + bz @ p.z.mT).tril(-1)
    dbeta = (bu * w).sum(-1) + (bz * y).sum(-1) + (dn * gram).sum(-1)
    dy, dgram = (beta * bz).tril(-1), beta * dn
    dw = dw + beta * bu + dy @ k + (dgram + dgram.mT) @ w
    return (dk + dy.mT @ w).flatten(1, 2), dw.flatten(1, 2), dbeta.flatten(1, 2)


def compose(p: Prepared, scheme: Scheme):
    """Of each chunk: products of the blocks after each `[N, n, r, D, D]`, keys at its end `[N, T, D]`, its product."""
    step, k_end = (x.unflatten(1, (-1, scheme.blocks)) for x in (p.step, p.k_end))
    r = torch.eye(step.shape[-1], dtype=step.dtype).expand(*step.shape[:2], -1, -1)
    after = []
    for j in reversed(range(scheme.blocks)):
        after.append(r)
        r = r @ step[:, :, j]
    after = torch.stack(after[::-1], 2)
    return after, (k_end @ after.mT).flatten(1, 3), r


def compose_backward(p: Prepared, after, dk_bar, dproduct, scheme: Scheme):
    """dstep, dk_end by block, through `compose`."""
    step, k_end, dk_bar = (x.unflatten(1, (-1, scheme.blocks)) for x in (p.step, p.k_end, cut(dk_bar, scheme.block)))
    dstep, dr = torch.empty_like(step), dproduct
    for j in range(scheme.blocks):
        dstep[:, :, j] = after[:, :, j].mT @ dr
        dr = dr @ step[:, :, j].mT + dk_bar[:, :, j].mT @ k_end[:, :, j]
    return dstep.flatten(1, 2), (dk_bar @ after).flatten(1, 2)


def pull(q: Tensor, w: Tensor, p: Prepared, scheme: Scheme) -> dict[tuple[int, int], Tensor]:
    """Queries of block i as the end of block j sees them, for all j < i of i's chunk and the one before its start."""
    q, w, seen = cut(q, scheme.block), cut(w, scheme.block), {}
    for i in range(q.shape[2]):
        first = i // scheme.blocks * scheme.blocks
        x = q[:, :, i] - (q[:, :, i] @ w[:, None, i].mT).tril() @ p.u[:, None, i]
        for j in reversed(range(first, i)):
            seen[i, j] = x
            x = x @ p.step[:, None, j]
        seen[i, first - 1] = x
    return seen


def pairs(product: Tensor) -> dict[tuple[int, int], Tensor]:
    """Products of the chunks between c and an earlier c', `[N, D, D]`."""
    between = {}
    for c in range(product.shape[1]):
        m = torch.eye(product.shape[-1], dtype=product.dtype).expand(product.shape[0], -1, -1)
        for earlier in reversed(range(c)):
            between[c, earlier] = m
            m = m @ product[:, earlier]
    return between


class Saved(NamedTuple):
    prepared: Prepared
    after: Tensor
    k_bar: Tensor
    product: Tensor
    seen: dict
    between: dict
    scores: Tensor


def scores_of(q, k, w, beta, scheme: Scheme) -> Saved:
    """Every unscaled score on or below the diagonal, `[N, G, T, T]`, and what the backward pass uses again."""
    p = prepare(k, w, beta, scheme)
    after, k_bar, product = compose(p, scheme)
    seen, between = pull(q, w, p, scheme), pairs(product)
    size, chunk = scheme.block, scheme.chunk
    scores = q.new_zeros(*q.shape[:3], q.shape[2])
    qs, ks, ws = cut(q, size), cut(k, size), cut(w, size)
    for i in range(qs.shape[2]):
        rows, c = slice(i * size, (i + 1) * size), i // scheme.blocks
        read = (qs[:, :, i] @ ws[:, None, i].mT).tril()
        scores[:, :, rows, rows] = (qs[:, :, i] @ ks[:, None, i].mT - read @ p.z[:, None, i]).tril()
        for j in range(c * scheme.blocks, i):
            scores[:, :, rows, j * size : (j + 1) * size] = seen[i, j] @ p.k_end[:, None, j].mT
        q_bar = seen[i, c * scheme.blocks - 1]
        for e in range(c):
            keys = slice(e * chunk, (e + 1) * chunk)
            scores[:, :, rows, keys] = q_bar @ between[c, e].unsqueeze(1) @ k_bar[:, None, keys].mT
    return Saved(p, after, k_bar, product, seen, between, scores)


def attention(q, k, v, w, beta, scale, scheme: Scheme, c=None, first=None):
    """Output `[N, G, T, Dv]`, lse `[N, G, T]`, scores, what was saved; `first [N, T]`: each document's first token."""
    saved = scores_of(q, k, w, beta, scheme)
    logits, index = saved.scores * scale, torch.arange(q.shape[2])
    if c is not None:
        logits = logits + c.unsqueeze(-1) - c.unsqueeze(-2)
    hidden = index > index.unsqueeze(-1)
    if first is not None:
        hidden = hidden | (index < first.unsqueeze(-1)).unsqueeze(1)
    logits = logits.masked_fill(hidden, float("-inf"))
    lse = logits.logsumexp(-1)
    return logits.softmax(-1) @ v.unsqueeze(1), lse, logits, saved


def attention_backward(q, k, v, w, beta, scale, scheme: Scheme, out, lse, logits, saved: Saved, dout):
    """dq, dk, dv, dw, dbeta, dc by hand, pass by pass as the kernels do it."""
    p, after, k_bar, product, seen, between, _ = saved
    size, chunk, r = scheme.block, scheme.chunk, scheme.blocks
    weights = (logits - lse.unsqueeze(-1)).exp()
    ds = weights * (dout @ v.unsqueeze(1).mT - (dout * out).sum(-1, keepdim=True))
    dv, dc = (weights.mT @ dout).sum(1), ds.sum(-1) - ds.sum(-2)
    ds = ds * scale
    n, nb = q.shape[2] // chunk, q.shape[2] // size
    q_bar = torch.cat([seen[i, i // r * r - 1] for i in range(nb)], 2)

    # Pairs of chunks: queries and keys meet through M = between, and dM's moments F give every chunk's dP.
    dq_bar, dk_bar, dproduct = torch.zeros_like(q), torch.zeros_like(k), torch.zeros_like(product)
    for c in range(n):
        rows, e_moment = slice(c * chunk, (c + 1) * chunk), torch.zeros_like(product[:, 0])
        moment = e_moment
        for e in range(c):
            keys, m = slice(e * chunk, (e + 1) * chunk), between[c, e]
            if e:
                e_moment = e_moment @ product[:, e - 1].mT + moment
                dproduct[:, e] += m.mT @ e_moment
            g = ds[:, :, rows, keys] @ k_bar[:, None, keys]
            dq_bar[:, :, rows] += g @ m.mT.unsqueeze(1)
            moment = (q_bar[:, :, rows].mT @ g).sum(1)
            dk_bar[:, keys] += (ds[:, :, rows, keys].mT @ q_bar[:, :, rows]).sum(1) @ m

    # Inside chunks: the gradient of a pulled query walks right again.
    qs, ks, ws = cut(q, size), cut(k, size), cut(w, size)
    dq, dk, dw, du, dk_end = (torch.zeros_like(x) for x in (qs, ks, ws, ws, ks))
    dz, dstep = torch.zeros_like(p.z), torch.zeros_like(p.step)
    for i in range(nb):
        rows, first = slice(i * size, (i + 1) * size), i // r * r
        x = dq_bar[:, :, rows]
        for j in range(first, i):
            keys = slice(j * size, (j + 1) * size)
            dstep[:, j] += (seen[i, j].mT @ x).sum(1)
            dk_end[:, j] += (ds[:, :, rows, keys].mT @ seen[i, j]).sum(1)
            x = x @ p.step[:, None, j].mT + ds[:, :, rows, keys] @ p.k_end[:, None, j]
        read, d = (qs[:, :, i] @ ws[:, None, i].mT).tril(), ds[:, :, rows, rows]
        da = -(x @ p.u[:, None, i].mT + d @ p.z[:, None, i].mT).tril()
        du[:, i] -= (read.mT @ x).sum(1)
        dz[:, i] = -(read.mT @ d).sum(1)
        dw[:, i] += (da.mT @ qs[:, :, i]).sum(1)
        dk[:, i] = (d.mT @ qs[:, :, i]).sum(1)
        dq[:, :, i] = x + d @ ks[:, None, i] + da @ ws[:, None, i]

    dstep_c, dk_end_c = compose_backward(p, after, dk_bar, dproduct, scheme)
    dk, dw, dbeta = prepare_backward(k, w, beta, p, dk, dw, du, dz, dk_end + dk_end_c, dstep + dstep_c, scheme)
    return dq.flatten(2, 3), dk, dv, dw, dbeta, dc
