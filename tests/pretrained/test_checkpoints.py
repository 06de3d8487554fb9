"""Pretrained checkpoints: logits equal those of other implementations, and damaged files give one line."""

import numpy as np
import pytest
import torch
from pretrained_support import STORIES, TINY, hugging_face_folder, model_of

from bearings.core.checked_files import digest_of
from bearings.core.errors import UserError
from bearings.domains.pretrained_tokenizer import Pretrained
from bearings.pretrained import checkpoint, gguf_file
from bearings.pretrained.formats import opened, vocabulary_of

STORY = (
    "Once upon a time, there was a little girl named Lily. She loved to play outside in the park. One day, she saw a "
    "big ball in the sky."
)


def reference_logits(path, tokens, rotated=True):
    """llama2.c's forward pass in float64, with neighbouring rotary pairs."""
    width, hidden, layers, heads, kv_heads, vocabulary, _ = np.fromfile(path, np.int32, 7)
    numbers, at = np.fromfile(path, np.float32, offset=28).astype(np.float64), 0

    def take(*shape):
        nonlocal at
        at += int(np.prod(shape))
        return numbers[at - int(np.prod(shape)) : at].reshape(shape)

    dim = width // heads
    embedding, norm1 = take(vocabulary, width), take(layers, width)
    wq, wk = take(layers, width, width), take(layers, kv_heads * dim, width)
    wv, wo = take(layers, kv_heads * dim, width), take(layers, width, width)
    norm2, w1, w2, w3 = take(layers, width), take(layers, hidden, width), take(layers, width, hidden), None
    w3, last = take(layers, hidden, width), take(width)
    turns = np.exp(1j * np.outer(np.arange(len(tokens)), 10000.0 ** (-np.arange(0, dim, 2) / dim)))[:, None]

    def normed(x, weight):
        return x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-5) * weight

    def split(x, count):
        pairs = x.reshape(len(tokens), count, dim // 2, 2) @ np.array([1, 1j])
        return pairs * turns if rotated else pairs

    x = embedding[tokens]
    for i in range(layers):
        h = normed(x, norm1[i])
        q, k, v = split(h @ wq[i].T, heads), split(h @ wk[i].T, kv_heads), (h @ wv[i].T).reshape(-1, kv_heads, dim)
        k, v = (np.repeat(each, heads // kv_heads, 1) for each in (k, v))
        scores = np.einsum("thd,shd->hts", q, k.conj()).real / np.sqrt(dim)
        scores[:, ~np.tri(len(tokens), dtype=bool)] = -np.inf
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        out = np.einsum("hts,shd->thd", weights / weights.sum(-1, keepdims=True), v)
        x = x + out.reshape(len(tokens), -1) @ wo[i].T
        h = normed(x, norm2[i])
        gate = h @ w1[i].T
        x = x + (gate / (1 + np.exp(-gate)) * (h @ w3[i].T)) @ w2[i].T
    return normed(x, last) @ embedding.T


def nats(logits, ids):
    logits = torch.as_tensor(logits)[:-1]
    return float(torch.nn.functional.cross_entropy(logits, torch.as_tensor(ids[1:])))


@pytest.mark.data(STORIES)
def test_stories_logits_equal_a_float64_forward_pass():
    vocabulary = Pretrained.read(STORIES)
    ids = [vocabulary.start, *vocabulary._ids(STORY)]
    model = model_of(opened(STORIES)).double()
    logits = model(torch.tensor([ids]))[0].detach().numpy()
    np.testing.assert_allclose(logits, reference_logits(STORIES, ids), rtol=0, atol=1e-10)
    assert nats(logits, ids) < 1.0 < 2.0 < nats(reference_logits(STORIES, ids, rotated=False), ids)


def test_hugging_face_logits_equal_those_of_transformers(tmp_path):
    transformers = pytest.importorskip("transformers")
    for number, extra in enumerate(
        (
            {"tie_word_embeddings": True, "rope_theta": 500.0},
            {"head_dim": 6, "rope_scaling": {"rope_type": "linear", "factor": 4.0}},
            {"rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                              "original_max_position_embeddings": 16}},
            {"rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}},
        )
    ):  # fmt: skip
        torch.manual_seed(number)
        names = {"hidden_size": 24, "intermediate_size": 40, "num_hidden_layers": 2, "num_attention_heads": 4}
        config = transformers.LlamaConfig(vocab_size=37, num_key_value_heads=2, rms_norm_eps=1e-3, **names, **extra)
        theirs = transformers.LlamaForCausalLM(config).eval()
        dtype = torch.bfloat16 if number == 0 else torch.float32
        folder = tmp_path / str(number)
        theirs.to(dtype).save_pretrained(folder)
        tokens = torch.randint(0, 37, (2, 40))
        ours = model_of(opened(folder))
        with torch.no_grad():
            torch.testing.assert_close(ours(tokens), theirs.float()(tokens).logits, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("facts", "found"),
    [
        ({}, {}),
        ({"rope.scaling.type": "none", "rope.scaling.factor": 4.0}, {}),
        ({"rope.scaling.factor": 4.0}, {"scaling": "interpolation", "scaling_factor": 4.0}),
        ({"rope.scale_linear": 4.0}, {"scaling": "interpolation", "scaling_factor": 4.0}),
        (
            {"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0, "rope.scaling.original_context_length": 8},
            {"scaling": "yarn", "scaling_factor": 4.0, "scaling_length": 8},
        ),
        ({"rope.scaling.type": "longrope"}, r"rope\.scaling\.type='longrope': only none, linear and yarn"),
        ({"rope.scaling.attn_factor": 1.5}, r"llama\.rope\.scaling\.attn_factor=1\.5 is not supported"),
        ({"attention.sliding_window": 16}, r"llama\.attention\.sliding_window=16 is not supported"),
    ],
)
def test_settings_of_gguf_files_are_read_as_llama_cpp_does_or_refused(tmp_path, facts, found):
    gguf = pytest.importorskip("gguf")
    writer = gguf.GGUFWriter(tmp_path / "tiny.gguf", "llama")
    writer.add_embedding_length(8)
    writer.add_block_count(1)
    writer.add_head_count(4)
    writer.add_feed_forward_length(8)
    writer.add_layer_norm_rms_eps(1e-5)
    for role, name in gguf_file.NAMES.items():
        writer.add_tensor(name.format(0), np.zeros(8 if "norm" in role else (8, 8), np.float32))
    for key, value in facts.items():
        add = {str: writer.add_string, float: writer.add_float32, int: writer.add_uint32}[type(value)]
        add(f"llama.{key}", value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    if isinstance(found, str):
        with pytest.raises(ValueError, match=found):
            gguf_file.read_checkpoint(tmp_path / "tiny.gguf")
    else:
        rope = gguf_file.read_checkpoint(tmp_path / "tiny.gguf").rope
        assert {key: value for key, value in rope.items() if value is not None} == {"base": 10000.0, **found}


@pytest.mark.parametrize("quantised", [False, True], ids=["float32", "q4_1"])
def test_gguf_gives_the_dequantised_weights(tmp_path, quantised):
    gguf = pytest.importorskip("gguf")
    folder, wide = tmp_path / "model", {**TINY, "hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4}
    weights = hugging_face_folder(folder, wide)
    writer, kind = gguf.GGUFWriter(tmp_path / "tiny.gguf", "llama"), gguf.GGMLQuantizationType.Q4_1
    for add, value in (
        *((writer.add_embedding_length, 64), (writer.add_block_count, 2), (writer.add_head_count, 4)),
        *((writer.add_head_count_kv, 2), (writer.add_feed_forward_length, 96), (writer.add_layer_norm_rms_eps, 1e-5)),
        *(
            (writer.add_rope_freq_base, 10000.0),
            (writer.add_tokenizer_model, "gpt2"),
            (writer.add_tokenizer_pre, "smollm"),
        ),
        *((writer.add_token_list, ["<|endoftext|>", *"abc", "ab"]), (writer.add_token_merges, ["a b"])),
        *((writer.add_token_types, [3, 1, 1, 1, 1]), (writer.add_eos_token_id, 0)),
    ):
        add(value)
    short = {"input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm", "self_attn.o_proj": "attn_output"}
    short |= {f"self_attn.{x}_proj": f"attn_{x}" for x in "qkv"} | {
        f"mlp.{x}_proj": f"ffn_{x}" for x in ("gate", "up", "down")
    }
    outer = {"model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight"}
    for name, array in weights.items():
        _, _, layer, role = f"{name}...".split(".", 3)
        written = outer.get(name) or f"blk.{layer}.{short[role.removesuffix('...').removesuffix('.weight')]}.weight"
        if written.endswith(("attn_q.weight", "attn_k.weight")):  # llama.cpp pairs neighbouring channels
            array = array.reshape(-1, 2, 8, 64).swapaxes(1, 2).reshape(array.shape)
        if quantised and array.ndim == 2:
            packed = gguf.quants.quantize(array, kind)
            writer.add_tensor(written, packed, raw_dtype=kind)
            array = gguf.quants.dequantize(packed, kind)
        else:
            writer.add_tensor(written, array)
        if written.endswith(("attn_q.weight", "attn_k.weight")):
            array = array.reshape(-1, 8, 2, 64).swapaxes(1, 2).reshape(array.shape)
        weights[name] = array
    for step in (writer.write_header_to_file, writer.write_kv_data_to_file, writer.write_tensors_to_file, writer.close):
        step()
    hugging_face_folder(folder, wide, weights)
    tokens = torch.arange(12)[None]
    ours, theirs = (model_of(opened(path))(tokens) for path in (tmp_path / "tiny.gguf", folder))
    torch.testing.assert_close(ours, theirs, rtol=0, atol=0)
    assert opened(tmp_path / "tiny.gguf").sizes == opened(folder).sizes
    found = vocabulary_of(tmp_path / "tiny.gguf")
    assert (found.start, found.end, found.size) == (0, 0, 5)
    (tmp_path / "cut.gguf").write_bytes((tmp_path / "tiny.gguf").read_bytes()[:400])
    with pytest.raises(UserError, match="it ends too early"):
        opened(tmp_path / "cut.gguf")


def test_files_are_hashed_once_until_they_change(tmp_path, monkeypatch):
    hugging_face_folder(tmp_path)
    read = []
    monkeypatch.setattr(checkpoint, "digest_of", lambda file: read.append(file.name) or digest_of(file))
    before = opened(tmp_path).digest()
    assert opened(tmp_path).digest() == before
    assert read == ["config.json", "model.safetensors"]
    hugging_face_folder(tmp_path, {**TINY, "rope_theta": 20000.0})
    assert opened(tmp_path).digest() != before
