"""Genomes: reading sequences, tokens of both kinds, documents and splits, the other strand, and Markov over bases."""

import gzip
import hashlib
import os
import re
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from Bio import SeqIO, bgzf
from Bio.Seq import Seq
from hypothesis import given, settings
from hypothesis import strategies as st

from bearings.domains import base_markov, baselines, nucleotides, sequences
from bearings.domains.base import Domain
from bearings.domains.genome import Genome
from bearings.domains.store import SPLITS
from bearings.errors import UserError
from bearings.lightning_modules.data_module import TrainingRows

REPOSITORY = Path(__file__).parent.parent
DATA = Path(os.environ.get("BEARINGS_DATA", REPOSITORY.parent / "shared" / "data")) / "human-genome"
CHR1, CHR2 = DATA / "hg38_chr1_1-1000000.fa.gz", DATA / "hg38_chr2_1-2333275.fa.gz"
WINDOWS = DATA / "hg38ml_windows_131072.fa.gz"
needs_data = pytest.mark.skipif(not WINDOWS.exists(), reason=f"{WINDOWS} is absent; set BEARINGS_DATA to its parent")

both = pytest.mark.parametrize("tokenizer", ["kmer6", "base"])
letters = st.text("ACGT", max_size=80)
with_n = st.lists(letters | st.text("N", max_size=9), max_size=6).map("".join)
SMALL = {"train": ["a"], "valid": ["b"], "test": ["c"]}


def draw(random: np.random.Generator, size: int, alphabet: str = "ACGT") -> str:
    return "".join(random.choice(list(alphabet), size))


def fasta(records: dict[str, str], width: int = 60, end: str = "\n") -> str:
    """FASTA of `records`, by header."""
    lines = []
    for header, sequence in records.items():
        lines += [f">{header}", *(sequence[at : at + width] for at in range(0, len(sequence), width))]
    return end.join(lines) + end


def two_bit(records: dict[str, str]) -> bytes:
    """A .2bit file as UCSC's format description has it; lower case is the mask."""

    def words(*values):
        return np.array(values, "<u4").tobytes()

    def runs(flags):
        places = [(m.start(), m.end() - m.start()) for m in re.finditer("1+", "".join("01"[bool(f)] for f in flags))]
        return words(len(places), *(begin for begin, _ in places), *(size for _, size in places))

    index, bodies = b"", b""
    at = 16 + sum(1 + len(name) + 4 for name in records)
    for name, sequence in records.items():
        body = words(len(sequence)) + runs([letter in "Nn" for letter in sequence])
        body += runs([letter.islower() for letter in sequence]) + words(0)
        codes = ["TCAG".find(letter) % 4 for letter in sequence.upper()] + [0] * (-len(sequence) % 4)
        body += bytes(64 * a + 16 * b + 4 * c + d for a, b, c, d in np.array(codes).reshape(-1, 4).tolist())
        index += bytes([len(name)]) + name.encode() + words(at + len(bodies))
        bodies += body
    return words(0x1A412743, 0, len(records), 0) + index + bodies


def plain(sequence: str) -> str:
    """What is left of case and ambiguity codes in a store."""
    return re.sub("[^ACGT]", "N", sequence.upper())


def cut(sequence: str, size: int, name: str) -> dict[str, str]:
    """Documents of `size` bases, by name."""
    pieces = {at: sequence[at : at + size] for at in range(0, len(sequence), size)}
    return {f"{name}:{at}-{at + len(piece)}": piece for at, piece in pieces.items()}


def sample(folder: Path) -> SimpleNamespace:
    """Nine records for the laws of every domain (test_domain_laws.py says what the fields are)."""
    random = np.random.default_rng(3)
    records, raw = {}, {}
    for number, split in enumerate(["train"] * 5 + ["valid", "validation", "test", "test"]):
        kinds = ["ACGT", "ACGTacgt", "N", "RYKMnacgt", "ACGT"]
        sequence = "".join(draw(random, int(random.integers(1, 90)), kind) for kind in kinds)
        records[f"scaffold{number} split={split}"] = sequence
        raw |= cut(plain(sequence), 100, f"scaffold{number}")
    folder.mkdir()
    source = folder / "assembly.fa.gz"
    source.write_bytes(gzip.compress(fasta(records).encode(), mtime=0))
    return SimpleNamespace(
        options={"path": str(source), "split": "header", "chunk": 100},
        raw=raw,
        same=lambda decoded, sequence: decoded == sequence,
        units=lambda sequence: {"base": sum(letter != "N" for letter in sequence)},
        source=source,
    )


