"""Lightning's Trainer as this project runs it: counted in steps, quiet, on one device."""

import importlib.util
import logging
import warnings
from pathlib import Path
from typing import Literal

import torch
from lightning.pytorch import Callback, Trainer
from lightning.pytorch.loggers.logger import Logger


class TrainerSettings:
    """Length, pace and place of training.

    Args:
        steps: optimiser steps in all.
        validate_every, checkpoint_every, log_every: in steps.
        accelerator: `auto` takes a CUDA GPU where there is one.
        precision: `auto` is bf16-mixed on a GPU that computes in bf16 and float32 elsewhere.
        wandb: also log to Weights & Biases (`pip install wandb`).

    Raises:
        ValueError: a count below 1, a GPU asked for where there is none, wandb asked for but not installed.
    """

    def __init__(
        self,
        steps: int = 1000,
        validate_every: int = 200,
        checkpoint_every: int = 200,
        log_every: int = 20,
        accelerator: Literal["auto", "cpu", "gpu"] = "auto",
        precision: Literal["auto", "32-true", "bf16-mixed"] = "auto",
        wandb: bool = False,
    ):
        counts = {
            "steps": steps,
            "validate_every": validate_every,
            "checkpoint_every": checkpoint_every,
            "log_every": log_every,
        }
        for name, count in counts.items():
            if count < 1:
                raise ValueError(f"{name}={count}: it must be at least 1")
        if accelerator == "gpu" and not torch.cuda.is_available():
            raise ValueError("accelerator=gpu: no CUDA GPU is visible; use accelerator=auto or accelerator=cpu")
        if wandb and importlib.util.find_spec("wandb") is None:
            raise ValueError("wandb=true: the package is not installed; pip install wandb, or use wandb=false")
        self.steps, self.validate_every, self.checkpoint_every, self.log_every = counts.values()
        self.wandb = wandb
        cuda = accelerator != "cpu" and torch.cuda.is_available()
        self.device = torch.device("cuda", torch.cuda.current_device()) if cuda else torch.device("cpu")
        if precision == "auto":
            precision = "bf16-mixed" if cuda and torch.cuda.is_bf16_supported() else "32-true"
        self.precision = precision

    def build(self, directory: Path, callbacks: list[Callback], loggers: list[Logger]) -> Trainer:
        """A Trainer that writes nowhere but through `callbacks` and `loggers`."""
        logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
        # Batches are a function of the step, so a resumed epoch is sound; few loader processes are enough for them.
        warnings.filterwarnings("ignore", ".*dataloader is not resumable.*")
        warnings.filterwarnings("ignore", ".*does not have many workers.*")
        warnings.filterwarnings("ignore", ".*smaller than the logging interval.*")
        warnings.filterwarnings("ignore", ".*treespec, LeafSpec.*")  # Lightning's own use of PyTorch
        return Trainer(
            default_root_dir=directory,
            max_steps=self.steps,
            max_epochs=-1,
            accelerator=self.device.type,
            devices=1,
            precision=self.precision,
            callbacks=callbacks,
            logger=loggers,
            log_every_n_steps=self.log_every,
            limit_val_batches=0,
            num_sanity_val_steps=0,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
