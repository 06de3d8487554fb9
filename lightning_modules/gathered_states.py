"""States that gather past tokens from other ranks, for the two chunks of each rank (context_parallel.py).

They have the same methods as the states for decoding. `length` is the position at which the next chunk begins.
"""

from dataclasses import dataclass, field
from typing import Any, cast

import torch
from torch import Tensor

from ..encodings.contract.state import KeyValueState, State, TailState, seen_by
from ..encodings.families.content import CumulativeState
from ..encodings.families.inputs import Seen
from ..encodings.fox import FoXState
from ..encodings.grape_path import ProbeState
from ..encodings.kernelized_rpe import KernelizedState
from ..encodings.path import PaTHState
from ..encodings.rcmha import ConvolvedState
from ..encodings.tpe import Average
from ..kernels.attention.kernelized import feature_sums
from ..kernels.choice import Plan
from ..kernels.path.parts import Past, joined, path_part
from .exchange import Exchange

LAYERS = (KeyValueState, FoXState, PaTHState, CumulativeState, ConvolvedState, ProbeState, KernelizedState)
INPUTS = (Seen, Average)


def gathered_state(state: State, exchange: Exchange) -> State:
    """The state for one chunk of a layer. `state` is the layer's empty state, of a type in `LAYERS`."""
    if isinstance(state, KernelizedState):
        return GatheredFeatures(
            keys=state.keys, values=state.values, sums=state.sums, capacity=state.capacity, exchange=exchange
        )
    kept, tail = cast("KeyValueState", state), state.tail if isinstance(state, TailState) else None
    more = isinstance(state, (FoXState, ProbeState))
    return GatheredState(kept.keys, kept.values, kept.encoded, kept.window, exchange=exchange, tail=tail, more=more)


def gathered_inputs(state: Any, exchange: Exchange) -> Any:
    """The state for one chunk of the input encoding. `state` is its empty state, of a type in `INPUTS`."""
    return GatheredAverage(state.values, exchange) if isinstance(state, Average) else state


@dataclass
class GatheredState(KeyValueState):
    """Keys and values from all ranks, and other tensors that a layer with keys and values keeps of past tokens.

    Attributes:
        more: whether the layer shares further tensors after its keys and values.
    """

    exchange: Exchange = field(kw_only=True)
    more: bool = False
    tail: Tensor | None = None
    sums: None = None  # FoX then sums its log gates from 0 in each chunk

    def append(self, keys: Tensor, values: Tensor) -> None:
        self.exchange.share(values, keys=keys, values=values)
        self.length, self.newest = self.length + keys.shape[1], keys.shape[1]

    def read(self) -> tuple[Tensor, Tensor]:
        if not self.more:
            self.exchange.catch_up()
        seen = self.length if self.window is None else min(self.length, seen_by(self.newest, self.window))
        return self._last("keys", seen), self._last("values", seen)

    def with_past_sums(self, sums: Tensor, seen: int) -> Tensor:
        """See `FoXState.with_past_sums`; here `sums` start at 0 in each chunk."""
        parts = self.exchange.parts
        known = len(parts["sums"])
        before = parts["sums"][-1][:, -1:] if known else 0.0
        self.exchange.share(sums, **{"chunk sums": sums})
        for part in parts["chunk sums"][known:]:
            parts["sums"].append(before + part)
            before = parts["sums"][-1][:, -1:]
        self.exchange.catch_up()
        return self._last("sums", seen)

    def with_past_probes(self, probes: Tensor, seen: int) -> Tensor:
        """See `ProbeState.with_past_probes`."""
        self.exchange.share(probes, probes=probes)
        self.exchange.catch_up()
        return self._last("probes", seen)

    def before(self, u: Tensor) -> Tensor:
        """See `TailState.before`."""
        reach = 0 if self.tail is None else self.tail.shape[1]
        if not reach:
            return u[:, :0]
        begin = self.exchange.share(u.new_zeros(len(u), reach, u.shape[2]), tail=u[:, -reach:])
        return torch.cat([begin, *self._earlier("tail", u)], 1)[:, -reach:]

    def advance(self, sums: Tensor) -> Tensor:
        """See `CumulativeState.advance`."""
        own = self.exchange.share(sums, phases=sums[:, -1:])
        return sum(self._earlier("phases", sums), own)

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, w: Tensor, beta: Tensor, scale: float, sums: Tensor | None, plan: Plan
    ) -> Tensor:
        """See `PaTHState.attend`."""
        part = path_part(q, k, v, w, beta, scale, sums, plan)
        given = {} if sums is None else {"sums": sums}
        out = self.exchange.share(part.out, keys=part.keys, values=v, products=part.product, **given)
        self.exchange.catch_up()
        keys, values, products = (self._earlier(name, k) for name in ("keys", "values", "products"))
        past = Past(keys, values, products, None if sums is None else self._earlier("sums", k))
        return joined(part._replace(out=out), past, sums, plan)

    def _earlier(self, name: str, like: Tensor) -> list[Tensor]:
        """The parts `name` of all earlier chunks. Each chunk has as many tokens as `like [B, T, ...]`."""
        return self.exchange.parts[name][: self.length // like.shape[1]]

    def _last(self, name: str, seen: int) -> Tensor:
        """The last `seen` tokens of the parts `name`, up to the end of the newest chunk of this rank."""
        begin = self.length - seen
        parts = self.exchange.parts[name][begin // self.newest : self.length // self.newest]
        return torch.cat(parts, 1)[:, begin % self.newest :]


@dataclass(kw_only=True)
class GatheredFeatures(KernelizedState):
    """Features and values of the last tokens of each chunk, and the sums over its other tokens."""

    exchange: Exchange

    def append(self, keys: Tensor, values: Tensor, kept: int) -> tuple[Tensor, Tensor, Tensor | None]:
        length, parts = keys.shape[1], self.exchange.parts
        number, older = self.length // length, max(length - kept, 0)
        last = {"keys": keys[:, older:], "values": values[:, older:]}
        values = self.exchange.share(values, **last, sums=feature_sums(keys[:, :older], values[:, :older]))
        self.exchange.catch_up()
        if not number:
            return keys, values, None
        near_keys, near_values = (torch.cat(parts[name][:number], 1) for name in last)
        older = max(near_keys.shape[1] - kept, 0)
        sums = sum(parts["sums"][:number], feature_sums(near_keys[:, :older], near_values[:, :older]))
        return torch.cat([near_keys[:, older:], keys], 1), torch.cat([near_values[:, older:], values], 1), sums


@dataclass
class GatheredAverage(Average):
    """TPE's moving average before each chunk; `tokens` is where the next chunk begins."""

    exchange: Exchange
    tokens: int = 0

    def before(self, x: Tensor, log_decay: Tensor) -> Tensor:
        length = x.shape[1]
        steps = torch.arange(length - 1, -1, -1, device=x.device)
        weights = (log_decay.unsqueeze(1) * steps).exp()
        own = torch.einsum("bthc,ht->bhc", x.unflatten(-1, (len(log_decay), -1)), weights)
        average = self.exchange.share(torch.zeros_like(own), averages=own)
        for each in self.exchange.parts["averages"][: self.tokens // length]:
            average = average * (length * log_decay).exp().unsqueeze(-1) + each
        return average.flatten(1)
