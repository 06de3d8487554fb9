"""The options of model, data, training and scoring, with their defaults and ranges. Imports no PyTorch."""

import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field

from ..core.options import Count, Natural, NonNegative, Options, Positive, Share

Schedule = Literal["cosine", "linear", "constant"]
Below1 = Annotated[float, Field(ge=0, lt=1)]
Layers = Annotated[int, Field(ge=1, le=1024)]
Size = Annotated[int, Field(ge=1, le=2**18)]  # beyond what anybody trains; a shared configuration may ask for more


@dataclass(frozen=True)
class ModelOptions(Options):
    """Sizes of the Transformer.

    Attributes:
        width: hidden size C.
        layers: number of blocks.
        heads: query heads H.
        head_dim: D, free of the width; null for width / heads.
        kv_heads: key and value heads, which query heads share; null for as many as query heads. Divides `heads`.
        mlp: kind of MLP.
        mlp_hidden: hidden size of the MLP; null for the usual size, 4 C (gelu) or 8/3 C rounded up to 32 (swiglu):
            equal parameters.
        tie_embeddings: the output layer is the token embedding.
        dropout: on embeddings and on both residual branches.
    """

    width: Size = 256
    layers: Layers = 6
    heads: Size = 8
    head_dim: Size | None = None
    kv_heads: Count | None = None
    mlp: Literal["swiglu", "gelu"] = "swiglu"
    mlp_hidden: Size | None = None
    tie_embeddings: bool = True
    dropout: Below1 = 0.0

    def check_together(self) -> None:
        if self.head_dim is None and self.width % self.heads:
            raise ValueError(f"width={self.width} is not a multiple of heads={self.heads}: change one, or set head_dim")
        if self.kv_heads is not None and self.heads % self.kv_heads:
            raise ValueError(f"kv_heads={self.kv_heads} does not divide heads={self.heads}")


@dataclass(frozen=True)
class DataOptions(Options):
    """Batches.

    Attributes:
        batch_size: rows of an optimiser step.
        length: targets of a row at most; also the context length of evaluation.
        packed: lay documents end to end in each row, kept apart by attention, rather than one window and padding.
            Generated examples are never cut: as many as fit fill a row either way.
        workers: loader processes; null for as many as cores allow: with a GPU 2 to 4, or up to 12 where examples are
            generated, and none on a CPU. Changes nothing but speed.
    """

    batch_size: Count = 2
    length: Count = 512
    packed: bool = False
    workers: Natural | None = None


@dataclass(frozen=True)
class OptimizerOptions(Options):
    """AdamW, its learning rate and clipping.

    Attributes:
        learning_rate: peak, after `warmup_steps` of linear warm-up.
        betas: decay of AdamW's two moments.
        weight_decay: of AdamW; not on norms, biases, nor what an encoding names in `no_weight_decay` (PoPE's delta).
        warmup_steps: steps of linear warm-up.
        schedule: of the learning rate, after the warm-up.
        final_fraction: learning rate at the last step, as a share of the peak; not for schedule=constant.
        clip: largest gradient norm; null for no clipping.
    """

    learning_rate: Positive = 4e-3
    betas: Sequence[float] = (0.9, 0.95)
    weight_decay: NonNegative = 0.01
    warmup_steps: Natural = 50
    schedule: Schedule = "cosine"
    final_fraction: Share = 0.1
    clip: Positive | None = 1.0

    def check_together(self) -> None:
        if len(self.betas) != 2 or not all(0 <= beta < 1 for beta in self.betas):
            raise ValueError(f"betas={list(self.betas)}: two numbers in [0, 1) are needed")


@dataclass(frozen=True)
class EvaluationOptions(Options):
    """How splits are scored.

    Attributes:
        overlap: share of the context kept as context between the windows of a document longer than `data.length`.
        tokens_per_batch: tokens of one forward pass at most; changes nothing but speed and memory.
        validation_tokens: during training, score whole documents drawn from the validation split up to about so many
            tokens; null for all. The figures that a run ends with are of complete splits in any case.
    """

    overlap: Below1 = 0.5
    tokens_per_batch: Count = 16384
    validation_tokens: Count | None = None


@dataclass(frozen=True)
class SamplingOptions(Options):
    """How tokens are drawn.

    Attributes:
        temperature: divides the logits; 0 takes the likeliest token each time.
        top_k: keep the k likeliest tokens; null for all.
        top_p: keep the smallest set of tokens with this probability, 1 for all; null for the domain's own, 0.9 for
            music and else all.
    """

    temperature: NonNegative = 1.0
    top_k: Count | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None


@dataclass(frozen=True)
class TrainerOptions(Options):
    """Length, pace and place of training.

    Attributes:
        steps: optimiser steps in all.
        validate_every: steps between scores of the validation split.
        checkpoint_every: steps between checkpoints to resume from.
        log_every: steps between rows of metrics.csv and TensorBoard.
        accelerator: `auto` takes a CUDA GPU where there is one.
        precision: `auto` is bf16-mixed on a GPU that computes in bf16 and float32 elsewhere.
        devices: GPUs (or processes on CPU) of each node, 0 for all GPUs that are visible. The batch is split across
            them; the results equal those of one device except for rounding and dropout.
        nodes: machines, each started with the same command by SLURM or torchrun.
        strategy: with several devices, `ddp` keeps the whole model on each, `fsdp` a share of it.
        micro_batch: rows of a device that pass forward and backward at a time, at most; null begins with all of them
            and, on one device, halves their number whenever memory runs out. Changes nothing but rounding and dropout.
        activation_checkpointing: keep only a block's input (and dropout's mask of it) for the backward pass, which
            computes the rest again: less memory, a third more work.
        compile: compile each block with torch.compile for training, which takes a minute; `auto` does so on a GPU for
            1,000 steps and more where a kernel computes the attention. Changes nothing but speed and rounding. Scoring
            is not compiled.
        cuda_graphs: capture the whole step as a CUDA graph and replay it, so that a small model does not wait for
            launches; one GPU and no micro-batches. `auto` does so where arithmetic takes less time than launches, and
            with data.packed if a step takes at most half of the memory that is free, since graphs keep it. Rows that
            are not packed are padded to a quarter, half, three quarters or all of data.length. Changes nothing but
            speed, rounding and dropout's draws.
        deterministic: use only deterministic kernels, so that equal runs on one device are equal bit for bit.
        wandb: also log to Weights & Biases (`pip install wandb`).
    """

    steps: Count = 2000
    validate_every: Count = 500
    checkpoint_every: Count = 250
    log_every: Count = 10
    accelerator: Literal["auto", "cpu", "gpu"] = "auto"
    precision: Literal["auto", "32-true", "bf16-mixed"] = "auto"
    devices: Natural = 1
    nodes: Count = 1
    strategy: Literal["ddp", "fsdp"] = "ddp"
    micro_batch: Count | None = None
    activation_checkpointing: bool = False
    compile: Literal["auto"] | bool = "auto"
    cuda_graphs: Literal["auto"] | bool = "auto"
    deterministic: bool = False
    wandb: bool = False

    def check_together(self) -> None:
        if self.wandb and importlib.util.find_spec("wandb") is None:
            raise ValueError("wandb=true: the package is not installed; pip install wandb, or use wandb=false")
