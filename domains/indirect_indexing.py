"""Indirect indexing: find the letter at a given distance to the left or right of another."""

import string
from collections.abc import Iterable
from typing import Any

import numpy as np

from .generated import GeneratedDomain
from .options import IndirectIndexingOptions

LETTERS = tuple(string.ascii_uppercase + string.ascii_lowercase)
SYMBOLS = ("", *LETTERS, *string.digits, ",", "+", "-")
IDS = {symbol: token for token, symbol in enumerate(SYMBOLS)}
# The paper's sizes. `options` leaves them out, because some stores and runs do not record them.
PUBLISHED = {key: getattr(IndirectIndexingOptions, key) for key in ("shortest", "longest_string", "farthest")}


class IndirectIndexing(GeneratedDomain):
    """A string of distinct letters, one of them, a shift, and the answer: `TzbkWoKDyscBepYvfwxEVQtgPa,c,-8,b`.

    As published (Gopalakrishnan et al., arXiv 2509.10534, section on indirect indexing), the string has 20 to 40
    letters of A-Z and a-z, the shift is between -15 and +15 and stays within the string, and training draws from a pool
    of a million examples. Each letter, digit, sign and comma is a token.

    Args:
        options: fields of `IndirectIndexingOptions`.

    Raises:
        ValueError: see `IndirectIndexingOptions`.
    """

    name = "indirect_indexing"
    chance = 1 / len(LETTERS)
    symbols = SYMBOLS

    def __init__(self, **options: Any):
        given = IndirectIndexingOptions(**options)
        super().__init__(given)
        self.shortest, self.longest_string = given.shortest, given.longest_string
        self.farthest = min(given.farthest, given.longest_string - 1)  # longer shifts leave every string
        self.longest = self.longest_string + len(f",c,-{self.farthest},b")

    def options(self):
        return {key: value for key, value in super().options().items() if (key, value) not in PUBLISHED.items()}

    def examples(self, randoms: Iterable[np.random.Generator], split: str) -> list[np.ndarray]:
        return [np.array(self._example(random)) for random in randoms]

    def answers(self, tokens: np.ndarray) -> np.ndarray:
        return self._last(tokens)

    def _example(self, random: np.random.Generator) -> list[int]:
        size = int(random.integers(self.shortest, self.longest_string + 1))
        letters = (random.permutation(len(LETTERS))[:size] + 1).tolist()
        while True:
            source, shift = int(random.integers(size)), int(random.integers(-self.farthest, self.farthest + 1))
            if 0 <= source + shift < size:
                break
        comma, number = IDS[","], [IDS[symbol] for symbol in f"{shift:+d}"]
        answer = letters[source + shift]
        return [0, *letters, comma, letters[source], comma, *number, comma, answer]
