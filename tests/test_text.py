"""Text: tokenizers that lose no byte, documents out of every kind of file, splits, and what is refused."""

import gzip
import json
import re
import subprocess
import sys
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import requests
from conftest import DATA
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as Peer

from bearings.domains import documents, tokenization
from bearings.domains.documents import Document
from bearings.domains.store import SPLITS
from bearings.domains.text import Text
from bearings.domains.tokenization import BPE, Bytes, pieces
from bearings.errors import UserError

GPT2 = DATA / "gpt2-bpe" / "tokenizer.json"
WIKITEXT = DATA / "wikitext-2"
needs_gpt2 = pytest.mark.skipif(not GPT2.exists(), reason=f"{GPT2} is absent; set BEARINGS_DATA to its data folder")
needs_wikitext = pytest.mark.skipif(not WIKITEXT.exists(), reason=f"{WIKITEXT} is absent; set BEARINGS_DATA")

WORDS = ["the", "sea", "the", "öl", "音楽", "naïve", "🎵", "a\r\nb", "1234", "don't", "<|endoftext|>", "", "a\tb"]
unicode_text = st.text(st.characters(exclude_categories=["Cs"]), max_size=200) | st.lists(
    st.sampled_from([*WORDS, " ", "  ", "\n", "\n\n", "\r\n", "'s", "\x1c", "\x85", "\u3000", "\xa0"]), max_size=60
).map("".join)


def pages(count: int, seed: int = 0) -> list[str]:
    """Documents that no two are alike, with every kind of white space and letter."""
    random = np.random.default_rng(seed)
    return [f"{i} " + " ".join(random.choice(WORDS, random.integers(5, 60))) + "\n" for i in range(count)]


def zst(data: bytes) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, "zstd") as stream:
        stream.write(data)
    return sink.getvalue().to_pybytes()


def jsonl(texts, field="text") -> bytes:
    return "".join(json.dumps({"id": i, field: text}) + "\n" for i, text in enumerate(texts)).encode()


def parquet(path: Path, texts, field="text") -> None:
    pq.write_table(pa.table({"id": range(len(texts)), field: texts}), path, row_group_size=7)


def whole(text: str) -> Document:
    raw = text.encode()
    return Document("whole", text, raw, len(raw))


def sample(folder: Path) -> SimpleNamespace:
    """Every format in one folder; the tokens are learnt from it."""
    folder.mkdir()
    texts = pages(70)
    parquet(folder / "a.parquet", texts[:20])
    (folder / "b.jsonl").write_bytes(jsonl(texts[20:40]))
    (folder / "c.jsonl.zst").write_bytes(zst(jsonl(texts[40:60])))
    for i in range(60, 69):
        (folder / f"{i}.txt").write_bytes(texts[i].encode())
    (folder / "last.TXT.gz").write_bytes(gzip.compress(texts[69].encode()))
    (folder / "notes.md").write_text("not read")
    (folder / ".hidden.txt").write_text("not read")
    names = [
        *(f"a.parquet:{i + 1}" for i in range(20)),
        *(f"b.jsonl:{i + 1}" for i in range(20)),
        *(f"c.jsonl.zst:{i + 1}" for i in range(20)),
        *(f"{i}.txt" for i in range(60, 69)),
        "last.TXT.gz",
    ]
    return SimpleNamespace(
        options={
            "path": str(folder),
            "tokenizer": "train",
            "vocabulary_size": 280,
            "valid_fraction": 0.2,
            "test_fraction": 0.2,
        },
        raw=dict(zip(names, texts, strict=True)),
        same=lambda decoded, text: decoded == text,
        units=lambda text: {"byte": len(text.encode())},
        source=folder / "c.jsonl.zst",
    )


@pytest.fixture(scope="module")
def trained() -> BPE:
    return BPE.train(pages(200), 400)


# ---- tokenizers


@needs_gpt2
def test_gpt2_says_hello_world():
    bpe = BPE.gpt2(GPT2)
    (ids,) = bpe.encode([whole("Hello world")])
    assert ids.tolist() == [15496, 995]
    assert (len(bpe.pieces), bpe.end) == (50257, 50256)
    assert bpe.lengths[50256] == 0
    (text,) = bpe.encode([whole("<|endoftext|>")])
    assert 50256 not in text
    assert bpe.decode(text) == "<|endoftext|>"


