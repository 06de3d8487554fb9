"""Attention of one layer for a rank's two chunks, which the rest of the layer processes as one row.

The later chunk attends to more tokens and takes longer; only the total time of both chunks is equal on all ranks. A
rank must therefore compute both without waiting for other ranks in between, so both chunks share their keys and values
before either of them attends to earlier tokens.
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
    """The context of each chunk, and its state from `gathered_state`, which contains the tokens before the chunk."""

    exchange: Exchange
    states: Sequence[State]
    contexts: Sequence[Context]

    @uncompiled
    def apply(self, encoding: Encoding, x: Tensor, q: Tensor, k: Tensor, v: Tensor, context: Context) -> Tensor:
        """The output of `encoding` for both chunks, concatenated: `[B, 2 * chunk, H, value_dim]`.

        All tensors given are concatenations of the two chunks. Of `context`, only `carried` is read.
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
        self.exchange.catch_up()  # in case the encoding shares nothing and so has not called it
        self.exchange.parts.clear()  # free tensors that the backward pass does not need
        return torch.cat([out, *later], 1)
