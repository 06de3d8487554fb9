"""The model of a configuration: builds it, reads its checkpoints, and describes it for reports."""

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from ..core.checked_files import why
from ..core.errors import UserError
from ..core.options import options_of
from ..domains.clocks import Clock
from ..lightning_modules.outline import outlined
from ..lightning_modules.transformer import Transformer
from .configuration import build
from .identity import decisive, portable
from .settings import declared
from .weights import difference, read_torch_file


def build_transformer(
    config: Mapping, vocabulary: int, checkpointing: bool = False, clock: Callable[[], Clock | None] | None = None
) -> Transformer:
    """An untrained Transformer from the `model` and `encoding` groups of a configuration; see it for the arguments."""
    return build(
        config["model"],
        "model",
        vocabulary=vocabulary,
        encoding=partial(build, config["encoding"], "encoding"),
        seed=config["seed"],
        checkpointing=checkpointing,
        clock=clock,
    )


class DamagedCheckpointError(UserError):
    """A checkpoint that cannot be read."""


def read_checkpoint(path: Path, config: Mapping, vocabulary: int) -> dict:
    """Load a checkpoint to the CPU and check that it belongs to `config`'s encoding and model.

    The names in its `state_dict` are those of the Transformer.

    Raises:
        DamagedCheckpointError: it cannot be read.
        UserError: it is missing, belongs to another encoding or model, or comes from a version with other weights.
    """
    if not path.exists():
        raise UserError(
            f"{path} does not exist: rerun the command that started the run; if the run is finished, the file was "
            f"lost: delete {path.parent.parent} and train the run again"
        )
    try:
        checkpoint = read_torch_file(path)
        made_by = {group: decisive(group, checkpoint["bearings"][group]) for group in ("encoding", "model")}
        weights = {name.removeprefix("transformer."): tensor for name, tensor in checkpoint["state_dict"].items()}
        kinds = {name: (tensor.shape, tensor.dtype) for name, tensor in weights.items()}
        step = checkpoint["global_step"]
        if type(step) is not int or step < 0:
            raise ValueError(f"global_step={step}")
    except Exception as error:
        raise DamagedCheckpointError(
            f"{path} is damaged or not a checkpoint of this project ({why(error)}): delete "
            f"{path.parent.parent if path.name == 'best.ckpt' else 'it'} and train the run again"
        ) from error
    for group, made in made_by.items():
        if made != decisive(group, config[group]):
            raise UserError(
                f"{path} was trained with {group} {made}, but the configuration has {dict(config[group])}: use the "
                "run's own configuration"
            )
    with outlined():
        other = difference(build_transformer(config, vocabulary), kinds)
    if other:
        raise UserError(
            f"{path} was written by another version of this project, whose model has other weights ({other}): train "
            "the run again in another folder (runs=DIRECTORY), or use the version whose commit is in manifest.json"
        )
    return {**checkpoint, "state_dict": weights}


def model_facts(config: Mapping, transformer: Transformer) -> dict[str, Any]:
    """Facts about the model for reports: size, cost, and the encoding's non-default options."""
    given = portable("encoding", config["encoding"])
    options = options_of(declared(given["_target_"], "encoding"))
    return {
        "parameters": transformer.parameter_count(),
        "flops_per_token": transformer.training_flops_per_token(config["data"]["length"]),
        "options": {key: given[key] for key in given if key in options and given[key] != options[key].default},
    }
