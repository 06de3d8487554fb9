"""Markov models over bases, compared with the general ones, for all tokenizers and block sizes."""

import numpy as np
import pytest
from genome_support import SMALL, draw, writer

from bearings.domains import base_markov, baselines
from bearings.domains.genome import Genome


@pytest.fixture
def write(tmp_path):
    """A function that writes sequences to a file."""
    return writer(tmp_path)


def small_store(write, folder, tokenizer, n_runs):
    random = np.random.default_rng(5)
    records = {}
    for name, size in {"a": 2000, "b": 900, "c": 700, "d": 1000}.items():
        pieces = [
            draw(random, 40, "AACGT") * 3 + draw(random, 30) + "N" * int(random.integers(0, 9))
            for _ in range(size // 150)
        ]
        records[name] = "".join(pieces) + "N" * 200
    around = {**SMALL, "train": ["a", "d"]}  # of other splits, as blocks of a genome are
    genome = Genome(write(records), **around, chunk=97, tokenizer=tokenizer, n_runs=n_runs)
    return genome, genome.prepare(folder)


@pytest.mark.parametrize("n_runs", ["keep", "split"])  # without N, no training document begins with the last letter
@pytest.mark.parametrize("block", [50, 1 << 18])
def test_matches_general_markov_for_single_bases(write, tmp_path, monkeypatch, block, n_runs):
    monkeypatch.setattr(base_markov, "BLOCK", block)
    monkeypatch.setattr(base_markov, "MERGE", 100)
    genome, store = small_store(write, tmp_path, "base", n_runs)
    for split in ("valid", "test"):
        expected, found = baselines.markov(store, split, 7), genome.markov(store, split, 7)
        assert expected.keys() == found.keys()
        for order in expected:
            assert found[order] == pytest.approx(expected[order], rel=1e-10), order
        assert genome.markov(store, split, 0)[0] == pytest.approx(expected[0], rel=1e-10)


def test_tokenizers_and_orders(write, tmp_path):
    nats = []
    for tokenizer in ("base", "kmer6"):
        genome, store = small_store(write, tmp_path, tokenizer, "keep")
        nats.append(genome.markov(store, "test", 12))
    assert all(nats[0][order] == pytest.approx(nats[1][order]) for order in range(13))
    assert genome.markov(store, "test", 0)[0] == pytest.approx(nats[1][0])
    with pytest.raises(ValueError, match="max_order=13: it must be from 0 to 12"):
        genome.markov(store, "test", 13)


def test_context_counts():
    counts = base_markov.Counts(2)
    for letter in ([6, 6, 5, 0, 1, 2, 0, 1, 3, 4, 0, 1, 2],):
        counts.learn(np.array(letter, np.uint8))
    counts.close()
    assert counts.tables[2][0 * 4 + 1].tolist() == [0, 0, 2, 1, 0]
    assert counts.tables[1][0].tolist() == [0, 3, 0, 0, 0]
    assert counts.tables[0][0].tolist() == [3, 3, 2, 1, 1]
