"""task=train: prepare the data, train, score the test split once, write samples, print one table."""

import csv
import math
import signal
import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

import torch
from lightning.pytorch.loggers import TensorBoardLogger
from lightning.pytorch.utilities import rank_zero_only

from bearings.errors import DivergedError, UserError
from bearings.lightning_modules.callbacks import ProgressLine, Validation, mean_diagnostics
from bearings.lightning_modules.evaluation import Records
from bearings.lightning_modules.language_model import LanguageModel
from bearings.lightning_modules.metrics_csv import MetricsCSV
from bearings.lightning_modules.rank_watch import watch_ranks
from bearings.lightning_modules.ranks import lost_touch
from bearings.lightning_modules.sampling import check_sampling
from bearings.tasks.evaluate import score
from bearings.tasks.generate import settled, write_answers, write_samples
from bearings.tasks.house import DamagedCheckpointError, House, read_checkpoint
from bearings.tasks.mechanisms import write_mechanisms
from bearings.tasks.plots import plot_losses
from bearings.tasks.run_directory import RunDirectory
from bearings.tasks.tables import facts, print_facts, print_results


class Train:
    """Train a run, or go on with it, or show what it found.

    Args:
        samples: pieces to write at the end; sample_tokens: their length in tokens.
        temperature, top_k, top_p: as in task=generate.
    """

    def __init__(
        self,
        samples: int = 2,
        sample_tokens: int = 512,
        temperature: float = 1.0,
        top_k: int | None = None,
        top_p: float | None = None,
    ):
        if samples < 0:
            raise ValueError(f"samples={samples}: it must be 0 or more")
        check_sampling(sample_tokens, temperature, top_k, top_p)
        self.samples, self.tokens = samples, sample_tokens
        self.settings = {"temperature": temperature, "top_k": top_k, "top_p": top_p}

    def __call__(self, house: House) -> None:
        run = RunDirectory.of(house.config)
        store = house.store()
        model = house.model_in_place(store.manifest["vocabulary"], training=True)
        house.console.print(f"[bold]bearings[/bold]  {run.path}")
        memory = house.step_memory(model.transformer)
        graphs = house.cuda_graphs(model.transformer, memory)
        lines = facts(house, store, model, memory, graphs)
        print_facts(house, lines)
        first = rank_zero_only.rank == 0
        run.check_data(store.manifest)
        if first and (changed := run.changed_source()):
            house.console.print(changed, soft_wrap=True)
        if not run.manifest.get("finished"):
            house.refuse_too_large_a_step(memory)
            with ExitStack() as held:
                if first:
                    held.enter_context(run.claimed(12.0 * model.transformer.parameter_count()))
                    held.enter_context(run.failure_recorded())
                    compiled = house.compiled(model.transformer)
                    run.describe(store.manifest, house.settings, lines["attention"], compiled, graphs[0])
                self._fit(house, run, store, model, graphs[0], first)
                self._finish(house, run, store, first)
        else:
            house.console.print("already finished: showing what it found (delete the directory to train it again)")
        if first:
            self._show(house, run, store)

    def _fit(self, house: House, run: RunDirectory, store, model: LanguageModel, graphs: bool, first: bool) -> None:
        settings = house.settings
        checkpoint, step = last_good_checkpoint(house, run)
        if checkpoint is not None:
            house.console.print(f"going on after step {step} of {settings.steps}")
        stamp = {group: dict(house.config[group]) for group in ("encoding", "model")}
        if house.compiled(model.transformer):
            torch.compiler.reset()  # what earlier runs of a sweep compiled counts towards a limit
            model.transformer.compile_parts()
        if graphs:
            model.replay_steps(house.data.length, required=settings.cuda_graphs is True)

        def validate(module: LanguageModel, on_batch: Callable[[int, int], None]) -> Records:
            # Windows come in many shapes, each of which would be compiled anew.
            with torch.compiler.set_stance("force_eager"):
                return house.evaluation.score(
                    module.transformer, store, "valid", on_batch, tokens=house.evaluation.validation_tokens
                )

        validation = Validation(
            validate,
            run.best.parent,
            settings.validate_every,
            settings.checkpoint_every,
            stamp,
        )
        flops = 3 * model.transformer.flops_per_token(house.data.length)
        progress = ProgressLine(validation, house.domain.units[0], flops, house.console)
        columns = [
            *("train_nll", "valid_nll", *(f"valid_bits_per_{u}" for u in house.domain.units), "valid_accuracy"),
            *("learning_rate", "gradient_norm", "tokens_per_s", "data_wait", "mfu", *mean_diagnostics(model)),
        ]
        loggers = [
            MetricsCSV(run.path / "metrics.csv", columns, step),
            TensorBoardLogger(run.path, name="", version="tensorboard"),
        ]
        if settings.wandb:
            from lightning.pytorch.loggers import WandbLogger

            loggers.append(WandbLogger(project="bearings", save_dir=run.path, name=str(run.path), id=run.path.name))
        torch.manual_seed(house.config["seed"])
        trainer = settings.build(run.path, [progress, validation], loggers)
        threading.excepthook = without_os_errors
        watch_ranks(trainer)
        cuda = settings.device.type == "cuda"
        if cuda:
            torch.cuda.reset_peak_memory_stats(settings.device)
        handler = signal.getsignal(signal.SIGINT)
        try:
            trainer.fit(model, house.data.use(store), ckpt_path=checkpoint, weights_only=True)
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
                    f"memory ({' '.join(str(error).split())[:200]}): the same command goes on from the last checkpoint"
                ) from error
            raise
        if validation.asked_to_stop:  # during the last step
            raise KeyboardInterrupt
        if cuda and first:
            run.write_manifest(peak_memory_bytes=torch.cuda.max_memory_allocated(settings.device))

    def _finish(self, house: House, run: RunDirectory, store, first: bool) -> None:
        if not run.best.exists():
            if validated(run):
                raise UserError(f"{run.best} was lost: delete {run.path} and train the run again")
            raise DivergedError(f"{run.path}: no validation score was finite, so there is no best checkpoint to test")
        transformer = house.load(run.best, store.manifest["vocabulary"])
        for split in self.scored(house):
            records = score(house, transformer, store, split)
            if first:
                records.save(run.records(split))
        if not first:
            return
        if self.samples and house.domain.solved is not None:
            write_answers(house, transformer, store, self.samples, run.path / "samples")
        elif self.samples:
            settings = settled(house.domain, self.settings)
            prompt = torch.full((self.samples, 1), house.domain.start)
            write_samples(house, transformer, prompt, self.tokens, run.path / "samples", "sample", **settings)
        write_mechanisms(house, transformer, store, run.mechanisms)
        plot_losses(run.path / "metrics.csv", run.path / "plots" / "loss", house.config["names"])
        run.write_manifest(finished=True)

    def scored(self, house: House) -> Sequence[str]:
        """Splits that the trained model is scored on."""
        return house.domain.splits[1:]

    def _show(self, house: House, run: RunDirectory, store) -> None:
        for split in house.domain.splits[2:]:
            file = run.records(split)
            if not file.exists():  # task=tune leaves it unscored
                score(house, house.load(run.best, store.manifest["vocabulary"]), store, split).save(file)
            print_results(
                house,
                run,
                store,
                split,
                Records.load(file),
                f"{split} split, scored once with the checkpoint best on validation",
            )
        written = [*sorted((run.path / "samples").glob("*")), *sorted((run.path / "plots").glob("*"))]
        for path in written:
            house.console.print(f"wrote {path}", soft_wrap=True)


def last_good_checkpoint(house: House, run: RunDirectory) -> tuple[Path | None, int]:
    """The newest checkpoint that can be read, and its step; None and 0 where there is none yet.

    Raises:
        UserError: there are some, and none can be read.
    """
    there = [path for path in (run.last, run.previous) if path.exists()]
    for path in there:
        try:
            return path, read_checkpoint(path, house.config)["global_step"]
        except DamagedCheckpointError:
            if path == there[-1]:
                raise
            house.console.print(f"{path} is damaged: taking the one before it", soft_wrap=True)
    return None, 0


def validated(run: RunDirectory) -> bool:
    """Whether a validation score of the run was finite."""
    with open(run.path / "metrics.csv", newline="") as file:
        return any(row["valid_nll"] and math.isfinite(float(row["valid_nll"])) for row in csv.DictReader(file))


def without_os_errors(arguments: threading.ExceptHookArgs) -> None:
    """TensorBoard writes from a thread; on a full disk the main thread meets the same error and says it in a line."""
    if not issubclass(arguments.exc_type, OSError):
        threading.__excepthook__(arguments)
