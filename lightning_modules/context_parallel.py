"""Context parallelism: ranks train on the same rows, each on a part of the tokens.

For n ranks a row is cut into 2n chunks. Rank r computes chunk r and then chunk 2n - 1 - r, so that causal attention
costs all ranks the same; keys and values are gathered before the attention (Llama 3, arXiv 2407.21783, section on
context parallelism). The layers see the tokens before a chunk through a state, as if a text were continued. This serves
every encoding whose state holds only keys and values, and FoX.
"""

from collections import defaultdict
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, distributed

from ..encodings.contract.state import KeyValueState, State, seen_by
from ..encodings.families.inputs import Seen
from ..encodings.fox import FoXState
from ..kernels.choice import LIBRARIES
from .data_module import IGNORED, Batch, Piece, collate
from .ranks import rank, ranks
from .transformer import ModelState, Transformer


def unsupported(transformer: Transformer, device: torch.device) -> str | None:
    """Why ranks whose tensors are on `device` cannot share rows with this model; None if they can."""
    like = torch.empty(1, device=device)
    for encoding in transformer.encodings:
        name = type(encoding).__name__
        if encoding.implementation in LIBRARIES:
            return f"encoding.implementation={encoding.implementation} needs whole sequences: use auto, triton or torch"
        if encoding.clock == "medium":
            return "encoding.clock=medium needs whole rows: use clock=index"
        if type(encoding.new_state(1, 1, like)) not in (KeyValueState, FoXState):
            return f"{name} keeps more of past tokens than their keys and values: use another encoding, such as rope"
    for module in transformer.position_modules:
        if module.draws or module.auxiliary:
            what = "draws positions in training" if module.draws else "has losses of its own"
            return f"{type(module).__name__} {what}, which needs whole rows"
    if not isinstance(_input_state(transformer, like), Seen | None):
        return f"{type(transformer.inputs).__name__} keeps more of past tokens than their number"
    return None


def _input_state(transformer: Transformer, like: Tensor) -> Any:
    return None if transformer.inputs is None else transformer.inputs.new_state(1, like)


def part_of(x: Tensor, place: int, size: int, filler: int) -> Tensor:
    """The chunks of `x [B, T]` for rank `place` of the `size` ranks that share rows, `[B, 2 * chunk]`."""
    chunks = F.pad(x, (0, -x.shape[1] % (2 * size)), value=filler).unflatten(1, (2 * size, -1))
    return chunks[:, [place, 2 * size - 1 - place]].flatten(1)


def collate_part(rows: list[list[Piece]], place: int, size: int) -> Batch:
    """`collate` for rank `place` of the `size` ranks that share rows.

    Numbers of tokens and units are an equal share of the whole, because the ranks report sums.
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
        """Tokens in each of the chunks of rows of `length` tokens, padding included."""
        return -(-length // (2 * self.size))

    def gathered_bytes(self, transformer: Transformer, rows: int, length: int, size: int) -> float:
        """Memory of the other ranks' keys and values, in numbers of `size` bytes."""
        widths = sum(each.kv_heads * (each.score_dim + each.value_dim) for each in transformer.encodings)
        return size * rows * length * widths * (1 - 1 / self.size)

    @cached_property
    def group(self) -> distributed.ProcessGroup:
        """The ranks that share this rank's rows."""
        groups = [
            distributed.new_group(list(range(first, first + self.size))) for first in range(0, ranks(), self.size)
        ]
        return cast("distributed.ProcessGroup", groups[rank() // self.size])

    def nats(self, transformer: Transformer, tokens: Tensor, targets: Tensor) -> Tensor:
        """Summed nats of this rank's `targets [B, 2 * chunk]`, both as `part_of` returns them."""
        place, chunk = rank() % self.size, tokens.shape[1] // 2
        like = transformer.norm.weight
        plain = [encoding.new_state(1, 1, like) for encoding in transformer.encodings]
        states = [GatheredState.of(cast("KeyValueState", state), self.group) for state in plain]
        inputs, found = _input_state(transformer, like), []
        parts = zip(tokens.split(chunk, 1), targets.split(chunk, 1), strict=True)
        for number, part in zip((place, 2 * self.size - 1 - place), parts, strict=True):
            for state in states:
                state.length = number * chunk
            if inputs is not None:
                inputs.tokens = number * chunk
            found.append(transformer.nats(*part, state=ModelState(cast("list[State]", states), inputs)))
        return found[0] + found[1]


@dataclass
class GatheredState(KeyValueState):
    """Keys and values of all ranks, for the two chunks of this one; `length` is where the next chunk begins."""

    group: Any = None
    sums: None = None  # so that FoX's gates start at 0 in each chunk
    parts: dict[str, list[Tensor]] = field(default_factory=lambda: defaultdict(list))

    @classmethod
    def of(cls, state: KeyValueState, group: distributed.ProcessGroup) -> "GatheredState":
        """An empty state for keys of the same kind as those in `state`."""
        return cls(keys=state.keys, values=state.values, encoded=state.encoded, window=state.window, group=group)

    def append(self, keys: Tensor, values: Tensor) -> None:
        self._gather("keys", keys)
        self._gather("values", values)
        self.length, self.newest = self.length + keys.shape[1], keys.shape[1]

    def read(self) -> tuple[Tensor, Tensor]:
        seen = self.length if self.window is None else min(self.length, seen_by(self.newest, self.window))
        return self._last("keys", seen), self._last("values", seen)

    def with_past_sums(self, sums: Tensor, seen: int) -> Tensor:
        """As `FoXState.with_past_sums`, for sums that start at 0 in each chunk."""
        before = self.parts["sums"][-1][:, -1:] if self.parts["sums"] else 0.0
        for part in self._gather("chunk sums", sums):
            self.parts["sums"].append(before + part)
            before = self.parts["sums"][-1][:, -1:]
        return self._last("sums", seen)

    def _gather(self, name: str, x: Tensor) -> tuple[Tensor, ...]:
        """Add the chunks of all ranks: the first half of the rows, or the second, whose chunks come in reverse."""
        parts = gathered(x, self.group)[:: -1 if self.parts[name] else 1]
        self.parts[name] += parts
        return parts

    def _last(self, name: str, seen: int) -> Tensor:
        """The last `seen` tokens that end with the newest chunk of this rank."""
        begin = self.length - seen
        parts = self.parts[name][begin // self.newest : self.length // self.newest]
        return torch.cat(parts, 1)[:, begin % self.newest :]


def gathered(x: Tensor, group: distributed.ProcessGroup) -> tuple[Tensor, ...]:
    """`x` of each rank of the group, in their order. Gradients are summed over the ranks."""
    if not x.numel():  # an encoding that does not read keys has none
        return (x,) * group.size()
    return cast("tuple[Tensor, ...]", _Gather.apply(x, group))


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: distributed.ProcessGroup) -> tuple[Tensor, ...]:
        ctx.group = group
        parts = [torch.empty_like(x, memory_format=torch.contiguous_format) for _ in range(group.size())]
        distributed.all_gather(parts, x.contiguous(), group)
        return tuple(parts)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        found = torch.empty_like(gradients[0], memory_format=torch.contiguous_format)
        distributed.reduce_scatter(found, [gradient.contiguous() for gradient in gradients], group=ctx.group)
        return found, None
