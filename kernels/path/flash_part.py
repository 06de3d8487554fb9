"""PaTH attention within a part of a sequence, in Triton."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from ..common import LOG2E
from .chunks import moved
from .flash import path_forward
from .parts import Part


def path_flash_part(
    q: Tensor, k: Tensor, v: Tensor, w: Tensor, beta: Tensor, scale: float, sums: Tensor | None
) -> Part:
    """`path_part` in Triton.

    The kernels return queries and keys at the borders of chunks. They are moved to the borders of the part here.
    """
    given = q, *(x.to(q.dtype) for x in (k, v, w)), beta.float(), scale, None, sums, True
    out, lse, _, _, _, _, k_bar, _, _, q_bar, products = path_forward(*given)
    (batch, length, heads, depth), n = q.shape, products.shape[1]
    before, after = exclusive(products), exclusive(products.flip(1).mT).flip(1)  # those in `after` are transposed
    grouped = q_bar.unflatten(0, (len(products), -1)).unflatten(2, (n, -1))
    queries = moved(grouped, before.unsqueeze(1) * math.log(2)).flatten(2, 3)
    keys = moved(k_bar.unflatten(1, (n, -1)), after).flatten(1, 2)
    lse = lse.unflatten(0, (batch, heads))
    if sums is not None:
        lse = whole_scores(lse, sums, n, q.dtype == torch.float32)
    return Part(
        out.to(v.dtype),
        lse[..., :length].transpose(1, 2) * math.log(2),
        queries.flatten(0, 1).unflatten(0, (batch, heads))[..., :length, :depth].transpose(1, 2),
        keys.unflatten(0, (batch, -1))[..., :length, :depth].transpose(1, 2),
        (products[:, -1] @ before[:, -1]).unflatten(0, (batch, -1))[..., :depth, :depth],
    )


def exclusive(products: Tensor) -> Tensor:
    """P_{j-1} ... P_0 for each P_j of `products [N, n, D, D]`, with log2(n) multiplications."""
    first = torch.eye(products.shape[-1], dtype=products.dtype, device=products.device)
    x, step = torch.cat([first.expand(len(products), 1, -1, -1), products[:, :-1]], 1), 1
    while step < x.shape[1]:
        x = torch.cat([x[:, :step], x[:, step:] @ x[:, :-step]], 1)
        step *= 2
    return x


def whole_scores(lse: Tensor, sums: Tensor, chunks: int, exact: bool) -> Tensor:
    """The log-sum-exp `[B, H, Tp]` of scores that include c_t - c_s, from that of the scores of `gates.add_gates`.

    Unless `exact`, the latter omit c_t and are relative to the start of their chunk. The kernels return no gradient for
    c_t; it is added here.
    """
    padding = lse.shape[-1] - sums.shape[1]
    c = F.pad(sums * LOG2E.value, (0, 0, 0, padding)).transpose(1, 2)
    origin = c.detach()
    if not exact:
        size = lse.shape[-1] // chunks
        origin = origin[..., ::size].float().repeat_interleave(size, -1)  # rounded as `gates.gates_of` rounds it
    return (lse + (c - origin)).to(lse.dtype)
