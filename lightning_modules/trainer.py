"""The settings of training on this machine, checked before Lightning is imported."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from ..core import launcher
from ..core.errors import UserError
from ..core.words import plural
from .options import TrainerOptions


class TrainerSettings:
    """`TrainerOptions` on this machine.

    Args:
        options: fields of `TrainerOptions`. They are attributes too, with `auto` resolved in `precision`.

    Attributes:
        device: the device of this process.

    Raises:
        ValueError: see `TrainerOptions`; CUDA does not start on the GPUs; a GPU or CUDA graphs are required but not
            available; there are fewer devices; or `context_parallel` does not divide their number.
    """

    def __init__(self, **options: Any):
        given = TrainerOptions(**options)
        accelerator, devices, precision = given.accelerator, given.devices, given.precision
        visible = torch.cuda.device_count()  # according to the driver, even if CUDA cannot use them
        gpus = visible if torch.cuda.is_available() else 0
        if accelerator != "cpu" and visible and not gpus:
            raise ValueError(
                f"accelerator={accelerator}: CUDA fails to start on the {plural(visible, 'visible GPU')}: check the "
                "driver and `nvidia-smi`, or use accelerator=cpu"
            )
        if accelerator == "gpu" and not gpus:
            raise ValueError("accelerator=gpu: no CUDA GPU is visible; use accelerator=auto or accelerator=cpu")
        cuda = accelerator != "cpu" and gpus > 0
        if devices == 0 and not cuda:
            raise ValueError("devices=0: no GPU is used: give the number of CPU processes, such as 1")
        if cuda and devices > gpus:
            raise ValueError(f"devices={devices}: only {plural(gpus, 'GPU')} can be used: give fewer, or 0 for all")
        self.steps, self.validate_every, self.checkpoint_every = (
            given.steps,
            given.validate_every,
            given.checkpoint_every,
        )
        self.anneal_steps, self.match_steps = given.anneal_steps or 0, given.match_steps or 0
        self.distil_steps = given.distil_steps or 0
        self.log_every, self.wandb, self.micro_batch = given.log_every, given.wandb, given.micro_batch
        self.activation_checkpointing, self.deterministic = given.activation_checkpointing, given.deterministic
        self.devices, self.nodes, self.strategy = devices or gpus, given.nodes, given.strategy
        self.compile, self.cuda_graphs = given.compile, given.cuda_graphs
        self.context_parallel = given.context_parallel
        if self.ranks % self.context_parallel:
            raise ValueError(
                f"context_parallel={self.context_parallel}: the number of devices must be a multiple of it, and this "
                f"run has {self.ranks} (trainer.devices)"
            )
        place = launcher.local_rank() if self.ranks > 1 else None
        self.device = torch.device("cpu")
        if cuda:
            self.device = torch.device("cuda", torch.cuda.current_device() if place is None else place)
        self.precision = precision_on(accelerator, precision)
        if self.cuda_graphs is True and self.against_graphs:
            raise ValueError(f"cuda_graphs=true: {self.against_graphs}; use cuda_graphs=auto or false")

    @property
    def against_graphs(self) -> str | None:
        """The reason that CUDA graphs cannot be used; None if they can."""
        if self.device.type != "cuda":
            return "needs a GPU"
        if self.ranks > 1:
            return f"needs a single process, and this run has {self.ranks}"
        if self.micro_batch is not None:
            return f"cannot be combined with micro_batch={self.micro_batch}"
        if self.activation_checkpointing:
            return "cannot be combined with activation_checkpointing=true"
        return None

    @contextmanager
    def determinism(self) -> Iterator[None]:
        """In this context, PyTorch uses deterministic kernels if `deterministic` is set; plans depend on it."""
        before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
        if self.deterministic:
            os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"  # cuBLAS requires it, from the first product on
            # A debugging aid that fills every new tensor.
            torch.utils.deterministic.fill_uninitialized_memory = False  # pyright: ignore[reportAttributeAccessIssue]
            torch.use_deterministic_algorithms(True)
        try:
            yield
        finally:
            torch.use_deterministic_algorithms(before[0], warn_only=before[1])

    @property
    def ranks(self) -> int:
        """Number of processes on all nodes."""
        return self.devices * self.nodes

    def refuse_other_ranks(self) -> None:
        """Raise UserError if a launcher started other ranks than `devices` on each of `nodes`."""
        asked = self.ranks, self.nodes
        if (given := launcher.started(self.ranks)) not in (None, asked):
            found, needed = (f"{plural(ranks, 'rank')} on {plural(nodes, 'node')}" for ranks, nodes in (given, asked))
            raise UserError(
                f"trainer.devices={self.devices}, trainer.nodes={self.nodes}: the launcher started {found}, not "
                f"{needed}: change these settings, or the numbers of tasks and nodes given to srun or torchrun"
            )

    @property
    def replicas(self) -> int:
        """Number of parts into which the rows of a batch are split."""
        return self.ranks // self.context_parallel


def precision_on(accelerator: str, precision: str) -> str:
    """`TrainerOptions.precision` with `auto` resolved for this machine."""
    if precision != "auto":
        return precision
    cuda = accelerator != "cpu" and torch.cuda.is_available()
    return "bf16-mixed" if cuda and torch.cuda.is_bf16_supported() else "32-true"
