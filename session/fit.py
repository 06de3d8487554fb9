"""The training of a run, from its newest checkpoint to its last step; imports Lightning."""

import signal
import threading
from collections.abc import Callable
from pathlib import Path

import torch
from lightning.pytorch.loggers import TensorBoardLogger

from ..core.errors import UserError, one_line
from ..core.progress import shown
from ..domains.records import Records
from ..domains.store import Store
from ..lightning_modules.callbacks import ProgressLine, Validation, mean_diagnostics
from ..lightning_modules.fitting import FittedData, FittedModel, build_trainer
from ..lightning_modules.language_model import LanguageModel
from ..lightning_modules.metrics_csv import MetricsCSV
from ..lightning_modules.rank_watch import watch_ranks
from ..lightning_modules.ranks import lost_touch
from .run_directory import RunDirectory
from .session import DamagedCheckpointError, Session, read_checkpoint


def fit(session: Session, run: RunDirectory, store: Store, model: LanguageModel, graphs: bool, first: bool) -> None:
    """Train `model` from the newest checkpoint on; it is validated, and its checkpoints are kept, on the way.

    Args:
        graphs: replay the steps as CUDA graphs; first: this is rank 0.

    Raises:
        DivergedError, InterruptedRunError: as `Validation`.
        UserError: another rank was lost, or no checkpoint can be read.
    """
    settings, model = session.settings, FittedModel.of(model)
    checkpoint, step = last_good_checkpoint(session, run, store.manifest["vocabulary"])
    if checkpoint is not None:
        session.console.print(f"going on after step {step} of {settings.steps}")
    stamp = {group: dict(session.config[group]) for group in ("encoding", "model")}
    if session.compiled(model.transformer):
        torch.compiler.reset()  # what earlier runs of a sweep compiled counts towards a limit
        model.transformer.compile_parts()
    if graphs:
        model.replay_steps(session.data.length, required=settings.cuda_graphs is True)

    def validate(module: LanguageModel, on_batch: Callable[[int, int], None]) -> Records:
        # Windows come in many shapes, each of which would be compiled anew.
        with (
            torch.compiler.set_stance("force_eager"),
            shown("validating", console=session.console, bar=False) as report,
        ):

            def both(done: int, total: int) -> None:
                report(done, total)
                on_batch(done, total)

            tokens = session.evaluation.validation_tokens
            return session.evaluation.score(module.transformer, store, "valid", both, tokens=tokens)

    validation = Validation(
        validate,
        run.best.parent,
        settings.validate_every,
        settings.checkpoint_every,
        stamp,
    )
    flops = 3 * model.transformer.flops_per_token(session.data.length)
    progress = ProgressLine(validation, session.domain.units[0], flops, session.console)
    columns = [
        *("train_nll", "valid_nll", *(f"valid_bits_per_{u}" for u in session.domain.units), "valid_accuracy"),
        *("learning_rate", "gradient_norm", "tokens_per_s", "data_wait", "mfu", *mean_diagnostics(model)),
    ]
    loggers = [
        MetricsCSV(run.path / "metrics.csv", columns, step),
        TensorBoardLogger(run.path, name="", version="tensorboard"),
    ]
    if settings.wandb:
        from lightning.pytorch.loggers import WandbLogger

        loggers.append(WandbLogger(project="bearings", save_dir=run.path, name=str(run.path), id=run.path.name))
    torch.manual_seed(session.config["seed"])
    trainer = build_trainer(settings, run.path, [progress, validation], loggers)
    threading.excepthook = without_os_errors
    watch_ranks(trainer)
    cuda = settings.device.type == "cuda"
    if cuda:
        torch.cuda.reset_peak_memory_stats(settings.device)
    handler = signal.getsignal(signal.SIGINT)
    try:
        trainer.fit(model, FittedData(session.data.use(store)), ckpt_path=checkpoint, weights_only=True)
    except SystemExit as end:
        # Lightning's answer to KeyboardInterrupt, after which Ctrl-C would do nothing.
        if not isinstance(end.__context__, KeyboardInterrupt):
            raise
        signal.signal(signal.SIGINT, handler)
        raise KeyboardInterrupt from end
    except RuntimeError as error:
        if lost_touch(error):
            raise UserError(
                f"rank {trainer.global_rank} lost touch with another, which may have been killed or run out of "
                f"memory ({one_line(error)}): rerun the same command to resume from the last "
                "checkpoint"
            ) from error
        raise
    if validation.asked_to_stop:  # during the last step
        raise KeyboardInterrupt
    if cuda and first:
        peak = torch.cuda.max_memory_allocated(settings.device)  # of this session, which may have come for the end only
        run.write_manifest(peak_memory_bytes=max(peak, run.manifest.get("peak_memory_bytes", 0)))


def last_good_checkpoint(session: Session, run: RunDirectory, vocabulary: int) -> tuple[Path | None, int]:
    """The newest checkpoint that can be read, and its step; None and 0 where there is none yet.

    Raises:
        UserError: there are some, and none can be read.
    """
    there = [path for path in (run.last, run.previous) if path.exists()]
    for path in there:
        try:
            return path, read_checkpoint(path, session.config, vocabulary)["global_step"]
        except DamagedCheckpointError:
            if path == there[-1]:
                raise
            session.console.print(f"{path} is damaged: taking the one before it", soft_wrap=True)
    return None, 0


def without_os_errors(arguments: threading.ExceptHookArgs) -> None:
    """TensorBoard writes from a thread; on a full disk the main thread meets the same error and says it in a line."""
    if not issubclass(arguments.exc_type, OSError):
        threading.__excepthook__(arguments)