@needs_gpt2
@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(unicode_text)
def test_cutting_long_documents_changes_no_token(text):
    peer = PEER.get("gpt2") or PEER.setdefault("gpt2", Peer.from_file(str(GPT2)))
    ours = PEER.get("ours") or PEER.setdefault("ours", BPE.gpt2(GPT2))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tokenization, "PIECE", 3)
        assert "".join(pieces(text)) == text
        (ids,) = ours.encode([whole(text)])
    if "<|endoftext|>" not in text:
        assert ids.tolist() == peer.encode(text).ids


PEER: dict = {}


def test_long_documents_are_cut():
    text = "word and line\n" * 20_000
    assert max(map(len, pieces(text))) < tokenization.PIECE + 20
    assert list(pieces("x" * 200_000)) == ["x" * 200_000]


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(texts=st.lists(unicode_text, min_size=1, max_size=4))
def test_encoding_loses_no_byte(trained, texts):
    codecs = [Bytes(), trained]
    if GPT2.exists():
        codecs.append(PEER.get("ours") or PEER.setdefault("ours", BPE.gpt2(GPT2)))
    for codec in codecs:
        for text, ids in zip(texts, codec.encode(list(map(whole, texts))), strict=True):
            assert codec.decode(ids) == text
            assert codec.lengths[ids].sum() == len(text.encode())
            assert codec.end not in ids
            assert codec.decode([codec.end, *ids, codec.end]) == text


def test_ids_that_are_no_text_are_replaced_or_skipped(trained):
    for codec in (Bytes(), trained):
        lone = codec.pieces.index(b"\xff")
        assert codec.decode([lone, codec.pieces.index(b"a"), -1, 10**30, codec.end]) == "\ufffda"


def test_training_is_deterministic_and_sized(trained):
    again = BPE.train(pages(200), 400)
    assert again.digest == trained.digest
    assert len(trained.pieces) == 400
    assert trained.end == 399
    assert sorted(trained.pieces[:256]) == [bytes([value]) for value in range(256)]
    assert b" the" in trained.pieces
    code = (
        "from test_text import pages; from bearings.domains.tokenization import BPE; print(BPE.train(pages(200), 400)"
        ".digest)"
    )
    other = subprocess.run(
        [sys.executable, "-c", code], cwd=Path(__file__).parent, capture_output=True, text=True, check=True
    )
    assert other.stdout.strip() == trained.digest
    with pytest.raises(ValueError, match=r"vocabulary_size=5000: the training split has pairs for 259 tokens at most"):
        BPE.train(["aaaa"], 5000)


def test_a_trained_tokenizer_is_read_as_written(trained, tmp_path):
    trained.write(tmp_path / "new" / "t.json")
    read = BPE.read(tmp_path / "new" / "t.json")
    assert (read.digest, read.pieces, read.end) == (trained.digest, trained.pieces, trained.end)
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["t.json"]


@pytest.mark.parametrize("content", [b"", b"\x89PNG", b"{}", b'{"model": {"vocab": {"word": 0}, "merges": []}}'])
def test_a_wrong_tokenizer_file_is_refused(tmp_path, content):
    (tmp_path / "tokenizer.json").write_bytes(content)
    (tmp_path / "page.txt").write_text("page")
    with pytest.raises(UserError, match=r"tokenizer\.json is no tokenizer\.json of a byte-level BPE"):
        Text(str(tmp_path), tokenizer_path=str(tmp_path / "tokenizer.json")).prepare(tmp_path / "root")


def test_another_tokenizer_is_not_gpt2(trained, tmp_path):
    trained.write(tmp_path / "tokenizer.json")
    with pytest.raises(UserError, match=r"tokenizer.json is not GPT-2's tokenizer \(400 tokens"):
        BPE.gpt2(tmp_path / "tokenizer.json")


