"""Specification of the kernels in this folder: the algorithm in plain float64 PyTorch with an explicit backward pass.

Shapes: N is batch times key heads, G is query heads per key head; q `[N, G, T, D]`, k, w `[N, T, D]`, v `[N, T, Dv]`,
beta `[N, T]`, c `[N, G, T]`. T is a multiple of the chunk length. Names match those of the kernels.
"""

from typing import NamedTuple

import torch
from torch import Tensor


class Scheme(NamedTuple):
    """Tokens per block (one UT form), and blocks per chunk (a binary tree of nodes): a power of two."""

    block: int
    blocks: int

    @property
    def chunk(self) -> int:
        return self.block * self.blocks

    @property
    def levels(self) -> int:
        """Levels of nodes below a chunk."""
        return self.blocks.bit_length() - 1


def cut(x: Tensor, size: int) -> Tensor:
    """Reshape `[..., T, D]` to `[..., n, size, D]`."""
    return x.unflatten(-2, (-1, size))


class Prepared(NamedTuple):
    """Preprocessed blocks, `[N, nb, ...]`."""

    inverse: Tensor  # (I + strict_lower(Dg W W^T))^-1
    u: Tensor  # inverse Dg W
    z: Tensor  # inverse Dg strict_lower(W K^T)
    k_end: Tensor  # keys pushed to the end of the block
    step: Tensor  # product of the block


def prepare(k: Tensor, w: Tensor, beta: Tensor, scheme: Scheme) -> Prepared:
    k, w, beta = (cut(x, scheme.block) for x in (k, w, beta.unsqueeze(-1)))
    inverse = torch.linalg.inv(torch.eye(scheme.block, dtype=k.dtype, device=k.device) + (beta * (w @ w.mT)).tril(-1))
    u, z = inverse @ (beta * w), inverse @ (beta * (w @ k.mT).tril(-1))
    return Prepared(inverse, u, z, k - z.mT @ w, torch.eye(k.shape[-1], dtype=k.dtype, device=k.device) - w.mT @ u)


def prepare_backward(k, w, beta, p: Prepared, dk, dw, du, dz, dk_end, dstep, scheme: Scheme):
    """Add gradients through `u, z, k_end, step` to `dk, dw`, given per block. Returns dk, dw, dbeta `[N, T, ...]`."""
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


def nodes_of(step: Tensor, scheme: Scheme) -> list[Tensor]:
    """Products `[N, nodes, D, D]` of each level, from blocks to chunks."""
    nodes = [step]
    for _ in range(scheme.levels):
        nodes.append(nodes[-1][:, 1::2] @ nodes[-1][:, 0::2])
    return nodes


def descend(nodes: list[Tensor], dnodes: list[Tensor], scheme: Scheme) -> Tensor:
    """Backward pass of `nodes_of`. `dnodes` holds the direct gradients of each level. Returns dstep."""
    for level in reversed(range(scheme.levels)):
        left, right = nodes[level][:, 0::2], nodes[level][:, 1::2]
        dnodes[level][:, 0::2] += right.mT @ dnodes[level + 1]
        dnodes[level][:, 1::2] += dnodes[level + 1] @ left.mT
    return dnodes[0]


def push(k_end: Tensor, nodes: list[Tensor], scheme: Scheme) -> tuple[dict[tuple[int, int], Tensor], Tensor]:
    """Keys of block j pushed to the ends of left nodes that contain it, by (j, level), and to the ends of chunks."""
    keys, k_bar = {}, []
    for j in range(k_end.shape[1]):
        x = k_end[:, j]
        for level in range(scheme.levels):
            if not is_right(j, level):
                keys[j, level] = x
                x = x @ nodes[level][:, (j >> level) + 1].mT
        k_bar.append(x)
    return keys, torch.cat(k_bar, 1)


def pull(q: Tensor, w: Tensor, p: Prepared, nodes: list[Tensor], scheme: Scheme):
    """Queries of block i pulled back to the starts of the right nodes that contain it, by (i, level), and of chunks."""
    q, w, seen, q_bar = cut(q, scheme.block), cut(w, scheme.block), {}, []
    for i in range(q.shape[2]):
        x = q[:, :, i] - (q[:, :, i] @ w[:, None, i].mT).tril() @ p.u[:, None, i]
        for level in range(scheme.levels):
            if is_right(i, level):
                seen[i, level] = x
                x = x @ nodes[level][:, None, (i >> level) - 1]
        q_bar.append(x)
    return seen, torch.cat(q_bar, 2)


def is_right(block: int, level: int) -> bool:
    """Whether the node at `level` that contains this block is the right child of its parent."""
    return block >> level & 1 == 1


