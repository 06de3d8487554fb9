"""Markov models over bases, for genome stores of any size and tokenizer, with counts in tables of contexts."""

from collections.abc import Callable, Iterator

import numpy as np

from .store import Store

LETTERS = 5  # A C G T N, the possible targets
BEGIN, BEFORE = 5, 6  # the start token, and padding before it
SYMBOLS = 7
VOCABULARY = 6  # the letters and the start token; order 0 is interpolated with a uniform distribution over them
LARGEST = 12  # 4^12 contexts of 5 counts are 335 MB
BLOCK = 1 << 18  # tokens processed at a time
MERGE = 1 << 22  # rare events collected before equal ones are merged


def markov(
    store: Store, split: str, max_order: int, codes: Callable[[np.ndarray], np.ndarray]
) -> dict[int, np.ndarray]:
    """Nats of each document of `split` under Markov models of order 0 to `max_order` over its bases.

    Counts are from the training split, with Witten-Bell interpolation as in `baselines.markov`; with one token per base
    results are the same. `codes` maps tokens to 0..4 for A C G T N and to BEGIN for a start token.

    Raises:
        ValueError: `max_order` is outside 0..LARGEST.
    """
    if not 0 <= max_order <= LARGEST:
        raise ValueError(f"max_order={max_order}: it must be from 0 to {LARGEST}, so that tables fit in memory")
    counts = Counts(max_order)
    for _, stream in _streams(store, "train", max_order, codes):
        counts.learn(stream)
    counts.close()
    nats = {order: np.zeros(len(store.documents(split))) for order in range(max_order + 1)}
    for begun, stream in _streams(store, split, max_order, codes):
        block = stream[max_order:]
        document = (begun - 1 + np.cumsum(block == BEGIN))[block < LETTERS]
        for order, probability in counts.probabilities(stream):
            nats[order] += np.bincount(document, -np.log(probability), minlength=len(nats[order]))
    return nats


