"""Context parallelism: ranks train on the same rows, each on a part of the tokens.

For n ranks a row is cut into 2n chunks. Rank r computes chunk r and then chunk 2n - 1 - r, so that causal attention
costs all ranks the same; keys and values are gathered before the attention (Llama 3, arXiv 2407.21783, section on
context parallelism). Both chunks pass through the model as one row (two_chunks.py). Attention sees the tokens before
each chunk through a state, as if a text were continued (gathered_states.py).
"""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, distributed

from ..kernels.choice import LIBRARIES
from .data_module import IGNORED, Batch, Piece, collate
from .exchange import Exchange, Gather
from .fused_stream import through
from .gathered_states import INPUTS, LAYERS, gathered_inputs, gathered_state
from .ranks import rank, ranks
from .transformer import ModelState, Transformer
from .two_chunks import TwoChunks


def unsupported(transformer: Transformer, device: torch.device) -> str | None:
    """Why ranks whose tensors are on `device` cannot share rows with this model; None if they can."""
    like = torch.empty(1, device=device)
    for encoding in transformer.encodings:
        name = type(encoding).__name__
        if encoding.implementation in LIBRARIES:
            return f"encoding.implementation={encoding.implementation} needs whole sequences: use auto, triton or torch"
        if encoding.clock == "medium":
            return "encoding.clock=medium needs whole rows: use clock=index"
        if type(encoding.new_state(1, 1, like)) not in LAYERS:
            return f"ranks cannot exchange the decoding state of {name}: use another encoding, such as nope"
    for module in transformer.position_modules:
        if module.draws or module.auxiliary:
            what = "draws positions in training" if module.draws else "has auxiliary losses"
            return f"{type(module).__name__} {what}, which needs whole rows"
    inputs = transformer.inputs
    if inputs is not None and not isinstance(inputs.new_state(1, like), (*INPUTS, type(None))):
        return f"ranks cannot exchange the decoding state of {type(inputs).__name__}"
    return None


def part_of(x: Tensor, place: int, size: int, filler: int) -> Tensor:
    """The chunks of `x [B, T]` for rank `place` of the `size` ranks that share rows, `[B, 2 * chunk]`."""
    chunks = F.pad(x, (0, -x.shape[1] % (2 * size)), value=filler).unflatten(1, (2 * size, -1))
    return chunks[:, [place, 2 * size - 1 - place]].flatten(1)


def collate_part(rows: list[list[Piece]], place: int, size: int) -> Batch:
    """`collate` for rank `place` of the `size` ranks that share rows.

    Each rank counts an equal share of the tokens and units, because counts are summed over ranks.
    """
    batch = collate(rows)
    for key, filler in (("inputs", 0), ("targets", IGNORED)):
        batch[key] = part_of(batch[key], place, size, filler)
    batch["tokens"], batch["units"] = batch["tokens"] / size, batch["units"] / size
    return batch


@dataclass
class ContextParallel:
    """Training on rows that `size` neighbouring ranks share."""

    size: int

    def chunk(self, length: int) -> int:
        """Number of tokens per chunk, for rows of `length` tokens; includes padding."""
        return -(-length // (2 * self.size))

    @property
    def place(self) -> int:
        """Index of this rank among the ranks that share its rows."""
        return rank() % self.size

    @cached_property
    def group(self) -> distributed.ProcessGroup:
        """The ranks that share this rank's rows."""
        groups = [
            distributed.new_group(list(range(first, first + self.size))) for first in range(0, ranks(), self.size)
        ]
        return cast("distributed.ProcessGroup", groups[rank() // self.size])

    def gather(self, through: Tensor, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Gather `tensors` from the ranks that share this rank's rows; see `Gather` and `Exchange.share`."""
        return cast("tuple[Tensor, ...]", Gather.apply(self.group, through, *tensors))

    def nats(self, transformer: Transformer, tokens: Tensor, targets: Tensor) -> Tensor:
        """Summed nats of this rank's `targets`, given its `tokens`; both `[B, 2 * chunk]`, from `part_of`."""
        empty = transformer.new_state(1, 1)
        exchanges = [Exchange(self.size, self.gather) for _ in empty.layers]
        inputs = gathered_inputs(empty.inputs, Exchange(self.size, self.gather))
        chunks: list[tuple] = []
        for number, part in zip((self.place, 2 * self.size - 1 - self.place), tokens.chunk(2, 1), strict=True):
            states, length = [*map(gathered_state, empty.layers, exchanges)], part.shape[1]
            for state in states:
                state.length = number * length
            if inputs is not None:
                inputs.tokens = number * length
            chunks.append((states, *transformer.embedded(part, ModelState(states, inputs))))
        states, embedded, contexts = zip(*chunks, strict=True)
        contexts = [*zip(*contexts, strict=True)]
        pairs = [*map(TwoChunks, exchanges, zip(*states, strict=True), contexts)]
        whole = [replace(a, positions=torch.cat([a.positions, b.positions], -1)) for a, b in contexts]
        hidden = transformer.norm(through(transformer.blocks, torch.cat(embedded, 1), whole, pairs, False))
        return transformer.summed_nats(hidden, targets)


class SimulatedRank(ContextParallel):
    """Simulates the first of `size` ranks to measure memory: copies of its tensors replace those of the others."""

    @property
    def place(self) -> int:
        return 0

    def gather(self, through: Tensor, *tensors: Tensor) -> tuple[Tensor, ...]:
        return through, *(each for x in tensors for each in torch.stack([x] * self.size))
