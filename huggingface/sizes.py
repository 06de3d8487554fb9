"""The sizes of a model, by the names that `transformers` uses."""

from collections.abc import Mapping
from typing import Any, cast

from ..lightning_modules.transformer import Transformer
from .names import MODEL


def sizes_of(transformer: Transformer, given: Mapping[str, Any]) -> dict[str, Any]:
    """The vocabulary and the options of a model, with values for options that are null.

    Args:
        transformer: the model.
        given: its options, the group `model` of the configuration.
    """
    encoding, block = transformer.encodings[0], cast("Any", transformer.blocks[0])
    known = {
        "head_dim": encoding.head_dim,
        "kv_heads": given["heads"] if given["kv_heads"] is None else given["kv_heads"],
        "mlp_hidden": block.mlp.down.in_features,
    }
    vocabulary = transformer.embedding.num_embeddings
    return {"vocab_size": vocabulary, **{name: known.get(option, given[option]) for option, name in MODEL.items()}}
