"""What a layer keeps of past tokens while decoding."""

from collections.abc import Iterator
from dataclasses import dataclass, fields, is_dataclass
from typing import TYPE_CHECKING, Any, cast

from torch import Tensor

if TYPE_CHECKING:
    from ..base import Encoding
    from .context import Context


@dataclass(kw_only=True)
class State:
    """Cache of one layer for the `length` tokens seen so far. Each pass updates it in place."""

    length: int = 0

    def apply(self, encoding: "Encoding", x: Tensor, q: Tensor, k: Tensor, v: Tensor, context: "Context") -> Tensor:
        """What `encoding` returns for tokens that follow those in this state; see `Encoding.forward`.

        The model calls this, so that a state can process the new tokens in several parts.
        """
        return encoding(x, q, k, v, context, self)


@dataclass
class KeyValueState(State):
    """Keys `[B, tokens, Hkv, D]` and values of the tokens seen so far.

    If `encoded`, keys are stored as `encode_key` returns them. Otherwise they are stored raw, and the kernel encodes
    them as it reads them. With a `window`, tokens that no later query sees are dropped when memory is needed.
    """

    keys: Tensor
    values: Tensor
    encoded: bool = True
    window: int | None = None
    capacity: int = 0  # by default the size of the buffers
    first: int = 0  # position of the token in keys[:, 0]
    newest: int = 0  # number of tokens that were appended last

    def __post_init__(self):
        self.capacity = self.capacity or self.keys.shape[1]

    def append(self, keys: Tensor, values: Tensor) -> None:
        """Append `[B, T, Hkv, D]`. Raises ValueError if that exceeds the capacity."""
        end = self.length + keys.shape[1]
        if end > self.capacity:
            raise ValueError(f"the state holds {self.capacity} tokens, {end} were given: use a larger capacity")
        if end - self.first > self.keys.shape[1]:
            self._drop_unseen(keys.shape[1])
        place = slice(self.length - self.first, end - self.first)
        self.keys[:, place] = keys
        self.values[:, place] = values
        self.length, self.newest = end, keys.shape[1]

    def read(self) -> tuple[Tensor, Tensor]:
        """Keys and values `[B, S, Hkv, D]` of the last S tokens: those that the newest tokens see."""
        end = self.length - self.first
        begin = 0 if self.window is None else max(0, end - seen_by(self.newest, self.window))
        return self.keys[:, begin:end], self.values[:, begin:end]

    def _drop_unseen(self, new: int) -> None:
        """Move the tokens that the next token sees to larger buffers, with room for `new` tokens and another window."""
        end, window = self.length - self.first, cast("int", self.window)
        kept = min(end, window - 1)
        room = kept + new + window
        old, (rows, _, heads, _) = (self.keys, self.values), self.keys.shape
        self.keys, self.values = (x.new_zeros(rows, room, heads, x.shape[-1]) for x in old)
        for x, larger in zip(old, (self.keys, self.values), strict=True):
            larger[:, :kept] = x[:, end - kept : end]
        self.first = self.length - kept


@dataclass(kw_only=True)
class TailState(State):
    """The last inputs of a causal convolution, `[B, width - 1, channels]`."""

    tail: Tensor

    def before(self, u: Tensor) -> Tensor:
        """The inputs that precede `u [B, T, channels]`. The caller replaces the tail afterwards."""
        return self.tail


def tensors_of(state: Any) -> Iterator[Tensor]:
    """The tensors in a state and its parts, which have one row per sequence."""
    if isinstance(state, Tensor):
        yield state
    elif isinstance(state, list | tuple):
        for each in state:
            yield from tensors_of(each)
    elif is_dataclass(state):
        for each in fields(state):
            yield from tensors_of(getattr(state, each.name))


def seen_by(new: int, window: int) -> int:
    """Number of tokens that `new` consecutive tokens see in windows of `window` tokens."""
    return new + window - 1


def with_past(k: Tensor, v: Tensor, state: KeyValueState | None) -> tuple[Tensor, Tensor]:
    """Append new keys and values to the state and return those that the new tokens see; k and v without a state."""
    if state is None:
        return k, v
    state.append(k, v)
    return state.read()
