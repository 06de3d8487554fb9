"""MQRAR-N-back: recall the N-th last value of a variable that is assigned repeatedly."""

from collections.abc import Mapping
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

    def example(self, random: np.random.Generator, split: str) -> np.ndarray:
        count = self.length // 2
        chosen = random.integers(self.variables, size=count).tolist()
        asks = (random.random(count) < self.queries).tolist()
        drawn = random.integers(self.values, size=count).tolist()
        history: list[list[int]] = [[] for _ in range(self.variables)]
        first_query, first_value = 1 + self.variables, 1 + 2 * self.variables
        tokens = [0]
        # The last statement is a query, so every example has one; by then some variable has been assigned N times.
        ready = 0
        for place, (variable, ask, value) in enumerate(zip(chosen, asks, drawn, strict=True)):
            if place == count - 1 and len(history[variable]) < self.back:
                variable = ready
            given = history[variable]
            if len(given) >= self.back and (ask or place == count - 1):
                tokens += [first_query + variable, first_value + given[-self.back]]
            else:
                given.append(value)
                tokens += [1 + variable, first_value + value]
            if len(given) == self.back:
                ready = variable
        return np.array(tokens)

    def answers(self, tokens: np.ndarray) -> np.ndarray:
        before = tokens[:-1]
        return np.concatenate([[False], (before > self.variables) & (before <= 2 * self.variables)])
