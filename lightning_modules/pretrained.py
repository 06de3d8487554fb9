"""Fills a Transformer with the weights of a Llama-type checkpoint."""

from collections.abc import Iterator, Mapping
from typing import cast

import torch
from safetensors import safe_open
from torch import Tensor

from ..pretrained.checkpoint import Checkpoint
from .blocks import FusedBlock, SwiGLU
from .transformer import Transformer


@torch.no_grad()
def load_pretrained(transformer: Transformer, checkpoint: Checkpoint) -> None:
    """Copy the checkpoint's weights, in place. Parameters of the encoding keep their values.

    Attention rotates channel c with channel c + D/2. Where the checkpoint pairs neighbouring channels, the rows of the
    query and key projections are permuted: all scores stay the same.

    Raises:
        ValueError: the model has another size.
        OSError, SafetensorError: a file cannot be read.
    """
    for role, name, target in places(transformer, checkpoint.names):
        weight = _read(checkpoint, name)
        if checkpoint.adjacent and role in ("query", "key"):
            pairs = weight.unflatten(0, (-1, checkpoint.sizes["head_dim"] // 2, 2))  # [H, D/2, 2, C]
            weight = pairs.transpose(1, 2).flatten(0, 2)
        if weight.shape != target.shape:
            raise ValueError(f"{name} has the shape {list(weight.shape)}, but the model needs {list(target.shape)}")
        target.copy_(weight)


def places(transformer: Transformer, names: Mapping[str, str]) -> Iterator[tuple[str, str, Tensor]]:
    """Role, name in a file, and parameter (or rows of it) of each weight; `names` as in `Checkpoint`."""
    outer = {"embedding": transformer.embedding.weight, "norm": transformer.norm.weight}
    if transformer.head.weight is not transformer.embedding.weight:
        outer["head"] = transformer.head.weight
    yield from ((role, names[role], target) for role, target in outer.items())
    for layer, block in enumerate(transformer.blocks):
        block = cast("FusedBlock", block)
        attention, mlp = block.attention, cast("SwiGLU", block.mlp)
        inner = {
            **{"attention_norm": block.attention_norm.weight, "mlp_norm": block.mlp_norm.weight},
            **{"output": attention.output.weight, "down": mlp.down.weight},
            **attention.qkv.parts(),
            **mlp.gate_up.parts(),
        }
        yield from ((role, names[role].format(layer), target) for role, target in inner.items())


def _read(checkpoint: Checkpoint, name: str) -> Tensor:
    """A weight in float32."""
    if checkpoint.array is not None:
        return torch.from_numpy(checkpoint.array(name))
    with safe_open(str(checkpoint.shards[name]), "pt") as file:
        return file.get_tensor(name).float()
