"""Indirect indexing: find the letter at a given distance to the left or right of another."""

import string
from typing import Any

import numpy as np

from .generated import GeneratedDomain
from .options import IndirectIndexingOptions

LETTERS = tuple(string.ascii_uppercase + string.ascii_lowercase)
SYMBOLS = ("", *LETTERS, *string.digits, ",", "+", "-")
IDS = {symbol: token for token, symbol in enumerate(SYMBOLS)}
SHORTEST, LONGEST, FARTHEST = 20, 40, 15


class IndirectIndexing(GeneratedDomain):
    """A string of distinct letters, one of them, a shift, and the answer: `TzbkWoKDyscBepYvfwxEVQtgPa,c,-8,b`.

    The string has 20 to 40 letters of A-Z and a-z. The shift is between -15 and +15 and stays within the string. Each
    letter, digit, sign and comma is a token (Gopalakrishnan et al., arXiv 2509.10534, section on indirect indexing; the
    paper trains on a pool of a million examples).

    Args:
        options: fields of `IndirectIndexingOptions`.
    """

    name = "indirect_indexing"
    chance = 1 / len(LETTERS)
    symbols = SYMBOLS
    longest = LONGEST + len(",c,-15,b")

    def __init__(self, **options: Any):
        super().__init__(IndirectIndexingOptions(**options))

    def example(self, random: np.random.Generator, split: str) -> np.ndarray:
        size = int(random.integers(SHORTEST, LONGEST + 1))
        letters = random.permutation(len(LETTERS))[:size] + 1
        while True:
            source, shift = int(random.integers(size)), int(random.integers(-FARTHEST, FARTHEST + 1))
            if 0 <= source + shift < size:
                break
        comma, number = IDS[","], [IDS[symbol] for symbol in f"{shift:+d}"]
        answer = letters[source + shift]
        return np.array([0, *letters, comma, letters[source], comma, *number, comma, answer])

    def answers(self, tokens: np.ndarray) -> np.ndarray:
        return np.arange(len(tokens)) == len(tokens) - 1