@needs_gpt2
def test_gpt2_is_downloaded_once_and_kept_beside_the_stores(tmp_path):
    (tmp_path / "pages.txt").write_bytes("\n".join(pages(60)).encode())
    asked = []

    class Handler(SimpleHTTPRequestHandler):
        def log_message(self, *_):
            asked.append(self.path)

    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=GPT2.parent))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    with server:
        options = {
            "path": str(tmp_path / "pages.txt"),
            "documents": "line",
            "tokenizer_urls": [f"http://127.0.0.1:{server.server_port}/tokenizer.json"],
        }
        for root in ("root", "root"):
            domain = Text(**options)
            domain.prepare(tmp_path / root)
            assert domain.decode([15496, 995]) == "Hello world"
        server.shutdown()
    assert asked == ["/tokenizer.json"]
    assert (tmp_path / "root" / "text" / "downloads" / "gpt2-tokenizer.json").exists()


def test_offline_says_what_to_get(tmp_path, monkeypatch):
    def offline(*_, **__):
        raise requests.ConnectionError("NameResolution")

    monkeypatch.setattr(requests, "get", offline)
    (tmp_path / "page.txt").write_text("page")
    with pytest.raises(UserError, match=r"huggingface.co/openai-community/gpt2 and set domain.tokenizer_path="):
        Text(str(tmp_path / "page.txt")).prepare(tmp_path / "root")
    with pytest.raises(UserError, match=r"before the store is prepared: get it from"):
        Text(str(tmp_path / "page.txt")).decode([0])


# ---- documents


def build(path, root, **options):
    given = {"tokenizer": "bytes", "valid_fraction": 0.3, "test_fraction": 0.3}
    return Text(str(path), **given | options).prepare(root)


def read(path: Path, cut="file", field="text"):
    return [(document.name, document.text) for document in documents.read(path.name, path, field, cut)]


def test_bytes_in_the_store_are_the_file_s(tmp_path):
    texts = [f"line {i}\r\n" for i in range(50)]
    (tmp_path / "crlf.txt").write_bytes("".join(texts).encode())
    store = build(tmp_path / "crlf.txt", tmp_path / "root", documents="line")
    kept = [Text(tokenizer="bytes").decode(store.document(i)) for i in range(50)]
    assert kept == texts
    document = store.document(0)
    assert document.tolist() == [256, *texts[0].encode(), 256]
    assert store.manifest["tokens_of_text"] == sum(map(len, texts))


@pytest.mark.parametrize(
    ("cut", "begins"),
    [("file", [1]), ("line", [1, 4, 6, 7, 9]), ("paragraph", [1, 4, 6, 9]), ("article", [1, 9])],
)
def test_where_text_is_cut(tmp_path, cut, begins):
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
def test_text_lines_and_packed_files_agree(tmp_path, pack):
    ending = {bytes: "", gzip.compress: ".gz", zst: ".zst"}[pack]
    path = tmp_path / f"x.jsonl{ending}"
    path.write_bytes(pack(b"\n" + jsonl(["ä\r\nb", "", "\0"], "body") + b"\r\n"))
    assert [text for _, text in read(path, field="body")] == ["ä\r\nb", "", "\0"]
    path = tmp_path / f"x.txt{ending}"
    path.write_bytes(pack("ä\r\nb\u2028\x85c".encode()))
    assert read(path) == [(path.name, "ä\r\nb\u2028\x85c")]


def test_zst_of_several_frames_is_read_to_its_end(tmp_path):
    (tmp_path / "x.txt.zst").write_bytes(zst(b"one ") + zst(b"two"))
    assert read(tmp_path / "x.txt.zst")[0][1] == "one two"


def test_a_line_of_many_megabytes(tmp_path):
    (tmp_path / "train.txt").write_bytes(b"word " * 2_000_000)
    (tmp_path / "valid.txt").write_bytes(b"x" * 3_000_000)
    (tmp_path / "test.txt").write_bytes(b"x")
    store = build(tmp_path, tmp_path / "root", split="files")
    assert store.unit_counts("train") == {"byte": 10_000_000}


