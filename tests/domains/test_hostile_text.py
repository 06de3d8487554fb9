"""Malicious text and genome files: no memory exhaustion, no lost rows, one-line errors."""

import gzip
import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from text_support import pages, parquet, zst

from bearings.core.errors import UserError
from bearings.domains import documents, tokenization, unpacking
from bearings.domains import parquet as parquet_pages
from bearings.domains.genome import Genome
from bearings.domains.openwebtext import OpenWebText
from bearings.domains.regions import Assignment
from bearings.domains.text import Text
from bearings.domains.unpacking import DamagedFileError


def read(path, field="text"):
    return [document.text for document in documents.read(path.name, path, documents.Fields(field), "file")]


def refusal(path, kind=UserError):
    with pytest.raises(kind) as caught:
        read(path)
    line = str(caught.value)
    assert "\n" not in line
    assert str(path) in line
    return line


def varint(value: int) -> bytes:
    out = b""
    while value > 127:
        out, value = out + bytes([value & 127 | 128]), value >> 7
    return out + bytes([value])


@pytest.mark.parametrize("ending", ["gz", "zst"])
def test_decompression_bomb_raises(tmp_path, monkeypatch, ending):
    monkeypatch.setattr(unpacking, "SPARE", 1 << 16)
    pack = {"gz": gzip.compress, "zst": zst}[ending]
    path = tmp_path / f"bomb.txt.{ending}"
    path.write_bytes(pack(bytes(8 << 20)))
    assert "after line 0 (it decompresses to more than" in refusal(path, DamagedFileError)
    path = tmp_path / f"bomb.jsonl.{ending}"
    path.write_bytes(pack(b'{"text": "x"}\n' * (1 << 19)))
    assert "it decompresses to more than" in refusal(path, DamagedFileError)


def test_json_line_is_limited_before_reading(tmp_path):
    path = tmp_path / "long.jsonl"
    path.write_bytes(json.dumps({"text": "x" * documents.RECORD}).encode())
    assert "long.jsonl line 1 is longer than 33,554,432 bytes: split it" in refusal(path)


def test_repeated_dictionary_value_raises(tmp_path, monkeypatch):
    """The file has 400 kB on disk, but 1 GB in memory if all rows are read at once."""
    monkeypatch.setattr(unpacking, "SPARE", 1 << 16)
    values = pa.DictionaryArray.from_arrays(pa.array([0] * 256, pa.int32()), pa.array(["x" * (4 << 20)]))
    pq.write_table(
        pa.table({"text": values}),
        tmp_path / "bomb.parquet",
        compression="zstd",
        dictionary_pagesize_limit=1 << 30,
        store_schema=False,
    )
    before = pa.total_allocated_bytes()
    assert "it decompresses to more than 50 times its size" in refusal(tmp_path / "bomb.parquet", DamagedFileError)
    assert pa.default_memory_pool().max_memory() - before < 400 << 20


@pytest.mark.parametrize("pages", [1, 2])
def test_huge_page_raises(tmp_path, monkeypatch, pages):
    """The size in the page header, after the first four bytes of the file, is checked before decompression."""
    monkeypatch.setattr(parquet_pages, "PAGE", 8000)
    path = tmp_path / "page.parquet"
    pq.write_table(pa.table({"text": ["x" * 200]}), path, use_dictionary=pages == 2, compression="gzip")
    data = bytearray(path.read_bytes())
    assert data[4:7] == b"\x15" + bytes([4 * (pages == 2)]) + b"\x15"
    assert read(path) == ["x" * 200]
    data[7:9] = varint(2 * 8001)
    path.write_bytes(data)
    assert "a page of 8,001 bytes, more than 8,000" in refusal(path, DamagedFileError)


@pytest.mark.parametrize("claimed", [10, 14])
def test_wrong_row_count_in_footer_raises(tmp_path, claimed):
    path = tmp_path / "rows.parquet"
    with pq.ParquetWriter(path, pa.schema({"text": pa.string()}), store_schema=False) as writer:
        writer.write_table(pa.table({"text": ["a"] * 12}))
    data = path.read_bytes()
    length = int.from_bytes(data[-8:-4], "little")
    footer = data[-8 - length : -8]
    # The third field of FileMetaData, a zigzag-encoded i64 with value 24, before the list of row groups.
    assert footer.count(b"\x16\x18\x19\x1c") == 1
    path.write_bytes(data.replace(b"\x16\x18\x19\x1c", b"\x16" + varint(2 * claimed) + b"\x19\x1c"))
    assert pq.read_metadata(path).num_rows == claimed
    assert f"its footer announces {claimed} rows" in refusal(path, DamagedFileError)


@pytest.mark.parametrize("kind", [pa.list_(pa.string()), pa.struct({"a": pa.string()}), pa.int64(), pa.binary()])
def test_wrong_column_type_raises_before_reading(tmp_path, kind):
    path = tmp_path / "type.parquet"
    pq.write_table(pa.table({"text": pa.array([None], kind)}), path)
    assert "'text' has type" in refusal(path)