def documents(domain: Domain, folder: Path) -> dict[str, str]:
    """Letters of every document of `domain`'s store, by name."""
    store = domain.prepare(folder)
    return {name: domain.decode(store.document(i)) for i, name in enumerate(store.names)}


@pytest.fixture
def write(tmp_path):
    """Write three records, or others, as `name` in a folder; returns the path."""
    random = np.random.default_rng(0)
    three = {name: draw(random, 150) for name in "abc"}

    def write(records=three, name="genome.fa", **style) -> str:
        path = tmp_path / "source" / name
        path.parent.mkdir(exist_ok=True)
        if isinstance(records, bytes):
            path.write_bytes(records)
        else:
            path.write_bytes(two_bit(records) if name.endswith(".2bit") else fasta(records, **style).encode())
        return str(path)

    write.three = three
    return write


# ---- tokens


def test_tokens_as_the_nucleotide_transformer_has_them():
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


def slowly(sequence: str) -> list[str]:
    """The Nucleotide Transformer's words, one run at a time."""
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


@given(with_n)
def test_words_are_cut_from_the_left_of_each_run(sequence):
    genome = Genome()
    assert [genome.decode([token]) for token in genome.encode(sequence)[1:].tolist()] == slowly(sequence)


@pytest.mark.parametrize("piece", [6, 12, 30])
def test_the_size_of_the_pieces_changes_no_token(monkeypatch, piece):
    monkeypatch.setattr(nucleotides, "PIECE", piece)

    @given(with_n)
    @settings(database=None)
    def law(sequence):
        genome = Genome()
        assert [genome.decode([token]) for token in genome.encode(sequence)[1:].tolist()] == slowly(sequence)

    law()


def test_decode_skips_starts_and_writes_n_for_unknown_ids():
    assert Genome().decode([0, 1, 0, 4097, -1, 4102, 2**70]) == "AAAAAAANNN"
    assert Genome(tokenizer="base").decode([4, 6, 0, 1]) == "TNA"


@both
def test_a_rendered_sequence_is_read_again(tmp_path, tokenizer):
    genome = Genome(tokenizer=tokenizer)
    sequence = draw(np.random.default_rng(0), 150) + "NN" + "ACG"
    (path,) = genome.render(sequence, tmp_path / "sample-0")
    record = SeqIO.read(path, "fasta")
    assert (record.id, str(record.seq)) == ("sample-0", sequence)
    assert max(map(len, path.read_text().splitlines())) == 60
    assert np.array_equal(genome.encode_file(path), genome.encode(sequence))


def test_a_prompt_is_one_record(write):
    assert Genome(tokenizer="base").encode_file(Path(write({"p": "acR"}))).tolist() == [0, 1, 2, 5]
    assert Genome(tokenizer="base").encode_file(Path(write({"p": "acNT"}, "p.2bit"))).tolist() == [0, 1, 2, 5, 4]
    with pytest.raises(UserError, match=r"genome\.fa has the record b besides a: give a file of one record"):
        Genome().encode_file(Path(write()))
    with pytest.raises(UserError, match=r"none\.fa cannot be read: No such file"):
        Genome().encode_file(Path("none.fa"))


# ---- the other strand


class Always:
    """A generator that always draws `value`."""

    def __init__(self, value: float):
        self.value = value

    def random(self) -> float:
        return self.value