BAD = {
    "empty.txt": (b"", r"empty.txt is empty"),
    "empty.txt.gz": (gzip.compress(b""), r"empty.txt.gz is empty"),
    "nothing.jsonl": (b"\n \n", r"nothing.jsonl is empty"),
    "cut.txt.gz": (gzip.compress(b"line\n" * 5000)[:-9], r"cut.txt.gz cannot be read after line \d+ \("),
    "cut.jsonl.zst": (zst(jsonl(["x"] * 50))[:-5], r"cut.jsonl.zst cannot be read after line \d+ \(Truncated"),
    "plain.txt.gz": (b"plain", r"plain.txt.gz cannot be read after line 0 \(Not a gzipped"),
    "plain.txt.zst": (b"plain", r"plain.txt.zst cannot be read after line 0"),
    "latin.txt": ("gut\nschön".encode("latin1"), r"latin.txt line 2 is not UTF-8 text \(byte 0xf6"),
    "wide.txt": ("text".encode("utf-16"), r"wide.txt line 1 is not UTF-8"),
    "binary.txt": (b"a\nb\0c", r"binary.txt line 2 holds a zero byte"),
    "broken.jsonl": (jsonl(["a", "b"])[:-6], r"broken.jsonl line 2 is not JSON \("),
    "deep.jsonl": (b"[" * 100_000, r"deep.jsonl line 1 is not JSON \("),
    "list.jsonl": (b'["a"]\n', r"list.jsonl line 1 is a JSON list"),
    "latin.jsonl": (jsonl(["a"]) + b'{"text": "\xf6"}', r"latin.jsonl line 2 is not UTF-8"),
    "other.jsonl": (jsonl(["a"]) + b'{"body": "x"}', r"other.jsonl line 2 has no field 'text': .* one of 'body'"),
    "number.jsonl": (jsonl(["a"]) + b'{"text": 3}', r"number.jsonl line 2: 'text' holds int, not a string"),
    "half.jsonl": (b'{"text": "\\ud800"}', r"half.jsonl line 1: 'text' holds half a surrogate pair"),
    "plain.parquet": (b"plain", r"plain.parquet row 1 cannot be read as Parquet \("),
    "empty.parquet": (b"", r"empty.parquet row 1 cannot be read as Parquet \("),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_files_are_refused_by_name_and_place(tmp_path, name):
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


def test_parquet_of_wrong_columns(tmp_path):
    path = tmp_path / "x.parquet"
    parquet(path, ["a", None])
    with pytest.raises(UserError, match=r"x.parquet row 2: 'text' holds NoneType, not a string"):
        read(path)
    with pytest.raises(UserError, match=r"x.parquet: 'id' holds int|x.parquet row 1: 'id' holds int"):
        read(path, field="id")
    with pytest.raises(UserError, match=r"x.parquet has no column 'body': set domain.field to one of 'id', 'text'"):
        read(path, field="body")
    parquet(path, [])
    with pytest.raises(UserError, match=r"x.parquet is empty"):
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


def test_documents_too_long_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(documents, "LIMIT", 1000)
    for name, content, message in (
        ("x.txt", b"word\n" * 300, r"x.txt line 201: a document of more than 1,000 bytes: set domain.documents"),
        ("y.txt", b"word" * 300, r"y.txt line 1 is longer than 1,000 bytes"),
        ("z.jsonl", jsonl(["x", "x" * 2000]), r"z.jsonl line 2 is longer than 1,000 bytes"),
    ):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(UserError, match=message):
            read(tmp_path / name)
    parquet(tmp_path / "p.parquet", ["x", "x" * 2000])
    with pytest.raises(UserError, match=r"p.parquet row 2: a document of more than 1,000 bytes"):
        read(tmp_path / "p.parquet")


def test_places_without_text(tmp_path):
    for path, message in (
        (tmp_path / "missing", r"missing is not there: give a file or folder"),
        (tmp_path, r"holds no text"),
    ):
        with pytest.raises(UserError, match=message):
            build(path, tmp_path / "root")
    (tmp_path / "x.pdf").write_text("x")
    with pytest.raises(UserError, match=r"x.pdf is of no kind known here"):
        build(tmp_path / "x.pdf", tmp_path / "root")
    (tmp_path / "x.txt").write_text("x")
    (tmp_path / "x.txt.gz").write_bytes(gzip.compress(b"x"))
    with pytest.raises(UserError, match=r"holds both x.txt and x.txt.gz"):
        build(tmp_path, tmp_path / "root")
    with pytest.raises(UserError, match=r"domain.path is not set"):
        Text(tokenizer="bytes").prepare(tmp_path / "root")
    assert [path for path in (tmp_path / "root").rglob("*") if path.is_file() and path.suffix != ".lock"] == []


# ---- splits


def test_copies_share_a_split_and_fractions_hold(tmp_path):
    texts = pages(2000)
    (tmp_path / "x.jsonl").write_bytes(jsonl(texts + texts[:500]))
    store = build(tmp_path / "x.jsonl", tmp_path / "root", valid_fraction=0.2, test_fraction=0.1)
    assert store.splits[:500].tolist() == store.splits[2000:].tolist()
    assert store.clusters[:500].tolist() == store.clusters[2000:].tolist()
    shares = [len(store.documents(part)) / 2500 for part in SPLITS]
    assert np.abs(np.array(shares) - [0.7, 0.2, 0.1]).max() < 0.03
    shuffled = [texts[i] for i in np.random.default_rng(0).permutation(2000)]
    (tmp_path / "x.jsonl").write_bytes(jsonl(shuffled))
    other = build(tmp_path / "x.jsonl", tmp_path / "root", valid_fraction=0.2, test_fraction=0.1)
    where = dict(zip(shuffled, other.splits.tolist(), strict=True))
    assert [where[text] for text in texts] == store.splits[:2000].tolist()


def test_files_are_the_splits(tmp_path):
    folder = tmp_path / "test-data"  # words of the folder given do not count
    (folder / "valid").mkdir(parents=True)
    (folder / "wiki.train.txt").write_text("a")
    (folder / "valid" / "0.txt").write_text("b")
    (folder / "my_Test.txt").write_text("a")
    store = build(folder, tmp_path / "root", split="files")
    assert dict(zip(store.names, store.splits.tolist(), strict=True)) == {
        "wiki.train.txt": 0,
        "valid/0.txt": 1,
        "my_Test.txt": 2,
    }
    assert store.manifest["documents_also_in_train"] == {"valid": 0, "test": 1}
    for name, message in {"contest.txt": "names no split", "train-test.txt": "names test and train"}.items():
        (folder / name).write_text("c")
        with pytest.raises(UserError, match=rf"{name} {message}: domain.split=files needs"):
            build(folder, tmp_path / "root", split="files")
        (folder / name).unlink()


def test_an_empty_split_is_refused(tmp_path):
    (tmp_path / "x.txt").write_text("only one")
    with pytest.raises(UserError, match=r"no document of 1 in .*x.txt fell into .*: raise domain.valid_fraction"):
        build(tmp_path / "x.txt", tmp_path / "root", valid_fraction=0.01, test_fraction=0.01)
    (tmp_path / "x.txt").rename(tmp_path / "train.txt")
    with pytest.raises(UserError, match=r"fell into valid, test: name files after train, valid and test"):
        build(tmp_path / "train.txt", tmp_path / "root", split="files")


def test_tokens_are_learnt_from_the_training_split_alone(tmp_path):
    for name, text in {"train": "common common words ", "valid": "zebra zebra ", "test": "quagga quagga "}.items():
        (tmp_path / f"{name}.txt").write_text(text * 50)
    options = {"tokenizer": "train", "vocabulary_size": 266, "split": "files"}
    store = build(tmp_path, tmp_path / "root", **options)
    domain = Text(str(tmp_path), **options)
    learnt = [piece for piece in domain.codec.pieces if len(piece) > 1]
    assert b"common" in learnt
    assert not any(letter in b"".join(learnt) for letter in b"zbqug")
    (kept,) = (tmp_path / "root" / "text" / "tokenizers").glob("*.json")
    assert BPE.read(kept).digest == domain.codec.digest == store.manifest["tokenizer"]["sha256"]
    (tmp_path / "valid.txt").write_text("common " * 500)
    other = build(tmp_path, tmp_path / "root", **options)
    assert other.directory != store.directory
    assert other.manifest["tokenizer"]["sha256"] == domain.codec.digest
    with pytest.raises(UserError, match=r"domain.vocabulary_size=9000: the training split has pairs for 26\d tokens"):
        build(tmp_path, tmp_path / "root", **options | {"vocabulary_size": 9000})


def test_a_prepared_domain_reads_the_tokens_it_kept(tmp_path, monkeypatch):
    (tmp_path / "x.jsonl").write_bytes(jsonl(pages(60)))
    options = {"tokenizer": "train", "vocabulary_size": 280}
    build(tmp_path / "x.jsonl", tmp_path / "root", **options)
    monkeypatch.setattr(BPE, "train", None)
    domain = Text(str(tmp_path / "x.jsonl"), valid_fraction=0.3, test_fraction=0.3, **options)
    domain.prepare(tmp_path / "root")
    assert len(domain.codec.pieces) == 280


def test_a_changed_file_is_another_store_for_the_same_domain(tmp_path):
    (tmp_path / "x.jsonl").write_bytes(jsonl(pages(60)))
    domain = Text(str(tmp_path), tokenizer="train", vocabulary_size=280, valid_fraction=0.3, test_fraction=0.3)
    before, digest = domain.prepare(tmp_path / "root"), domain.codec.digest
    assert domain.prepare(tmp_path / "root").directory == before.directory
    (tmp_path / "x.jsonl").write_bytes(jsonl(pages(70, seed=1)))
    after = domain.prepare(tmp_path / "root")
    assert len(after.names) == 70
    assert after.manifest["tokenizer"]["sha256"] == domain.codec.digest != digest


def test_what_decides_the_store_is_in_its_options(tmp_path):
    (tmp_path / "x.txt").write_text("x")
    keys = [
        str(Text(str(tmp_path / "x.txt"), **options).options())
        for options in (
            {},
            {"field": "body"},
            {"documents": "line"},
            {"tokenizer": "bytes"},
            {"tokenizer": "train"},
            {"tokenizer": "train", "vocabulary_size": 300},
            {"split": "files"},
            {"valid_fraction": 0.1},
            {"test_fraction": 0.1},
        )
    ]
    assert len(set(keys)) == len(keys)
    (tmp_path / "x.txt").write_text("y")
    assert str(Text(str(tmp_path / "x.txt")).options()) != keys[0]
    assert Text(str(tmp_path), tokenizer_path="/elsewhere").options() == Text(str(tmp_path)).options()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"documents": "words"}, r"documents='words': file, line"),
        ({"tokenizer": "gpt4"}, r"tokenizer='gpt4': gpt2"),
        ({"split": "date"}, r"split='date': hash"),
        ({"valid_fraction": 0.0}, r"valid_fraction=0.0: it must lie"),
        ({"valid_fraction": 0.5, "test_fraction": 0.5}, r"none is left to train"),
        ({"vocabulary_size": 256}, r"vocabulary_size=256: 257 at least"),
    ],
)
def test_wrong_options(options, message):
    with pytest.raises(ValueError, match=message):
        Text("x", **options)


