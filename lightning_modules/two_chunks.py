"""One layer's attention for the two chunks of a rank, which the other parts of the layer process as one row.

Attention to earlier tokens takes a rank longer for one of its chunks than for the other, and only the sum is the same
on all ranks. So a rank has to compute both without waiting for other ranks in between: both chunks share their keys and
values before either of them attends.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ..encodings.base import Encoding
from ..encodings.contract.context import Context
from ..encodings.contract.state import State
from ..kernels.compiling import uncompiled
from .exchange import Exchange


@dataclass
class TwoChunks(State):
    """What a layer reads of earlier tokens, from `gathered_state`, and the context, for each of the two chunks."""

    exchange: Exchange
    states: Sequence[State]
    contexts: Sequence[Context]

    @uncompiled
    def apply(self, encoding: Encoding, x: Tensor, q: Tensor, k: Tensor, v: Tensor, context: Context) -> Tensor:
        """What `encoding` returns for both chunks, one after the other, `[B, 2 * chunk, H, value_dim]`.

        The other arguments hold both chunks too. Of `context`, only what the tokens carry is read.
        """
        chunks = zip(*(each.chunk(2, 1) for each in (x, q, k, v)), strict=True)
        carried = (None, None) if context.carried is None else context.carried.chunk(2, 1)
        contexts = [replace(own, carried=each) for own, each in zip(self.contexts, carried, strict=True)]
        first, second = zip(chunks, contexts, self.states, strict=True)
        later: list[Tensor] = []

        def compute(chunk: Sequence[Tensor], context: Context, state: State) -> Tensor:
            return encoding(*chunk, context, state)

        self.exchange.postponed = lambda: later.append(compute(*second))
        out = compute(*first)
        self.exchange.catch_up()  # an encoding may share nothing
        self.exchange.parts.clear()  # the memory of what no gradient needs
        return torch.cat([out, *later], 1)
