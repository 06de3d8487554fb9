"""MQRAR-N-back: recall the N-th last value of a variable that is assigned repeatedly."""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from .generated import GeneratedDomain
from .options import MQRAROptions


class MQRAR(GeneratedDomain):
    """Statements of two tokens: `x3 v7` assigns 7 to x3; `x3? v7` answers with the value assigned N assignments ago.

    Multi-query repeated associative recall, N-back (Yang et al., arXiv 2505.16381, section on synthetic tasks: 32
    pairs, length 768; N = 1 queries the last value). The generator is our interpretation of that description: each
    statement draws a variable uniformly. If it has been assigned at least N times, it is queried with probability
    `queries`; otherwise the statement assigns a uniform value.

    Args:
        options: fields of `MQRAROptions`.

    Raises:
        ValueError: see `MQRAROptions`.
    """

    name = "mqrar"
    solved = 0.99  # a lookup without noise, hundreds of times per example

    @classmethod
    def chance_with(cls, options: Mapping[str, Any]) -> float:
        return 1 / options.get("values", MQRAROptions.values)

    def __init__(self, **options: Any):
        given = MQRAROptions(**options)
        super().__init__(given)
        self.back, self.length, self.longest = given.back, given.length, given.length
        self.variables, self.values, self.queries = given.variables, given.values, given.queries
        named = [f"x{i}" for i in range(given.variables)]
        self.symbols = ("", *named, *(f"{name}?" for name in named), *(f"v{i}" for i in range(given.values)))

    def examples(self, randoms: Iterable[np.random.Generator], split: str) -> list[np.ndarray]:
        count = self.length // 2
        drawn = [
            (
                random.integers(self.variables, size=count),
                random.random(count),
                random.integers(self.values, size=count),
            )
            for random in randoms
        ]
        variables, shares, values = (np.stack(numbers) for numbers in zip(*drawn, strict=True))
        asks = shares < self.queries
        # The last statement is a query, so every example has one; by then some variable has been assigned N times.
        asks[:, -1] = True
        unready = (variables[:, :-1] == variables[:, -1:]).sum(1) < self.back
        for i in np.flatnonzero(unready):
            variables[i, -1] = self._ready(variables[i, :-1].tolist(), asks[i, :-1].tolist())
        # Sorted by variable, a statement has at least N before it if the N-th before it has the same variable.
        order = variables.astype(np.min_scalar_type(self.variables)).argsort(axis=1, kind="stable")
        order += count * np.arange(len(drawn))[:, None]  # places in the flattened arrays
        variables, values, queries = variables.take(order), values.take(order), asks.take(order)
        queries[:, : self.back] = False
        queries[:, self.back :] &= variables[:, self.back :] == variables[:, : -self.back]
        assigned = np.cumsum(~queries).reshape(queries.shape)
        names, found = np.empty((2, order.size), np.int64)
        names[order] = variables + self.variables * queries
        found[order] = np.where(queries, values[~queries][assigned - self.back], values)
        tokens = np.zeros((len(drawn), 1 + self.length), np.int64)
        tokens[:, 1::2] = 1 + names.reshape(len(drawn), count)
        tokens[:, 2::2] = 1 + 2 * self.variables + found.reshape(len(drawn), count)
        return list(tokens)

    def answers(self, tokens: np.ndarray) -> np.ndarray:
        before = tokens[:-1]
        return np.concatenate([[False], (before > self.variables) & (before <= 2 * self.variables)])

    def _ready(self, variables: list[int], asks: list[bool]) -> int:
        """The variable of the last statement that left its variable with exactly N values."""
        counts, ready = [0] * self.variables, 0
        for variable, ask in zip(variables, asks, strict=True):
            if counts[variable] < self.back or not ask:
                counts[variable] += 1
            if counts[variable] == self.back:
                ready = variable
        return ready
