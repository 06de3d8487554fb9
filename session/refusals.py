"""Combinations of settings that cannot work, each refused in one line."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

from ..core.errors import UserError
from ..encodings.families.positional import PositionalEncoding
from ..lightning_modules.context_parallel import unsupported
from ..lightning_modules.data_module import DataModule
from ..lightning_modules.trainer import TrainerSettings
from ..lightning_modules.transformer import Transformer

PROBED = 100  # tokens to look for leaks in; not a multiple of the chunks that implementations use


def refuse_unshared_rows(settings: TrainerSettings, data: DataModule, transformer: Transformer) -> None:
    """Raise UserError if `trainer.context_parallel` asks for rows that this model or its data cannot share.

    Raises ValueError if `encoding.implementation` cannot be used.
    """
    if settings.context_parallel == 1:
        return
    reason = unsupported(transformer, settings.device)
    if data.several_documents:
        two = "a data.length shorter than two examples"
        reason = f"a row can hold several documents: use data.packed=false, or {two}"
    if settings.anneal_steps + settings.match_steps + settings.distil_steps:
        reason = "models are converted on whole rows"
    if reason is not None:
        raise UserError(f"trainer.context_parallel={settings.context_parallel}: {reason}")


def refuse_missing_axes(transformer: Transformer) -> None:
    """Raise ValueError if an encoding uses more axes of the medium's positions than there are."""
    there = 2 if transformer.medium is None else transformer.medium.axes
    for encoding in transformer.encodings:
        if isinstance(encoding, PositionalEncoding) and encoding.clock == "medium" and encoding.axes > there:
            raise ValueError(
                f"clock=medium: {type(encoding).__name__} needs {encoding.axes} axes, and the positions of this domain "
                f"have {there}: use clock=index"
            )


def refuse_unsound_outputs(transformer: Transformer, length: int) -> None:
    """Raise UserError if outputs of an untrained `transformer` are not finite, or depend on later tokens.

    They may not depend on the number of later tokens either: losses would be meaningless. After the first check, the
    parameters are changed, because initial values can hide a dependence.

    Args:
        transformer: on the CPU, with a vocabulary of at least 2.
        length: length of rows in training.
    """
    kinds = ", ".join(dict.fromkeys(type(encoding).__name__ for encoding in transformer.encodings))
    length = min(PROBED, length, *([] if transformer.longest is None else [transformer.longest]))
    draw = torch.Generator().manual_seed(0)
    transformer.eval()
    with torch.no_grad():
        tokens = torch.randint(2, [1, length], generator=draw)
        if len(wrong := (~transformer.hidden(tokens)[0].isfinite()).any(-1).nonzero()):
            raise UserError(
                f"encoding {kinds}: the output at token {int(wrong[0])} is infinite or not a number, so losses would "
                "be too: look for a division by zero or an overflow"
            )
        for parameter in transformer.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=draw), alpha=0.1)
        outputs = transformer.hidden(tokens)
        for place in filter(None, (length // 3, length - 1)):
            earlier, later = tokens[:, :place], tokens[:, place:]
            for what, row in (
                (f"tokens from {place} on", torch.cat([earlier, 1 - later], 1)),
                ("the number of later tokens", earlier),
            ):
                difference = (transformer.hidden(row)[:, :place] - outputs[:, :place])[0].abs().amax(-1)
                if len(dependent := (difference > 1e-4 * outputs.abs().max()).nonzero()):
                    raise UserError(
                        f"encoding {kinds}: the output at token {int(dependent[0])} depends on {what}, so losses would "
                        "be meaningless: use only earlier tokens"
                    )


def refuse_runs_among_data(config: Mapping, searched: Sequence[Path]) -> None:
    """Raise UserError if runs would be written to a data folder: the next run would read their samples."""
    if begun(config):  # an existing run is read unchanged
        return
    key = "runs" if config.get("run") is None else "run"
    if any(Path(config[key]).resolve().is_relative_to(path.resolve()) for path in searched if path.is_dir()):
        raise UserError(
            f"domain.path={config['domain']['path']}: {key}={config[key]} is inside this folder, and the files of runs "
            f"would be read as data: move the data to a separate folder, or choose another place with {key}=DIRECTORY"
            f"{' (task=tune: task.out=DIRECTORY)' if key == 'runs' else ''}"
        )


def begun(config: Mapping) -> bool:
    """Whether `run=` names an existing run."""
    return config.get("run") is not None and (Path(config["run"]) / "config.yaml").exists()