@both
@given(with_n)
def test_the_other_strand_has_the_tokens_that_encode_gives_it(tokenizer, sequence):
    genome = Genome(tokenizer=tokenizer, reverse_complement=True)
    tokens = genome.encode(sequence)
    turned = genome.augment(tokens, Always(0.9))
    assert turned.tolist() == genome.encode(str(Seq(sequence).reverse_complement())).tolist()
    assert genome.augment(turned, Always(0.9)).tolist() == tokens.tolist()


@given(st.lists(st.text("ACGT", min_size=6, max_size=6), min_size=1, max_size=20))
def test_the_other_strand_of_whole_words_is_each_word_s_in_reverse_order(words):
    genome = Genome(reverse_complement=True)
    turned = genome.augment(genome.encode("".join(words)), Always(0.5))
    expected = [str(Seq(word).reverse_complement()) for word in words[::-1]]
    assert [genome.decode([token]) for token in turned[1:].tolist()] == expected


@both
@given(with_n, st.integers(0, 40), st.integers(1, 40))
def test_any_window_of_a_document_keeps_its_length_and_bases(tokenizer, sequence, begin, size):
    genome = Genome(tokenizer=tokenizer, reverse_complement=True)
    window = genome.encode(sequence)[begin : begin + size].astype(np.int64)
    if len(window):
        turned = genome.augment(window, Always(0.9))
        assert (turned.shape, turned.dtype) == (window.shape, window.dtype)
        assert (turned[0] == genome.start) == (window[0] == genome.start)
        assert genome.decode(turned) == str(Seq(genome.decode(window)).reverse_complement())


def test_half_of_the_windows_are_turned_and_none_unless_asked():
    tokens = Genome().encode("AAAAAACCCCCC")
    turned = Genome(reverse_complement=True)
    seen = [turned.augment(tokens, np.random.default_rng(seed)).tolist() for seed in range(400)]
    assert {tuple(each) for each in seen} == {tuple(tokens), tuple(Genome().encode("GGGGGGTTTTTT").tolist())}
    assert 150 < seen.count(tokens.tolist()) < 250
    assert Genome().augment(tokens, Always(0.9)) is tokens


@pytest.mark.parametrize("packed", [False, True])
def test_training_rows_are_windows_of_either_strand(write, tmp_path, packed):
    genome = Genome(write(), **SMALL, chunk=70, tokenizer="base", reverse_complement=True)
    rows = TrainingRows(genome, genome.prepare(tmp_path), 16, packed, seed=0)
    strands = write.three["a"], str(Seq(write.three["a"]).reverse_complement())
    found = [genome.decode([*piece.inputs[:1], *piece.targets]) for row in range(30) for piece in rows[row]]
    assert all(any(window in strand for strand in strands) for window in found)
    assert {window in strands[0] for window in found} == {True, False}


# ---- documents and splits


def test_chunks_lie_end_to_end_and_whole_sequences_stay_whole(write, tmp_path):
    path = write()
    expected = {}
    for name, sequence in write.three.items():
        expected |= cut(sequence, 64, name)
    assert documents(Genome(path, **SMALL, chunk=64), tmp_path) == expected
    whole = {f"{name}:0-150": sequence for name, sequence in write.three.items()}
    assert documents(Genome(path, **SMALL, chunk=None), tmp_path) == whole


@pytest.mark.parametrize("block", [1, 7, 64, 1 << 22])
@pytest.mark.parametrize("n_runs", ["keep", "split", "drop"])
def test_runs_of_n(write, tmp_path, monkeypatch, n_runs, block):
    monkeypatch.setattr(sequences, "BLOCK", block)
    a = "N" * 25 + "ACGTACGTACGTA" + "N" * 22 + "CC"
    path = write({"a": a, "b": "ACGT", "c": "ACGT"})
    found = documents(Genome(path, **SMALL, chunk=10, n_runs=n_runs, tokenizer="base"), tmp_path)
    kept = cut(a, 10, "a")
    expected = {
        "keep": kept,
        "split": {"a:25-35": "ACGTACGTAC", "a:35-38": "GTA", "a:60-62": "CC"},
        "drop": {name: piece for name, piece in kept.items() if set(piece) != {"N"}},
    }[n_runs]
    assert found == {**expected, "b:0-4": "ACGT", "c:0-4": "ACGT"}


