"""Statistics of attention maps: mass by distance and position, and whether heads distinguish positions and tokens."""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor


class Share(NamedTuple):
    """Share of attention on a range of distances or positions, both ends included.

    Attributes:
        mass: `[H]`.
        uniform: the share if a query attended equally to all keys that it sees.
    """

    low: int
    high: int
    mass: Tensor
    uniform: float


class Outcome(NamedTuple):
    """How often a comparison of two keys has an outcome, over a range of distances, both ends included; `share [H]`."""

    low: int
    high: int
    share: Tensor


def octaves(length: int) -> Iterator[tuple[int, int]]:
    """The ranges 0, 1, 2-3, 4-7, ... of numbers below `length`, both ends included."""
    low, high = 0, 0
    while low < length:
        yield low, min(high, length - 1)
        low, high = high + 1, 2 * (high + 1) - 1


def mass_by_distance(attention: Tensor) -> Iterator[tuple[int, int, Tensor]]:
    """Share of `attention [H, T, T]` at distances 0, 1, 2-3, 4-7, ..., for queries in the second half.

    Yields the lowest and highest distance of each range, and its share `[H]`.
    """
    length = attention.shape[-1]
    query = torch.arange(length // 2, length, device=attention.device)
    distance = query[:, None] - torch.arange(length, device=attention.device)
    for low, high in octaves(length):
        here = (distance >= low) & (distance <= high)
        yield low, high, (attention[:, query] * here).sum(-1).mean(-1)


def mass_by_position(attention: Tensor, uniform: Tensor) -> Iterator[Share]:
    """Share of `attention [H, T, T]` on keys at positions 0, 1, 2-3, ..., for queries in the second half.

    Args:
        uniform: attention `[T, T]` to compare with; see `uniform_attention`.
    """
    length = attention.shape[-1]
    mass, equal = (each[..., length // 2 :, :].mean(-2) for each in (attention, uniform))  # [H, T] and [T]
    for low, high in octaves(length):
        yield Share(low, high, mass[:, low : high + 1].sum(-1), float(equal[low : high + 1].sum()))


def uniform_attention(length: int, window: int | None, device: torch.device) -> Tensor:
    """Causal attention `[T, T]` with equal weights for all keys that a query sees."""
    places = torch.arange(length, device=device)
    distance = places[:, None] - places
    seen = ((distance >= 0) & (distance < (window or length))).float()
    return seen / seen.sum(-1, keepdim=True)


def rolled_out(attention: Tensor, earlier: Tensor) -> Tensor:
    """Attention `[..., T, T]` through several layers: how much of each input token reaches each token.

    A layer passes on half of its input and half of what its attention gathers from it (attention rollout: Abnar and
    Zuidema, arXiv 2005.00928). With uniform attention this shows the bias of the causal mask towards early positions,
    which grows with depth (Wu et al., arXiv 2502.01951).

    Args:
        attention: attention of one layer, averaged over heads.
        earlier: the result for the layers below; an identity matrix for the first layer.
    """
    passed = (attention + torch.eye(attention.shape[-1], device=attention.device)) / 2
    with torch.autocast(attention.device.type, enabled=False):
        return passed @ earlier


def nearer_preferred(attention: Tensor, window: int | None) -> Iterator[Outcome]:
    """How often a key at distance d gets more attention than the key at distance 2d.

    0.5 means that a head does not distinguish the two positions. RoPE's locality bias approaches this value in long
    contexts (Du et al., arXiv 2605.15514). Equal weights count as half. Every query sees both keys.

    Args:
        attention: `[B, H, T, T]`.
        window: number of keys that a query sees; None for all.
    """
    length = attention.shape[-1]
    farthest = (min(length, window or length) - 1) // 2
    for low, high in octaves(farthest + 1):
        if low == 0:
            continue
        shares, count = attention.new_zeros(attention.shape[1]), 0
        for d in range(low, high + 1):
            far = attention.diagonal(-2 * d, -2, -1)
            near = attention.diagonal(-d, -2, -1)[..., d:]
            shares += ((near > far).float() + 0.5 * (near == far)).sum((0, -1))
            count += far[:, 0].numel()
        yield Outcome(low, high, shares / count)


def swapped(length: int, gap: int) -> Tensor:
    """An index `[T]` that swaps pairs of elements `gap` apart. Elements at the end may have no partner and stay."""
    places = torch.arange(length)
    partner = places + gap * (1 - 2 * (places // gap % 2))
    return torch.where(partner < length, partner, places)


def order_kept(attention: Callable[[Tensor | None], Tensor], tokens: Tensor, window: int | None) -> Iterator[Outcome]:
    """How often, of two keys, the one with more attention still gets more after the two have swapped positions.

    1 means that content decides, 0 that the positions decide, and 0.5 that a head distinguishes neither consistently
    ("consistency in token relevance" of Du et al., arXiv 2605.15514). Equal weights count as half. In
    the result, `low` and `high` both equal the distance between the two keys: 1, 4, 16, ...

    Args:
        attention: called with an index `[T]` that reorders the keys, or with None to keep their order; returns the
            attention `[B, H, T, T]`.
        tokens: ids `[B, T]`. Keys with equal tokens are not compared, because swapping them may change nothing.
        window: number of keys that a query sees; None for all.
    """
    before, gap = attention(None), 1
    length = before.shape[-1]
    while 4 * gap <= min(length, window or length):
        index = swapped(length, gap).to(before.device)
        after = attention(index)
        early = torch.arange(length, device=before.device)
        early = early[index > early]
        late, query = early + gap, torch.arange(length, device=before.device)[:, None]
        seen = (late < query) & (query - early < (window or length))
        compared = (seen & (tokens[:, early] != tokens[:, late]).unsqueeze(1)).unsqueeze(1)
        change = (before[..., early] - before[..., late]).sign() * (after[..., late] - after[..., early]).sign()
        if compared.any():
            yield Outcome(gap, gap, ((1 + change) / 2 * compared).sum((0, -2, -1)) / compared.sum())
        gap *= 4
