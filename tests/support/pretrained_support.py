"""Tiny checkpoints in the formats that can be read, and models that are built from them."""

import json
from functools import partial

import numpy as np
from conftest import DATA
from safetensors.numpy import save_file

from bearings.domains.tokenization import BPE
from bearings.encodings.rope import RoPE
from bearings.lightning_modules.pretrained import load_pretrained
from bearings.lightning_modules.transformer import Transformer
from bearings.pretrained.checkpoint import Checkpoint

STORIES = DATA / "checkpoints" / "stories260K.bin"
TINY = {
    **{"model_type": "llama", "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "vocab_size": 12},
    **{"num_attention_heads": 2, "num_key_value_heads": 2, "rms_norm_eps": 1e-5, "tie_word_embeddings": True},
}


def model_of(checkpoint: Checkpoint) -> Transformer:
    """The model with its own encoding, in evaluation mode."""
    model = Transformer(checkpoint.vocabulary, partial(RoPE, **checkpoint.rope), **checkpoint.sizes)
    load_pretrained(model, checkpoint)
    return model.eval()


def hugging_face_folder(folder, config=TINY, weights=None):
    """Write a folder with random weights, or the given ones; returns the weights."""
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    if weights is None:
        random = np.random.default_rng(0)
        width, heads = config["hidden_size"], config["num_attention_heads"]
        keys, hidden = width // heads * config["num_key_value_heads"], config["intermediate_size"]
        shapes = {"model.embed_tokens.weight": (config["vocab_size"], width), "model.norm.weight": (width,)}
        for layer in range(config["num_hidden_layers"]):
            parts = {
                "input_layernorm": (width,),
                "post_attention_layernorm": (width,),
                "self_attn.q_proj": (width, width),
            }
            parts |= {"self_attn.k_proj": (keys, width), "self_attn.v_proj": (keys, width)}
            parts |= {"self_attn.o_proj": (width, width), "mlp.gate_proj": (hidden, width)}
            parts |= {"mlp.up_proj": (hidden, width), "mlp.down_proj": (width, hidden)}
            shapes |= {f"model.layers.{layer}.{name}.weight": shape for name, shape in parts.items()}
        weights = {name: random.normal(0, 0.3, shape).astype(np.float32) for name, shape in shapes.items()}
    save_file(weights, folder / "model.safetensors")
    return weights


def folder_with_tokenizer(folder, text):
    """Write a folder with random weights, a byte-level tokenizer and a padded vocabulary."""
    hugging_face_folder(folder, {**TINY, "vocab_size": 320, "bos_token_id": 300, "eos_token_id": 301})
    BPE.train([text * 20, "the cat sat on the mat " * 20], 290).write(folder / "tokenizer.json")
    spec = json.loads((folder / "tokenizer.json").read_text())
    names = ["<s>", "</s>"]
    spec["added_tokens"] = [
        {"id": 289 + i, "content": name, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
         "special": True} for i, name in enumerate(names)
    ]  # fmt: skip
    (folder / "tokenizer.json").write_text(json.dumps(spec))
    (folder / "tokenizer_config.json").write_text(json.dumps({"bos_token": "<s>", "eos_token": {"content": "</s>"}}))
    return folder
