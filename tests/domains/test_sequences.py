"""Sequence files: all formats agree, errors name the position, and real chromosomes."""

import gzip
import re
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from Bio import SeqIO, bgzf
from genome_support import (
    BASES,
    CHR1,
    CHR2,
    SMALL,
    documents,
    draw,
    fasta,
    needs_data,
    plain,
    two_bit,
    writer,
)

from bearings.core.errors import UserError
from bearings.domains import sequences, unpacking
from bearings.domains.genome import Genome


@pytest.fixture
def write(tmp_path):
    """A function that writes sequences to a file."""
    return writer(tmp_path)


@pytest.mark.parametrize("block", [1, 13, 1 << 22])
@pytest.mark.parametrize(
    "kind", ["lines", "one line", "CRLF", "blank lines", "no last line end", "gzip", "BGZF", "2bit"]
)
def test_all_file_formats_agree(write, tmp_path, monkeypatch, kind, block):
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


DAMAGED = {
    "nothing": (b"", "is empty (0 bytes)"),
    "blank": (b"\n \n"[:1] * 3, "contains no sequence"),
    "packed nothing": (gzip.compress(b""), "contains no sequence"),
    "prose": (b"\nOnce upon a time", "line 2: it begins with 'O': give a FASTA file"),
    "FASTQ": (b"@read\nACGT\n+\nIIII\n", "line 1: it begins with '@'"),
    "binary": (b"\x89PNG\r\n\x1a\n", "line 1: it begins with the byte 0x89"),
    "binary below a header": (b">a\nACGT\nAC\x00\xff", "line 3, record a, base 7: the byte 0x00 is not a nucleotide"),
    "protein": (b">a x\nACGT\n>p\nMKV\nSLEN\n", "line 5, record p, base 5: 'L' is not a nucleotide"),
    "RNA": (b">a\nACGU\n", "record a, base 4: 'U' is not a nucleotide (A C G T N or an IUPAC code); RNA? Write T"),
    "alignment": (b">a\r\nAC\r\nG-T\r\n", "line 3, record a, base 4: '-' is not a nucleotide"),
    "header inside a line": (b">a\nACG>b\nACGT\n", "line 2, record a, base 4: '>' is not a nucleotide"),
    "names twice": (b">a\nACGT\n>a again\nACGT\n", "record a is in the file twice"),
    "no name": (b">a\nACGT\n> \nACGT\n", "line 3: the header has no name"),
    "no text": (b">a\nACGT\n>\xff\nACGT\n", "line 3: the header is not UTF-8 text"),
    "no sequence": (b">a\n>b\nACGT\n", "record a has no sequence: remove the record"),
    ".2bit without bases": (two_bit({**BASES, "b": ""}), "record b has no sequence"),
    "no last sequence": (b">a\nACGT\n>b\n", "record b has no sequence; is the file truncated?"),
    "ends in a header": (b">a\nACGT\n>chr", "line 3: the file ends in a header; is it truncated?"),
    "CR": (b">a\rACGT\r>b\rAC\r", r"line 1: lines end in CR without LF: convert them, such as with tr '\r' '\n' <"),
    "long CR": (b">a\r" + b"A" * (1 << 21), "line 1: lines end in CR without LF"),
    "CR and LF": (b">a\nACGT\n>b\rACGT\n", "line 3: lines end in CR without LF"),
    "endless header": (b">" + b"x" * (1 << 21), "line 1: a header of over 1,048,576 bytes is not FASTA"),
    "cut gzip": (gzip.compress(fasta(BASES).encode())[:-9], "is truncated"),
    "changed gzip": (gzip.compress(fasta(BASES).encode())[:-8] + bytes(8), "is damaged (CRC check failed"),
    "rubbish after gzip": (gzip.compress(fasta(BASES).encode()) + b"more", "is damaged"),
    "zeros after gzip": (gzip.compress(fasta(BASES).encode()) + bytes(99), "cannot be read: it ends in zeros"),
    "cut .2bit header": (two_bit(BASES)[:9], "is truncated or damaged"),
    "cut .2bit index": (two_bit(BASES)[:20], "is truncated"),
    "cut .2bit bases": (two_bit({**BASES, "c": "ACGT" * 99})[:-40], "is truncated"),
    ".2bit version": (two_bit(BASES)[:4] + b"\x07" + two_bit(BASES)[5:], "cannot be read as .2bit"),
    ".2bit names twice": (two_bit({"a": "ACGT", "b": "ACGT"}).replace(b"\x01b", b"\x01a"), "has two records named a"),
}


