"""Tokenizers of nucleotides, rendered samples, and the reverse complement."""

import re
from pathlib import Path

import numpy as np
import pytest
from Bio import SeqIO
from Bio.Seq import Seq
from genome_support import SMALL, both, draw, with_n, writer
from hypothesis import given, settings
from hypothesis import strategies as st

from bearings.core.errors import UserError
from bearings.domains import nucleotides
from bearings.domains.genome import Genome
from bearings.lightning_modules.data_module import TrainingRows


@pytest.fixture
def write(tmp_path):
    """A function that writes sequences to a file."""
    return writer(tmp_path)


def test_tokens_match_nucleotide_transformer():
    genome = Genome()
    assert genome.vocabulary == 1 + 4**6 + 5
    a, c, g, t, n = range(4097, 4102)
    assert genome.encode("AAAAAA" + "AAAAAC" + "TTTTTT").tolist() == [0, 1, 2, 4096]
    assert genome.encode("ACGTN" + "AAAAAA" + "GG").tolist() == [0, a, c, g, t, n, 1, g, g]
    assert genome.encode("NNNNNNN").tolist() == [0] + [n] * 7
    assert genome.encode("AAAAAANAAAAAAT").tolist() == [0, 1, n, 1, t]
    assert genome.encode("aaaaaaRyc").tolist() == [0, 1, n, n, c]
    assert genome.unit_weights(genome.encode("ACGTN" + "AAAAAA"))["base"].tolist() == [0, 1, 1, 1, 1, 0, 6]


def test_tokens_of_single_bases():
    genome = Genome(tokenizer="base")
    assert genome.vocabulary == 6
    assert genome.encode("ACGTNac").tolist() == [0, 1, 2, 3, 4, 5, 1, 2]
    assert genome.unit_weights(genome.encode("ANGN"))["base"].tolist() == [0, 1, 0, 1, 0]


def reference_words(sequence: str) -> list[str]:
    """The words of the Nucleotide Transformer, computed one run at a time."""
    words = []
    for run in re.findall("N|[ACGT]+", sequence):
        while len(run) >= 6:
            words.append(run[:6])
            run = run[6:]
        words += run
    return words


@both
@given(with_n)
def test_decode_inverts_encode(tokenizer, sequence):
    genome = Genome(tokenizer=tokenizer)
    assert genome.decode(genome.encode(sequence)) == sequence


@pytest.mark.parametrize("piece", [nucleotides.PIECE, 6, 12, 30])
def test_words_start_at_left_of_each_run_whatever_the_size_of_pieces(monkeypatch, piece):
    monkeypatch.setattr(nucleotides, "PIECE", piece)

    @given(with_n)
    @settings(database=None)
    def law(sequence):
        genome = Genome()
        assert [genome.decode([token]) for token in genome.encode(sequence)[1:].tolist()] == reference_words(sequence)

    law()


def test_decode_of_start_and_unknown_ids():
    assert Genome().decode([0, 1, 0, 4097, -1, 4102, 2**70]) == "AAAAAAANNN"
    assert Genome(tokenizer="base").decode([4, 6, 0, 1]) == "TNA"


@both
def test_rendered_sequence_round_trips(tmp_path, tokenizer):
    genome = Genome(tokenizer=tokenizer)
    sequence = draw(np.random.default_rng(0), 150) + "NN" + "ACG"
    (path,) = genome.render(sequence, tmp_path / "sample-0")
    record = SeqIO.read(path, "fasta")
    assert (record.id, str(record.seq)) == ("sample-0", sequence)
    assert max(map(len, path.read_text().splitlines())) == 60
    assert np.array_equal(genome.encode_file(path), genome.encode(sequence))


def test_prompt_is_one_record(write):
    assert Genome(tokenizer="base").encode_file(Path(write({"p": "acR"}))).tolist() == [0, 1, 2, 5]
    assert Genome(tokenizer="base").encode_file(Path(write({"p": "acNT"}, "p.2bit"))).tolist() == [0, 1, 2, 5, 4]
    with pytest.raises(UserError, match=r"genome\.fa has the records a and b: give a file with one record"):
        Genome().encode_file(Path(write()))
    with pytest.raises(UserError, match=r"none\.fa cannot be read: No such file"):
        Genome().encode_file(Path("none.fa"))


def test_each_record_is_a_document(write):
    genome = Genome(tokenizer="base")
    found = genome.encode_documents(Path(write({"p": "acR", "q": "NNa"})))
    assert [(name, tokens.tolist()) for name, tokens in found] == [("p", [0, 1, 2, 5]), ("q", [0, 5, 5, 1])]
    (tokens,) = [tokens for name, tokens in genome.encode_documents(Path(write({"p": "acgT" * 5}))) if name == "p"]
    assert np.array_equal(tokens, genome.encode("ACGT" * 5))


class Always:
    """A generator that always draws `value`."""

    def __init__(self, value: float):
        self.value = value

    def random(self) -> float:
        return self.value


@both
@given(with_n)
def test_other_strand_matches_encode(tokenizer, sequence):
    genome = Genome(tokenizer=tokenizer, reverse_complement=True)
    tokens = genome.encode(sequence)
    turned = genome.augment(tokens, Always(0.9))
    assert turned.tolist() == genome.encode(str(Seq(sequence).reverse_complement())).tolist()
    assert genome.augment(turned, Always(0.9)).tolist() == tokens.tolist()


@given(st.lists(st.text("ACGT", min_size=6, max_size=6), min_size=1, max_size=20))
def test_other_strand_of_whole_words(words):
    genome = Genome(reverse_complement=True)
    turned = genome.augment(genome.encode("".join(words)), Always(0.5))
    expected = [str(Seq(word).reverse_complement()) for word in words[::-1]]
    assert [genome.decode([token]) for token in turned[1:].tolist()] == expected


@both
@given(with_n, st.integers(0, 40), st.integers(1, 40))
def test_augmented_window_keeps_length_and_bases(tokenizer, sequence, begin, size):
    genome = Genome(tokenizer=tokenizer, reverse_complement=True)
    window = genome.encode(sequence)[begin : begin + size].astype(np.int64)
    if len(window):
        turned = genome.augment(window, Always(0.9))
        assert (turned.shape, turned.dtype) == (window.shape, window.dtype)
        assert (turned[0] == genome.start) == (window[0] == genome.start)
        assert genome.decode(turned) == str(Seq(genome.decode(window)).reverse_complement())


def test_half_of_windows_are_reversed_if_enabled():
    tokens = Genome().encode("AAAAAACCCCCC")
    turned = Genome(reverse_complement=True)
    seen = [turned.augment(tokens, np.random.default_rng(seed)).tolist() for seed in range(400)]
    assert {tuple(each) for each in seen} == {tuple(tokens), tuple(Genome().encode("GGGGGGTTTTTT").tolist())}
    assert 150 < seen.count(tokens.tolist()) < 250
    assert Genome(reverse_complement=False).augment(tokens, Always(0.9)) is tokens


@pytest.mark.parametrize("packed", [False, True])
def test_training_rows_are_windows_of_both_strands(write, tmp_path, packed):
    genome = Genome(write(), **SMALL, chunk=70, tokenizer="base", reverse_complement=True)
    rows = TrainingRows(genome, genome.prepare(tmp_path), 16, packed, seed=0)
    strands = write.three["a"], str(Seq(write.three["a"]).reverse_complement())
    found = [genome.decode([*piece.inputs, piece.targets[-1]]) for row in range(30) for piece in rows[row]]
    assert all(any(window in strand for strand in strands) for window in found)
    assert {window in strands[0] for window in found} == {True, False}