def test_case_and_ambiguity_codes_are_counted(write, tmp_path):
    path = write({"a": "ACgtRyNn", "b": "ACGT", "c": "acg"})
    store = Genome(path, **SMALL).prepare(tmp_path)
    assert documents(Genome(path, **SMALL), tmp_path) == {"a:0-8": "ACGTNNNN", "b:0-4": "ACGT", "c:0-3": "ACG"}
    assert store.manifest["soft_masked_bases"] == 7
    assert store.manifest["ambiguity_codes_read_as_n"] == 2
    assert store.unit_counts("train") == {"base": 4}


def test_clusters_are_blocks_of_a_record(write, tmp_path, monkeypatch):
    monkeypatch.setattr("bearings.domains.genome.CLUSTER", 40)
    store = Genome(write(), **SMALL, chunk=30).prepare(tmp_path)
    clusters = store.clusters.reshape(3, 5)  # begins 0, 30, 60, 90, 120
    assert [len(set(row.tolist())) for row in clusters] == [4, 4, 4]
    assert (clusters[:, 0] == clusters[:, 1]).all()
    assert len(set(clusters.ravel().tolist())) == 12


def test_records_that_no_split_names_are_left_out_or_train(write, tmp_path):
    path = write({**write.three, "d": "ACGT", "e": "ACGT"})
    store = Genome(path, **SMALL).prepare(tmp_path)
    assert store.manifest["left_out"] == ["d", "e"]
    assert store.manifest["records"] == {"train": 1, "valid": 1, "test": 1}
    others = Genome(path, train=None, valid=["b"], test=["c"]).prepare(tmp_path)
    assert others.manifest["records"] == {"train": 3, "valid": 1, "test": 1}


def test_a_bed_file_names_splits(write, tmp_path, monkeypatch):
    monkeypatch.setattr(sequences, "BLOCK", 32)
    bed = tmp_path / "splits.bed"
    bed.write_text(
        "# comment\ntrack name=x\na\t100\t140\ttest\na\t0\t70\ttrain\textra\r\n\nb\t10\t50\tval\nb 50 60 train\n"
    )
    genome = Genome(write(), split="bed", bed=str(bed), chunk=50)
    a, b = write.three["a"], write.three["b"]
    store = genome.prepare(tmp_path)
    found = {(name, SPLITS[store.splits[i]]): genome.decode(store.document(i)) for i, name in enumerate(store.names)}
    assert found == {
        ("a:0-50", "train"): a[:50],
        ("a:50-70", "train"): a[50:70],
        ("a:100-140", "test"): a[100:140],
        ("b:10-50", "valid"): b[10:50],
        ("b:50-60", "train"): b[50:60],
    }
    assert store.manifest["left_out"] == ["c"]
    parts = [set(store.clusters[store.documents(part)].tolist()) for part in SPLITS]
    assert sum(map(len, parts)) == len(set.union(*parts))
    before = genome.prepare(tmp_path).directory
    bed.write_text(bed.read_text().replace("140", "141"))
    assert Genome(genome.paths[0].as_posix(), split="bed", bed=str(bed), chunk=50).prepare(tmp_path).directory != before


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("a\t0\t10", "line 4: 'a\\t0\\t10' is no BED line of record, start, end and split"),
        ("a\t0\tten\ttrain", "is no BED line"),
        ("a\t10\t10\ttrain", "line 4: start 10 is not below end 10"),
        ("a\t20\t30\ttrian", "line 4: 'trian' is no split; did you mean train?"),
        ("a\t9\t20\ttest", "lines 1 and 4 overlap on a"),
        ("a\t100\t151\ttrain", "line 4: end 151 lies beyond a, which has 150 bases"),
        ("chrA\t100\t151\ttrain", "line 4: chrA is absent; "),
    ],
)
def test_a_wrong_line_of_a_bed_file_is_told(write, tmp_path, line, told):
    bed = tmp_path / "splits.bed"
    bed.write_text("a\t0\t10\ttrain\nb\t0\t10\tvalid\nc\t0\t10\ttest\n" + line + "\n")
    with pytest.raises(UserError) as caught:
        Genome(write(), split="bed", bed=str(bed)).prepare(tmp_path / "stores")
    assert told in str(caught.value)
    assert str(bed) in str(caught.value)
    assert not [path for path in (tmp_path / "stores").rglob("*") if path.is_file() and path.suffix != ".lock"]