@pytest.mark.parametrize("kind", DAMAGED)
def test_damaged_file_raises_with_position_and_leaves_nothing(write, tmp_path, kind):
    content, message = DAMAGED[kind]
    path = write(content)
    with pytest.raises(UserError) as caught:
        Genome(path, train=["a"], valid=["b"], test=["c"]).prepare(tmp_path / "stores")
    assert message in str(caught.value)
    assert path in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not [path for path in (tmp_path / "stores").rglob("*") if path.is_file() and path.suffix != ".lock"]


@pytest.mark.parametrize("block", [1, 2, 5, 6, 7])
def test_header_inside_line_raises_for_any_block_size(write, monkeypatch, block):
    monkeypatch.setattr(sequences, "BLOCK", block)
    path = write(DAMAGED["header inside a line"][0])
    with pytest.raises(UserError, match=r"line 2, record a, base 4: '>' is not a nucleotide"):
        list(sequences.read([Path(path)], sequences.Tally()))


def test_bgzf_truncated_between_blocks_raises(write, tmp_path):
    path = write(b"", "b.fa.gz")
    with bgzf.BgzfWriter(path) as file:
        file.write(fasta(BASES).encode())
    Path(path).write_bytes(Path(path).read_bytes()[:-28])
    with pytest.raises(UserError, match=r"b\.fa\.gz is truncated \(no BGZF end marker\)"):
        Genome(path, **SMALL).prepare(tmp_path)


@needs_data
def test_bases_and_n_runs_of_chromosome_1():
    tally = sequences.Tally()
    codes = np.concatenate([codes for _, codes in sequences.read([CHR1], tally)])
    edges = np.flatnonzero(np.diff(np.concatenate([[0], codes == sequences.N, [0]])))
    assert edges.reshape(-1, 2).tolist() == [[0, 10000], [207666, 257666], [297968, 347968], [535988, 585988]]
    assert (len(codes), int((codes < sequences.N).sum())) == (1_000_000, 840_000)
    assert (tally.soft_masked, tally.ambiguous) == (0, 0)


@needs_data
def test_chromosome_2_matches_biopython():
    tally = sequences.Tally()
    codes = np.concatenate([codes for _, codes in sequences.read([CHR2], tally)])
    with gzip.open(CHR2, "rt") as file:
        letters = str(SeqIO.read(file, "fasta").seq)
    assert (len(codes), int((codes < sequences.N).sum())) == (2_333_275, 2_323_275)
    assert "".join(sequences.LETTERS[code] for code in codes) == letters.upper()
    assert tally.soft_masked == sum(map(str.islower, letters))


def test_truncated_2bit_raises(tmp_path):
    path, whole = tmp_path / "cut.2bit", two_bit({"a": "ACGTNNacg" * 3, "b": "TTTT"})
    for size in range(4, len(whole)):
        path.write_bytes(whole[:size])
        with pytest.raises(UserError, match="truncated"):
            list(sequences.read([path], sequences.Tally()))
    path.write_bytes(whole)
    assert sum(len(codes) for _, codes in sequences.read([path], sequences.Tally())) == 31


def words(*values: int) -> bytes:
    return np.array(values, "<u4").tobytes()


