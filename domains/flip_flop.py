"""Flip-flop language modelling: recall the last written bit."""

from collections.abc import Iterable
from typing import Any

import numpy as np

from .generated import GeneratedDomain
from .options import FlipFlopOptions
from .store import SPLITS

WRITE, READ, IGNORE, ZERO = 1, 2, 3, 4


class FlipFlop(GeneratedDomain):
    """Pairs of an instruction and a bit, `w0i1i0r0`. The bit after each r is that of the last w; others are random.

    Liu et al., Exposing Attention Glitches with Flip-Flop Language Modeling, arXiv 2306.00946, section 3: the first
    instruction is w and the last is r. Each other instruction is i with probability `ignore`, otherwise w or r with
    equal probability. Two additional splits have a different share of i: "sparse" tests long distances, "dense" tests
    many writes.

    Args:
        options: fields of `FlipFlopOptions`.

    Raises:
        ValueError: see `FlipFlopOptions`.
    """

    name = "flip_flop"
    solved = 0.999  # the task measures rare errors in long memory; models reach 90 % without solving it
    chance = 0.5
    symbols = ("", "w", "r", "i", "0", "1")
    splits = (*SPLITS, "sparse", "dense")

    def __init__(self, **options: Any):
        given = FlipFlopOptions(**options)
        super().__init__(given)
        self.sizes |= {"sparse": given.sparse, "dense": given.dense}
        self.length, self.longest = given.length, given.length
        self.ignored = {"sparse": given.sparse_ignore, "dense": given.dense_ignore}
        self.ignore = given.ignore

    def examples(self, randoms: Iterable[np.random.Generator], split: str) -> list[np.ndarray]:
        ignore, pairs = self.ignored.get(split, self.ignore), self.length // 2
        # The numbers of Generator.choice with these probabilities, in a third of its time.
        limits = np.cumsum([(1 - ignore) / 2, (1 - ignore) / 2, ignore])
        drawn = [(random.random(pairs), random.integers(2, size=pairs)) for random in randoms]
        shares, bits = (np.stack(numbers) for numbers in zip(*drawn, strict=True))
        write, read, _ = limits / limits[-1]
        instructions = np.where(shares < write, WRITE, np.where(shares < read, READ, IGNORE))
        instructions[:, 0], instructions[:, -1] = WRITE, READ
        last_write = np.maximum.accumulate(np.where(instructions == WRITE, np.arange(pairs), 0), axis=1)
        bits = np.where(instructions == READ, np.take_along_axis(bits, last_write, axis=1), bits)
        tokens = np.zeros((len(drawn), 1 + self.length), np.int64)
        tokens[:, 1::2], tokens[:, 2::2] = instructions, bits + ZERO
        return list(tokens)

    def answers(self, tokens: np.ndarray) -> np.ndarray:
        return np.concatenate([[False], tokens[:-1] == READ])
