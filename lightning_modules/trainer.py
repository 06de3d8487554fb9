"""Length, pace and place of training, checked before Lightning is imported."""

import importlib.util
from typing import Literal

import torch

from ..core import launcher


class TrainerSettings:
    """Length, pace and place of training.

    Args:
        steps: optimiser steps in all.
        validate_every, checkpoint_every, log_every: in steps.
        accelerator: `auto` takes a CUDA GPU where there is one.
        precision: `auto` is bf16-mixed on a GPU that computes in bf16 and float32 elsewhere.
        devices: GPUs (or processes on CPU) of each node, 0 for all GPUs that are visible. The rows of a batch are dealt
            out to them; the figures stay those of one device but for rounding and dropout.
        nodes: machines, each started with the same command by SLURM or torchrun.
        strategy: with several devices, `ddp` keeps the whole model on each, `fsdp` a share of it.
        micro_batch: rows of a device that pass forward and backward at a time, at most; null begins with all of them
            and, on one device, halves their number whenever memory runs out. Changes nothing but rounding and dropout.
        activation_checkpointing: keep a block's input alone (and dropout's mask of it) for the backward pass, which
            computes the rest again.
        compile: compile each block with torch.compile for training, which takes a minute; `auto` does so on a GPU for
            1,000 steps and more where a kernel computes the attention. Changes nothing but speed and rounding. Scoring
            is not compiled.
        cuda_graphs: capture the whole step as a CUDA graph and replay it, so that a small model does not wait for
            launches; one GPU and no micro-batches. `auto` does so where arithmetic takes less time than launches, and
            with data.packed if a step takes at most half of the memory that is free, since graphs keep it. Rows that
            are not packed are padded to a quarter, half, three quarters or all of data.length. Changes nothing but
            speed, rounding and dropout's draws.
        deterministic: use deterministic kernels alone, so that equal runs on one device are equal bit for bit.
        wandb: also log to Weights & Biases (`pip install wandb`).

    Raises:
        ValueError: a count below 1, a GPU asked for where there is none, wandb asked for but not installed, CUDA graphs
            asked for where they cannot be.
    """

    def __init__(
        self,
        steps: int = 1000,
        validate_every: int = 200,
        checkpoint_every: int = 200,
        log_every: int = 20,
        accelerator: Literal["auto", "cpu", "gpu"] = "auto",
        precision: Literal["auto", "32-true", "bf16-mixed"] = "auto",
        devices: int = 1,
        nodes: int = 1,
        strategy: Literal["ddp", "fsdp"] = "ddp",
        micro_batch: int | None = None,
        activation_checkpointing: bool = False,
        compile: Literal["auto"] | bool = "auto",
        cuda_graphs: Literal["auto"] | bool = "auto",
        deterministic: bool = False,
        wandb: bool = False,
    ):
        counts = {
            "steps": steps,
            "validate_every": validate_every,
            "checkpoint_every": checkpoint_every,
            "log_every": log_every,
            "nodes": nodes,
            "micro_batch": 1 if micro_batch is None else micro_batch,
        }
        for name, count in counts.items():
            if count < 1:
                raise ValueError(f"{name}={count}: it must be at least 1")
        gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if accelerator == "gpu" and not gpus:
            raise ValueError("accelerator=gpu: no CUDA GPU is visible; use accelerator=auto or accelerator=cpu")
        cuda = accelerator != "cpu" and gpus > 0
        if devices < 0 or (devices == 0 and not cuda) or (cuda and devices > gpus):
            raise ValueError(f"devices={devices}: {gpus} GPUs are visible; 0 takes all of them, on a CPU give a number")
        if wandb and importlib.util.find_spec("wandb") is None:
            raise ValueError("wandb=true: the package is not installed; pip install wandb, or use wandb=false")
        self.steps, self.validate_every, self.checkpoint_every, self.log_every = list(counts.values())[:4]
        self.wandb, self.micro_batch, self.activation_checkpointing = wandb, micro_batch, activation_checkpointing
        self.devices, self.nodes, self.strategy = devices or gpus, nodes, strategy
        self.deterministic = deterministic
        self.compile, self.cuda_graphs = compile, cuda_graphs
        place = launcher.local_rank() if self.ranks > 1 else None
        self.device = torch.device("cpu")
        if cuda:
            self.device = torch.device("cuda", torch.cuda.current_device() if place is None else place)
        if precision == "auto":
            precision = "bf16-mixed" if cuda and torch.cuda.is_bf16_supported() else "32-true"
        self.precision = precision
        if cuda_graphs is True and self.against_graphs:
            raise ValueError(f"cuda_graphs=true: {self.against_graphs}; use cuda_graphs=auto or false")

    @property
    def against_graphs(self) -> str | None:
        """Why steps cannot be replayed as CUDA graphs, if so."""
        if self.device.type != "cuda":
            return f"the device is {self.device.type}"
        if self.ranks > 1:
            return f"there are {self.ranks} processes, and a graph holds the work of one alone"
        if self.micro_batch is not None:
            return f"micro_batch={self.micro_batch} takes a step in parts"
        if self.activation_checkpointing:
            return "activation_checkpointing=true keeps the state of the random numbers aside, which cannot be captured"
        return None

    @property
    def ranks(self) -> int:
        """Processes in all."""
        return self.devices * self.nodes
