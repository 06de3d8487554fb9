"""Positions that SeqPE's contrastive loss compares, drawn on the device without waiting for it."""

import torch
from torch import Tensor

NEARBY = 0.6  # share of pivots that are compared with positions in a random range
RANGE = 256  # length of such a range, or five times the number of compared positions if that is more
EDITED = 0.25  # for other pivots: share of the compared positions that are made by editing the pivot's digits
EDITS = 3  # maximum number of edits


def digits_of(positions: Tensor, count: int) -> Tensor:
    """The last `count` decimal digits of `positions [...]`, the first digit first, as `[..., count]`."""
    return positions.unsqueeze(-1) // powers(count, positions).flip(0) % 10


def powers(count: int, like: Tensor) -> Tensor:
    """1, 10, 100, ..., `[count]`."""
    return 10 ** torch.arange(count, device=like.device)


def compared_with(pivots: Tensor, number: int, length: int, count: int) -> Tensor:
    """Positions below `length` to compare each pivot with.

    As in the authors' code, for a share of the pivots these are distinct positions of a random range. For the others
    they are random positions, and a quarter are made by editing digits of the pivot; the digits of
    such positions are similar. They are replaced by random ones if they would be the closest.

    Args:
        pivots: positions `[n]`.
        number: number m of positions for each pivot; fewer than `length`.
        length: number of positions.
        count: number of digits of the largest position.

    Returns:
        `[n, m]`. A few may equal the pivot.
    """
    rows, device = len(pivots), pivots.device
    span = min(length, max(RANGE, 5 * number))
    start = torch.randint(length - span + 1, (rows, 1), device=device)
    nearby = start + torch.rand(rows, span, device=device).topk(number).indices
    anywhere = torch.randint(length, (rows, number), device=device)
    similar = edited(pivots.unsqueeze(1).expand(-1, int(EDITED * number)), length, count)
    taken = similar.shape[1]
    least = (anywhere[:, taken:] - pivots.unsqueeze(1)).abs().amin(1, keepdim=True)
    allowed = (similar - pivots.unsqueeze(1)).abs() > least
    similar = torch.where(allowed, similar, anywhere[:, :taken])
    mixed = torch.cat([similar, anywhere[:, taken:]], 1)
    return torch.where(torch.rand(rows, 1, device=device) < NEARBY, nearby, mixed)


def edited(numbers: Tensor, length: int, count: int) -> Tensor:
    """`numbers` after one to three random edits: a digit inserted, deleted or replaced, or two swapped.

    An edit whose result is not below `length` is skipped.
    """
    edits = torch.randint(1, EDITS + 1, numbers.shape, device=numbers.device)
    for done in range(EDITS):
        changed = edited_once(numbers, count)
        numbers = torch.where((done < edits) & (changed < length), changed, numbers)
    return numbers


def edited_once(numbers: Tensor, count: int) -> Tensor:
    """`numbers` after one random edit of their digits, without leading zeros."""
    size = (numbers.unsqueeze(-1) >= powers(count, numbers)).sum(-1).clamp(min=1)
    first, second = (10 ** (torch.rand(numbers.shape, device=numbers.device) * size).long() for _ in range(2))
    digit = torch.randint(10, numbers.shape, device=numbers.device)
    high, low = numbers // first, numbers % first
    at_first, at_second = high % 10, numbers // second % 10
    results = [
        high * 10 * first + digit * first + low,  # inserted
        high // 10 * first + low,  # deleted
        numbers + (digit - at_first) * first,  # replaced
        numbers + (at_second - at_first) * first + (at_first - at_second) * second,  # swapped
    ]
    choice = torch.randint(len(results), (1, *numbers.shape), device=numbers.device)
    return torch.stack(results).gather(0, choice).squeeze(0)
