"""The options of model, data, training and scoring, with their defaults and ranges. Imports no PyTorch."""

import importlib.util
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Schedule = Literal["cosine", "linear", "constant"]
MOST_LAYERS, MOST_SIZE = 1024, 2**18  # beyond what anybody trains; a shared configuration may ask for more


def _refuse_below(least: int, otherwise: str = "", **counts: int | None) -> None:
    for name, count in counts.items():
        if count is not None and count < least:
            raise ValueError(f"{name}={count}: it must be at least {least}{otherwise}")


@dataclass(frozen=True)
class ModelOptions:
    """Sizes of the Transformer.

    Attributes:
        width: hidden size C.
        layers: number of blocks.
        heads: query heads H.
        head_dim: D, free of the width; null for width / heads.
        kv_heads: key and value heads; null for as many as query heads. Divides `heads`.
        mlp: `swiglu` or `gelu`.
        mlp_hidden: hidden size of the MLP; null for 4 C (gelu) or 8/3 C rounded up to 32 (swiglu): equal parameters.
        tie_embeddings: the output layer is the token embedding.
        dropout: on embeddings and on both residual branches.

    Raises:
        ValueError: a size outside its range, or sizes that do not fit together.
    """

    width: int = 256
    layers: int = 6
    heads: int = 8
    head_dim: int | None = None
    kv_heads: int | None = None
    mlp: Literal["swiglu", "gelu"] = "swiglu"
    mlp_hidden: int | None = None
    tie_embeddings: bool = True
    dropout: float = 0.0

    def __post_init__(self):
        _refuse_below(1, width=self.width, layers=self.layers, heads=self.heads, head_dim=self.head_dim)
        _refuse_below(1, ", or null for the usual size", mlp_hidden=self.mlp_hidden)
        for name in ("layers", "width", "heads", "head_dim", "mlp_hidden"):
            size, most = getattr(self, name), MOST_LAYERS if name == "layers" else MOST_SIZE
            if size is not None and size > most:
                raise ValueError(f"{name}={size}: it must be at most {most:,}")
        if self.head_dim is None and self.width % self.heads:
            raise ValueError(f"width={self.width} is not a multiple of heads={self.heads}: change one, or set head_dim")
        if self.kv_heads is not None and (self.kv_heads < 1 or self.heads % self.kv_heads):
            raise ValueError(f"kv_heads={self.kv_heads} does not divide heads={self.heads}")
        if not 0 <= self.dropout < 1:
            raise ValueError(f"dropout={self.dropout}: it must lie in [0, 1)")


@dataclass(frozen=True)
class DataOptions:
    """Batches.

    Attributes:
        batch_size: rows an optimiser step.
        length: targets a row at most; also the context length of evaluation.
        packed: lay documents end to end in each row, kept apart by attention, rather than one window and padding.
            Generated examples are never cut: as many as fit fill a row either way.
        workers: loader processes; null for 2 to 4 beside a GPU, up to 12 where examples are generated, as cores allow,
            and none beside a CPU. Changes nothing but speed.

    Raises:
        ValueError: a value outside its range.
    """

    batch_size: int = 2
    length: int = 512
    packed: bool = False
    workers: int | None = None

    def __post_init__(self):
        _refuse_below(1, batch_size=self.batch_size, length=self.length)
        if self.workers is not None and self.workers < 0:
            raise ValueError(f"workers={self.workers}: it must be 0 or more, or null")


@dataclass(frozen=True)
class OptimizerOptions:
    """AdamW, its learning rate and clipping.

    Attributes:
        learning_rate: peak, after `warmup_steps` of linear warm-up.
        betas, weight_decay: AdamW's. Norms, biases and what an encoding names in `no_weight_decay` are not decayed.
        schedule: shape after the warm-up; falls to `final_fraction` of the peak at the last step.
        clip: largest gradient norm; null for none.

    Raises:
        ValueError: a value outside its range.
    """

    learning_rate: float = 4e-3
    betas: Sequence[float] = (0.9, 0.95)
    weight_decay: float = 0.01
    warmup_steps: int = 50
    schedule: Schedule = "cosine"
    final_fraction: float = 0.1
    clip: float | None = 1.0

    def __post_init__(self):
        if not 0 < self.learning_rate < math.inf:
            raise ValueError(f"learning_rate={self.learning_rate}: it must be a finite number above 0")
        if len(self.betas) != 2 or not all(0 <= beta < 1 for beta in self.betas):
            raise ValueError(f"betas={list(self.betas)}: two numbers in [0, 1) are needed")
        if not 0 <= self.weight_decay < math.inf or self.warmup_steps < 0:
            raise ValueError(
                f"weight_decay={self.weight_decay}, warmup_steps={self.warmup_steps}: finite numbers from 0 on"
            )
        if not 0 <= self.final_fraction <= 1:
            raise ValueError(f"final_fraction={self.final_fraction}: it must lie in [0, 1]")
        if self.clip is not None and not self.clip > 0:
            raise ValueError(f"clip={self.clip}: it must be above 0, or null for no clipping")


@dataclass(frozen=True)
class EvaluationOptions:
    """How splits are scored.

    Attributes:
        overlap: share of the context kept as context between the windows of a longer document.
        tokens_per_batch: tokens of one forward pass at most; changes nothing but speed and memory.
        validation_tokens: during training, score whole documents drawn from the validation split up to about so many
            tokens; null for all. The figures that a run ends with are of complete splits in any case.

    Raises:
        ValueError: a value outside its range.
    """

    overlap: float = 0.5
    tokens_per_batch: int = 16384
    validation_tokens: int | None = None

    def __post_init__(self):
        if not 0 <= self.overlap < 1:
            raise ValueError(f"overlap={self.overlap}: it must lie in [0, 1)")
        _refuse_below(1, tokens_per_batch=self.tokens_per_batch)
        _refuse_below(1, ", or null for all", validation_tokens=self.validation_tokens)


@dataclass(frozen=True)
class TrainerOptions:
    """Length, pace and place of training.

    Attributes:
        steps: optimiser steps in all.
        validate_every, checkpoint_every, log_every: in steps.
        accelerator: `auto` takes a CUDA GPU where there is one.
        precision: `auto` is bf16-mixed on a GPU that computes in bf16 and float32 elsewhere.
        devices: GPUs (or processes on CPU) of each node, 0 for all GPUs that are visible. The rows of a batch are dealt
            out to them; the results equal those of one device except for rounding and dropout.
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
        ValueError: a value outside its range, or wandb asked for but not installed.
    """

    steps: int = 2000
    validate_every: int = 500
    checkpoint_every: int = 250
    log_every: int = 10
    accelerator: Literal["auto", "cpu", "gpu"] = "auto"
    precision: Literal["auto", "32-true", "bf16-mixed"] = "auto"
    devices: int = 1
    nodes: int = 1
    strategy: Literal["ddp", "fsdp"] = "ddp"
    micro_batch: int | None = None
    activation_checkpointing: bool = False
    compile: Literal["auto"] | bool = "auto"
    cuda_graphs: Literal["auto"] | bool = "auto"
    deterministic: bool = False
    wandb: bool = False

    def __post_init__(self):
        _refuse_below(1, steps=self.steps, validate_every=self.validate_every, checkpoint_every=self.checkpoint_every)
        _refuse_below(1, log_every=self.log_every, nodes=self.nodes, micro_batch=self.micro_batch)
        if self.wandb and importlib.util.find_spec("wandb") is None:
            raise ValueError("wandb=true: the package is not installed; pip install wandb, or use wandb=false")
