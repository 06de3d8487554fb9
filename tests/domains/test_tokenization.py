"""Tokenizers of text: lossless encoding, cutting of long documents, reading and training."""

import json
import os
import subprocess
import sys
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace

import pytest
import requests
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from text_support import GPT2, WORDS, needs_gpt2, pages
from tokenizers import Tokenizer as Peer
from tokenizers import pre_tokenizers

from bearings.core.errors import UserError
from bearings.domains import tokenization
from bearings.domains.documents import Document
from bearings.domains.text import Text
from bearings.domains.tokenization import BPE, Bytes, pieces

unicode_text = st.text(st.characters(exclude_categories=["Cs"]), max_size=200) | st.lists(
    st.sampled_from([*WORDS, " ", "  ", "\n", "\n\n", "\r\n", "'s", "\x1c", "\x85", "\u3000", "\xa0"]), max_size=60
).map("".join)


def whole(text: str) -> Document:
    raw = text.encode()
    return Document("whole", text, raw, len(raw))


@pytest.fixture(scope="module")
def trained() -> BPE:
    return BPE.train(pages(200), 400)


@needs_gpt2
def test_gpt2_hello_world():
    bpe = BPE.gpt2(GPT2)
    (ids,) = bpe.encode([whole("Hello world")])
    assert ids.tolist() == [15496, 995]
    assert (len(bpe.pieces), bpe.end) == (50257, 50256)
    assert bpe.lengths[50256] == 0
    (text,) = bpe.encode([whole("<|endoftext|>")])
    assert 50256 not in text
    assert bpe.decode(text) == "<|endoftext|>"


@needs_gpt2
@settings(max_examples=150, suppress_health_check=list(HealthCheck))
@given(unicode_text)
def test_cutting_documents_does_not_change_tokens(text):
    peer = PEER.get("gpt2") or PEER.setdefault("gpt2", Peer.from_file(str(GPT2)))
    ours = PEER.get("ours") or PEER.setdefault("ours", BPE.gpt2(GPT2))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tokenization, "PIECE", 3)
        assert "".join(pieces(text)) == text
        (ids,) = ours.encode([whole(text)])
    if "<|endoftext|>" not in text:
        assert ids.tolist() == peer.encode(text).ids


PEER: dict = {}


@settings(max_examples=150, suppress_health_check=list(HealthCheck))
@given(unicode_text)
@example("!!!!\x1c!!!!")
@example("a\u3000\u3000 b\xa0 c")
def test_cutting_documents_does_not_change_pre_tokens(text):
    gpt2 = pre_tokenizers.ByteLevel(add_prefix_space=False)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tokenization, "PIECE", 3)
        cut = [spelt for piece in pieces(text) for spelt, _ in gpt2.pre_tokenize_str(piece)]
    assert cut == [spelt for spelt, _ in gpt2.pre_tokenize_str(text)]


def test_a_long_document_is_encoded_in_parts_to_limit_memory(trained, monkeypatch):
    documents = [whole(text) for text in ("a b", " ".join(pages(9)), "c")]
    expected = [ids.tolist() for ids in trained.encode(documents)]
    monkeypatch.setattr(tokenization, "PIECE", 30)
    monkeypatch.setattr(tokenization, "BATCH", 100)
    inner, sizes = trained._bpe, []

    def encode(texts):
        sizes.append(sum(map(len, texts)))
        return inner.encode_batch_fast(texts)

    monkeypatch.setattr(trained, "_bpe", SimpleNamespace(encode_batch_fast=encode))
    assert [ids.tolist() for ids in trained.encode(documents)] == expected
    assert sum(sizes) == sum(len(document.text) for document in documents)
    assert len(sizes) > 5
    assert max(sizes) < 200


def test_long_documents_are_cut():
    text = "word and line\n" * 20_000
    lengths = list(map(len, pieces(text)))
    assert max(lengths) < tokenization.PIECE + 20
    assert min(lengths[:-1]) > tokenization.PIECE
    assert list(pieces("x" * 200_000)) == ["x" * 200_000]


@settings(max_examples=150, suppress_health_check=list(HealthCheck))
@given(texts=st.lists(unicode_text, min_size=1, max_size=4))
def test_encoding_is_lossless(trained, texts):
    codecs = [Bytes(), trained]
    if GPT2.exists():
        codecs.append(PEER.get("ours") or PEER.setdefault("ours", BPE.gpt2(GPT2)))
    for codec in codecs:
        for text, ids in zip(texts, codec.encode(list(map(whole, texts))), strict=True):
            assert codec.decode(ids) == text
            assert codec.lengths[ids].sum() == len(text.encode())
            assert codec.end not in ids
            assert codec.decode([codec.end, *ids, codec.end]) == text


def test_invalid_ids_are_replaced_or_skipped(trained):
    for codec in (Bytes(), trained):
        lone = codec.pieces.index(b"\xff")
        assert (
            codec.decode([lone, codec.pieces.index(b"a"), -1, -2, -len(codec.pieces), 10**30, codec.end]) == "\ufffda"
        )


