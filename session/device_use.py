"""Counts the other processes that train on a run's devices: its speed is then not comparable."""

import os
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from uuid import uuid4

import torch
from filelock import FileLock, Timeout
from lightning.pytorch import Callback, Trainer

from ..lightning_modules.internals import log_every
from ..lightning_modules.language_model import LanguageModel
from ..lightning_modules.trainer import TrainerSettings

USER = f"-{os.getuid()}" if hasattr(os, "getuid") else ""  # Windows has a temporary folder for each user


def devices_of(settings: TrainerSettings) -> list[str]:
    """Names of the devices of this machine that a run uses, the same in all processes."""
    if settings.device.type == "cpu":
        return ["cpu"]
    used = range(settings.devices) if settings.ranks > 1 else [settings.device.index]
    return [str(torch.cuda.get_device_properties(device).uuid) for device in used]


class DeviceUse(Callback):
    """Marks `devices` as used during training, and calls `note` with the number of other processes that use them.

    They are counted when training starts and at logging steps, and `note` is called when there are more than before.
    With several devices, the number is that of the device with the most. Processes notice each other if they have the
    same user and the same folder for temporary files, where each holds the lock of a file until it ends.
    """

    def __init__(self, devices: Sequence[str], note: Callable[[int], None]):
        self.devices, self.note, self.most = devices, note, 0
        self._folder = Path(tempfile.gettempdir()) / f"bearings{USER}"
        self._name, self._held = uuid4().hex, ExitStack()

    def on_train_start(self, trainer: Trainer, module: LanguageModel) -> None:
        with suppress(OSError):  # such as a full disk; the others are then not counted
            self._folder.mkdir(mode=0o700, exist_ok=True)
            with self._changing():
                for path in map(self._file_of, self.devices):
                    self._held.callback(path.unlink, missing_ok=True)
                    self._held.enter_context(FileLock(path, timeout=0))
        self._count()

    def on_train_batch_end(self, trainer: Trainer, module: LanguageModel, outputs, batch, batch_idx) -> None:
        if trainer.global_step % log_every(trainer) == 0:
            self._count()

    def on_exception(self, trainer: Trainer, module: LanguageModel, exception: BaseException) -> None:
        self._held.close()

    def teardown(self, trainer: Trainer, module: LanguageModel, stage: str) -> None:
        self._held.close()

    def _count(self) -> None:
        found = 0
        with suppress(OSError), self._changing():
            found = max(self._others(device) for device in self.devices)
        if found > self.most:
            self.most = found
            self.note(found)

    def _others(self, device: str) -> int:
        """Number of other processes that use `device`. The files of those that have ended are deleted."""
        running = 0
        for path in {*self._folder.glob(f"{device}.*")} - {self._file_of(device)}:
            try:
                with FileLock(path, timeout=0):
                    path.unlink(missing_ok=True)
            except Timeout:
                running += 1
        return running

    def _file_of(self, device: str) -> Path:
        return self._folder / f"{device}.{self._name}"

    def _changing(self) -> FileLock:
        """The lock of the folder: a file is neither deleted nor counted while a process creates and locks it."""
        return FileLock(self._folder / ".lock", timeout=1)
