"""Writes a trained model in the formats of `transformers`."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from torch import Tensor

from ..domains.base import Domain
from ..lightning_modules.transformer import Transformer
from ..session.run_directory import RunDirectory
from .card import card
from .code import code_of
from .llama import llama_settings, llama_weights
from .sizes import sizes_of

WEIGHTS, CONFIG, CARD = "model.safetensors", "config.json", "README.md"
CLASSES = {
    "AutoConfig": "configuration_bearings.BearingsConfig",
    "AutoModelForCausalLM": "modeling_bearings.BearingsForCausalLM",
}


def write_folder(
    folder: Path, run: RunDirectory, domain: Domain, transformer: Transformer, config: Mapping[str, Any], form: str
) -> None:
    """Write the files of `write_model`, a tokenizer if the domain's files are text, and a model card.

    Args:
        folder: an existing folder.
        run: the run that trained the model.
        domain: its domain, whose tokenizer is known.
        transformer, config, form: see `write_model`.

    Raises:
        UserError: the model cannot be expressed.
    """
    end = run.data.get("tokenizer", {}).get("end_of_text", domain.start)
    write_model(folder, transformer, config, domain.start, form, end)
    written = write_tokenizer(folder, domain, config["data"]["length"], end)
    (folder / CARD).write_text(card(run, domain, transformer, config, form, written), encoding="utf-8")


def write_model(
    folder: Path, transformer: Transformer, config: Mapping[str, Any], start: int, form: str, end: int
) -> None:
    """Write config.json, generation_config.json, the weights and, for `form` hf, the code.

    Args:
        folder: an existing folder.
        transformer: the trained model, on the CPU.
        config: the configuration of the run.
        start: id of the token that begins a document.
        form: hf, or llama for plain Llama.
        end: id of the token that ends a document.

    Raises:
        UserError: the model cannot be expressed.
    """
    special = {"bos_token_id": start, "eos_token_id": end, "pad_token_id": end}
    sizes = {
        **sizes_of(transformer, config["model"]),
        "max_position_embeddings": config["data"]["length"],
        **special,
        "dtype": "float32",
        "use_cache": True,
    }
    if form == "llama":
        own = ("mlp", "dropout")  # Llama has no such settings; in evaluation dropout does nothing
        shared = {key: value for key, value in sizes.items() if key not in own}
        settings = {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            **shared,
            **llama_settings(transformer),
        }
        weights = llama_weights(transformer)
    else:
        code, named = code_of(transformer, config["encoding"])
        for name, source in code.items():
            (folder / name).write_text(source, encoding="utf-8")
        settings = {
            "architectures": ["BearingsForCausalLM"],
            "auto_map": CLASSES,
            "model_type": "bearings",
            **sizes,
            **named,
            "clock": _clock(transformer),
            "dropped": dropped(transformer),
        }
        weights = _weights(transformer)
    _write_json(folder / CONFIG, settings)
    _write_json(folder / "generation_config.json", {"_from_model_config": True, **special})
    save_file(weights, str(folder / WEIGHTS), {"format": "pt"})


def write_tokenizer(folder: Path, domain: Domain, length: int, end: int) -> bool:
    """Write tokenizer.json and tokenizer_config.json; False if the domain's files are not text.

    Args:
        folder: an existing folder.
        domain: its start token begins each text.
        length: length of the context in training.
        end: id of the token that ends a document, which is used for padding too.
    """
    tokenizer = domain.fast_tokenizer()
    if tokenizer is None:
        return False
    start, last = tokenizer.id_to_token(domain.start), tokenizer.id_to_token(end)
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": start,
        "eos_token": last,
        "pad_token": last,
        "padding_side": "left",
        "model_max_length": length,
        "clean_up_tokenization_spaces": False,
        "model_input_names": ["input_ids", "attention_mask"],
    }
    _write_json(folder / "tokenizer_config.json", settings)
    return True


def dropped(transformer: Transformer) -> bool:
    """Whether training has ended with positions dropped."""
    return any(bool(buffer) for name, buffer in transformer.named_buffers() if name.endswith("encoding.dropped"))


def _weights(transformer: Transformer) -> dict[str, Tensor]:
    """The weights by their names in `BearingsForCausalLM`, each once, and the times of the medium."""
    weights = dict(transformer.state_dict())
    if transformer.head.weight is transformer.embedding.weight:
        del weights["head.weight"]
    if transformer.medium is not None:
        weights |= {f"medium.{name}": times for name, times in transformer.medium.named_buffers()}
    return {f"transformer.{name}": weight.detach().contiguous() for name, weight in weights.items()}


def _clock(transformer: Transformer) -> dict[str, Any] | None:
    if transformer.medium is None:
        return None
    return {"columns": transformer.medium.columns, "places": transformer.medium.places is not None}


def _write_json(path: Path, content: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2, sort_keys=True) + "\n", encoding="utf-8")
