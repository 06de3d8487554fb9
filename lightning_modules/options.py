"""The options of the model, data, training and scoring, with defaults and ranges. Imports no PyTorch."""

import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field

from ..core.options import Below1, Count, Layers, Natural, NonNegative, Options, Place, Positive, Share

Schedule = Literal["cosine", "linear", "constant"]
Size = Annotated[int, Field(ge=1, le=2**18)]  # above any realistic size; shared configurations may be malicious


@dataclass(frozen=True)
class ModelOptions(Options):
    """Sizes of the Transformer.

    Attributes:
        width: hidden size C.
        layers: number of blocks.
        heads: number of query heads H.
        head_dim: size D of a head; null for width / heads.
        kv_heads: number of key and value heads, shared by query heads; must divide `heads`; null for `heads`.
        mlp: type of the MLP.
        mlp_hidden: hidden size of the MLP; null for 4 C (gelu), or 8/3 C rounded up to a multiple of 32 (swiglu), which
            has as many parameters.
        tie_embeddings: share the weights of the token embedding and the output layer.
        dropout: dropout probability, on embeddings and on both residual branches.
        norm_epsilon: added to the mean square in every RMSNorm.
        residual_in_fp32: keep the residual stream in float32 in mixed precision; false for the precision of the matrix
            products, which is faster and takes less memory.
        pretrained: a Llama-type model to start from: a folder of Hugging Face with config.json and safetensors, a .gguf
            file, or a .bin file of llama2.c. It determines the sizes above and the encoding's rotary base.
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
    norm_epsilon: Positive = 1e-6
    residual_in_fp32: bool = True
    pretrained: Place | None = None

    def check_together(self) -> None:
        if self.head_dim is None and self.width % self.heads:
            given = f"width={self.width} is not a multiple of heads={self.heads}"
            raise ValueError(f"{given}: change one, or set head_dim=NUMBER")
        if self.kv_heads is not None and self.heads % self.kv_heads:
            raise ValueError(f"kv_heads={self.kv_heads} does not divide heads={self.heads}: choose a divisor")


@dataclass(frozen=True)
class DataOptions(Options):
    """Training batches.

    Attributes:
        batch_size: rows per optimiser step.
        length: maximum number of targets per row, and the context length of evaluation.
        packed: fill each row with consecutive documents, which do not attend to each other, instead of one window and
            padding. Generated examples are never cut; a row always holds as many as fit.
        workers: loader processes; null for none on a CPU and 2 to 4 with a GPU, depending on the number of cores, or up
            to 12 for generated examples. Affects only speed.
    """

    batch_size: Count = 2
    length: Count = 512
    packed: bool = False
    workers: Natural | None = None


@dataclass(frozen=True)
class OptimizerOptions(Options):
    """AdamW with its learning-rate schedule and gradient clipping.

    Attributes:
        learning_rate: peak learning rate, after `warmup_steps`.
        betas: decay rates of AdamW's two moments.
        weight_decay: AdamW's weight decay; not applied to norms, biases, and parameters that an encoding lists in
            `no_weight_decay` (PoPE's delta).
        warmup_steps: steps of linear warm-up.
        schedule: learning-rate schedule after the warm-up.
        final_fraction: learning rate at the last step, as a fraction of the peak; unused with schedule=constant.
        clip: maximum gradient norm; null for no clipping.
    """

    learning_rate: Positive = 4e-3
    betas: Annotated[Sequence[float], Field(min_length=2, max_length=2)] = (0.9, 0.95)
    weight_decay: NonNegative = 0.01
    warmup_steps: Natural = 50
    schedule: Schedule = "cosine"
    final_fraction: Share = 0.1
    clip: Positive | None = 1.0

    def check_together(self) -> None:
        if not all(0 <= beta < 1 for beta in self.betas):
            raise ValueError(f"betas={list(self.betas)}: give two numbers in [0, 1)")


@dataclass(frozen=True)
class EvaluationOptions(Options):
    """How splits are scored.

    Attributes:
        overlap: in documents longer than `data.length`, the fraction of each window that overlaps with the one before
            and serves as context.
        tokens_per_batch: maximum number of tokens per forward pass; affects only speed and memory.
        validation_tokens: during training, score only about this many tokens of the validation split, in randomly drawn
            documents; null for all. Final scores always cover complete splits.
    """

    overlap: Below1 = 0.5
    tokens_per_batch: Count = 16384
    validation_tokens: Count | None = None


@dataclass(frozen=True)
class SamplingOptions(Options):
    """How samples are drawn.

    Attributes:
        temperature: divides the logits; 0 always takes the likeliest token.
        top_k: sample from the k likeliest tokens; null for all.
        top_p: sample from the smallest set of tokens with this total probability; 1 for all; null for the domain's
            default, 0.9 for music and 1 otherwise.
    """

    temperature: NonNegative = 1.0
    top_k: Count | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None


@dataclass(frozen=True)
class TrainerOptions(Options):
    """Training steps, intervals and devices.

    Attributes:
        steps: number of optimiser steps; 0 evaluates `model.pretrained` as it is.
        anneal_steps: steps over which the rotation of `model.pretrained` is replaced by the encoding; null for half of
            the steps with task=convert if the encoding can start exactly, and 0 otherwise.
        match_steps: steps at the start that train each layer's attention to match the outputs of the same layer in
            `model.pretrained`; null for a quarter of the steps with task=convert if the encoding cannot start exactly,
            and 0 otherwise.
        distil_steps: steps after these that train on the predictions of `model.pretrained`; null as for `match_steps`.
        validate_every: steps between scores of the validation split.
        checkpoint_every: steps between checkpoints.
        log_every: steps between rows of metrics.csv and TensorBoard. Reports cannot read more than 500,000 rows.
        accelerator: `auto` uses a CUDA GPU if available.
        precision: `auto` is bf16-mixed on GPUs that support bf16, and 32-true otherwise.
        devices: GPUs (or CPU processes) per node; 0 for all visible GPUs. The batch is split across them. Results match
            a single-device run up to rounding and random draws, as of dropout or positions.
        nodes: number of machines; start the same command on each with SLURM or torchrun.
        strategy: with several devices, `ddp` keeps the whole model on each, `fsdp` a part of it.
        context_parallel: number of devices that share each row, for rows that are too long for one: each computes a
            part of the tokens and gathers the keys and values of the others. Needs strategy=ddp, and an encoding that
            draws no positions in training.
        micro_batch: maximum number of rows per forward and backward pass on a device; null for all rows, and on a
            single device half as many whenever memory runs out. Affects only memory, speed, rounding and random draws.
        activation_checkpointing: save only each block's input (and dropout's mask) and recompute the rest in the
            backward pass: less memory, a third more computation.
        compile: use torch.compile on each block in training (but not in evaluation), which takes a minute; `auto` does
            so on a GPU if steps are 1,000 or more, and a kernel or row blocks compute attention. Affects only speed and
            rounding.
        cuda_graphs: replay each training step as a CUDA graph, so that small models do not wait for kernel launches;
            needs a single GPU and no micro-batches. `auto` does so if launches take longer than arithmetic; with
            data.packed, also if a step needs at most half of the free memory, because graphs keep it allocated.
            Unpacked rows are padded to a multiple of a quarter of data.length. Affects only speed, rounding and the
            random draws of dropout.
        deterministic: use only deterministic kernels, so that repeated runs on one device are bit-identical.
        wandb: also log to Weights & Biases (`pip install wandb`).
    """

    steps: Natural = 2000
    anneal_steps: Natural | None = None
    match_steps: Natural | None = None
    distil_steps: Natural | None = None
    validate_every: Count = 500
    checkpoint_every: Count = 250
    log_every: Count = 10
    accelerator: Literal["auto", "cpu", "gpu"] = "auto"
    precision: Literal["auto", "32-true", "bf16-mixed"] = "auto"
    devices: Natural = 1
    nodes: Count = 1
    strategy: Literal["ddp", "fsdp"] = "ddp"
    context_parallel: Count = 1
    micro_batch: Count | None = None
    activation_checkpointing: bool = False
    compile: Literal["auto"] | bool = "auto"
    cuda_graphs: Literal["auto"] | bool = "auto"
    deterministic: bool = False
    wandb: bool = False

    def check_together(self) -> None:
        if self.wandb and importlib.util.find_spec("wandb") is None:
            raise ValueError("wandb=true: the package is not installed: pip install wandb, or use wandb=false")
        anneal, match, distil = (each or 0 for each in (self.anneal_steps, self.match_steps, self.distil_steps))
        if anneal > self.steps:
            raise ValueError(f"steps={self.steps}: it must be at least anneal_steps={anneal}")
        if match + distil > self.steps:
            raise ValueError(f"steps={self.steps}: it must be at least match_steps={match} plus distil_steps={distil}")
        if self.context_parallel > 1 and (self.strategy != "ddp" or self.activation_checkpointing):
            raise ValueError(
                f"context_parallel={self.context_parallel}: it needs strategy=ddp and activation_checkpointing=false"
            )
