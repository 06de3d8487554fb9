"""Writes checkpoints directly to disk."""

from pathlib import Path
from typing import Any

import torch
from lightning.fabric.plugins import TorchCheckpointIO


class CheckpointWriter(TorchCheckpointIO):
    """Writes tensor by tensor; Lightning builds the whole file in memory first, which takes twice as long or longer.

    The caller writes to a temporary file and renames it.
    """

    def save_checkpoint(self, checkpoint: dict[str, Any], path: str | Path, storage_options: None = None) -> None:
        """Write `checkpoint` to `path`. Raises OSError if the file cannot be written."""
        Path(path).unlink(missing_ok=True)  # left by a killed run; a link is not followed
        with open(path, "xb") as file:
            try:
                torch.save(checkpoint, file)
            except RuntimeError as error:
                if isinstance(error.__context__, OSError):  # the cause; PyTorch only reports `unexpected pos`
                    raise error.__context__ from error
                raise