WHOLE = two_bit({"a": "ACGTNNacg" * 3, "b": "TTTT"})
PLACE = int.from_bytes(WHOLE[18:22], "little")  # record a: number of bases, number of N runs, their begins and sizes
HOSTILE = {
    "records": (8, words(2**32 - 1), "record 3 has the name"),
    "place": (18, words(2**32 - 1), "is truncated or damaged"),
    "place of another": (24, words(PLACE), "begins at byte 28, within another"),
    "place in the index": (18, words(16), "truncated|damaged|within another|overlap"),
    "bases": (PLACE, words(2**32 - 1), "record a has 4,294,967,295 bases"),
    "runs": (PLACE + 4, words(2**32 - 1), "is truncated or damaged"),
    "begin of a run": (PLACE + 8, words(2**32 - 1), "the runs of record a overlap or exceed its 27 bases"),
    "size of a run": (PLACE + 20, words(2**32 - 1), "the runs of record a overlap or exceed its 27 bases"),
    "masked runs": (PLACE + 32, words(2**31), "is truncated or damaged"),
    "reserved": (12, words(1), "version 0, reserved 1"),
    "name": (17, b"\n", "record 1 has the name b'\\n'"),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_2bit_fields_are_checked_before_reading(tmp_path, kind):
    place, value, message = HOSTILE[kind]
    path = tmp_path / "hostile.2bit"
    path.write_bytes(WHOLE[:place] + value + WHOLE[place + len(value) :])
    tracemalloc.start()
    with pytest.raises(UserError, match=re.escape(message) if "|" not in message else message) as caught:
        list(sequences.read([path], sequences.Tally()))
    taken = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert str(path) in str(caught.value)
    assert taken < 1 << 24


def test_fasta_decompression_bomb_raises(tmp_path, monkeypatch):
    monkeypatch.setattr(unpacking, "SPARE", 1 << 16)
    path = tmp_path / "bomb.fa.gz"
    path.write_bytes(gzip.compress(b">a\n" + b"A" * (16 << 20)))
    with pytest.raises(UserError, match=r"bomb\.fa\.gz cannot be read: it decompresses to more than [\d,]+ bytes"):
        list(sequences.read([path], sequences.Tally()))


def test_mutated_files_give_bases_or_one_line(tmp_path):
    text = fasta({"a x": "ACGTNNacgRYk" * 20, "b": "ACGT" * 9}).encode()
    random = np.random.default_rng(0)
    for name, seed in (("m.2bit", WHOLE), ("m.fa", text), ("m.fa.gz", gzip.compress(text))):
        for _ in range(150):
            data = bytearray(seed)
            for place in random.integers(len(data), size=random.integers(1, 4)):
                data[place] = random.integers(256)
            (tmp_path / name).write_bytes(data[: random.integers(len(data)) + 1] if random.random() < 0.2 else data)
            try:
                list(sequences.read([tmp_path / name], sequences.Tally()))
            except UserError as error:
                said = str(error)
            else:
                said = "bases"
            assert "\n" not in said


def test_files_of_a_folder_are_found_in_subfolders_and_in_any_case(tmp_path):
    for name in ("b.fa", "A.FA", "more/c.fasta.gz", ".d.fa", "more/.e.fa", "notes.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    found = [file.relative_to(tmp_path).as_posix() for file in sequences.files(tmp_path)]
    assert found == ["A.FA", "b.fa", "more/c.fasta.gz"]


@pytest.mark.parametrize("packed", [bytes, gzip.compress])
def test_a_byte_order_mark_is_left_out(tmp_path, packed):
    (tmp_path / "a.fa").write_bytes(packed(b"\xef\xbb\xbf>a\r\nACGT\r\n"))
    found = [(record.name, codes.tolist()) for record, codes in sequences.read([tmp_path / "a.fa"], sequences.Tally())]
    assert found == [("a", []), ("a", [0, 1, 2, 3])]
