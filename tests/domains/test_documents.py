"""Documents from all file formats: document boundaries, and errors with file and position."""

import codecs
import gzip
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from text_support import build, jsonl, pages, parquet, zst

from bearings.core.errors import UserError
from bearings.domains import documents
from bearings.domains.text import Text


def read(path: Path, cut="file", field="text"):
    return [
        (document.name, document.text) for document in documents.read(path.name, path, documents.Fields(field), cut)
    ]


@pytest.mark.parametrize(
    ("cut", "begins"),
    [("file", [1]), ("line", [1, 4, 6, 7, 9]), ("paragraph", [1, 4, 6, 9]), ("article", [1, 9])],
)
def test_document_boundaries(tmp_path, cut, begins):
    one = [
        "\n",
        " = One = \n",
        " \n",
        " = = Part = = \n",
        "\r\n",
        " = no blank after = \n",
        " = none before = \n",
        "\t\n",
    ]
    lines = [*one, " = Two = \n", " \n"]
    path = tmp_path / "x.tokens"
    path.write_bytes("".join(lines).encode())
    found = read(path, cut)
    assert "".join(text for _, text in found) == "".join(lines)
    assert [name for name, _ in found] == (["x.tokens"] if cut == "file" else [f"x.tokens:{i}" for i in begins])
    ends = [*begins[1:], len(lines) + 1]
    assert [text for _, text in found] == ["".join(lines[i - 1 : j - 1]) for i, j in zip(begins, ends, strict=True)]


@pytest.mark.parametrize("pack", [bytes, gzip.compress, zst])
def test_formats_and_compression_agree(tmp_path, pack):
    ending = {bytes: "", gzip.compress: ".gz", zst: ".zst"}[pack]
    path = tmp_path / f"x.jsonl{ending}"
    path.write_bytes(pack(b"\n" + jsonl(["ä\r\nb", "", "\0"], "body") + b"\r\n"))
    assert [text for _, text in read(path, field="body")] == ["ä\r\nb", "", "\0"]
    path = tmp_path / f"x.txt{ending}"
    path.write_bytes(pack("ä\r\nb\u2028\x85c\n\ufeffd".encode()))
    assert read(path) == [(path.name, "ä\r\nb\u2028\x85c\n\ufeffd")]