class Counts:
    """Counts of each base after each context of `order` symbols.

    Contexts of only A C G T index a table. Contexts with an N or the beginning of a document are rare or identical;
    they are kept as a sorted list of pairs (context, base), each encoded as one number in base SYMBOLS.
    """

    def __init__(self, order: int):
        self.order = order
        # Counts of low orders overflow 32 bits for large genomes; tables of order 11 or 12 are too large with 64 bits.
        self.tables = [np.zeros((4**k, LETTERS), np.int64 if k <= 10 else np.uint32) for k in range(order + 1)]
        self.rare: list[tuple[np.ndarray, np.ndarray]] = []
        self._events = np.zeros(0, np.int64)
        self._counts = np.zeros(0, np.int64)
        self._held: list[np.ndarray] = []

    def learn(self, stream: np.ndarray) -> None:
        """Count the events of `stream`, whose first `order` symbols are only context."""
        target, plain, context = self._contexts(stream)
        table = self.tables[self.order].reshape(-1)
        np.add.at(table, context[plain] * LETTERS + target[plain], table.dtype.type(1))
        self._held.append(self._numbers(stream, np.flatnonzero(~plain & (target < LETTERS))))
        if sum(map(len, self._held)) > MERGE:
            self._merge()

    def close(self) -> None:
        """Compute the tables of lower orders. Every event in the table of order k + 1 is also in that of order k."""
        self._merge()
        digits = [self._events // SYMBOLS**k % SYMBOLS for k in range(1, self.order + 1)]  # newest first
        run = np.zeros(len(self._events), np.int64)  # number of A C G T directly before the target
        for k, digit in enumerate(digits):
            run += (run == k) & (digit < 4)
        for k in range(self.order - 1, -1, -1):
            self.tables[k] += self.tables[k + 1].reshape(4, 4**k, LETTERS).sum(0, dtype=self.tables[k].dtype)
            here = run == k
            context = sum((digits[i][here] * 4**i for i in range(k)), np.zeros(int(here.sum()), np.int64))
            np.add.at(self.tables[k], (context, self._events[here] % SYMBOLS), self._counts[here])
        for k in range(self.order + 1):
            short = run < k
            events, place = np.unique(self._events[short] % SYMBOLS ** (k + 1), return_inverse=True)
            self.rare.append((events, np.bincount(place, self._counts[short], len(events)).astype(np.int64)))

    def probabilities(self, stream: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
        """Yield (order, P(base | context)) from order 0 on, for all of `stream` except the first `order` symbols."""
        target, _, context = self._contexts(stream)
        places = np.flatnonzero(target < LETTERS)
        target, context, numbers = target[places], context[places], self._numbers(stream, places)
        clean = np.cumsum(np.concatenate([[0], stream >= 4]))
        probability = np.full(len(places), 1 / VOCABULARY)
        for k in range(self.order + 1):
            at = places + self.order
            plain = clean[at] == clean[at - k]
            row = np.empty((len(places), LETTERS), np.int64)
            row[plain] = self.tables[k][context[plain] % 4**k]
            row[~plain] = self._rare_rows(k, numbers[~plain])
            count = row[np.arange(len(row)), target]
            n, d = row.sum(1), (row > 0).sum(1)
            probability = np.where(n > 0, (count + d * probability) / np.maximum(n + d, 1), probability)
            yield k, probability

    def _rare_rows(self, k: int, numbers: np.ndarray) -> np.ndarray:
        """Counts of the bases after each context of `k` symbols, `[len(numbers), LETTERS]`."""
        events, counts = self.rare[k]
        context, place = np.unique(numbers // SYMBOLS % SYMBOLS**k, return_inverse=True)
        wanted = context[:, None] * SYMBOLS + np.arange(LETTERS)
        at = np.minimum(np.searchsorted(events, wanted), len(events) - 1)
        return np.where(events[at] == wanted, counts[at], 0)[place]

    def _contexts(self, stream: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """For each symbol after the first `order`: whether it and its context are only A C G T, and table indices."""
        target = stream[self.order :].astype(np.int64)
        bad = np.cumsum(np.concatenate([[0], stream >= 4]))
        plain = (bad[self.order : -1] == bad[: len(target)]) & (target < LETTERS)
        context = np.zeros(len(target), np.int64)
        for k in range(self.order):
            context *= 4
            context += stream[k : k + len(target)] & 3
        return target, plain, context

    def _numbers(self, stream: np.ndarray, places: np.ndarray) -> np.ndarray:
        """Events at `places` as numbers in base SYMBOLS: the last digit is the base, preceded by its context."""
        at = places + self.order
        number = stream[at].astype(np.int64)
        begun = np.zeros(len(places), bool)
        for k in range(1, self.order + 1):
            digit = np.where(begun, BEFORE, stream[at - k])
            begun |= digit == BEGIN
            number += digit * np.int64(SYMBOLS**k)
        return number

    def _merge(self) -> None:
        events = np.concatenate([self._events, *self._held])
        counts = np.concatenate([self._counts, np.ones(len(events) - len(self._events), np.int64)])
        self._events, place = np.unique(events, return_inverse=True)
        self._counts = np.bincount(place, counts, len(self._events)).astype(np.int64)
        self._held = []


def _streams(
    store: Store, split: str, order: int, codes: Callable[[np.ndarray], np.ndarray]
) -> Iterator[tuple[int, np.ndarray]]:
    """Yield symbols of the documents of `split` in blocks, each preceded by the `order` symbols before it.

    Each block comes with the number of documents that began before it.
    """
    index = store.documents(split)
    begun = 0
    for documents in np.split(index, np.flatnonzero(np.diff(index) != 1) + 1):
        carried = np.full(order, BEFORE, np.uint8)
        first, last = store.offsets[documents[0]], store.offsets[documents[-1] + 1]
        for at in range(first, last, BLOCK):
            block = codes(np.asarray(store.tokens[at : min(at + BLOCK, last)], np.int64))
            stream = np.concatenate([carried, block])
            yield begun, stream
            begun += int(np.count_nonzero(block == BEGIN))
            carried = stream[len(stream) - order :]
