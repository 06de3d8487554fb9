"""Markov models of the targets of a store, compared with a simple implementation."""

import math
from collections import Counter, defaultdict

import numpy as np
import pytest

from bearings.domains import baselines
from bearings.domains.store import SPLITS, UNSCORED, Store, StoreWriter


def store_of(folder, vocabulary: int, documents, groups=()) -> Store:
    """A store of `documents`: (split, tokens, marks or None)."""
    with StoreWriter(folder / f"{vocabulary} {groups}", vocabulary, (), groups) as writer:
        for number, (split, tokens, marks) in enumerate(documents):
            writer.add(f"{number}", split, f"{number}", np.array(tokens), {}, marks)
    return Store.open(folder / f"{vocabulary} {groups}")


def reference_nats(vocabulary: int, documents, split: str, max_order: int) -> dict[int, list[float]]:
    """Nats of the documents of `split`, computed one target at a time with Witten-Bell interpolation."""

    def targets(part):
        for place, tokens, marks in documents:
            if place == part:
                scored = (i for i in range(1, len(tokens)) if marks is None or marks[i] != UNSCORED)
                yield [(["before"] * max_order + tokens[:i], tokens[i]) for i in scored]

    after = defaultdict(Counter)
    for row in targets("train"):
        for history, token in row:
            for order in range(max_order + 1):
                after[tuple(history[len(history) - order :])][token] += 1
    nats = {order: [] for order in range(max_order + 1)}
    for row in targets(split):
        totals = [0.0] * (max_order + 1)
        for history, token in row:
            probability = 1 / vocabulary
            for order in range(max_order + 1):
                seen = after[tuple(history[len(history) - order :])]
                if seen:
                    probability = (seen[token] + len(seen) * probability) / (seen.total() + len(seen))
                totals[order] -= math.log(probability)
        for order, total in enumerate(totals):
            nats[order].append(total)
    return nats


@pytest.mark.parametrize("vocabulary", [3, 256, 65_536])
@pytest.mark.parametrize("marked", [False, True])
def test_markov_matches_reference(tmp_path, vocabulary, marked):
    random = np.random.default_rng(vocabulary)
    documents = []
    for number in range(12):
        # Few tokens of a large vocabulary, including its last, so that long contexts repeat.
        tokens = random.choice(
            [0, 1, 2, vocabulary - 1], int(random.integers(2, 90)), p=[0.05, 0.6, 0.3, 0.05]
        ).tolist()
        marks = np.where(random.random(len(tokens)) < 0.5, UNSCORED, 0).astype(np.uint8) if marked else None
        if marked:
            marks[:2] = UNSCORED, 0
        documents.append(((*SPLITS, "train")[number % 4], tokens, marks))
    store = store_of(tmp_path, vocabulary, documents, ("answer",) if marked else ())
    for split in ("valid", "test"):
        found, wanted = baselines.markov(store, split, 9), reference_nats(vocabulary, documents, split, 9)
        assert found.keys() == wanted.keys()
        for order, nats in wanted.items():
            assert found[order] == pytest.approx(nats, rel=1e-12), order


def test_markov_of_unseen_split(tmp_path):
    documents = [("train", [0, 1, 1, 1], None), ("valid", [0, 2, 3, 2, 3], None), ("test", [3, 3], None)]
    store = store_of(tmp_path, 4, documents)
    for split in ("valid", "test"):
        assert [nats.tolist() for nats in baselines.markov(store, split, 5).values()] == [
            pytest.approx(nats) for nats in reference_nats(4, documents, split, 5).values()
        ]


def test_long_training_split_uses_its_end(tmp_path, monkeypatch):
    random = np.random.default_rng(0)
    splits = ["valid", "test"] + ["train"] * 6
    documents = [(split, random.integers(0, 3, 20).tolist(), None) for split in splits]
    store = store_of(tmp_path, 3, documents)
    for tokens, kept in {120: 6, 119: 5, 60: 3, 59: 2, 20: 1, 1: 1}.items():
        monkeypatch.setattr(baselines, "LEARNT", tokens)
        wanted = reference_nats(3, documents[:2] + documents[-kept:], "test", 3)
        assert [nats.tolist() for nats in baselines.markov(store, "test", 3).values()] == [
            pytest.approx(nats) for nats in wanted.values()
        ], tokens
