"""Checkpoints of Hugging Face: a folder with config.json, safetensors and tokenizer.json."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import safe_open

from ..core.checked_files import read_json
from ..core.errors import shortened
from .checkpoint import Checkpoint, scaled, taken
from .vocabulary import Vocabulary, of_tokenizer_json

WEIGHTS, INDEX, TOKENIZER = "model.safetensors", "model.safetensors.index.json", "tokenizer.json"
TYPES = ("llama", "mistral")
BASE, EPSILON = 10000.0, 1e-6  # defaults of transformers' LlamaConfig
NAMES = {
    **{"embedding": "model.embed_tokens.weight", "norm": "model.norm.weight", "head": "lm_head.weight"},
    **{"attention_norm": "model.layers.{}.input_layernorm.weight", "query": "model.layers.{}.self_attn.q_proj.weight"},
    **{"key": "model.layers.{}.self_attn.k_proj.weight", "value": "model.layers.{}.self_attn.v_proj.weight"},
    **{"output": "model.layers.{}.self_attn.o_proj.weight"},
    **{"mlp_norm": "model.layers.{}.post_attention_layernorm.weight", "gate": "model.layers.{}.mlp.gate_proj.weight"},
    **{"up": "model.layers.{}.mlp.up_proj.weight", "down": "model.layers.{}.mlp.down_proj.weight"},
}
# Settings of config.json that change the model, with the only value that is supported. Absent ones have it.
FIXED = {
    **{"hidden_act": "silu", "attention_bias": False, "mlp_bias": False, "quantization_config": None},
    **{"sliding_window": None, "partial_rotary_factor": 1.0, "num_local_experts": None},
}
# The same for the settings of rotary positions. Others are refused, except for those that are read.
TURNS = {
    **{"low_freq_factor": 1.0, "high_freq_factor": 4.0, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": True},
    **{"attention_factor": None, "mscale": None, "mscale_all_dim": None, "partial_rotary_factor": 1.0},
}
READ = {"rope_type", "type", "rope_theta", "factor", "original_max_position_embeddings", "finetuned"}


def read_checkpoint(folder: Path) -> Checkpoint:
    """Raises ValueError, KeyError or SafetensorError if the folder holds no Llama model, or is damaged."""
    config = read_json(folder / "config.json")
    if not isinstance(config, dict) or config.get("model_type") not in TYPES:
        given = config.get("model_type") if isinstance(config, dict) else config
        raise ValueError(f"config.json: model_type={shortened(given)}: only {' and '.join(TYPES)} are supported")
    for key, allowed in FIXED.items():
        if config.get(key) not in (allowed, None):
            raise ValueError(f"config.json: {key}={shortened(config[key])} is not supported, only {shortened(allowed)}")
    width, heads = taken(config, "hidden_size", int), taken(config, "num_attention_heads", int)
    sizes = {
        **{"width": width, "layers": taken(config, "num_hidden_layers", int), "heads": heads, "mlp": "swiglu"},
        **{"head_dim": taken(config, "head_dim", int, width // max(heads, 1)) or None},
        **{"kv_heads": taken(config, "num_key_value_heads", int, heads)},
        **{"mlp_hidden": taken(config, "intermediate_size", int)},
        **{"tie_embeddings": taken(config, "tie_word_embeddings", bool, False)},
        **{"norm_epsilon": taken(config, "rms_norm_eps", float, EPSILON)},
    }
    files, places = _files(folder)
    shapes, shards = {}, {}
    for file in files:
        with safe_open(str(file), "numpy") as opened:
            for name in opened.keys():  # noqa: SIM118
                if places.get(name, file) == file:
                    shapes[name], shards[name] = tuple(opened.get_slice(name).get_shape()), file
    files = [folder / "config.json", *files]
    vocabulary, rope = taken(config, "vocab_size", int), _rope(config)
    return Checkpoint(folder, files, vocabulary, sizes, rope, False, NAMES, shapes, shards)


def _files(folder: Path) -> tuple[list[Path], dict[str, Path]]:
    """The files with weights, and the file of each weight that the index names."""
    if (folder / WEIGHTS).exists():
        return [folder / WEIGHTS], {}
    if not (folder / INDEX).exists():
        pickles = "; its pickles are not read, because they can run code" * any(folder.glob("*.bin"))
        raise ValueError(f"it contains no {WEIGHTS}{pickles}")
    places = read_json(folder / INDEX)["weight_map"]
    if wrong := [place for place in places.values() if Path(place).name != place or not place.endswith(".safetensors")]:
        raise ValueError(f"{INDEX} names {shortened(wrong[0])}, which is not a safetensors file in the folder")
    found = {name: folder / place for name, place in places.items()}
    return sorted({*found.values()}), found


def _rope(config: Mapping[str, Any]) -> dict[str, Any]:
    """Options of the encoding `rope`. Newer versions of transformers write all of them as `rope_parameters`."""
    given = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if not isinstance(given, dict):
        raise ValueError(f"config.json: rope_scaling={shortened(given)}: it should be a mapping")
    base = taken({**config, **given}, "rope_theta", float, BASE)
    kind = given.get("rope_type", given.get("type", "default"))
    for key, value in given.items():
        if key in TURNS and value not in (TURNS[key], None):
            raise ValueError(f"config.json: {key}={shortened(value)} is not supported, only {shortened(TURNS[key])}")
        if key not in TURNS and key not in READ:
            raise ValueError(f"config.json: {key}={shortened(value)} in the settings of rotary positions is unknown")
    if kind == "default":
        return {"base": base}
    factor = taken(given, "factor", float)
    if kind == "linear":
        return {"base": base, **scaled("interpolation", factor)}
    if kind in ("yarn", "llama3"):
        original = taken(given, "original_max_position_embeddings", int, taken(config, "max_position_embeddings", int))
        return {"base": base, **scaled(kind, factor, original)}
    raise ValueError(f"config.json: rope_type={shortened(kind)}: only default, linear, yarn and llama3 are supported")


def read_vocabulary(file: Path) -> Vocabulary:
    """The tokenizer in a tokenizer.json; files next to it may name the tokens that begin and end a text."""
    named, config = (_settings(file.with_name(name)) for name in ("tokenizer_config.json", "config.json"))
    ends = []
    for part in ("bos", "eos"):
        found = [named.get(f"{part}_token"), config.get(f"{part}_token_id")]
        found = [each.get("content") if isinstance(each, dict) else each for each in found]
        found = [each[0] if isinstance(each, list) and each else each for each in found]  # several end tokens
        ends.append(found[1] if found[0] is None else found[0])
    rows = config.get("vocab_size")
    return of_tokenizer_json(read_json(file), ends, rows if type(rows) is int else 0)


def _settings(file: Path) -> Mapping[str, Any]:
    found = read_json(file) if file.exists() else {}
    return found if isinstance(found, dict) else {}
