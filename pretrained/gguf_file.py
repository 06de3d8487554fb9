"""Checkpoints of llama.cpp: GGUF files, read and dequantised with the package `gguf`."""

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from ..core.errors import UserError, shortened
from .checkpoint import Checkpoint, scaled, taken
from .vocabulary import Vocabulary, byte_level, scored_pieces

BASE = 10000.0
NAMES = {
    **{"embedding": "token_embd.weight", "norm": "output_norm.weight", "head": "output.weight"},
    **{"attention_norm": "blk.{}.attn_norm.weight", "query": "blk.{}.attn_q.weight", "key": "blk.{}.attn_k.weight"},
    **{"value": "blk.{}.attn_v.weight", "output": "blk.{}.attn_output.weight", "mlp_norm": "blk.{}.ffn_norm.weight"},
    **{"gate": "blk.{}.ffn_gate.weight", "up": "blk.{}.ffn_up.weight", "down": "blk.{}.ffn_down.weight"},
}
# Settings that are read, or that do not change the model. Others are refused.
KNOWN = {
    *("vocab_size", "context_length", "embedding_length", "block_count", "feed_forward_length", "tensor_data_layout"),
    *("attention.head_count", "attention.head_count_kv", "attention.key_length", "attention.value_length"),
    *("attention.layer_norm_rms_epsilon", "expert_count", "expert_used_count", "rope.dimension_count"),
    *("rope.freq_base", "rope.scale_linear", "rope.scaling.type", "rope.scaling.factor", "rope.scaling.finetuned"),
    "rope.scaling.original_context_length",
}
UNKNOWN, CONTROL = 2, 3  # types of tokens


def read_checkpoint(path: Path) -> Checkpoint:
    """Raises UserError if `gguf` is not installed; other exceptions if the file is damaged or not a Llama model."""
    facts, tensors = _read(path)
    architecture = facts.get("general.architecture")
    if architecture != "llama":
        raise ValueError(f"general.architecture={shortened(architecture)}: only llama is supported")
    own = {key.removeprefix("llama."): value for key, value in facts.items() if key.startswith("llama.")}
    if other := sorted(own.keys() - KNOWN):
        raise ValueError(f"llama.{other[0]}={shortened(own[other[0]])} is not supported")
    width, heads = taken(own, "embedding_length", int), taken(own, "attention.head_count", int)
    head_dim = taken(own, "attention.key_length", int, width // max(heads, 1)) or None
    if own.get("expert_count", 0) or own.get("rope.dimension_count", head_dim) != head_dim:
        raise ValueError("mixtures of experts and partly rotated heads are not supported")
    if "rope_freqs.weight" in tensors:
        raise ValueError("its rotary frequencies are a table (rope_freqs.weight), which is not supported")
    sizes = {
        **{"width": width, "layers": taken(own, "block_count", int), "heads": heads, "head_dim": head_dim},
        **{"kv_heads": taken(own, "attention.head_count_kv", int, heads), "mlp": "swiglu"},
        **{"mlp_hidden": taken(own, "feed_forward_length", int), "tie_embeddings": NAMES["head"] not in tensors},
        **{"norm_epsilon": float(f"{taken(own, 'attention.layer_norm_rms_epsilon', float):.6g}")},  # stored in float32
    }
    shapes = {name: tuple(int(size) for size in tensor.shape[::-1]) for name, tensor in tensors.items()}
    vocabulary = shapes.get(NAMES["embedding"], (0,))[0]
    kind = own.get("rope.scaling.type", "linear")
    rope: dict[str, Any] = {"base": taken(own, "rope.freq_base", float, BASE)}
    if kind not in ("none", "linear", "yarn"):
        raise ValueError(f"rope.scaling.type={shortened(kind)}: only none, linear and yarn are supported")
    factor = taken(own, "rope.scaling.factor", float, taken(own, "rope.scale_linear", float, 0.0))
    if kind != "none" and factor != 0:  # without a factor, llama.cpp does not scale
        length = taken(own, "rope.scaling.original_context_length", int) if kind == "yarn" else None
        rope |= scaled("yarn" if length else "interpolation", factor, length)

    from gguf import quants  # pyright: ignore[reportMissingImports]  (optional)

    def array(name: str) -> np.ndarray:
        tensor = tensors[name]
        return quants.dequantize(tensor.data, tensor.tensor_type).astype(np.float32).reshape(shapes[name])

    return Checkpoint(path, [path], vocabulary, sizes, rope, True, NAMES, shapes, {}, array)


def read_vocabulary(path: Path) -> Vocabulary:
    """Raises UserError if `gguf` is not installed; other exceptions if the file is damaged or its tokenizer unknown."""
    facts, _ = _read(path)
    own = {key.removeprefix("tokenizer.ggml."): value for key, value in facts.items()}
    pieces, types = own["tokens"], own.get("token_type", [])
    special = {i for i, kind in enumerate(types) if kind in (UNKNOWN, CONTROL)}
    end = taken(own, "eos_token_id", int)
    start = taken(own, "bos_token_id", int, end)
    if own.get("model") == "gpt2":
        merges = [merge.split(" ") for merge in own["merges"]]
        return byte_level(pieces, merges, own.get("pre", "default"), special, start, end)
    if own.get("model") == "llama":
        unknown = taken(own, "unknown_token_id", int, 0) if UNKNOWN not in types else types.index(UNKNOWN)
        prefix = own.get("add_space_prefix", True) is not False
        return scored_pieces(pieces, own["scores"], special, start, end, unknown, prefix)
    raise ValueError(f"tokenizer.ggml.model={shortened(own.get('model'))}: only gpt2 and llama are supported")


def _read(path: Path) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """The settings and the tensors of a file, by name."""
    state = path.stat()
    return _parsed(path, state.st_size, state.st_mtime_ns)


@lru_cache(maxsize=2)  # the package takes seconds to read a typical vocabulary
def _parsed(path: Path, size: int, changed: int) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    try:
        from gguf import GGUFReader  # pyright: ignore[reportMissingImports]  (optional)
    except ImportError as error:
        raise UserError(f'{path}: GGUF files need the package gguf: pip install -e ".[gguf]"') from error

    class Reader(GGUFReader):
        """Refuses to read beyond the end of the file, where the base class would read empty arrays forever."""

        def _get(self, offset: int, dtype: Any, count: int = 1, override_order: Any = None) -> Any:
            if not 0 <= int(offset) + np.dtype(dtype).itemsize * int(count) <= len(self.data):
                raise ValueError("it ends too early")
            return super()._get(offset, dtype, count, override_order)

    opened = Reader(path)
    facts = {name: field.contents() for name, field in opened.fields.items()}
    return facts, {tensor.name: tensor for tensor in opened.tensors}