def test_damaged_download_is_deleted(tmp_path):
    folder = tmp_path / "openwebtext" / "downloads"
    folder.mkdir(parents=True)
    parquet(folder / "00000.parquet", pages(40))
    data = (folder / "00000.parquet").read_bytes()
    (folder / "00000.parquet").write_bytes(data[:-30])
    domain = OpenWebText(tokenizer="bytes", shards=1, urls=[])
    with pytest.raises(UserError, match=r"00000.parquet row 1 cannot be read .*\(deleted: the next run downloads it"):
        domain.prepare(tmp_path)
    assert not (folder / "00000.parquet").exists()
    (folder / "00000.parquet").write_bytes(data)
    with pytest.raises(UserError, match="has no column 'page'"):
        OpenWebText(tokenizer="bytes", shards=1, urls=[], field="page").prepare(tmp_path)
    assert (folder / "00000.parquet").exists(), "what is whole is kept"


def test_mutated_text_gives_text_or_one_line(tmp_path):
    """The result is a document or a UserError. Bits of the text may flip if the format has no checksum."""
    texts = pages(12)
    parquet(tmp_path / "m.parquet", texts)
    lines = "".join(json.dumps({"text": text}) + "\n" for text in texts).encode()
    seeds = {
        "m.parquet": (tmp_path / "m.parquet").read_bytes(),
        "m.jsonl": lines,
        "m.jsonl.gz": gzip.compress(lines),
        "m.txt.zst": zst("".join(texts).encode()),
    }
    random = np.random.default_rng(0)
    for name, seed in seeds.items():
        for _ in range(60):
            data = bytearray(seed)
            for _ in range(random.integers(1, 4)):
                place = int(random.integers(len(data)))
                match random.integers(3):
                    case 0:
                        data[place] = random.integers(256)
                    case 1:
                        del data[place : place + int(random.integers(1, 40))]
                    case 2:
                        data[place:place] = data[max(place - 20, 0) : place]
            path = tmp_path / name
            path.write_bytes(data)
            try:
                read(path)
            except UserError as error:
                said = str(error).splitlines()
            else:
                said = ["text"]
            assert len(said) == 1


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("a 0 " + "9" * 5000 + " train", "line 1: .* is not a BED line"),
        ("a 0 ²5 train", "line 1: .* is not a BED line"),
        ("a 0 5 " + "x" * 300_000, "line 1 is longer than 65,536 characters: it is not BED"),
        ("a 0 5 " + "x" * 60_000, r"line 1: 'x{40}' is not a split"),
        ("a 0 5 train\n\udcff", r"it is not text"),
    ],
)
def test_bed_with_huge_claims_raises(tmp_path, line, message):
    (tmp_path / "x.bed").write_bytes(line.encode(errors="surrogateescape"))
    with pytest.raises(UserError, match=message) as caught:
        Assignment("bed", {}, tmp_path / "x.bed")
    assert len(str(caught.value)) < 1000


def test_huge_tokenizer_raises_before_reading(tmp_path, monkeypatch):
    monkeypatch.setattr(tokenization, "LIMIT", 1000)
    (tmp_path / "tokenizer.json").write_text(json.dumps({"model": {"vocab": {"x" * 2000: 0}}}))
    with pytest.raises(UserError, match=r"tokenizer\.json has more than 1,000 bytes"):
        tokenization.BPE.read(tmp_path / "tokenizer.json")


def test_huge_prompt_raises(tmp_path, monkeypatch):
    monkeypatch.setattr(documents, "RECORD", 1000)
    (tmp_path / "x.txt").write_text("x" * 2000)
    with pytest.raises(UserError, match=r"x\.txt has more than 1,000 bytes"):
        Text(tokenizer="bytes").encode_file(tmp_path / "x.txt")


@pytest.mark.parametrize("url", ["http://host/", "http://host/..", "http://host"])
def test_url_without_file_name_raises(url):
    with pytest.raises(ValueError, match="all mirrors must have the same file name"):
        Genome(urls=[url])


def test_unusable_genome_download_is_deleted(tmp_path):
    folder = tmp_path / "genome" / "downloads"
    folder.mkdir(parents=True)
    (folder / "x.fa").write_text("no FASTA")
    with pytest.raises(UserError, match=r"line 1: it begins with 'n'.*\(deleted: the next run downloads it again\)"):
        Genome(urls=["http://host/x.fa"], md5=None).prepare(tmp_path)
    assert not (folder / "x.fa").exists()
    (folder / "x.fa").write_text(">a\nACGT\n")
    with pytest.raises(UserError, match="missing records: chr1, "):
        Genome(urls=["http://host/x.fa"], md5=None).prepare(tmp_path)
    assert (folder / "x.fa").exists(), "the names asked for are at fault, not the file"
