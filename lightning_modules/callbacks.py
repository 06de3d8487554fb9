"""Lightning callbacks: validation, checkpoints, interruption, the check for NaN, and the progress line."""

import math
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path

import torch
from lightning.pytorch import Callback, Trainer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from torch import Tensor

from ..core import stopping
from ..core.errors import DivergedError, InterruptedRunError
from ..core.progress import duration
from ..domains.records import Records
from .cost import peak_flops
from .data_module import IGNORED
from .internals import log_every
from .language_model import LanguageModel
from .ranks import any_of, total, whole

EVERY_S = 15.0  # seconds between printed lines of progress


class Validation(Callback):
    """Scores the validation split every `every` steps and after the last step; saves `best.ckpt` and `last.ckpt`.

    `last.ckpt` is written before each validation, every `checkpoint_every` steps, and after a signal of
    `stopping.heard`. A signal takes effect after the current step, or between two validation batches; a second SIGINT
    stops immediately. The checkpoint before the last one is kept as `previous.ckpt`. With several ranks, the ranks
    agree on a stop at logging steps. A non-finite loss or gradient ends the run before anything is overwritten. Every
    checkpoint stores `stamp` under the key "bearings".

    Raises:
        DivergedError: a loss or gradient was not finite; the message names the step, gradient norm and learning rate.
        InterruptedRunError: a signal requested a stop.
    """

    def __init__(
        self,
        score: Callable[[LanguageModel, Callable[[int, int], None]], Records],
        folder: Path,
        every: int,
        checkpoint_every: int,
        stamp: dict,
    ):
        self.score, self.folder, self.every, self.checkpoint_every = score, folder, every, checkpoint_every
        self.stamp = stamp
        self.best, self.best_step, self.validated_step = float("inf"), -1, -1
        self.records: Records | None = None
        self.seconds = 0.0  # spent on validation and checkpoints since the process started
        self._asked: float | None = None  # time of the first signal

    def state_dict(self) -> dict:
        return {"best": self.best, "best_step": self.best_step, "validated_step": self.validated_step}

    def load_state_dict(self, state: dict) -> None:
        self.best, self.best_step, self.validated_step = (state[key] for key in ("best", "best_step", "validated_step"))

    def on_save_checkpoint(self, trainer: Trainer, module: LanguageModel, checkpoint: dict) -> None:
        checkpoint["bearings"] = self.stamp

    def on_train_start(self, trainer: Trainer, module: LanguageModel) -> None:
        self._handlers = {number: signal.signal(number, self._on_signal) for number in stopping.heard()}
        step = trainer.global_step
        if step and step % self.every == 0 and self.validated_step < step:
            self._validate(trainer, module)

    def on_train_batch_end(self, trainer: Trainer, module: LanguageModel, outputs, batch, batch_idx) -> None:
        step = trainer.global_step
        last = step == trainer.max_steps
        validate = last or step % self.every == 0
        stop = self._ranks_asked_to_stop(trainer, last)
        if validate or stop or step % self.checkpoint_every == 0 or step % log_every(trainer) == 0:
            self._check_finite(module)
        if validate or stop or step % self.checkpoint_every == 0:
            self._save(trainer)
        if validate and not stop:
            self._validate(trainer, module)
        if stop and not last:
            self._stop(trainer)
        if validate and not last:
            self._stop_if_asked(trainer)

    @property
    def asked_to_stop(self) -> bool:
        """Whether this process has received a signal during training."""
        return self._asked is not None

    def _ranks_asked_to_stop(self, trainer: Trainer, last: bool) -> bool:
        if trainer.world_size > 1:
            return (last or trainer.global_step % log_every(trainer) == 0) and any_of(
                self.asked_to_stop, trainer.strategy.root_device
            )
        return self.asked_to_stop

    def _stop_if_asked(self, trainer: Trainer) -> None:
        if trainer.world_size == 1 and self.asked_to_stop:
            self._stop(trainer)

    def _stop(self, trainer: Trainer) -> None:
        if not trainer.is_global_zero:
            raise SystemExit(InterruptedRunError.exit_status)  # rank 0 prints the message
        raise InterruptedRunError(
            f"stopped after step {trainer.global_step} of {trainer.max_steps}: rerun the same command to resume"
        )

    def on_fit_end(self, trainer: Trainer, module: LanguageModel) -> None:
        # A run killed during its last validation resumes with no steps left, so on_train_start is not called.
        if self.validated_step < trainer.global_step:
            module.to(trainer.strategy.root_device)  # Lightning has moved it to the CPU
            self._validate(trainer, module)

    def _validate(self, trainer: Trainer, module: LanguageModel) -> None:
        began = time.perf_counter()
        module.prepare(trainer.global_step)
        self.records = self.score(module, lambda done, total: self._stop_if_asked(trainer))
        self.seconds += time.perf_counter() - began
        self.validated_step = trainer.global_step
        if self.best_step <= module.drop_step < trainer.global_step:
            self.best = float("inf")  # earlier scores belong to the model with positions
        nll = self.records.nats_per_token
        improved = nll < self.best and trainer.global_step >= module.final_from
        if improved:
            self.best, self.best_step = nll, trainer.global_step
        metrics = {"valid_nll": nll}
        for unit, bits in self.records.bits_per_unit.items():
            metrics[f"valid_bits_per_{unit}"] = bits
        if (accuracy := self.records.accuracy) is not None:
            metrics["valid_accuracy"] = accuracy
        # Log first: a run that is killed in between validates again, and `MetricsCSV` drops the first row.
        for logger in trainer.loggers:
            logger.log_metrics(metrics, trainer.global_step)
        self._save(trainer, best=improved)

    def _save(self, trainer: Trainer, best: bool = False) -> None:
        # Write to a temporary file and rename it, so that an interrupted write never replaces a good checkpoint. Rename
        # the best checkpoint first, because the state in `last.ckpt` refers to it.
        began, last = time.perf_counter(), self.folder / "last.ckpt"
        temporary, copy = self.folder / ".last.ckpt", self.folder / ".best.ckpt"
        try:
            trainer.save_checkpoint(temporary)
            if best and trainer.is_global_zero:
                copy.unlink(missing_ok=True)
                shutil.copyfile(temporary, copy)
        except OSError as error:
            for path in (temporary, copy):
                path.unlink(missing_ok=True)
            raise OSError(error.errno, error.strerror, str(last)) from error
        if trainer.is_global_zero:
            if best:
                copy.replace(self.folder / "best.ckpt")
            if last.exists():
                last.replace(self.folder / "previous.ckpt")
            temporary.replace(last)
        trainer.strategy.barrier()
        self.seconds += time.perf_counter() - began

    def _check_finite(self, module: LanguageModel) -> None:
        step, norm = module.trouble.tolist()
        if step == 0:  # no update has been made, so the optimizer is not the cause
            raise DivergedError(
                f"the loss or gradient was not finite at step 0, before the first update (gradient norm {norm:.3g}): "
                "try trainer.precision=32-true or encoding.implementation=torch, and check an encoding of your own"
            )
        if step > 0:
            raise DivergedError(
                f"the loss or gradient was not finite at step {int(step)} (gradient norm {norm:.3g}, learning rate "
                f"{module.learning_rate_at(int(step)):.3g}): lower optimizer.learning_rate or optimizer.clip, or raise "
                f"optimizer.warmup_steps{'; the last good checkpoint is kept' * (self.folder / 'last.ckpt').exists()}",
                int(step),
            )

    def _on_signal(self, number: int, frame) -> None:
        stopping.note(number)
        if self._asked is None:
            self._asked = time.monotonic()
        elif number == signal.SIGINT and time.monotonic() - self._asked > stopping.AGAIN:
            raise KeyboardInterrupt

    def teardown(self, trainer: Trainer, module: LanguageModel, stage: str) -> None:
        for number, handler in self.__dict__.pop("_handlers", {}).items():
            # Lightning may already have restored the earlier handler. If ours stayed, it would keep the run in memory.
            if signal.getsignal(number) == self._on_signal:
                signal.signal(number, handler)


