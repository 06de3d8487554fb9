"""Exchanges tensors between the ranks that share a row, with gradients."""

from collections import defaultdict
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, distributed


class Exchange:
    """Tensors of one layer from all ranks, each of which computes two chunks (context_parallel.py).

    Args:
        size: number of ranks.
        gather: `ContextParallel.gather`.

    Attributes:
        parts: for each name, the tensors of all chunks computed so far, in the order of the sequence.
        postponed: computes this rank's second chunk; None once that has begun.
    """

    def __init__(self, size: int, gather: Callable[..., tuple[Tensor, ...]]):
        self.size, self.gather = size, gather
        self.parts: dict[str, list[Tensor]] = defaultdict(list)
        self.postponed: Callable[[], object] | None = None

    def catch_up(self) -> None:
        """Compute the second chunk if it has not begun. Each chunk calls this once it has shared all its tensors.

        The first chunk's call returns after the second chunk is complete, and the first chunk then continues. Both
        have thus shared their tensors before either attends to earlier tokens (two_chunks.py).
        """
        postponed, self.postponed = self.postponed, None
        if postponed is not None:
            postponed()

    def share(self, through: Tensor, **tensors: Tensor) -> Tensor:
        """Gather `tensors` from all ranks, with equal shapes, and add them to `parts`. Returns `through` unchanged.

        The backward pass sums the gradients of all ranks, so every rank must take part, even one that reads none of
        the parts. The caller must therefore use the returned tensor in place of `through`.
        """
        through, *found = self.gather(through, *tensors.values())
        for index, name in enumerate(tensors):
            each = found[index * self.size : (index + 1) * self.size]
            # First chunks follow each other in the order of the ranks, second chunks in reverse order.
            self.parts[name] += reversed(each) if self.parts[name] else each
        return through


class Gather(torch.autograd.Function):
    """`apply(group, through, *tensors)` returns `through`, then each tensor from every rank, ordered by rank."""

    @staticmethod
    def forward(ctx: Any, group: distributed.ProcessGroup, through: Tensor, *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.group, found = group, []
        for x in tensors:
            gathered = x.new_empty(group.size() * len(x), *x.shape[1:])
            if x.numel():  # empty for the keys of an encoding that does not read them
                distributed.all_gather_into_tensor(gathered, x.contiguous(), group)
            found += gathered.unflatten(0, (group.size(), -1)).unbind()
        return through.view_as(through), *found

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        through, *parts = gradients
        size, found = ctx.group.size(), []
        for begin in range(0, len(parts), size):
            of_ranks = torch.cat(parts[begin : begin + size]).contiguous()
            own = of_ranks.new_empty(parts[begin].shape)
            if own.numel():
                distributed.reduce_scatter_tensor(own, of_ranks, group=ctx.group)
            found.append(own)
        return None, through, *found