# ---- what a person opens


def test_render_and_encode_file(tmp_path):
    domain = Text(tokenizer="bytes")
    text = "Zwölf\r\n \0🎵"
    (path,) = domain.render(domain.decode([256, *text.encode(), 256]), tmp_path / "sample-0.5")
    assert path.name == "sample-0.5.txt"
    assert path.read_bytes() == text.encode()
    assert domain.encode_file(path).tolist() == [256, *text.encode()]
    path.write_bytes(b"\xff")
    with pytest.raises(UserError, match=r"sample-0.5.txt line 1 is not UTF-8"):
        domain.encode_file(path)
    path.write_bytes(b"")
    with pytest.raises(UserError, match=r"sample-0.5.txt is empty"):
        domain.encode_file(path)
    with pytest.raises(UserError, match=r"none.txt cannot be read \(No such file"):
        domain.encode_file(tmp_path / "none.txt")


@needs_wikitext
def test_wikitext_2(tmp_path):
    options = {"split": "files", "documents": "article"}
    store = build(WIKITEXT, tmp_path, **options)
    parts = [store.documents(part) for part in SPLITS]
    assert [len(part) for part in parts] == [600, 60, 60]
    assert [store.unit_counts(part)["byte"] for part in SPLITS] == [10_797_148, 1_121_681, 1_256_449]
    domain = Text(tokenizer="bytes")
    for part, expected in zip(parts, (2_088_628, 217_646, 245_569), strict=True):
        words = 0
        for i in part:
            text = domain.decode(store.document(i))
            assert re.match(r"( \n)? = (?!= ).+ = \n \n", text)
            # The published count has a word for each line end.
            words += len(text.split()) + text.count("\n")
        assert words == expected
