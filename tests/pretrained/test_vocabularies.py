"""Tokenizers of pretrained models: text is preserved, bytes are counted, and an exported copy encodes equally."""

import json
import tracemalloc

import numpy as np
import pytest
import tokenizers
from pretrained_support import STORIES, TINY, folder_with_tokenizer, hugging_face_folder

from bearings.core.errors import UserError
from bearings.domains.documents import Document
from bearings.domains.pretrained_tokenizer import Pretrained
from bearings.domains.text import Text
from bearings.domains.tokenization import PIECE
from bearings.pretrained.formats import opened, vocabulary_of
from bearings.session.pretrained import start_from_pretrained

TEXT = " Once upon a time\n\nthere was  an Öl 音楽 🎵 <s> <|endoftext|> don't 1234\r\n"


def document(text):
    return Document("page", text, text.encode(), 0)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return folder_with_tokenizer(tmp_path_factory.mktemp("pretrained") / "tiny", TEXT)


def test_documents_begin_and_end_with_the_models_tokens(folder, tmp_path):
    tokenizer = Pretrained.read(folder)
    assert (tokenizer.start, tokenizer.end, len(tokenizer.pieces), tokenizer.prefix) == (289, 290, 320, "")
    (ids,) = tokenizer.encode([document(TEXT)])
    assert tokenizer.decode(ids) == TEXT
    tokenizer.write(tmp_path / "tokenizer.json")
    copy = Pretrained.read(tmp_path / "tokenizer.json")
    assert (copy.digest, copy.start, copy.end, len(copy.pieces)) == (tokenizer.digest, 289, 290, 320)
    theirs = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    assert theirs.encode("a cat").ids == [289, *tokenizer._ids("a cat"), 290]
    assert tokenizer.fast().encode("a cat").ids == [289, *tokenizer._ids("a cat")]


@pytest.mark.data(STORIES)
def test_sentencepiece_adds_a_space_that_does_not_count(tmp_path):
    (tmp_path / "text").mkdir()
    for number in range(12):
        (tmp_path / "text" / f"{number}.txt").write_text(f"{number}{TEXT}", newline="")
    given = {"tokenizer": "pretrained", "tokenizer_path": str(STORIES), "valid_fraction": 0.3, "test_fraction": 0.3}
    text = Text(str(tmp_path / "text"), **given)
    store = text.prepare(tmp_path)
    tokens = np.asarray(store.document(0))
    assert tokens[0] == tokens[-1] == text.start == 1
    assert text.decode(tokens.tolist()).endswith(TEXT)
    assert text.unit_weights(tokens)["byte"].sum() == len(text.decode(tokens.tolist()).encode())
    elsewhere = Text(str(tmp_path / "text"), **{**given, "tokenizer_path": None})  # the store keeps a copy
    assert elsewhere.prepare(tmp_path, store.manifest["options"]).manifest == store.manifest
    assert elsewhere.codec.digest == text.codec.digest


