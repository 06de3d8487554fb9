"""The word problem of A5: decide whether a product of permutations is the identity."""

import itertools
from bisect import bisect_right
from collections.abc import Iterable
from typing import Any

import numpy as np

from .generated import GeneratedDomain
from .options import WordProblemA5Options

# The 3-cycles (123), (124), (125) as maps of 0..4, then their inverses.
CYCLES = [(1, 2, 0, 3, 4), (1, 3, 2, 0, 4), (1, 4, 2, 3, 0)]
GENERATORS = [*CYCLES, *(tuple(int(i) for i in np.argsort(cycle)) for cycle in CYCLES)]
UNIFORM = list(range(1, len(GENERATORS) + 1))
EQUALS, NO, YES = 7, 8, 9


class WordProblemA5(GeneratedDomain):
    """A word over the generators a = (123), b = (124), c = (125) of A5 and their inverses A, B, C: `abAB=n`.

    The answer is y if the word equals the identity, otherwise n. The word problem of A5 is complete for NC1 (Barrington
    1989). Yang et al., arXiv 2505.16381, section on synthetic tasks, report the number of layers needed for 90 % at
    lengths up to 20. Half of the words are drawn uniformly from those equal to the identity, half from the others, so
    guessing gives 50 %. There are few short words; some are in both training and test.

    Args:
        options: fields of `WordProblemA5Options`.

    Raises:
        ValueError: see `WordProblemA5Options`.
    """

    name = "word_problem_a5"
    solved = 0.9  # as published
    chance = 0.5
    symbols = ("", "a", "b", "c", "A", "B", "C", "=", "n", "y")

    def __init__(self, **options: Any):
        given = WordProblemA5Options(**options)
        super().__init__(given)
        longest_word = given.longest_word
        self.shortest, self.longest_word, self.longest = given.shortest, longest_word, longest_word + 2
        elements = [p for p in itertools.permutations(range(5)) if _even(p)]
        number = {element: i for i, element in enumerate(elements)}
        self._identity = number[tuple(range(5))]
        # _after[x, g]: element x followed by generator g.
        self._after = np.array([[number[tuple(g[i] for i in x)] for g in GENERATORS] for x in elements])
        # _ways[n, x]: share of words of n letters that map x to the identity.
        self._ways = np.zeros((longest_word + 1, len(elements)))
        self._ways[0, self._identity] = 1
        for n in range(1, longest_word + 1):
            self._ways[n] = self._ways[n - 1][self._after].mean(1)
        # Lists, because element access is faster. _toward[n][x]: cumulative weights of the next letter.
        self._next = self._after.tolist()
        self._toward = self._ways[:, self._after].cumsum(-1).tolist()

    def examples(self, randoms: Iterable[np.random.Generator], split: str) -> list[np.ndarray]:
        return [np.array(self._example(random)) for random in randoms]

    def answers(self, tokens: np.ndarray) -> np.ndarray:
        return self._last(tokens)

    def _example(self, random: np.random.Generator) -> list[int]:
        size = int(random.integers(self.shortest, self.longest_word + 1))
        identity = bool(random.integers(2))
        while True:
            word, at = [], self._identity
            for written, share in enumerate(random.random(size).tolist()):
                weights = self._toward[size - 1 - written][at] if identity else UNIFORM
                letter = bisect_right(weights, share * weights[-1])
                word.append(letter + 1)
                at = self._next[at][letter]
            if identity or at != self._identity:
                return [0, *word, EQUALS, YES if identity else NO]


def _even(permutation: tuple[int, ...]) -> bool:
    pairs = itertools.combinations(permutation, 2)
    return sum(first > second for first, second in pairs) % 2 == 0