def test_a_missing_bed_file_and_a_split_without_records_are_told(write, tmp_path):
    with pytest.raises(UserError, match=r"none\.bed cannot be read: No such file"):
        Genome(write(), split="bed", bed="none.bed").prepare(tmp_path)
    (tmp_path / "two.bed").write_text("a\t0\t10\ttrain\nb\t0\t10\tvalid\n")
    with pytest.raises(UserError, match=r"no record is in test: .*genome\.fa has a, b, c, split=bed"):
        Genome(write(), split="bed", bed=str(tmp_path / "two.bed")).prepare(tmp_path)
    with pytest.raises(UserError, match=r"valid names chr21, which is absent; .*genome\.fa has a, b, c"):
        Genome(write(), train=None).prepare(tmp_path)
    with pytest.raises(UserError, match=r"the header of a has no split="):
        Genome(write(), split="header").prepare(tmp_path)
    with pytest.raises(UserError, match=r"header of a: 'exam' is no split; .*allowed: train, valid, test"):
        Genome(write({"a split=exam": "ACGT"}), split="header").prepare(tmp_path)
    with pytest.raises(UserError, match="no record is in train"):
        Genome(write({"b": "A", "c": "A"}), train=None, valid=["b"], test=["c"]).prepare(tmp_path)


# ---- files


@pytest.mark.parametrize("block", [1, 13, 1 << 22])
@pytest.mark.parametrize(
    "kind", ["lines", "one line", "CRLF", "blank lines", "no last line end", "gzip", "BGZF", "2bit"]
)
def test_every_kind_of_file_gives_the_same_documents(write, tmp_path, monkeypatch, kind, block):
    monkeypatch.setattr(sequences, "BLOCK", block)
    random = np.random.default_rng(1)
    records = {name: draw(random, 151, "ACGTacgt") + "NNNNn" + draw(random, 30) for name in "abc"}
    text = fasta({f"{name} described > here": sequence for name, sequence in records.items()})
    path = {
        "lines": lambda: write(records),
        "one line": lambda: write(records, width=10**6),
        "CRLF": lambda: write(records, end="\r\n"),
        "blank lines": lambda: write(("\r\n\n" + text.replace("\n", "\n\n")).encode()),
        "no last line end": lambda: write(text.rstrip().encode()),
        "gzip": lambda: write(gzip.compress(text[:99].encode()) + gzip.compress(text[99:].encode()), "g.fa.gz"),
        "BGZF": lambda: write(b"", "b.fa.gz"),
        "2bit": lambda: write(records, "g.2bit"),
    }[kind]()
    if kind == "BGZF":
        with bgzf.BgzfWriter(path) as file:
            file.write(text.encode())
    found = documents(Genome(path, **SMALL, chunk=None), tmp_path)
    assert found == {f"{name}:0-186": plain(sequence) for name, sequence in records.items()}
    assert Genome(path, **SMALL, chunk=None).prepare(tmp_path).manifest["soft_masked_bases"] == sum(
        letter.islower() for sequence in records.values() for letter in sequence
    )


def test_several_files_and_folders_are_one_assembly(write, tmp_path):
    folder = Path(write({"b": "ACGT"}, "b.fna")).parent
    write({"c": "GGGG"}, "c.2bit")
    write(b"about", "README.txt")
    other = tmp_path / "other.fa"
    other.write_text(fasta({"a": "TTTT"}))
    found = documents(Genome([str(other), str(folder)], **SMALL), tmp_path / "stores")
    assert found == {"a:0-4": "TTTT", "b:0-4": "ACGT", "c:0-4": "GGGG"}
    write({"a": "ACGT"}, "z.fa")
    with pytest.raises(UserError, match=r"z\.fa: record a is also in .*other\.fa"):
        Genome([str(other), str(folder)], **SMALL).prepare(tmp_path / "stores")


