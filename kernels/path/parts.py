"""PaTH attention of a sequence that is divided into parts, for several devices that have one part each.

Keys of a part are pushed to its end and queries pulled back to its start (chunks.py). With P_i the product of the
reflections of part i, the score between a query of part c and a key of an earlier part e is

    score(t, s) = q_t^T P_{c-1} ... P_{e+1} k_s.

So a part needs the pushed keys, the values and the products of the earlier parts (Yang et al., arXiv 2505.16381, on
context parallelism). It pushes those keys further, to its own start. No reflection is then left between them and its
queries, so attention to them is plain attention. `merge` combines it with the attention within the part.
"""

from collections.abc import Sequence
from typing import NamedTuple, cast

import torch
from torch import Tensor

from ..attention.merge import merge
from ..attention.past import past_attention
from ..choice import Implementation, Plan
from .attention import planned
from .chunks import moved, path_block


class Part(NamedTuple):
    """Attention within a part of T tokens, and what joins it with other parts. All fields are differentiable."""

    out: Tensor  # [B, T, H, Dv]
    lse: Tensor  # [B, T, H], log-sum-exp of the scores, in float32 or wider
    queries: Tensor  # [B, T, H, D], pulled back to the start of the part, times the scale
    keys: Tensor  # [B, T, Hkv, D], pushed to the end of the part
    product: Tensor  # [B, Hkv, D, D], of all reflections of the part, in float32 or wider


class Past(NamedTuple):
    """What a part needs of the earlier parts, from the first to the last."""

    keys: Sequence[Tensor]  # `Part.keys` of each
    values: Sequence[Tensor]  # [B, T, Hkv, Dv] each
    products: Sequence[Tensor]  # `Part.product` of each
    sums: Sequence[Tensor] | None  # the sums of each as given to `path_part`; None without gates


def path_part(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    w: Tensor,
    beta: Tensor,
    scale: float,
    sums: Tensor | None = None,
    implementation: Implementation | Plan = "auto",
) -> Part:
    """PaTH attention within one part of a sequence.

    Args:
        q, k, v, w, beta, scale: as for `path_attention`, of the tokens of this part.
        sums: cumulative log-gates of PaTH-FoX, `[B, T, H]` float64, which start at 0 before the part. Default: None, no
            gates.
        implementation: as for `path_attention`.
    """
    length, by_kernel = q.shape[1], planned(implementation, q, v).implementation == "triton"
    with torch.autocast(q.device.type, enabled=False):
        if by_kernel:
            from .flash_part import path_flash_part  # imports Triton, which is not available on every platform

            return path_flash_part(q, k, v, w, beta, scale, sums)
        block = path_block(q, k, v, w, beta, scale, None, sums)
        lse = (block.softmax.highest + block.softmax.weight.log())[:, :, 0, :, :length, 0]
        return Part(
            block.softmax.result(length).to(v.dtype),
            lse.permute(0, 3, 1, 2).flatten(2),
            block.queries[:, :, 0, :, :length].permute(0, 3, 1, 2, 4).flatten(2, 3),
            block.keys[:, :, 0, :length].transpose(1, 2),
            cast("Tensor", block.product)[:, :, 0],
        )


def joined(
    part: Part, past: Past, sums: Tensor | None = None, implementation: Implementation | Plan = "auto"
) -> Tensor:
    """The output of attention over the tokens of `part` and those before it, `[B, T, H, Dv]`.

    Memory is linear in the number of tokens with "triton".

    Args:
        part: from `path_part`.
        past: the earlier parts.
        sums: those given to `path_part`. Default: None, no gates.
        implementation: as for `path_part`.
    """
    if not past.keys:
        return part.out
    by_kernel = planned(implementation, part.queries, part.out).implementation == "triton"
    with torch.autocast(part.out.device.type, enabled=False):
        given = torch.cat(pushed(past), 1), torch.cat(list(past.values), 1)
        out, lse = past_attention(part.queries, *given, None if past.sums is None else relative(past.sums), by_kernel)
        if sums is not None:
            lse = (lse + sums).to(lse.dtype)
        return merge([(part.out, part.lse), (out, lse)])[0]


def pushed(past: Past) -> list[Tensor]:
    """The keys of each part, pushed to the end of the last one."""
    after, found = None, []
    for keys, product in zip(reversed(past.keys), reversed(past.products), strict=True):
        found.append(keys if after is None else moved(keys.transpose(1, 2), after.mT).transpose(1, 2))
        after = product if after is None else after @ product
    return found[::-1]


def relative(sums: Sequence[Tensor]) -> Tensor:
    """Cumulative log-gates that end at 0, `[B, S, H]`, from those of each part, which start at 0."""
    after, found = 0.0, []
    for each in reversed(sums):
        after = after - each[:, -1:]
        found.append(each + after)
    return torch.cat(found[::-1], 1)