def test_training_is_deterministic_with_given_size(trained):
    again = BPE.train(pages(200), 400)
    assert again.digest == trained.digest
    assert len(trained.pieces) == 400
    assert trained.end == 399
    assert sorted(trained.pieces[:256]) == [bytes([value]) for value in range(256)]
    assert b" the" in trained.pieces
    code = (
        "import json, sys; from bearings.domains.tokenization import BPE; "
        "print(BPE.train(json.load(sys.stdin), 400).digest)"
    )
    given = {"env": {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}, "input": json.dumps(pages(200))}
    other = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, **given)
    assert other.stdout.strip() == trained.digest
    with pytest.raises(ValueError, match=r"vocabulary_size=5000: .* has pairs for only 259 tokens: lower it"):
        BPE.train(["aaaa"], 5000)


def test_trained_tokenizer_round_trips(trained, tmp_path):
    trained.write(tmp_path / "new" / "t.json")
    read = BPE.read(tmp_path / "new" / "t.json")
    assert (read.digest, read.pieces, read.end) == (trained.digest, trained.pieces, trained.end)
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["t.json"]
    written = json.loads((tmp_path / "new" / "t.json").read_text())
    written["model"]["merges"] = [" ".join(pair) for pair in written["model"]["merges"]]
    (tmp_path / "older.json").write_text(json.dumps(written))
    assert BPE.read(tmp_path / "older.json").digest == trained.digest


def test_interrupted_write_leaves_no_tokenizer(trained, tmp_path, monkeypatch):
    def full(*_):
        raise OSError("no space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(OSError, match="no space left"):
        trained.write(tmp_path / "t.json")
    assert list(tmp_path.iterdir()) == []


def test_ids_with_gap_raise(trained, tmp_path):
    trained.write(tmp_path / "t.json")
    written = json.loads((tmp_path / "t.json").read_text())
    last = max(written["model"]["vocab"], key=written["model"]["vocab"].get)
    written["model"]["vocab"][last] += 1
    (tmp_path / "t.json").write_text(json.dumps(written))
    with pytest.raises(UserError, match=r"t\.json is not a tokenizer\.json .*its ids are not 0, 1, 2"):
        BPE.read(tmp_path / "t.json")
    with pytest.raises(UserError, match=r"nowhere.json cannot be read \(No such file or directory\): give a tokenizer"):
        BPE.read(tmp_path / "nowhere.json")


@pytest.mark.parametrize("content", [b"", b"\x89PNG", b"{}", b'{"model": {"vocab": {"word": 0}, "merges": []}}'])
def test_invalid_tokenizer_file_raises(tmp_path, content):
    (tmp_path / "tokenizer.json").write_bytes(content)
    (tmp_path / "page.txt").write_text("page")
    with pytest.raises(UserError, match=r"tokenizer\.json is not a tokenizer\.json of a byte-level BPE"):
        Text(str(tmp_path), tokenizer_path=str(tmp_path / "tokenizer.json")).prepare(tmp_path / "root")


def test_other_tokenizer_is_not_gpt2(trained, tmp_path):
    trained.write(tmp_path / "tokenizer.json")
    with pytest.raises(UserError, match=r"tokenizer.json is not GPT-2's tokenizer \(400 tokens"):
        BPE.gpt2(tmp_path / "tokenizer.json")


def test_a_tokenizer_that_cannot_be_shared_is_named(trained, tmp_path):
    given, shared = tmp_path / "given.json", tmp_path / "shared"
    shared.mkdir()
    for message in ("cannot be read", "is not GPT-2's tokenizer"):
        with pytest.raises(UserError, match=rf"given\.json {message}"):
            Text(tokenizer_path=str(given)).share(tmp_path, {}, shared)
        trained.write(given)


def published(path: Path) -> bytes:
    """The bytes of the file on the hub, reconstructed from a file with the same vocabulary and merges."""
    model = json.loads(path.read_bytes())["model"]
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": True}
    none = {"dropout": None, "unk_token": None, "continuing_subword_prefix": "", "end_of_word_suffix": ""}
    merges = [pair if isinstance(pair, str) else " ".join(pair) for pair in model["merges"]]

    def level(prefix, trim):
        return {"type": "ByteLevel", "add_prefix_space": prefix, "trim_offsets": trim}

    content = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": 50256, "special": True, "content": "<|endoftext|>"} | flags],
        "normalizer": None,
        "pre_tokenizer": level(False, True),
        "post_processor": level(True, False),
        "decoder": level(True, True),
        "model": none | {"fuse_unk": False, "vocab": model["vocab"], "merges": merges},
    }
    return json.dumps(content, ensure_ascii=False, separators=(",", ":")).encode()


@needs_gpt2
def test_gpt2_is_downloaded_once_next_to_stores(tmp_path):
    (tmp_path / "pages.txt").write_bytes("\n".join(pages(60)).encode())
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "tokenizer.json").write_bytes(published(GPT2))
    asked = []

    class Handler(SimpleHTTPRequestHandler):
        def log_message(self, *_):
            asked.append(self.path)

    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=tmp_path / "site"))
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


def test_offline_error_names_file(tmp_path, monkeypatch):
    def offline(*_, **__):
        raise requests.ConnectionError("NameResolution")

    monkeypatch.setattr(requests, "get", offline)
    (tmp_path / "page.txt").write_text("page")
    with pytest.raises(UserError, match=r"huggingface.co/openai-community/gpt2 and set domain.tokenizer_path="):
        Text(str(tmp_path / "page.txt")).prepare(tmp_path / "root")
    with pytest.raises(UserError, match=r"the store is not prepared yet: get it from"):
        Text(str(tmp_path / "page.txt")).decode([0])