def test_hidden_files_and_folders_are_skipped(tmp_path):
    for name in ("a.txt", "b/c.txt", ".a.txt", ".git/a.txt", "b/.a.txt", "b/.cache/a.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("text")
    assert list(documents.find(tmp_path)) == ["a.txt", "b/c.txt"]


@pytest.mark.parametrize("name", ["x.txt", "x.txt.gz", "x.jsonl", "x.parquet"])
def test_progress_reaches_file_size(tmp_path, name):
    path, texts = tmp_path / name, pages(10_000)
    if name == "x.parquet":
        parquet(path, texts)
    else:
        data = jsonl(texts) if name == "x.jsonl" else "".join(texts).encode()
        path.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    places = [document.read for document in documents.read(name, path, documents.Fields("text"), "line")]
    assert places == sorted(places)
    assert places[0] < places[-1] == path.stat().st_size


def test_zst_with_several_frames(tmp_path):
    (tmp_path / "x.txt.zst").write_bytes(zst(b"one ") + zst(b"two"))
    assert read(tmp_path / "x.txt.zst")[0][1] == "one two"


def test_long_line(tmp_path):
    (tmp_path / "train.txt").write_bytes(b"word " * 2_000_000)
    (tmp_path / "valid.txt").write_bytes(b"x" * 3_000_000)
    (tmp_path / "test.txt").write_bytes(b"x")
    store = build(tmp_path, tmp_path / "root", split="files")
    assert store.unit_counts("train") == {"byte": 10_000_000}


@pytest.mark.parametrize(
    ("name", "content"), [("a.csv", 'text\n"a"\n'), ("a.jsonl", '{"text": "a"}\n'), ("a.txt", "a")]
)
def test_a_byte_order_mark_is_no_part_of_a_text(tmp_path, name, content):
    (tmp_path / name).write_text("\ufeff" + content, encoding="utf-8")
    assert [text for _, text in read(tmp_path / name)] == ["a"]


def test_a_byte_order_mark_is_no_part_of_a_text_to_score(tmp_path):
    (tmp_path / "a.txt").write_text("\ufeffa", encoding="utf-8")
    domain = Text(tokenizer="bytes")
    assert domain.encode_file(tmp_path / "a.txt").tolist() == domain.encode_text("a").tolist()


BAD = {
    "empty.txt": (b"", r"empty.txt is empty"),
    "mark.txt": (codecs.BOM_UTF8, r"mark.txt is empty"),
    "empty.txt.gz": (gzip.compress(b""), r"empty.txt.gz is empty"),
    "nothing.jsonl": (b"\n \n", r"nothing.jsonl has no rows"),
    "cut.txt.gz": (gzip.compress(b"line\n" * 5000)[:-9], r"cut.txt.gz cannot be read after line \d+ \("),
    "padded.txt.gz": (gzip.compress(b"line\n") + bytes(99), r"padded.txt.gz cannot be read .* \(it ends in zeros"),
    "cut.jsonl.zst": (zst(jsonl(["x"] * 50))[:-5], r"cut.jsonl.zst cannot be read after line \d+ \(Truncated"),
    "plain.txt.gz": (b"plain", r"plain.txt.gz cannot be read after line 0 \(Not a gzipped"),
    "plain.txt.zst": (b"plain", r"plain.txt.zst cannot be read after line 0"),
    "latin.txt": ("gut\nschön".encode("latin1"), r"latin.txt line 2 is not UTF-8 text \(byte 0xf6"),
    "wide.txt": ("text".encode("utf-16"), r"wide.txt line 1 is not UTF-8"),
    "binary.txt": (b"a\nb\0c", r"binary.txt line 2 contains a zero byte"),
    "broken.jsonl": (jsonl(["a", "b"])[:-6], r"broken.jsonl line 2 is not JSON \("),
    "deep.jsonl": (b"[" * 100_000, r"deep.jsonl line 1 is not JSON \("),
    "list.jsonl": (b'["a"]\n', r"list.jsonl line 1 is a JSON list"),
    "latin.jsonl": (jsonl(["a"]) + b'{"text": "\xf6"}', r"latin.jsonl line 2 is not UTF-8"),
    "other.jsonl": (jsonl(["a"]) + b'{"body": "x"}', r"other.jsonl line 2 has no field 'text': .* one of 'body'"),
    "number.jsonl": (jsonl(["a"]) + b'{"text": 3}', r"number.jsonl line 2: 'text' has type int, not string"),
    "half.jsonl": (b'{"text": "\\ud800"}', r"half.jsonl line 1: 'text' contains an unpaired surrogate"),
    "plain.parquet": (b"plain", r"plain.parquet row 1 cannot be read as Parquet \("),
    "empty.parquet": (b"", r"empty.parquet row 1 cannot be read as Parquet \("),
}


@pytest.mark.parametrize("name", BAD)
def test_invalid_files_raise_with_position(tmp_path, name):
    content, message = BAD[name]
    folder = tmp_path / "source"
    folder.mkdir()
    (folder / "0.jsonl").write_bytes(jsonl(pages(50)))
    (folder / name).write_bytes(content)
    with pytest.raises(UserError, match=message) as caught:
        build(folder, tmp_path / "root")
    assert str(folder / name) in str(caught.value)
    assert "\n" not in str(caught.value)
    with pytest.raises(UserError, match=message):
        build(folder, tmp_path / "root", tokenizer="train", vocabulary_size=260)
    assert [path.suffix for path in (tmp_path / "root").rglob("*") if path.is_file()] in ([".lock"], [".lock"] * 2)


def test_parquet_with_wrong_columns(tmp_path):
    path = tmp_path / "x.parquet"
    parquet(path, ["a", None])
    with pytest.raises(UserError, match=r"x.parquet row 2: 'text' has type NoneType, not string"):
        read(path)
    with pytest.raises(UserError, match=r"x.parquet: 'id' has type int|x.parquet row 1: 'id' has type int"):
        read(path, field="id")
    with pytest.raises(UserError, match=r"x.parquet has no column 'body': set domain.field to one of 'id', 'text'"):
        read(path, field="body")
    parquet(path, [])
    with pytest.raises(UserError, match=r"x.parquet has no rows"):
        read(path)
    parquet(path, ["text of a row"] * 3000)
    data = bytearray(path.read_bytes())
    data[40:2000] = bytes(1960)
    path.write_bytes(data)
    with pytest.raises(UserError, match=r"x.parquet row \d+ cannot be read as Parquet"):
        read(path)
    pq.write_table(pa.table({"text": pa.array([b"fine", b"\xff"]).view(pa.string())}), path)
    with pytest.raises(UserError, match=r"x.parquet row 2 cannot be read as Parquet \('utf-8' codec"):
        read(path)


def test_too_long_documents_raise(tmp_path, monkeypatch):
    monkeypatch.setattr(documents, "LIMIT", 1000)
    monkeypatch.setattr(documents, "RECORD", 1000)
    for name, content, message in (
        ("x.txt", b"word\n" * 300, r"x.txt line 201: a document of more than 1,000 bytes: set domain.documents"),
        ("y.txt", b"word" * 300, r"y.txt line 1 is longer than 1,000 bytes"),
        ("z.jsonl", jsonl(["x", "x" * 2000]), r"z.jsonl line 2 is longer than 1,000 bytes"),
    ):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(UserError, match=message):
            read(tmp_path / name)
    assert len(read(tmp_path / "x.txt", "line")) == 300
    parquet(tmp_path / "p.parquet", ["x", "x" * 2000])
    with pytest.raises(UserError, match=r"p.parquet row 2: a document of more than 1,000 bytes"):
        read(tmp_path / "p.parquet")


def test_paths_without_text_raise(tmp_path):
    for path, message in (
        (tmp_path / "missing", r"missing does not exist: give a file or folder"),
        (tmp_path, r"contains no text files"),
    ):
        with pytest.raises(UserError, match=message):
            build(path, tmp_path / "root")
    (tmp_path / "x.pdf").write_text("x")
    with pytest.raises(UserError, match=r"x.pdf has an unknown extension"):
        build(tmp_path / "x.pdf", tmp_path / "root")
    parquet(tmp_path / "x.parquet.gz", ["x"])  # Parquet compresses its own pages
    with pytest.raises(UserError, match=r"x.parquet.gz has an unknown extension"):
        build(tmp_path / "x.parquet.gz", tmp_path / "root")
    (tmp_path / "x.txt").write_text("x")
    (tmp_path / "x.txt.gz").write_bytes(gzip.compress(b"x"))
    with pytest.raises(UserError, match=r"contains both x.txt and x.txt.gz"):
        build(tmp_path, tmp_path / "root")
    with pytest.raises(UserError, match=r"domain.path is not set"):
        Text(tokenizer="bytes").prepare(tmp_path / "root")
    assert [path for path in (tmp_path / "root").rglob("*") if path.is_file() and path.suffix != ".lock"] == []