BASES = {"a": "ACGT" * 30, "b": "ACGT", "c": "ACGT"}
DAMAGED = {
    "nothing": (b"", "is empty (0 bytes)"),
    "blank": (b"\n \n"[:1] * 3, "is empty: no sequence is in it"),
    "packed nothing": (gzip.compress(b""), "is empty: no sequence is in it"),
    "prose": (b"\nOnce upon a time", "line 2: it begins with 'O', but FASTA begins with '>'"),
    "FASTQ": (b"@read\nACGT\n+\nIIII\n", "line 1: it begins with '@'"),
    "binary": (b"\x89PNG\r\n\x1a\n", "line 1: it begins with the byte 0x89"),
    "binary below a header": (b">a\nACGT\nAC\x00\xff", "line 3, record a, base 7: the byte 0x00 is no nucleotide"),
    "protein": (b">a x\nACGT\n>p\nMKV\nSLEN\n", "line 5, record p, base 5: 'L' is no nucleotide"),
    "RNA": (b">a\nACGU\n", "record a, base 4: 'U' is no nucleotide (A C G T N and IUPAC codes are); RNA? Write T"),
    "alignment": (b">a\r\nAC\r\nG-T\r\n", "line 3, record a, base 4: '-' is no nucleotide"),
    "header inside a line": (b">a\nACG>b\nACGT\n", "line 2, record a, base 4: '>' is no nucleotide"),
    "names twice": (b">a\nACGT\n>a again\nACGT\n", "record a is there twice"),
    "no name": (b">a\nACGT\n> \nACGT\n", "line 3: the header has no name"),
    "no text": (b">a\nACGT\n>\xff\nACGT\n", "line 3: the header is no UTF-8 text"),
    "no sequence": (b">a\n>b\nACGT\n", "record a has no sequence"),
    ".2bit without bases": (two_bit({**BASES, "b": ""}), "record b has no sequence"),
    "no last sequence": (b">a\nACGT\n>b\n", "record b has no sequence; is the file truncated?"),
    "ends in a header": (b">a\nACGT\n>chr", "line 3: the file ends in a header; is it truncated?"),
    "endless header": (b">" + b"x" * (1 << 21), "line 1: a header of over 1,048,576 bytes is no FASTA"),
    "cut gzip": (gzip.compress(fasta(BASES).encode())[:-9], "is truncated"),
    "changed gzip": (gzip.compress(fasta(BASES).encode())[:-8] + bytes(8), "is damaged (CRC check failed"),
    "rubbish after gzip": (gzip.compress(fasta(BASES).encode()) + b"more", "is damaged"),
    "cut .2bit header": (two_bit(BASES)[:9], "is truncated or damaged"),
    "cut .2bit index": (two_bit(BASES)[:20], "is truncated"),
    "cut .2bit bases": (two_bit({**BASES, "c": "ACGT" * 99})[:-40], "is truncated"),
    ".2bit version": (two_bit(BASES)[:4] + b"\x07" + two_bit(BASES)[5:], "cannot be read as .2bit"),
    ".2bit names twice": (two_bit({"a": "ACGT", "b": "ACGT"}).replace(b"\x01b", b"\x01a"), "2 records, but 1 names"),
}


@pytest.mark.parametrize("kind", DAMAGED)
def test_a_damaged_file_is_told_with_its_place_and_leaves_nothing(write, tmp_path, kind):
    content, told = DAMAGED[kind]
    path = write(content)
    with pytest.raises(UserError) as caught:
        Genome(path, train=["a"], valid=["b"], test=["c"]).prepare(tmp_path / "stores")
    assert told in str(caught.value)
    assert path in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not [path for path in (tmp_path / "stores").rglob("*") if path.is_file() and path.suffix != ".lock"]