@pytest.mark.data(STORIES)
def test_long_documents_are_encoded_in_pieces():
    tokenizer, long = Pretrained.read(STORIES), "once upon a time there was a cat. " * (PIECE // 16)
    (ids,) = tokenizer.encode([document(long)])
    assert ids.tolist() == tokenizer._ids(long)


@pytest.mark.data(STORIES)
def test_checking_a_document_takes_little_memory_per_token():
    tokenizer, ids = Pretrained.read(STORIES), np.arange(500_000, dtype=np.int32) % 512
    tracemalloc.start()
    spelt = tokenizer._spelt(ids)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert spelt == b"".join(map(tokenizer.pieces.__getitem__, ids))
    assert peak < 40 * len(ids)


@pytest.mark.parametrize(("normalizer", "text"), [("NFC", "e\u0301"), ("Lowercase", "Abc")])
def test_a_tokenizer_that_changes_the_text_is_refused(folder, tmp_path, normalizer, text):
    spec = json.loads((folder / "tokenizer.json").read_text())
    (tmp_path / "tokenizer.json").write_text(json.dumps({**spec, "normalizer": {"type": normalizer}}))
    (tmp_path / "tokenizer_config.json").write_text((folder / "tokenizer_config.json").read_text())
    tokenizer = Pretrained.read(tmp_path)
    assert tokenizer.encode([document("abc")])
    with pytest.raises(UserError, match="page: the pretrained model's tokenizer changes this text"):
        tokenizer.encode([document(text)])


YARN = {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 8}
HOSTILE = {
    "architecture": ({"model_type": "gpt2"}, "model_type='gpt2': only llama and mistral"),
    "biases": ({"attention_bias": True}, "attention_bias=true is not supported, only false"),
    "size": ({"hidden_size": 32}, "has the shape"),
    "layers": ({"num_hidden_layers": 10**9}, "it declares 1,000,000,000 layers"),
    "text": ({"num_hidden_layers": "2"}, "num_hidden_layers='2': it should be int"),
    "scaling": ({"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}, "only default, linear, yarn and llama3"),
    "truncate": ({"rope_scaling": {**YARN, "truncate": False}}, "truncate=false is not supported, only true"),
    "attention factor": ({"rope_parameters": {**YARN, "mscale_all_dim": 1.0}}, "mscale_all_dim=1.0 is not supported"),
    "share": ({"rope_parameters": {"partial_rotary_factor": 0.5}}, "partial_rotary_factor=0.5 is not supported"),
    "unknown": ({"rope_scaling": {**YARN, "alpha": 2}}, "alpha=2 in the settings of rotary positions is unknown"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_unsupported_models_give_one_line(tmp_path, case):
    changes, message = HOSTILE[case]
    hugging_face_folder(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({**TINY, **changes}))
    with pytest.raises(UserError, match=message) as caught:
        opened(tmp_path)
    assert "\n" not in str(caught.value)


def test_damaged_files_and_pickles_give_one_line(tmp_path, folder):
    import torch

    torch.save({}, tmp_path / "pickle.bin")
    (tmp_path / "cut.bin").write_bytes(np.array([16, 24, 2, 2, 2, 12, 8], np.int32).tobytes() + bytes(100))
    hugging_face_folder(tmp_path / "cut")
    weights = tmp_path / "cut" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-8])
    messages = {
        "pickle.bin": "it is a pickle",
        "cut.bin": "it has 128 bytes",
        "cut": "it cannot be used",
        "none": "exist",
    }
    for name, message in messages.items():
        with pytest.raises(UserError, match=message):
            opened(tmp_path / name)
    (tmp_path / "tokenizer.json").write_text('{"model": {"type": "Unigram", "vocab": []}}')
    with pytest.raises(UserError, match="only BPE is supported"):
        vocabulary_of(tmp_path)


def test_commands_must_not_contradict_the_checkpoint(folder):
    def plain(**model):
        encoding = {"_target_": "bearings.encodings.rope.RoPE", "base": 500.0, "scaling": "none"}
        domain = {"tokenizer": "gpt2", "tokenizer_path": None}
        return {"model": {"pretrained": str(folder), **model}, "encoding": encoding, "domain": domain}

    given = plain(width=96)
    found = start_from_pretrained(given, {"model.pretrained"})
    assert (given["model"]["width"], given["encoding"]["base"], given["domain"]["tokenizer"]) == (16, 1e4, "pretrained")
    assert (found["vocabulary"], found["name"]) == (320, "tiny")
    kept = plain()
    start_from_pretrained(kept, {"encoding.base", "domain.tokenizer"})
    assert (kept["encoding"]["base"], kept["domain"]["tokenizer"]) == (500.0, "gpt2")
    with pytest.raises(UserError, match=r"model\.width=96: the checkpoint .* has width=16"):
        start_from_pretrained(plain(width=96), {"model.width"})
    with pytest.raises(UserError, match="leave out model="):
        start_from_pretrained(plain(), {"model"})


@pytest.mark.parametrize(
    ("given", "base", "scaling"),
    [
        ({}, 500.0, ("llama3", 8.0, 64)),
        ({"base": 1e4}, 1e4, ("llama3", 8.0, 64)),
        ({"scaling_factor": 2.0}, 500.0, ("llama3", 2.0, 64)),
        ({"scaling": "none"}, 500.0, ("none", None, None)),
        ({"scaling": "ntk", "scaling_factor": 2.0}, 500.0, ("ntk", 2.0, None)),
    ],
)
def test_a_setting_replaces_only_what_it_names_of_the_checkpoint_s_rotation(tmp_path, given, base, scaling):
    scaled = {"rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": 64}
    hugging_face_folder(
        tmp_path / "scaled", {**TINY, "rope_theta": 500.0, "max_position_embeddings": 512, "rope_scaling": scaled}
    )
    defaults = {"base": 1e4, "scaling": "none", "scaling_factor": None, "scaling_length": None}
    encoding = {"_target_": "bearings.encodings.rope.RoPE", **defaults, **given}
    plain = {"model": {"pretrained": str(tmp_path / "scaled")}, "encoding": encoding, "domain": {}}
    start_from_pretrained(plain, {f"encoding.{key}" for key in given})
    assert encoding["base"] == base
    assert tuple(encoding[key] for key in ("scaling", "scaling_factor", "scaling_length")) == scaling
