"""Soft masking: marks of repeats, unique sequence and N match an independent count and are scored separately."""

import gzip
import io
import re

import numpy as np
import pytest
import torch
from conftest import nats_of
from genome_support import CHR1, CHR2, SMALL, both, cut, documents, draw, fasta, needs_data, writer
from rich.console import Console

from bearings.core.errors import UserError
from bearings.domains import repeats, sequences
from bearings.domains.baseline_records import baselines
from bearings.domains.genome import Genome
from bearings.domains.store import SPLITS, UNSCORED
from bearings.lightning_modules.data_module import TrainingRows
from bearings.lightning_modules.evaluation import Evaluation
from bearings.session.results import results_table

MASKED = {"soft_mask": True, **SMALL}


@pytest.fixture
def write(tmp_path):
    """A function that writes sequences to a file."""
    return writer(tmp_path)


def counted(sequence: str, tokenizer: str) -> list[int]:
    """Marks of a document, computed one word at a time from its case: 0 unique, 1 repeat, 2 N."""
    words = list(sequence)
    if tokenizer == "kmer6":
        runs = re.findall("[ACGTacgt]+|[^ACGTacgt]", sequence)
        wholes = [re.findall(".{6}", run) + list(run[len(run) // 6 * 6 :]) for run in runs]
        words = [word for run in wholes for word in run]
    return [UNSCORED, *(2 if word not in "ACGTacgt" and len(word) == 1 else most(word) for word in words)]


def most(word: str) -> int:
    return int(sum(map(str.islower, word)) > len(word) / 2)


def masked(random: np.random.Generator, size: int = 900) -> str:
    """Runs of upper case, lower case and N, and unusual letters that assemblies may contain."""
    kinds = ["ACGT", "acgt", "ACGTacgt", "N", "Nn", "RYkmacgt"]
    found = ""
    while len(found) < size:
        found += draw(
            random, int(random.integers(1, 40)), str(random.choice(kinds, p=[0.3, 0.3, 0.2, 0.1, 0.05, 0.05]))
        )
    return found


@both
@pytest.mark.parametrize("ending", [".fa", ".2bit"])
@pytest.mark.parametrize("block", [7, 1 << 22])
@pytest.mark.parametrize("chunk", [64, None])
def test_marks_agree_with_an_independent_count(write, tmp_path, monkeypatch, tokenizer, ending, block, chunk):
    monkeypatch.setattr(sequences, "BLOCK", block)
    monkeypatch.setattr(repeats, "BLOCK", block)
    random = np.random.default_rng(0)
    raw = {name: masked(random) for name in "abc"}
    if ending == ".2bit":  # .2bit has only these letters
        raw = {name: re.sub("[^ACGTNacgtn]", "N", sequence) for name, sequence in raw.items()}
    path = write(raw, f"genome{ending}")
    store = Genome(path, tokenizer=tokenizer, chunk=chunk, **MASKED).prepare(tmp_path)
    pieces = {}
    for name, sequence in raw.items():
        pieces |= cut(sequence, chunk or len(sequence), name)
    assert store.groups == ("unique", "repeat", "N")
    assert store.names == list(pieces)
    for i, piece in enumerate(pieces.values()):
        assert store.marks_of(i).tolist() == counted(piece, tokenizer)
    assert set(store.marks[:].tolist()) == {0, 1, 2, UNSCORED}


@pytest.mark.parametrize("lower", range(7))
def test_6_mer_with_four_lower_case_bases_is_a_repeat(write, tmp_path, lower):
    word = "acgtac"[:lower] + "ACGTAC"[lower:]
    path = write({"a": word + "acgtac", "b": "ACGT", "c": "ACGT"})
    store = Genome(path, **MASKED).prepare(tmp_path)
    assert store.marks_of(0).tolist() == [UNSCORED, int(lower >= 4), 1]


@both
@pytest.mark.parametrize("n_runs", ["keep", "split", "drop"])
def test_marks_do_not_change_tokens(write, tmp_path, tokenizer, n_runs):
    random = np.random.default_rng(1)
    path = write({name: masked(random) + "N" * 99 for name in "abc"})
    options = {"tokenizer": tokenizer, "n_runs": n_runs, "chunk": 50, **SMALL}
    one, other = (Genome(path, soft_mask=mask, **options).prepare(tmp_path) for mask in (False, True))
    assert one.directory != other.directory
    assert one.groups == ()
    assert one.names == other.names
    for name in ("tokens", "offsets", "scored", "clusters", "units"):
        assert np.array_equal(getattr(one, name), getattr(other, name)), name
    assert ((other.marks[:] == 2) == (other.tokens[:] == Genome(tokenizer=tokenizer).vocabulary - 1)).all()
    assert (2 in other.marks) == (n_runs != "split")


def test_n_is_a_separate_group_in_either_case(write, tmp_path):
    path = write({"a": "ACGnNrRacg", "b": "ACGT", "c": "ACGT"})
    store = Genome(path, tokenizer="base", **MASKED).prepare(tmp_path)
    assert store.marks_of(0).tolist() == [UNSCORED, 0, 0, 0, 2, 2, 2, 2, 1, 1, 1]
    assert documents(Genome(path, tokenizer="base", **MASKED), tmp_path)["a:0-10"] == "ACGNNNNACG"


@pytest.mark.parametrize("packed", [False, True])
def test_marks_do_not_change_training(write, tmp_path, packed):
    random = np.random.default_rng(2)
    path = write({name: masked(random) for name in "abc"})
    rows = []
    for mask in (False, True):
        genome = Genome(path, soft_mask=mask, chunk=70, tokenizer="base", reverse_complement=True, **SMALL)
        rows.append(TrainingRows(genome, genome.prepare(tmp_path), 16, packed, seed=0))
    for row in range(30):
        for one, other in zip(rows[0][row], rows[1][row], strict=True):
            assert np.array_equal(one.inputs, other.inputs)
            assert np.array_equal(one.targets, other.targets)


@pytest.mark.parametrize("mask", [False, True])
def test_soft_mask_without_lower_case_raises(write, tmp_path, mask):
    genome = Genome(write(), soft_mask=mask, **SMALL)
    if not mask:
        assert genome.prepare(tmp_path).groups == ()
        return
    message = r"genome\.fa: no base is in lower case, .*: give a soft-masked file, or set domain\.soft_mask=false"
    with pytest.raises(UserError, match=message):
        genome.prepare(tmp_path)
    assert not [path for path in (tmp_path / "genome").iterdir() if path.suffix != ".lock"]


class Unigram(torch.nn.Module):
    """The same logits everywhere."""

    def __init__(self, vocabulary: int):
        super().__init__()
        self.logits = torch.nn.Parameter(torch.randn(vocabulary, generator=torch.Generator().manual_seed(0)))

    def token_nats(self, tokens, targets):
        return nats_of(self.logits.expand(*tokens.shape, -1), targets)


def test_table_shows_each_group(write, tmp_path):
    random = np.random.default_rng(3)
    raw = {name: masked(random) for name in "abc"}
    genome = Genome(write(raw), tokenizer="base", chunk=50, **MASKED)
    store = genome.prepare(tmp_path)
    model = Unigram(genome.vocabulary)
    records = Evaluation(20, "32-true").score(model, store, "test")
    nats = -model.logits.detach().double().log_softmax(-1).numpy()
    tokens = genome.encode(raw["c"])[1:]
    marks = np.array(counted(raw["c"], "base")[1:])
    for group, name in enumerate(("unique", "repeat", "N")):
        assert records.group_nats_per_token[name] == pytest.approx(nats[tokens[marks == group]].mean(), rel=1e-5)
    assert records.group_tokens.sum() == records.tokens.sum() == len(tokens)
    table = results_table("test", {"grape_multiplicative": records, **baselines(genome, store, "test")})
    text = io.StringIO()
    Console(file=text, width=80).print(table)
    lines = [line.strip("┃ ").split("┃") for line in text.getvalue().splitlines() if "┃" in line]
    above, below = ([cell.strip() for cell in line] for line in lines)
    assert above[-3:] == ["nats/token,"] * 3
    assert below == ["model", "nats/token", "bits/base", "unique", "repeat", "N"]
    assert f"{records.group_nats_per_token['repeat']:.4f}" in text.getvalue()
    assert "xz -9e" in text.getvalue()
    assert "…" not in text.getvalue()


def test_table_omits_groups_without_targets(write, tmp_path):
    genome = Genome(write({"a": "ACGTacgt", "b": "ACGTacgt", "c": "ACGTacgt"}), tokenizer="base", **MASKED)
    store = genome.prepare(tmp_path)
    records = Evaluation(20, "32-true").score(Unigram(genome.vocabulary), store, "test")
    columns = [column.header for column in results_table("test", {"model": records}).columns]
    assert columns == ["model", "nats/token", "bits/base", "nats/token,\nunique", "nats/token,\nrepeat"]


def test_soft_mask_changes_the_store():
    assert Genome("x.fa").groups == ()
    assert Genome("x.fa", soft_mask=True).groups == repeats.GROUPS
    with pytest.raises(UserError, match=r"x\.fa is missing"):
        Genome("x.fa", soft_mask=True).options()


@needs_data
@both
def test_repeats_of_chromosome_2(tmp_path, tokenizer):
    with gzip.open(CHR2, "rt") as file:
        sequence = "".join(file.read().split("\n")[1:])
    half = len(sequence) // 2
    path = tmp_path / "halves.fa"
    path.write_text(fasta({"a": sequence[:half], "b": sequence[half : half + 9999], "c": sequence[half + 9999 :]}))
    store = Genome(str(path), tokenizer=tokenizer, chunk=6200, **MASKED).prepare(tmp_path)
    found = np.bincount(store.marks, minlength=256)
    wanted = np.zeros(256, int)
    for part in (sequence[:half], sequence[half : half + 9999], sequence[half + 9999 :]):
        for piece in cut(part, 6200, "").values():
            wanted += np.bincount(counted(piece, tokenizer), minlength=256)
    assert found.tolist() == wanted.tolist()
    assert {split: len(store.documents(split)) > 0 for split in SPLITS} == dict.fromkeys(SPLITS, True)


@needs_data
def test_chromosome_1_is_not_masked():
    tally = sequences.Tally()
    assert not any((codes & sequences.SOFT).any() for _, codes in sequences.read([CHR1], tally, soft_mask=True))
