"""Weights in files: read only where they are whole and of the shapes that the configuration's model has."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import load_model
from torch import nn

from ..core.checked_files import check_archive
from ..core.errors import UserError
from ..lightning_modules.transformer import Transformer

DTYPES = {"F32": torch.float32}  # of safetensors files that task=export writes


def read_torch_file(path: Path) -> Any:
    """What `torch.save` has written to `path`, on the CPU, once its checksums are verified: `torch.load` ignores them.

    Raises:
        Exception: the file is damaged, or would run code.
    """
    check_archive(path)
    return torch.load(path, map_location="cpu", weights_only=True)


def difference(outline: nn.Module, found: Mapping[str, tuple[Sequence[int], torch.dtype | None]]) -> str | None:
    """How weights in a file differ from a model's, in words; None where every one has the model's shape and dtype.

    Args:
        outline: the model, without values.
        found: shape and dtype of each weight in the file, by name. Of tied weights one is enough.
    """
    wanted = outline.state_dict(keep_vars=True)  # where tied weights are one tensor
    there = {id(wanted[name]) for name in found if name in wanted}
    if lacking := [name for name, tensor in wanted.items() if id(tensor) not in there]:
        return f"it lacks {lacking[0]}"
    if unknown := [name for name in found if name not in wanted]:
        return f"it holds {str(unknown[0])[:60]}, which the model does not have"
    for name, model in wanted.items():
        shape, dtype = found.get(name, (model.shape, model.dtype))
        if tuple(shape) != tuple(model.shape) or dtype != model.dtype:
            return f"it holds {name} as {dtype} {list(shape)}, the model has {model.dtype} {list(model.shape)}"
    return None


def load_weights(outline: nn.Module, build: Callable[[], Transformer], path: Path) -> Transformer:
    """The model that `build` makes, with the weights in a safetensors file.

    Nothing as large as the model is allocated before the file's header is known to fit its `outline`.

    Raises:
        UserError: the file has weights of other names or shapes; names it.
        OSError, ValueError, SafetensorError: it cannot be read.
    """
    if path.exists() and not path.is_file():
        raise ValueError("it is not a regular file")
    with safe_open(str(path), "pt") as file:
        slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118
        kinds = {name: (each.get_shape(), DTYPES.get(each.get_dtype())) for name, each in slices.items()}
    if other := difference(outline, kinds):
        raise UserError(f"{path} does not fit config.yaml: {other}: copy both files from one export")
    transformer = build()
    load_model(transformer, str(path))
    return transformer
