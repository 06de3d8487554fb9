"""Stores of given tokens."""

import numpy as np

from bearings.domains.store import SPLITS, Store, StoreWriter


def store_of(*documents: list[int], train: list[list[int]] = ((0, 1),), vocabulary: int = 12) -> Store:
    """A store in memory with `documents` as its test split."""
    pieces = [np.array(d) for d in (*train, [0, 1], *documents)]
    splits = np.array([0] * len(train) + [1] + [2] * len(documents))
    offsets = np.concatenate([[0], np.cumsum([len(piece) for piece in pieces])])
    units = np.array([[len(piece) - 1.0] for piece in pieces])
    manifest = {"vocabulary": vocabulary, "units": ["letter"], "groups": [], "splits": SPLITS, "sha256": "0" * 64}
    names = [str(i) for i in range(len(pieces))]
    scored = np.diff(offsets) - 1
    store = Store(None, manifest, np.concatenate(pieces), None, offsets, splits, scored, np.arange(len(pieces)), units)
    vars(store)["names"] = names  # which are otherwise read from its directory
    return store


def marked_store(tmp_path, *documents):
    """Vowels 1 to 3, consonants 4 to 11; mark 0, 1 or UNSCORED for context."""
    with StoreWriter(tmp_path / "store", 12, ("letter",), groups=("vowel", "consonant")) as writer:
        for number, split in enumerate(SPLITS):
            tokens, marks = map(np.array, documents[number])
            writer.add(split, split, split, tokens, {"letter": 1.0}, marks)
    return Store.open(tmp_path / "store")