def sibling(block: int, level: int) -> range:
    """The blocks of the sibling of the node at `level` that contains this block."""
    first = ((block >> level) ^ 1) << level
    return range(first, first + (1 << level))


def pairs(product: Tensor) -> dict[tuple[int, int], Tensor]:
    """Products of the chunks between chunk c and an earlier chunk e, `[N, D, D]`, by (c, e)."""
    between = {}
    for c in range(product.shape[1]):
        m = torch.eye(product.shape[-1], dtype=product.dtype, device=product.device).expand(product.shape[0], -1, -1)
        for earlier in reversed(range(c)):
            between[c, earlier] = m
            m = m @ product[:, earlier]
    return between


class Saved(NamedTuple):
    prepared: Prepared
    nodes: list[Tensor]
    keys: dict
    k_bar: Tensor
    seen: dict
    q_bar: Tensor
    between: dict
    scores: Tensor


def scores_of(q, k, w, beta, scheme: Scheme) -> Saved:
    """All unscaled scores on or below the diagonal, `[N, G, T, T]`, and tensors for the backward pass."""
    p = prepare(k, w, beta, scheme)
    nodes = nodes_of(p.step, scheme)
    (keys, k_bar), (seen, q_bar) = push(p.k_end, nodes, scheme), pull(q, w, p, nodes, scheme)
    between, size, chunk = pairs(nodes[-1]), scheme.block, scheme.chunk
    scores = q.new_zeros(*q.shape[:3], q.shape[2])
    qs, ks, ws = cut(q, size), cut(k, size), cut(w, size)
    for i in range(qs.shape[2]):
        rows, c = slice(i * size, (i + 1) * size), i // scheme.blocks
        read = (qs[:, :, i] @ ws[:, None, i].mT).tril()
        scores[:, :, rows, rows] = (qs[:, :, i] @ ks[:, None, i].mT - read @ p.z[:, None, i]).tril()
        for level in range(scheme.levels):
            for j in sibling(i, level) if is_right(i, level) else ():
                scores[:, :, rows, j * size : (j + 1) * size] = seen[i, level] @ keys[j, level].mT.unsqueeze(1)
        for e in range(c):
            past = slice(e * chunk, (e + 1) * chunk)
            scores[:, :, rows, past] = q_bar[:, :, rows] @ between[c, e].unsqueeze(1) @ k_bar[:, None, past].mT
    return Saved(p, nodes, keys, k_bar, seen, q_bar, between, scores)


def attention(q, k, v, w, beta, scale, scheme: Scheme, c=None, first=None):
    """Output `[N, G, T, Dv]`, lse `[N, G, T]`, scores, saved tensors. `first [N, T]` are the starts of documents."""
    saved = scores_of(q, k, w, beta, scheme)
    logits, index = saved.scores * scale, torch.arange(q.shape[2], device=q.device)
    if c is not None:
        logits = logits + c.unsqueeze(-1) - c.unsqueeze(-2)
    hidden = index > index.unsqueeze(-1)
    if first is not None:
        hidden = hidden | (index < first.unsqueeze(-1)).unsqueeze(1)
    logits = logits.masked_fill(hidden, float("-inf"))
    lse = logits.logsumexp(-1)
    return logits.softmax(-1) @ v.unsqueeze(1), lse, logits, saved


def attention_backward(q, k, v, w, beta, scale, scheme: Scheme, out, lse, logits, saved: Saved, dout):
    """dq, dk, dv, dw, dbeta, dc, in the same stages as the kernels."""
    weights = (logits - lse.unsqueeze(-1)).exp()
    ds = weights * (dout @ v.unsqueeze(1).mT - (dout * out).sum(-1, keepdim=True))
    dv, dc = (weights.mT @ dout).sum(1), ds.sum(-1) - ds.sum(-2)
    ds = ds * scale
    dq_bar, dk_bar, dproduct = far(ds, saved, scheme)
    dseen, dq_start = near_queries(ds, dq_bar, saved, scheme)
    dkeys, dk_end = near_keys(ds, dk_bar, saved, scheme)
    dnodes = gather(dseen, dkeys, saved, scheme)
    dq, dk, dw, du, dz = diagonal(ds, dq_start, q, k, w, saved, scheme)
    dstep = descend(saved.nodes, [*dnodes, dproduct], scheme)
    dk, dw, dbeta = prepare_backward(k, w, beta, saved.prepared, dk, dw, du, dz, dk_end, dstep, scheme)
    return dq.flatten(2, 3), dk, dv, dw, dbeta, dc