@pytest.mark.parametrize("block", [1, 2, 5, 6, 7])
def test_a_header_inside_a_line_is_told_wherever_blocks_end(write, monkeypatch, block):
    monkeypatch.setattr(sequences, "BLOCK", block)
    path = write(DAMAGED["header inside a line"][0])
    with pytest.raises(UserError, match=r"line 2, record a, base 4: '>' is no nucleotide"):
        list(sequences.read([Path(path)], sequences.Tally()))


def test_a_bgzf_file_cut_between_two_blocks_is_told(write, tmp_path):
    path = write(b"", "b.fa.gz")
    with bgzf.BgzfWriter(path) as file:
        file.write(fasta(BASES).encode())
    Path(path).write_bytes(Path(path).read_bytes()[:-28])
    with pytest.raises(UserError, match=r"b\.fa\.gz is truncated: BGZF's end marker is missing"):
        Genome(path, **SMALL).prepare(tmp_path)


def test_missing_and_empty_places_are_told(tmp_path):
    with pytest.raises(UserError, match=r"none\.fa is missing"):
        Genome("none.fa").prepare(tmp_path)
    with pytest.raises(UserError, match=r"holds no sequence file: \.2bit, \.fa,"):
        Genome(str(tmp_path)).prepare(tmp_path / "stores")


def test_arguments_are_checked():
    wrong = {
        "tokenizer is 'kmer': kmer6, base are allowed": {"tokenizer": "kmer"},
        "n_runs is 'cut'": {"n_runs": "cut"},
        "split is 'page'": {"split": "page"},
        "chunk is 0": {"chunk": 0},
        "split=bed goes with bed=FILE": {"split": "bed"},
        "'chromosome' and bed is 'x.bed'": {"bed": "x.bed"},
        "share chr21": {"test": ["chr21"]},
        "mirrors of one file": {"urls": ["http://a/hg38.2bit", "http://b/hg19.2bit"]},
        "path is ''": {"path": ""},
        "path is []": {"path": []},
    }
    for told, arguments in wrong.items():
        with pytest.raises(ValueError, match=re.escape(told)):
            Genome(**arguments)


def test_the_download_is_checked_by_md5_and_kept(tmp_path):
    site, stores = tmp_path / "site", tmp_path / "stores"
    site.mkdir()
    content = two_bit(BASES)
    (site / "small.2bit").write_bytes(content)

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(site)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        urls = [f"http://127.0.0.1:{server.server_port}/{place}small.2bit" for place in ("gone/", "")]
        with pytest.raises(UserError, match=r"small\.2bit has md5 [0-9a-f]{32}, not 00: delete it"):
            Genome(urls=urls, md5="00", **SMALL).prepare(stores)
        right = Genome(urls=urls, md5=hashlib.md5(content).hexdigest(), **SMALL)
        store = right.prepare(stores)
    finally:
        server.shutdown()
        server.server_close()
    assert (stores / "genome" / "downloads" / "small.2bit").read_bytes() == content
    assert store.unit_counts("train") == {"base": 120}
    assert right.prepare(stores).directory == store.directory
    with pytest.raises(UserError, match=r"get small\.2bit from 127\.0\.0\.1:\d+ and set domain\.path="):
        Genome(urls=urls, md5=None, **SMALL).prepare(tmp_path / "offline")


# ---- Markov over bases