class ProgressLine(Callback):
    """Shows loss, speed, MFU and time left: a live line on a terminal, otherwise a line every EVERY_S seconds.

    Loggers also receive `data_wait`: the fraction of time that the device was idle, waiting for a batch.

    Args:
        validation: the callback whose time for validation and checkpoints is not counted as training time.
        unit: printed name of the natural unit counted in batches; for a batch without units, only nats are shown.
        flops_per_token: FLOPs of the forward and backward pass. If the chip's peak is known, model FLOPs utilisation
            (MFU) is shown.
        console: where the line is printed.
    """

    def __init__(self, validation: Validation, unit: str, flops_per_token: float, console: Console):
        self.validation, self.unit, self.flops, self.console = validation, unit, flops_per_token, console

    def on_train_start(self, trainer: Trainer, module: LanguageModel) -> None:
        self.peak = peak_flops(module.device) if trainer.precision == "bf16-mixed" else None
        self.mark = self._clock()
        self.began = self.printed = (time.perf_counter(), trainer.global_step)
        self.tokens, self.waited, self.idle_since = 0, 0.0, self._clock()
        self.done = torch.cuda.Event() if module.device.type == "cuda" else None
        self.bar = Progress(
            BarColumn(bar_width=8),
            MofNCompleteColumn(),
            TextColumn("{task.fields[text]}"),
            TimeRemainingColumn(compact=True),
            TextColumn("left"),
            console=self.console,
            disable=not self.console.is_terminal,
        )
        self.bar.start()
        self.task = self.bar.add_task("", total=trainer.max_steps, completed=trainer.global_step, text="")

    def on_train_batch_start(self, trainer: Trainer, module: LanguageModel, batch, batch_idx) -> None:
        if self.done is None or self.done.query():
            self.waited += self._clock() - self.idle_since

    def on_train_batch_end(self, trainer: Trainer, module: LanguageModel, outputs, batch, batch_idx) -> None:
        if self.done is not None:
            self.done.record()
        self._log(trainer, module, batch)
        self.idle_since = self._clock()

    def _clock(self) -> float:
        """Seconds, excluding time spent on validation and checkpoints."""
        return time.perf_counter() - self.validation.seconds

    def _log(self, trainer: Trainer, module: LanguageModel, batch) -> None:
        self.tokens += batch["tokens"]
        step = trainer.global_step
        if step % log_every(trainer) and step != trainer.max_steps:
            return
        known = torch.tensor([self.tokens, batch["units"]], dtype=torch.float64, device=module.device)
        counts = total(torch.cat([known, (batch["targets"] != IGNORED).sum()[None]]))
        learnt = module.stage(step - 1)
        name = "train_nll" if learnt == "train" else f"{learnt}_loss"
        figures = {name: module.loss, "gradient_norm": module.gradient_norm, **module.auxiliary}
        figures |= mean_diagnostics(module)
        # Copy everything that is logged from the device at once, because each copy waits for the GPU.
        read = torch.cat([counts, torch.stack([value.detach().double() for value in figures.values()])])
        tokens, units, targets, *values = read.tolist()
        figures = dict(zip(figures, values, strict=True))
        loss = figures[name]
        now = time.perf_counter()
        passed = self._clock() - self.mark
        speed, waited = tokens / passed, self.waited / passed
        self.mark, self.tokens, self.waited = self.mark + passed, 0, 0.0
        metrics = {
            **figures,
            "learning_rate": trainer.optimizers[0].param_groups[0]["lr"],
            "tokens_per_s": speed,
            "data_wait": waited,
        }
        text = f"loss {loss:.4f}"
        if units and learnt == "train":
            text += f"  {loss * targets / units / math.log(2):.3f} bits/{self.unit}"
        text += f"  {speed:,.0f} tokens/s"
        if self.peak:
            metrics["mfu"] = speed * self.flops / (self.peak * trainer.world_size)
            text += f"  MFU {100 * metrics['mfu']:.0f} %"
        for logger in trainer.loggers:
            logger.log_metrics(metrics, step)
        self.bar.update(self.task, completed=step, text=text)
        if not self.console.is_terminal and (now - self.printed[0] > EVERY_S or step == trainer.max_steps):
            left = (now - self.began[0]) / (step - self.began[1]) * (trainer.max_steps - step)
            self.console.print(f"step {step}/{trainer.max_steps}  {text}  {duration(left)} left")
            self.printed = (now, step)

    def on_exception(self, trainer: Trainer, module: LanguageModel, exception: BaseException) -> None:
        self.teardown(trainer, module, "fit")  # before the error is printed; otherwise the bar is redrawn below it

    def teardown(self, trainer: Trainer, module: LanguageModel, stage: str) -> None:
        if bar := self.__dict__.pop("bar", None):
            bar.stop()


def mean_diagnostics(module: LanguageModel) -> dict[str, Tensor]:
    """Each encoding diagnostic averaged over the layers that have it, as a scalar tensor on the model's device."""
    found: dict[str, list[Tensor]] = {}
    for each in module.transformer.position_modules:
        for key, value in each.diagnostics().items():
            found.setdefault(key, []).append(torch.as_tensor(whole(value)))
    return {key: torch.stack(values).mean() for key, values in found.items()}
