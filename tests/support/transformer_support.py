"""Transformers of a few thousand parameters, with any shipped encoding."""

from functools import partial

from omegaconf import OmegaConf

from bearings.session.configuration import build
from bearings.session.settings import file_of

SMALL = {"vocabulary": 11, "width": 32, "layers": 2, "heads": 4, "kv_heads": 2, "head_dim": 16}


def shipped(name: str) -> partial:
    """The encoding of configs/encoding/NAME.yaml, as `Transformer` takes it."""
    block = OmegaConf.to_container(file_of("encoding", name), resolve=True)
    return partial(build, block, "encoding")
