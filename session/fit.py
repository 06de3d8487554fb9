"""Train a run from its newest checkpoint to its last step. Imports Lightning."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import torch
from lightning.pytorch import Trainer
from lightning.pytorch.loggers import TensorBoardLogger, WandbLogger
from lightning.pytorch.loggers.logger import Logger

from ..core.errors import UserError, one_line
from ..core.progress import shown
from ..domains.records import Records
from ..domains.store import Store
from ..domains.unit_labels import unit_label
from ..lightning_modules.callbacks import ProgressLine, Validation, mean_diagnostics
from ..lightning_modules.context_parallel import ContextParallel
from ..lightning_modules.data_module import loader_died
from ..lightning_modules.fitting import FittedData, FittedModel, build_trainer
from ..lightning_modules.language_model import LanguageModel
from ..lightning_modules.metrics_csv import MetricsCSV
from ..lightning_modules.rank_watch import watch_ranks
from ..lightning_modules.ranks import lost_touch
from .conversion import conversion_of, start_from
from .device_use import DeviceUse, devices_of
from .models import DamagedCheckpointError, read_checkpoint
from .run_directory import RunDirectory
from .session import Session


def fit(session: Session, run: RunDirectory, store: Store, model: LanguageModel, graphs: bool, first: bool) -> None:
    """Train `model`, resuming from the newest checkpoint, with validation and checkpoints along the way.

    Args:
        graphs: replay the steps as CUDA graphs.
        first: this process is rank 0.

    Raises:
        DivergedError, InterruptedRunError: see `Validation`.
        UserError: another rank or a process of the loader was lost, or no checkpoint can be read.
    """
    settings, model = session.settings, FittedModel.of(model)
    checkpoint, step, validated_step = last_good_checkpoint(session, run, store.manifest["vocabulary"])
    if first:
        run.note_start(step)
    if checkpoint is not None:
        session.console.print(f"resuming after step {step:,} of {settings.steps:,}")
    elif "pretrained" in session.config:
        start_from(session, model.transformer)
    _prepare(session, model, store.manifest["vocabulary"], graphs)

    stamp = {group: dict(session.config[group]) for group in ("encoding", "model")}
    intervals = settings.validate_every, settings.checkpoint_every
    validation = Validation(partial(_validate, session, store), run.best.parent, *intervals, stamp)
    unit = unit_label(session.domain.name, session.domain.units[0])
    flops = model.transformer.training_flops_per_token(session.data.length)
    progress = ProgressLine(validation, unit, flops, session.console)
    loggers = _loggers(session, run, _columns(session, model), step, validated_step)
    torch.manual_seed(session.config["seed"])
    callbacks = [progress, validation, *([DeviceUse(devices_of(settings), run.note_beside)] if first else [])]
    trainer = build_trainer(settings, run.path, callbacks, loggers)
    threading.excepthook = without_os_errors
    watch_ranks(trainer)
    cuda = settings.device.type == "cuda"
    if cuda:
        torch.cuda.reset_peak_memory_stats(settings.device)
    with _explained(trainer):
        data = FittedData(session.data.use(store), settings.context_parallel)
        trainer.fit(model, data, ckpt_path=checkpoint, weights_only=True)
    if validation.asked_to_stop:  # during the last step
        raise KeyboardInterrupt
    if cuda and first:
        peak = torch.cuda.max_memory_allocated(settings.device)  # in this process: it may have run only the last steps
        run.write_manifest(peak_memory_bytes=max(peak, run.manifest.get("peak_memory_bytes", 0)))


def _prepare(session: Session, model: FittedModel, vocabulary: int, graphs: bool) -> None:
    """Set up how `model` computes its steps: conversion, context parallelism, compilation and CUDA graphs."""
    settings = session.settings
    if (conversion := conversion_of(session, vocabulary)) is not None:
        model.convert(conversion)
    if settings.context_parallel > 1:
        model.context = ContextParallel(settings.context_parallel)
    if session.compiled(model.transformer):
        torch.compiler.reset()  # code compiled by earlier runs of a sweep counts towards a limit
        whole = settings.context_parallel == 1  # otherwise attention is not compiled
        whole &= all(plan.by_kernel for plan in session.plans(model.transformer))
        model.transformer.compile_parts(whole)
    if graphs:
        bounded = any(plan.implementation == "fa4" for plan in session.plans(model.transformer))
        model.replay_steps(session.data.length, settings.cuda_graphs is True, bounded)


def _validate(session: Session, store: Store, module: LanguageModel, on_batch: Callable[[int, int], None]) -> Records:
    """Score the validation split, and print the result."""
    # Windows come in many shapes, and each would be compiled separately.
    with (
        torch.compiler.set_stance("force_eager"),
        shown("validating", console=session.console, bar=False) as report,
    ):

        def both(done: int, total: int) -> None:
            report(done, total)
            on_batch(done, total)

        tokens = session.evaluation.validation_tokens
        records = session.evaluation.score(module.transformer, store, "valid", both, tokens=tokens)
    unit = session.domain.units[0]
    bits = f"{records.bits_per_unit[unit]:.3f} bits/{unit_label(session.domain.name, unit)}"
    scores = f"{records.nats_per_token:.4f} nats/token, {bits}"
    session.console.print(f"validation at step {module.global_step}: {scores}")
    return records


def _columns(session: Session, model: FittedModel) -> list[str]:
    """The metrics of metrics.csv."""
    return [
        *("train_nll", *(() if model.conversion is None else ("match_loss", "distil_loss"))),
        *("valid_nll", *(f"valid_bits_per_{unit}" for unit in session.domain.units), "valid_accuracy"),
        *("learning_rate", "gradient_norm", "tokens_per_s", "data_wait", "mfu"),
        *(*model.auxiliary_names, *mean_diagnostics(model)),
    ]


def _loggers(session: Session, run: RunDirectory, columns: list[str], step: int, validated_step: int) -> list[Logger]:
    loggers: list[Logger] = [
        MetricsCSV(run.path / "metrics.csv", columns, step, validated_step),
        TensorBoardLogger(run.path, name="", version="tensorboard"),
    ]
    if session.settings.wandb:
        given = {"name": str(run.path), "id": run.path.name, "config": dict(session.config)}
        loggers.append(WandB(project="bearings", save_dir=run.path, **given))
    return loggers


class WandB(WandbLogger):
    """Ends its W&B run with the training; otherwise the next run of a sweep would log to it."""

    def finalize(self, status: str) -> None:
        super().finalize(status)
        import wandb  # pyright: ignore[reportMissingImports]  # late: it is optional

        wandb.finish(exit_code=0 if status == "success" else 1)


@contextmanager
def _explained(trainer: Trainer) -> Iterator[None]:
    """Undo Lightning's handling of KeyboardInterrupt, and raise UserError if another rank or a loader was lost."""
    handler = signal.getsignal(signal.SIGINT)
    try:
        yield
    except SystemExit as end:
        # Lightning turns KeyboardInterrupt into SystemExit and leaves SIGINT ignored.
        if not isinstance(end.__context__, KeyboardInterrupt):
            raise
        signal.signal(signal.SIGINT, handler)
        raise KeyboardInterrupt from end
    except (RuntimeError, ConnectionError, EOFError) as error:
        if lost_touch(error):
            raise UserError(
                f"rank {trainer.global_rank} lost its connection to another rank, which failed with its own message, "
                f"was killed or ran out of memory ({one_line(error)}): rerun the same command to resume from the last "
                "checkpoint"
            ) from error
        if loader_died(error):
            raise UserError(
                f"a process that loads training data was killed ({one_line(error)}), perhaps because memory or shared "
                "memory (/dev/shm) ran out: free some, or set data.workers to a lower number, and rerun the same "
                "command to resume from the last checkpoint"
            ) from error
        raise


def last_good_checkpoint(session: Session, run: RunDirectory, vocabulary: int) -> tuple[Path | None, int, int]:
    """The newest readable checkpoint, its step and that of its last validation; None, 0 and -1 without one.

    Raises:
        UserError: there are checkpoints, but none can be read.
    """
    there = [path for path in (run.last, run.previous) if path.exists()]
    for path in there:
        try:
            found = read_checkpoint(path, session.config, vocabulary)
            return path, found["global_step"], found["callbacks"][Validation.__qualname__]["validated_step"]
        except DamagedCheckpointError:
            if path == there[-1]:
                raise
            session.console.print(f"{path} is damaged: using the previous checkpoint")
    return None, 0, -1


def without_os_errors(arguments: threading.ExceptHookArgs) -> None:
    """Silence OSErrors in TensorBoard's thread: on a full disk the main thread reports the same error in one line."""
    if not issubclass(arguments.exc_type, OSError):
        threading.__excepthook__(arguments)
