"""The part of a configuration that determines a run's results, and therefore its name."""

import hashlib
import json
from collections.abc import Mapping

from .run_config import GROUPS, IDLE, as_hashed

# Settings that affect where and how fast a run executes, but not its results.
INCIDENTAL = {
    "domain": ("path", "urls", "bed", "tokenizer_path", "tokenizer_urls"),  # `content` identifies the data
    "encoding": ("implementation",),
    "model": ("pretrained",),  # the key `pretrained` of the configuration identifies it
    "data": ("workers",),
    "trainer": (
        *("accelerator", "devices", "nodes", "strategy", "context_parallel", "micro_batch", "activation_checkpointing"),
        *("compile", "cuda_graphs", "deterministic", "checkpoint_every", "log_every", "wandb"),
    ),
    "evaluation": ("tokens_per_batch",),
}
# Options that are newer than some stored runs. At these defaults, they do not change a run's name.
LATER = {
    "domain": (
        *(("source", None), ("source", "hg38"), ("source", "wikitext2")),  # `content` identifies what they name
        *(("alphabet", None), ("split_field", None), ("group_field", None), ("field", "sequence")),
        *(("dataset", None), ("dataset_config", None), ("dataset_revision", None), ("dataset_split", "train")),
        *(("dataset_rows", None), ("shortest", 20), ("longest_string", 40), ("farthest", 15)),
    ),
    "model": (("norm_epsilon", 1e-6), ("residual_in_fp32", True)),
    "trainer": (("anneal_steps", None), ("match_steps", None), ("distil_steps", None)),
    "encoding": (
        *(("beta_max", 2.0), ("window", None), ("clock", "index"), ("drop_after", None)),
        *(("randomise", 0), ("random_steps", False), ("spacing", 1.0)),
        *(("scaling", "none"), ("scaling_factor", None), ("scaling_length", None)),
    ),
}
# The same for options whose default in this class is a choice in others.
LATER_IN_CLASS = {"bearings.encodings.nope.NoPE": (("length_scaling", "none"), ("scaling_length", 362))}

# Steps in which a pretrained model gets its encoding. task=convert chooses them by encoding.
STAGES = ("trainer.anneal_steps", "trainer.match_steps", "trainer.distil_steps")


def incidental(key: str) -> bool:
    """Whether the setting `GROUP.NAME` may differ between runs that count as the same.

    A named implementation of attention distinguishes runs, although tasks can use a run with another one.
    """
    group, _, name = key.partition(".")
    return key != "encoding.implementation" and name in INCIDENTAL.get(group, ())


def identity(config: Mapping) -> dict:
    """The part of a configuration that determines a run's results, including the seed."""
    kept = {group: decisive(group, config[group]) for group in GROUPS}
    if (named := config["encoding"].get("implementation", "auto")) != "auto":
        kept["encoding"]["implementation"] = named  # kernels round differently, and studies may compare them
    pretrained = {"pretrained": {"sha256": config["pretrained"]["sha256"]}} if "pretrained" in config else {}
    return {**kept, **pretrained, "content": config["content"], "seed": config["seed"]}


def unseeded_digest(config: Mapping, *left_out: str) -> str:
    """sha256 of the `identity` of a configuration, without the seed and the keys `left_out`."""
    kept = {key: value for key, value in identity(config).items() if key not in ("seed", *left_out)}
    hashed = {key: as_hashed(key, value) for key, value in kept.items()}
    return hashlib.sha256(json.dumps(hashed, sort_keys=True).encode()).hexdigest()


def portable(group: str, block: Mapping) -> dict:
    """A group's block without settings that depend on the machine, for building the same thing elsewhere."""
    left_out = INCIDENTAL.get(group, ())
    return {key: value for key, value in block.items() if key not in left_out}


def decisive(group: str, block: Mapping) -> dict:
    """A group's block without incidental keys, and without later options at their defaults."""
    later = (*LATER.get(group, ()), *LATER_IN_CLASS.get(str(block.get("_target_")), ()))
    silent = (*later, *IDLE.get(group, {}).items())
    return {key: value for key, value in portable(group, block).items() if (key, value) not in silent}
