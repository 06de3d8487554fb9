"""Sets up Lightning's Trainer. Only training imports this module, as importing Lightning takes seconds."""

import logging
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, cast

import torch
from lightning.fabric.plugins.environments.lightning import LightningEnvironment
from lightning.pytorch import Callback, LightningDataModule, LightningModule, Trainer
from lightning.pytorch.loggers.logger import Logger
from lightning.pytorch.strategies import DDPStrategy, ModelParallelStrategy, Strategy
from torch import Tensor, distributed
from torch.utils.data import DataLoader

from ..core import launcher
from .checkpoints import CheckpointWriter
from .context_parallel import collate_part
from .data_module import DataModule
from .internals import count_step, leave_signals_alone
from .language_model import LanguageModel
from .trainer import TrainerSettings


class FittedModel(LanguageModel, LightningModule):
    """A LanguageModel whose hooks the Trainer calls. The order of a step:

    1. FittedData provides the batch, a function of the seed and the step.
    2. `on_train_batch_start` sets the learning rate.
    3. `training_step` seeds dropout with (seed, step). Then, directly or by replaying one CUDA graph, it clears the
       gradients, runs the micro-batches forward and backward, averages gradients over ranks, clips their norm, records
       the first loss or norm that is not finite, and takes AdamW's step.
    4. `ProgressLine` logs every `trainer.log_every` steps.
    5. `Validation` checks for stop requests and non-finite steps, scores the validation split every
       `trainer.validate_every` steps, and writes checkpoints.
    """

    @classmethod
    def of(cls, model: LanguageModel) -> "FittedModel":
        """Wrap the transformer and settings of `model`, on the same device."""
        fitted = cls(model.transformer, model.seed, model.steps, model.micro_batch, **vars(model.options))
        fitted.automatic_optimization = False
        return fitted.to(model.device)

    def on_replayed(self) -> None:
        count_step(self.trainer)


class FittedData(LightningDataModule):
    """Provides the batches of `data` to the Trainer. `shared_by` neighbouring ranks get parts of the same rows."""

    def __init__(self, data: DataModule, shared_by: int = 1):
        super().__init__()
        self.data, self.shared_by = data, shared_by

    def train_dataloader(self) -> DataLoader:
        trainer, size = cast("Trainer", self.trainer), self.shared_by
        if size == 1:
            return self.data.train_dataloader(trainer)
        part = partial(collate_part, place=trainer.global_rank % size, size=size)
        return self.data.train_dataloader(trainer, size, part)


def build_trainer(
    settings: TrainerSettings, directory: Path, callbacks: list[Callback], loggers: list[Logger]
) -> Trainer:
    """A Trainer that writes files only through `callbacks` and `loggers`."""
    for name in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.ERROR)
    # Batches are a function of the step, so resuming within an epoch is safe, and few loader processes are enough.
    warnings.filterwarnings("ignore", ".*dataloader is not resumable.*")
    warnings.filterwarnings("ignore", ".*does not have many workers.*")
    warnings.filterwarnings("ignore", ".*smaller than the logging interval.*")
    warnings.filterwarnings("ignore", ".*Total length of.*is zero.*")  # with no steps
    warnings.filterwarnings("ignore", ".*`srun` command is available.*")  # on a login node of SLURM
    warnings.filterwarnings("ignore", ".*treespec, LeafSpec.*")  # from Lightning's use of PyTorch
    warnings.filterwarnings("ignore", ".*broadcast_buffers.*")  # older versions of PyTorch have no other name for it
    plugins: list[Any] = [CheckpointWriter()]
    if settings.ranks == 1:
        plugins.append(LightningEnvironment())  # the tasks of a batch job of SLURM are not ranks of this run
    elif launcher.started(settings.ranks):
        # Lightning refuses tasks of a job with --ntasks, which does not set this variable.
        os.environ.setdefault("SLURM_NTASKS_PER_NODE", str(settings.devices))
    trainer = Trainer(
        default_root_dir=directory,
        max_steps=settings.steps,
        max_epochs=-1,
        accelerator=settings.device.type,
        devices=settings.devices,
        num_nodes=settings.nodes,
        strategy=_strategy(settings),
        precision=cast("Any", settings.precision),
        plugins=plugins,
        callbacks=callbacks,
        logger=loggers,
        log_every_n_steps=settings.log_every,
        limit_val_batches=0,
        num_sanity_val_steps=0,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        use_distributed_sampler=False,
    )
    leave_signals_alone(trainer)
    return trainer


def _strategy(settings: TrainerSettings) -> Strategy | str:
    if settings.ranks == 1:
        return "auto"
    if settings.strategy == "fsdp":
        return ModelParallelStrategy(settings.ranks, tensor_parallel_size=1, save_distributed_checkpoint=False)
    return InPlaceDDP()


class InPlaceDDP(DDPStrategy):
    """Data parallelism with gradients averaged in place, in one all-reduce after the backward pass.

    PyTorch's DistributedDataParallel copies gradients into buckets to overlap the all-reduce with the backward pass.
    That gains nothing here: matrix products then have fewer multiprocessors.
    """

    def configure_ddp(self) -> None:
        self._held = False

    @contextmanager
    def block_backward_sync(self) -> Iterator[None]:
        self._held = True
        try:
            yield
        finally:
            self._held = False

    def post_backward(self, closure_loss: Tensor) -> None:
        module, world = self.lightning_module, distributed.group.WORLD
        if self._held or module is None or world is None:
            return
        gradients = [p.grad for p in module.parameters() if p.grad is not None]
        options = distributed.AllreduceCoalescedOptions()
        averages = self.root_device.type == "cuda"  # gloo only sums
        options.reduceOp = distributed.ReduceOp(distributed.ReduceOp.AVG if averages else distributed.ReduceOp.SUM)
        world.allreduce_coalesced(gradients, options).wait()
        if not averages:
            torch._foreach_div_(gradients, self.world_size)  # pyright: ignore[reportPrivateImportUsage]
