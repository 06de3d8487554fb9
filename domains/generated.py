"""Domains without a source: synthetic examples with right answers, generated from (seed, index)."""

import dataclasses
import hashlib
from abc import abstractmethod
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from ..core.checked_files import read_text
from ..core.errors import UserError
from .base import Domain
from .fast_tokenizers import by_pattern, by_spaces
from .options import GeneratedOptions
from .store import UNSCORED, StoreWriter


class GeneratedDomain(Domain):
    """A diagnostic task. Only the answers are trained and scored; the rest of an example is context.

    The store holds validation and test examples, and `train` examples for the baselines. Training generates examples on
    the fly. A text file holds the symbols of one example.

    Args:
        given: options, including those of the task.

    Class attributes that a task sets:
        symbols: text of each token. The first is empty, for the start token with id 0.
        longest: number of targets of the longest example, scored or not.
    """

    units = ("answer",)
    groups = ("answer",)
    solved = 0.9
    symbols: tuple[str, ...]
    longest: int

    def __init__(self, given: GeneratedOptions):
        self.given, self.pool, self.seed = given, given.pool, given.seed
        self.sizes = {"train": given.train, "valid": given.valid, "test": given.test}
        self._order: tuple[tuple[int, int], np.ndarray] = ((-1, -1), np.zeros(0, np.int64))
        self._streams: dict[tuple[str, int], tuple[np.random.Generator, Any]] = {}

    @abstractmethod
    def examples(self, randoms: Iterable[np.random.Generator], split: str) -> list[np.ndarray]:
        """Draw one example of `split` from each generator, the start token first.

        The generators may be a single object: use each one only until the next is taken.
        """

    @abstractmethod
    def answers(self, tokens: np.ndarray) -> np.ndarray:
        """Mask of the tokens of one example, or of several in a row, that are answers."""

    @property
    def vocabulary(self) -> int:
        return len(self.symbols)

    def options(self):
        return dataclasses.asdict(self.given)

    def build(self, writer: StoreWriter) -> None:
        for split in self.splits:
            for index in range(self.sizes[split]):
                (tokens,) = self.examples([self._random(split, self.seed, index)], split)
                answers = self.answers(tokens)
                marks = np.where(answers, 0, UNSCORED).astype(np.uint8)
                name = f"{split} {index}"
                writer.add(name, split, name, tokens, {"answer": int(answers.sum())}, marks)

    def training_examples(self, seed: int, indices: Iterable[int]) -> list[np.ndarray]:
        """The training examples with these numbers of a run with `seed`."""
        return self.examples((self._training_random(seed, index) for index in indices), "train")

    def unit_weights(self, tokens: np.ndarray) -> dict[str, np.ndarray]:
        return {"answer": self.answers(tokens).astype(np.float64)}

    def encode_file(self, path: Path) -> np.ndarray:
        try:
            words = read_text(path).split()
        except (OSError, ValueError) as error:
            raise UserError(f"{path} cannot be read ({error}): give a text file of one {self.name} example") from error
        ids = self._ids
        if self.compact:
            words = "".join(words)
        for place, word in enumerate(words):
            if word not in ids:
                raise UserError(f"{path}: symbol {place + 1} is {word!r}; {self.name} has only {' '.join(ids)}")
        return np.array([self.start, *(ids[word] for word in words)])

    def decode(self, ids: Sequence[int]) -> str:
        known = (self.symbols[i] for i in ids if 0 < i < len(self.symbols))
        return ("" if self.compact else " ").join(known)

    def render(self, item: str, stem: Path) -> list[Path]:
        path = stem.with_name(stem.name + ".txt")
        path.write_text(item + "\n", encoding="utf-8")
        return [path]

    def fast_tokenizer(self) -> Tokenizer:
        return by_pattern(self._ids, ".", {}) if self.compact else by_spaces(self._ids)

    @property
    def _ids(self) -> dict[str, int]:
        """The token of each symbol, except the start token's."""
        return {symbol: token for token, symbol in enumerate(self.symbols) if symbol}

    @property
    def compact(self) -> bool:
        """Whether all symbols are single characters, which need no spaces between them."""
        return all(len(symbol) < 2 for symbol in self.symbols)

    def _training_random(self, seed: int, index: int) -> np.random.Generator:
        if self.pool is None:
            return self._random("training", seed, index)
        epoch, place = divmod(index, self.pool)
        if self._order[0] != (seed, epoch):
            order = np.random.Generator(np.random.Philox(key=[seed, epoch])).permutation(self.pool)
            self._order = ((seed, epoch), order)
        return self._random("train", self.seed, int(self._order[1][place]))

    def _random(self, split: str, seed: int, index: int) -> np.random.Generator:
        """A generator for one example, reused by the next call, because creating one takes ten times longer."""
        if (split, seed) not in self._streams:
            stream = hashlib.sha256(f"{self.name} {split} {seed}".encode()).digest()[:8]
            philox = np.random.Philox(key=[int.from_bytes(stream, "little"), 0])
            self._streams[split, seed] = np.random.Generator(philox), philox.state
        generator, state = self._streams[split, seed]
        state["state"]["key"][1] = index
        generator.bit_generator.state = state
        return generator

    @staticmethod
    def _last(tokens: np.ndarray) -> np.ndarray:
        """Mask of the last token of each example."""
        return np.append(tokens[1:] == Domain.start, True)
