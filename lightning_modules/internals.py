"""Uses of Lightning's undocumented attributes; new versions of Lightning may require changes here."""

import subprocess
from collections.abc import Callable, Sequence

from lightning.pytorch import Trainer
from lightning.pytorch.strategies.launchers import subprocess_script


def count_step(trainer: Trainer) -> None:
    """Count an optimiser step replayed as a CUDA graph; Lightning counts only calls of its optimiser."""
    progress = trainer.fit_loop.epoch_loop.manual_optimization.optim_step_progress
    progress.increment_ready()
    progress.increment_completed()


def log_every(trainer: Trainer) -> int:
    """Steps between two logs: the Trainer's argument `log_every_n_steps`."""
    return trainer.log_every_n_steps  # pyright: ignore[reportAttributeAccessIssue]


def leave_signals_alone(trainer: Trainer) -> None:
    """Turn off Lightning's communication about signals between ranks."""
    # One synchronises with the GPU at every step; Validation does so only at steps that log.
    trainer.fit_loop.epoch_loop._broadcast_sigterm_tensor = lambda: None
    # The other hangs, as ranks that missed the signal never join it.
    trainer._signal_connector._sigterm_notifier_fn = lambda signum, _: None


def observe_children(observe: Callable[[Sequence[subprocess.Popen]], None]) -> None:
    """Call `observe` with the processes of ranks 1, 2, ...; Lightning's observer would kill this process silently."""
    subprocess_script._launch_process_observer = observe  # pyright: ignore[reportPrivateImportUsage]