def small_store(write, folder, tokenizer, n_runs="keep"):
    random = np.random.default_rng(5)
    records = {}
    for name, size in {"a": 3000, "b": 900, "c": 700}.items():
        pieces = [
            draw(random, 40, "AACGT") * 3 + draw(random, 30) + "N" * int(random.integers(0, 9))
            for _ in range(size // 150)
        ]
        records[name] = "".join(pieces) + "N" * 200
    genome = Genome(write(records), **SMALL, chunk=97, tokenizer=tokenizer, n_runs=n_runs)
    return genome, genome.prepare(folder)


@pytest.mark.parametrize("block", [50, 1 << 18])
def test_markov_over_bases_is_the_general_one_for_one_token_a_base(write, tmp_path, monkeypatch, block):
    monkeypatch.setattr(base_markov, "BLOCK", block)
    monkeypatch.setattr(base_markov, "MERGE", 100)
    genome, store = small_store(write, tmp_path, "base")
    for split in ("valid", "test"):
        expected, found = baselines.markov(store, split, 7), genome.markov(store, split, 7)
        assert expected.keys() == found.keys()
        for order in expected:
            assert found[order] == pytest.approx(expected[order], rel=1e-10), order


def test_markov_over_bases_needs_no_certain_tokenizer_and_any_order(write, tmp_path):
    nats = []
    for tokenizer in ("base", "kmer6"):
        genome, store = small_store(write, tmp_path, tokenizer)
        nats.append(genome.markov(store, "test", 12))
    assert all(nats[0][order] == pytest.approx(nats[1][order]) for order in range(13))
    assert genome.markov(store, "test", 0)[0] == pytest.approx(nats[1][0])
    with pytest.raises(ValueError, match="max_order is 13: 0 to 12 fit"):
        genome.markov(store, "test", 13)


def test_counts_of_a_context_are_what_one_counts():
    counts = base_markov.Counts(2)
    for letter in ([6, 6, 5, 0, 1, 2, 0, 1, 3, 4, 0, 1, 2],):
        counts.learn(np.array(letter, np.uint8))
    counts.close()
    assert counts.tables[2][0 * 4 + 1].tolist() == [0, 0, 2, 1, 0]
    assert counts.tables[1][0].tolist() == [0, 3, 0, 0, 0]
    assert counts.tables[0][0].tolist() == [3, 3, 2, 1, 1]


# ---- real files


@needs_data
def test_chromosome_1_has_its_bases_and_runs_of_n():
    tally = sequences.Tally()
    codes = np.concatenate([codes for _, codes in sequences.read([CHR1], tally)])
    edges = np.flatnonzero(np.diff(np.concatenate([[0], codes == sequences.N, [0]])))
    assert edges.reshape(-1, 2).tolist() == [[0, 10000], [207666, 257666], [297968, 347968], [535988, 585988]]
    assert (len(codes), int((codes < sequences.N).sum())) == (1_000_000, 840_000)
    assert (tally.soft_masked, tally.ambiguous) == (0, 0)


@needs_data
def test_chromosome_2_is_read_as_biopython_reads_it():
    tally = sequences.Tally()
    codes = np.concatenate([codes for _, codes in sequences.read([CHR2], tally)])
    with gzip.open(CHR2, "rt") as file:
        letters = str(SeqIO.read(file, "fasta").seq)
    assert (len(codes), int((codes < sequences.N).sum())) == (2_333_275, 2_323_275)
    assert "".join(sequences.LETTERS[code] for code in codes) == letters.upper()
    assert tally.soft_masked == sum(map(str.islower, letters))


@needs_data
@both
def test_the_windows_have_the_listed_splits_and_bases(tmp_path, tokenizer):
    store = Genome(str(WINDOWS), split="header", tokenizer=tokenizer).prepare(tmp_path)
    assert store.manifest["records"] == {"train": 63, "valid": 15, "test": 21}
    assert sum(store.unit_counts(split)["base"] for split in SPLITS) == 12_975_128
    assert store.manifest["documents"] == {"train": 63 * 22, "valid": 15 * 22, "test": 21 * 22}
    codes = np.concatenate([codes for _, codes in sequences.read([WINDOWS], sequences.Tally())])
    assert np.isin(codes, [1, 2]).sum() / 12_975_128 == pytest.approx(0.411, abs=0.0005)


def test_a_2bit_file_cut_anywhere_is_refused(tmp_path):
    path, whole = tmp_path / "cut.2bit", two_bit({"a": "ACGTNNacg" * 3, "b": "TTTT"})
    for size in range(4, len(whole)):
        path.write_bytes(whole[:size])
        with pytest.raises(UserError, match="truncated"):
            list(sequences.read([path], sequences.Tally()))
    path.write_bytes(whole)
    assert sum(len(codes) for _, codes in sequences.read([path], sequences.Tally())) == 31
