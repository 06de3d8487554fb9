"""Flip-flop language modelling: what was the bit last written?"""

import numpy as np

from .generated import GeneratedDomain
from .store import SPLITS

WRITE, READ, IGNORE, ZERO = 1, 2, 3, 4


class FlipFlop(GeneratedDomain):
    """Pairs of an instruction and a bit, `w0i1i0r0`; the bit after each r is that of the last w, all others are random.

    Liu et al., Exposing Attention Glitches with Flip-Flop Language Modeling, arXiv 2306.00946, section 3: the first
    instruction is w and the last r, each other is i with probability `ignore` and else w or r alike. Two further splits
    have another share of i: "sparse" tests long distances, "dense" many writes.

    Args:
        train, valid, test, pool, seed: as in `GeneratedDomain`.
        sparse, dense: examples of these splits.
        length: tokens of an example.
        ignore, sparse_ignore, dense_ignore: probability of i in training, validation and test, and in the two splits.

    Raises:
        ValueError: a value outside its range.
    """

    name = "flip_flop"
    solved = 0.999  # the task measures rare errors in long memory: 90 % is reached without solving it
    chance = 0.5
    symbols = ("", "w", "r", "i", "0", "1")
    splits = (*SPLITS, "sparse", "dense")

    def __init__(
        self,
        train: int = 1000,
        valid: int = 200,
        test: int = 200,
        sparse: int = 500,
        dense: int = 200,
        length: int = 512,
        ignore: float = 0.8,
        sparse_ignore: float = 0.98,
        dense_ignore: float = 0.1,
        pool: int | None = None,
        seed: int = 0,
    ):
        super().__init__(train, valid, test, pool, seed)
        for name, size in {"sparse": sparse, "dense": dense}.items():
            if size < 1:
                raise ValueError(f"{name}={size}: it must be at least 1")
        if length < 4 or length % 2:
            raise ValueError(f"length={length}: it must be even and at least 4, for a write and a read")
        for name, share in {"ignore": ignore, "sparse_ignore": sparse_ignore, "dense_ignore": dense_ignore}.items():
            if not 0 <= share <= 1:
                raise ValueError(f"{name}={share}: it must lie in [0, 1]")
        self.sizes |= {"sparse": sparse, "dense": dense}
        self.length, self.longest = length, length
        self.ignore, self.sparse_ignore, self.dense_ignore = ignore, sparse_ignore, dense_ignore

    def example(self, random: np.random.Generator, split: str) -> np.ndarray:
        ignore = {"sparse": self.sparse_ignore, "dense": self.dense_ignore}.get(split, self.ignore)
        pairs = self.length // 2
        instructions = random.choice([WRITE, READ, IGNORE], pairs, p=[(1 - ignore) / 2, (1 - ignore) / 2, ignore])
        instructions[0], instructions[-1] = WRITE, READ
        bits = random.integers(2, size=pairs)
        last_write = np.maximum.accumulate(np.where(instructions == WRITE, np.arange(pairs), 0))
        bits = np.where(instructions == READ, bits[last_write], bits)
        return np.concatenate([[0], np.stack([instructions, bits + ZERO], 1).ravel()])

    def answers(self, tokens: np.ndarray) -> np.ndarray:
        return np.concatenate([[False], tokens[:-1] == READ])
