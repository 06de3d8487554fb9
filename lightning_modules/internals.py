"""What only Lightning's undocumented attributes can do; a new version of it may need another way here."""

import subprocess
from collections.abc import Callable, Sequence

from lightning.pytorch import Trainer
from lightning.pytorch.strategies.launchers import subprocess_script


def count_step(trainer: Trainer) -> None:
    """Count an optimiser step that was replayed as a CUDA graph: Lightning counts calls of its own optimiser."""
    progress = trainer.fit_loop.epoch_loop.manual_optimization.optim_step_progress
    progress.increment_ready()
    progress.increment_completed()


def log_every(trainer: Trainer) -> int:
    """Steps between two logs, the Trainer's argument `log_every_n_steps`."""
    return trainer.log_every_n_steps  # pyright: ignore[reportAttributeAccessIssue]


def leave_signals_alone(trainer: Trainer) -> None:
    """Do without Lightning's exchanges about signals between ranks."""
    # One waits for the GPU at every step: Validation asks when it logs.
    trainer.fit_loop.epoch_loop._broadcast_sigterm_tensor = lambda: None
    # The other is never joined by ranks that missed the signal.
    trainer._signal_connector._sigterm_notifier_fn = lambda signum, _: None


def observe_children(observe: Callable[[Sequence[subprocess.Popen]], None]) -> None:
    """Call `observe` with the processes of ranks 1, 2, ...: Lightning's own observer kills this one without a word."""
    subprocess_script._launch_process_observer = observe  # pyright: ignore[reportPrivateImportUsage]
