"""What ranks that share rows receive from each other, with gradients."""

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
        parts: for each name, the tensors of the chunks that were computed so far, from the first to the last.
        postponed: computes this rank's second chunk, while that has not begun.
    """

    def __init__(self, size: int, gather: Callable[..., tuple[Tensor, ...]]):
        self.size, self.gather = size, gather
        self.parts: dict[str, list[Tensor]] = defaultdict(list)
        self.postponed: Callable[[], object] | None = None

    def catch_up(self) -> None:
        """Compute the second chunk, if that has not begun. A chunk calls this when it has shared all that it shares.

        So the first chunk, which is computed in the middle of this call and goes on after it, waits for what other
        ranks share only while it has not begun the attention itself (two_chunks.py).
        """
        postponed, self.postponed = self.postponed, None
        if postponed is not None:
            postponed()

    def share(self, through: Tensor, **tensors: Tensor) -> Tensor:
        """Add this rank's `tensors` and those of the other ranks, which have the same shapes, to `parts`.

        In the backward pass the ranks exchange gradients, which are summed. All ranks must take part in this, even one
        that reads none of the parts. The caller therefore has to use the result, which equals `through`.
        """
        through, *found = self.gather(through, *tensors.values())
        for index, name in enumerate(tensors):
            each = found[index * self.size : (index + 1) * self.size]
            # The first half of the rows comes in the order of the ranks, the second half in reverse.
            self.parts[name] += reversed(each) if self.parts[name] else each
        return through


class Gather(torch.autograd.Function):
    """`apply(group, through, *tensors)` returns `through`, and each tensor of all ranks in their order."""

    @staticmethod
    def forward(ctx: Any, group: distributed.ProcessGroup, through: Tensor, *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.group, found = group, []
        for x in tensors:
            gathered = x.new_empty(group.size() * len(x), *x.shape[1:])
            if x.numel():  # an encoding that does not read keys has none
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