def far(ds: Tensor, saved: Saved, scheme: Scheme) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients from `ds [N, G, T, T]` of queries and keys at chunk borders and of chunk products.

    Shapes are `[N, G, T, D]`, `[N, T, D]` and `[N, chunks, D, D]`. Scores use the products M between chunks; dM gives
    dP of each chunk.
    """
    chunk, product, q_bar, k_bar = scheme.chunk, saved.nodes[-1], saved.q_bar, saved.k_bar
    dq_bar, dk_bar, dproduct = torch.zeros_like(q_bar), torch.zeros_like(k_bar), torch.zeros_like(product)
    for c in range(product.shape[1]):
        rows, e_moment = slice(c * chunk, (c + 1) * chunk), torch.zeros_like(product[:, 0])
        moment = e_moment
        for e in range(c):
            keys, m = slice(e * chunk, (e + 1) * chunk), saved.between[c, e]
            if e:
                e_moment = e_moment @ product[:, e - 1].mT + moment
                dproduct[:, e] += m.mT @ e_moment
            g = ds[:, :, rows, keys] @ k_bar[:, None, keys]
            dq_bar[:, :, rows] += g @ m.mT.unsqueeze(1)
            moment = (q_bar[:, :, rows].mT @ g).sum(1)
            dk_bar[:, keys] += (ds[:, :, rows, keys].mT @ q_bar[:, :, rows]).sum(1) @ m
    return dq_bar, dk_bar, dproduct


def near_queries(ds: Tensor, dq_bar: Tensor, saved: Saved, scheme: Scheme) -> tuple[dict, Tensor]:
    """Gradients of `seen`, and of queries at the start of their block, by descending the tree of nodes."""
    blocks, dseen, found = cut(ds, scheme.block).unflatten(-1, (-1, scheme.block)), {}, []
    for i, x in enumerate(cut(dq_bar, scheme.block).unbind(2)):
        for level in reversed(range(scheme.levels)):
            if is_right(i, level):
                dseen[i, level] = x
                x = x @ saved.nodes[level][:, None, (i >> level) - 1].mT
                for j in sibling(i, level):
                    x = x + blocks[:, :, i, :, j] @ saved.keys[j, level].unsqueeze(1)
        found.append(x)
    return dseen, torch.cat(found, 2)


def near_keys(ds: Tensor, dk_bar: Tensor, saved: Saved, scheme: Scheme) -> tuple[dict, Tensor]:
    """Gradients of the pushed `keys`, and of keys at the end of their block, per block."""
    blocks, dkeys, found = cut(ds, scheme.block).unflatten(-1, (-1, scheme.block)), {}, []
    for j, y in enumerate(cut(dk_bar, scheme.block).unbind(1)):
        for level in reversed(range(scheme.levels)):
            if not is_right(j, level):
                dkeys[j, level] = y
                y = y @ saved.nodes[level][:, (j >> level) + 1]
                for i in sibling(j, level):
                    y = y + (blocks[:, :, i, :, j].mT @ saved.seen[i, level]).sum(1)
        found.append(y)
    return dkeys, torch.stack(found, 1)


def gather(dseen: dict, dkeys: dict, saved: Saved, scheme: Scheme) -> list[Tensor]:
    """Gradients of the product of each node below a chunk: left nodes from queries, right nodes from keys."""
    dnodes = [torch.zeros_like(x) for x in saved.nodes[: scheme.levels]]
    for (i, level), x in dseen.items():
        dnodes[level][:, (i >> level) - 1] += (saved.seen[i, level].mT @ x).sum(1)
    for (j, level), y in dkeys.items():
        dnodes[level][:, (j >> level) + 1] += y.mT @ saved.keys[j, level]
    return dnodes


def diagonal(ds: Tensor, dq_start: Tensor, q: Tensor, k: Tensor, w: Tensor, saved: Saved, scheme: Scheme):
    """dq, and contributions of queries to gradients of k, w, u and z of their own block; all per block."""
    p, q, k, w, x = saved.prepared, *(cut(x, scheme.block) for x in (q, k, w, dq_start))
    d = cut(ds, scheme.block).unflatten(-1, (-1, scheme.block)).diagonal(dim1=2, dim2=4).movedim(-1, 2)
    read = (q @ w.unsqueeze(1).mT).tril()
    da = -(x @ p.u.unsqueeze(1).mT + d @ p.z.unsqueeze(1).mT).tril()
    dq = x + d @ k.unsqueeze(1) + da @ w.unsqueeze(1)
    return dq, *(y.sum(1) for y in (d.mT @ q, da.mT @ q, -(read.mT @ x), -(read.mT @ d)))
