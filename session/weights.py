"""Reads weights from files after checking that they are undamaged and fit the configuration's model."""

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

DTYPES = {"F32": torch.float32}  # in the safetensors files of task=export


def read_torch_file(path: Path) -> Any:
    """Load a file of `torch.save` to the CPU after verifying its checksums, which `torch.load` ignores.

    Raises:
        Exception: the file is damaged or contains code.
    """
    check_archive(path)
    return torch.load(path, map_location="cpu", weights_only=True)


def difference(outline: nn.Module, found: Mapping[str, tuple[Sequence[int], torch.dtype | None]]) -> str | None:
    """How the weights in a file differ from a model's, in words; None if all shapes and dtypes agree.

    Args:
        outline: the model, without values.
        found: shape and dtype of each weight in the file, by name. One name is enough for tied weights.
    """
    wanted = outline.state_dict(keep_vars=True)  # tied weights are one tensor here
    there = {id(wanted[name]) for name in found if name in wanted}
    if lacking := [name for name, tensor in wanted.items() if id(tensor) not in there]:
        return f"{lacking[0]} is missing"
    if unknown := [name for name in found if name not in wanted]:
        return f"the model has no {str(unknown[0])[:60]}"
    for name, model in wanted.items():
        shape, dtype = found.get(name, (model.shape, model.dtype))
        if tuple(shape) != tuple(model.shape) or dtype != model.dtype:
            return f"{name} is {dtype} {list(shape)}, but {model.dtype} {list(model.shape)} in the model"
    return None


def load_weights(outline: nn.Module, build: Callable[[], Transformer], path: Path) -> Transformer:
    """Build the model and load its weights from a safetensors file.

    The file's header is compared with `outline` first, so that a wrong file allocates no large memory.

    Raises:
        UserError: the file's weights have other names or shapes.
        OSError, ValueError, SafetensorError: the file cannot be read.
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
