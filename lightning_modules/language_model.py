"""The training step: next-token loss, optimiser groups, learning rate, clipping, detection of non-finite steps."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn

from ..core.errors import UserError
from ..encodings.options.rotation import drop_step
from .context_parallel import ContextParallel
from .conversion import Conversion
from .data_module import IGNORED, documents_of
from .graphs import CaptureError, StepGraphs
from .initialisation import derive_seed, draw_from
from .options import OptimizerOptions
from .ranks import Total, rank, ranks, whole
from .schedule import learning_rate_factor
from .transformer import Transformer

if TYPE_CHECKING:
    from lightning.pytorch import Trainer
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.fsdp import FSDPModule


STAGES = {"distil": "training on the predictions of the original model", "train": "training on next tokens"}


class LanguageModel(nn.Module):
    """Trains a Transformer on next-token prediction with AdamW, in hooks that Lightning calls on `FittedModel`.

    Args:
        transformer: the model to train.
        seed: step s draws its dropout from (seed, s), so that a resumed run draws the same.
        steps: number of optimiser steps of the run.
        micro_batch: maximum number of rows in one forward and backward pass; the gradients of a step add up to those of
            the whole batch. None starts with all rows and, with a single rank, halves their number whenever the GPU
            runs out of memory.
        options: fields of `OptimizerOptions`.

    Raises:
        ValueError: a value is out of range, a name in `no_weight_decay` is not a parameter, or layers have different
            `drop_after`.
    """

    # Attributes that `FittedModel` inherits from LightningModule.
    trainer: "Trainer"
    device_mesh: "DeviceMesh | None"
    global_step: int
    optimizers: Callable[[], Any]
    manual_backward: Callable[[Tensor], None]
    print: Callable[[str], None]
    # Buffers.
    now: Tensor
    rate: Tensor
    trouble: Tensor
    strength: Tensor

    def __init__(
        self,
        transformer: Transformer,
        seed: int,
        steps: int,
        micro_batch: int | None = None,
        **options: Any,
    ):
        super().__init__()
        self.options = OptimizerOptions(**options)
        for module in transformer.position_modules:
            module.undecayed()  # refuses unknown names before any data is prepared
        self.transformer, self.seed, self.steps, self.micro_batch = transformer, seed, steps, micro_batch
        shares = {each.drop_after for each in transformer.encodings if each.drop_after is not None}
        if len(shares) > 1:
            raise ValueError(f"drop_after={max(shares)}: another layer has {min(shares)}; use the same in all layers")
        self.drop_step = drop_step(max(shares), steps) if shares else steps
        # Names of the auxiliary losses, in the order in which a step returns them.
        self.auxiliary_names = list(dict.fromkeys(name for m in transformer.position_modules for name in m.auxiliary))
        self.auxiliary: dict[str, Tensor] = {}
        self.starts = [0] if self.drop_step == steps else [0, self.drop_step]  # steps where AdamW starts afresh
        self.conversion: Conversion | None = None
        self.context: ContextParallel | None = None
        self.graphs: StepGraphs | None = None
        self.graphs_required = False
        # Kept on the device, as captured steps read them and copies would wait for the GPU: the current step, its
        # learning rate, (step, gradient norm) of the first step that was not finite, and the share of the new encoding.
        self.register_buffer("now", torch.zeros((), dtype=torch.float64), persistent=False)
        self.register_buffer("rate", torch.zeros(()), persistent=False)
        self.register_buffer("trouble", torch.tensor([-1.0, 0.0], dtype=torch.float64), persistent=False)
        self.register_buffer("strength", torch.ones((), dtype=torch.float64), persistent=False)

    @property
    def device(self) -> torch.device:
        return self.rate.device

    def configure_model(self) -> None:
        if self.device_mesh is not None:  # strategy=fsdp
            from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method  # late: it takes a second

            for block in self.transformer.blocks:
                fully_shard(block, mesh=self.device_mesh["data_parallel"])
            fully_shard(self.transformer, mesh=self.device_mesh["data_parallel"])
            for method in ("nats", "token_nats", "auxiliary_losses"):
                register_fsdp_forward_method(self.transformer, method)

    def learning_rate_at(self, step: int) -> float:
        """Learning rate of update `step`, starting from 0. The schedule starts again at each of `starts`."""
        given, begin = self.options, max(start for start in self.starts if start <= step)
        end = min((start for start in self.starts if start > step), default=self.steps)
        place = step - begin, end - begin
        factor = learning_rate_factor(*place, given.warmup_steps, given.schedule, given.final_fraction)
        return given.learning_rate * factor

    def replay_steps(self, length: int, required: bool, bounded: bool = False) -> None:
        """Capture the training step as CUDA graphs, for rows of up to `length` tokens; `bounded` as in `StepGraphs`.

        A step that cannot be captured, or needs micro-batches, is an error if `required`. Otherwise training prints a
        note and continues without graphs.
        """
        self.graphs, self.graphs_required = StepGraphs(self._captured_update, length, bounded), required

    def convert(self, conversion: Conversion) -> None:
        """Convert a pretrained model during training. AdamW and its schedule start again at each stage."""
        self.conversion = conversion
        self.starts = sorted({*self.starts, *(start for start in conversion.starts if start < self.steps)})

    def prepare(self, step: int) -> None:
        """Set a conversion to its state at update `step`. Validation before that update scores this state."""
        if self.conversion is not None:
            self.conversion.apply(self.transformer, self.strength, step)

    @property
    def final_from(self) -> int:
        """First step whose checkpoint can be evaluated; before it, a conversion is still annealing the rotation."""
        return 0 if self.conversion is None else self.conversion.anneal_steps

    def stage(self, step: int) -> str:
        """The stage of update `step`: that of a conversion, or `train` for next-token prediction."""
        return "train" if self.conversion is None else self.conversion.stage(step)

    def on_train_batch_start(self, batch: dict[str, Tensor], batch_idx: int) -> None:
        if self.global_step == self.drop_step:
            self._drop_positions()
        if self.conversion is not None:
            if self.global_step in (*self.conversion.starts, self.conversion.anneal_steps) and self.graphs:
                self.graphs.clear()
            if self.global_step in self.conversion.starts:
                self.optimizers().optimizer.state.clear()
                self.print(f"step {self.global_step:,}: {STAGES[self.stage(self.global_step)]}")
            self.prepare(self.global_step)
        rate = self.learning_rate_at(self.global_step)
        for group in self.optimizers().param_groups:
            group["lr"] = rate
        self.rate.fill_(rate)
        self.now.fill_(self.global_step)

    def _drop_positions(self) -> None:
        """Train on without positions, as a new run from these weights would (DroPE, arXiv 2512.12167)."""
        for encoding in self.transformer.encodings:
            if encoding.drop_after is not None:
                encoding.drop()
        self.optimizers().optimizer.state.clear()
        if self.graphs:
            self.graphs.clear()
        self.print(f"step {self.global_step:,}: positions are dropped")

    def training_step(self, batch: dict[str, Tensor], batch_idx: int) -> None:
        """One optimiser step on the mean nats of all targets of the batch, over all ranks."""
        done = None
        while done is None:
            self._seed_dropout()
            try:
                done = self._replay(self.graphs, batch) if self.graphs else self._update(batch, self.optimizers())
            except torch.OutOfMemoryError as error:
                self._halve(len(batch["inputs"]), error)
            except CaptureError as error:
                self._give_up_graphs(str(error), error)
        self.loss, self.gradient_norm, *auxiliary = done
        self.auxiliary = dict(zip(self.auxiliary_names, auxiliary, strict=True))

    def _replay(self, graphs: StepGraphs, batch: dict[str, Tensor]) -> tuple[Tensor, ...]:
        done = graphs(batch)
        self.on_replayed()
        return done

    def on_replayed(self) -> None:
        """Called after a step that ran without a call of the optimiser's `step`."""

    def _captured_update(self, batch: dict[str, Tensor]) -> tuple[Tensor, ...]:
        optimizer = self.optimizers().optimizer
        kept = [(group["lr"], group["capturable"]) for group in optimizer.param_groups]
        for group in optimizer.param_groups:
            group["lr"], group["capturable"] = self.rate, torch.cuda.is_current_stream_capturing()
        try:
            return self._update(batch, optimizer)
        finally:
            for group, (rate, capturable) in zip(optimizer.param_groups, kept, strict=True):
                group["lr"], group["capturable"] = rate, capturable

    def _give_up_graphs(self, reason: str, error: Exception) -> None:
        if self.graphs_required:
            raise UserError(f"trainer.cuda_graphs=true: {reason}; use trainer.cuda_graphs=auto or false") from error
        self.graphs = None
        self.print(f"CUDA graphs: off ({reason})")

    def _update(self, batch: dict[str, Tensor], optimizer: torch.optim.Optimizer) -> tuple[Tensor, ...]:
        """Take the step; returns the mean nats, the gradient norm and the auxiliary losses as tensors on the device."""
        optimizer.zero_grad()
        loss, auxiliary = self._accumulate(batch)
        norm = self._clipped_norm()
        fine = torch.isfinite(loss) & torch.isfinite(norm) | (self.trouble[0] >= 0)
        self.trouble.copy_(torch.where(fine, self.trouble, torch.stack([self.now, norm.double()])))
        optimizer.step()
        return loss, norm, *auxiliary

    def _seed_dropout(self) -> None:
        seed = derive_seed(self.seed, f"dropout {self.global_step}" + (f" {rank()}" if rank() else ""))
        draw_from(seed, self.device)

    def nats(self, batch: dict[str, Tensor]) -> Tensor:
        """Summed nats of the batch's targets, or the loss of a conversion's stage."""
        if self.conversion is not None:
            return self.conversion.loss(self.transformer, batch, self.global_step)
        if self.context is not None:
            return self.context.nats(self.transformer, batch["inputs"], batch["targets"])
        return self.transformer.nats(batch["inputs"], batch["targets"], documents_of(batch))

    def _accumulate(self, batch: dict[str, Tensor]) -> tuple[Tensor, list[Tensor]]:
        """Accumulate the gradients of the mean nats per target plus the auxiliary losses; returns both.

        Each rank draws its own auxiliary losses. Their gradients are averaged over ranks; the returned values are those
        of this rank.
        """
        rows, length = batch["inputs"].shape
        added: dict[str, Tensor] = {}
        parts = range(0, rows, min(self.micro_batch or rows, rows))
        targets = Total((batch["targets"] != IGNORED).sum())
        nats = torch.zeros((), dtype=torch.float64, device=batch["targets"].device)
        for begin in parts:
            last = begin == parts[-1]
            with nullcontext() if last else self._unsynchronised():
                here = slice(begin, begin + parts.step)
                part = self.nats({k: x[here] if isinstance(x, Tensor) else x for k, x in batch.items()})
                nats += part.detach()
                if last:
                    summed, added = Total(nats), self.transformer.auxiliary_losses(length)
                # Ranks average their gradients, but the mean is over the targets of all ranks.
                mean = part / targets().clamp(min=1) * ranks()
                self.manual_backward(mean + sum(added.values()) if added else mean)
        losses = [added[name].detach() for name in self.auxiliary_names] if added else []
        return (summed() / targets().clamp(min=1)).float(), losses

    def _unsynchronised(self) -> AbstractContextManager:
        """Skip the averaging of gradients over ranks, for all but the last part of a step."""
        if self.device_mesh is not None:
            return self._unsharded_gradients()
        block = getattr(self.trainer.strategy, "block_backward_sync", nullcontext)
        return block()

    @contextmanager
    def _unsharded_gradients(self) -> Iterator[None]:
        sharded = cast("FSDPModule", self.transformer)  # `fully_shard` has given it this class
        sharded.set_requires_gradient_sync(False)
        try:
            yield
        finally:
            sharded.set_requires_gradient_sync(True)

    def _halve(self, rows: int, error: torch.OutOfMemoryError) -> None:
        tried = min(self.micro_batch or rows, rows)
        if tried == 1 or ranks() > 1:
            less = "a larger trainer.context_parallel" if self.context else "trainer.activation_checkpointing=true"
            raise UserError(
                f"the GPU ran out of memory with {tried} rows at a time: set trainer.micro_batch to fewer rows or "
                f"{less}, or choose a smaller model or data.length"
            ) from error
        if self.graphs:
            self._give_up_graphs("the GPU ran out of memory", error)
        self.micro_batch = -(-tried // 2)
        torch.cuda.empty_cache()
        self.print(f"the GPU ran out of memory: a step of {rows} rows now computes {self.micro_batch} at a time")

    def _clipped_norm(self) -> Tensor:
        """Clip the gradients; returns their norm before clipping."""
        norm = torch.nn.utils.clip_grad_norm_(self.parameters(), self.options.clip or float("inf"))
        return whole(norm)

    def on_save_checkpoint(self, checkpoint: dict) -> None:
        # Names are valid for any number of ranks. Numbers depend on the optimiser's groups, and on sharding.
        names = dict(enumerate(self._names_in_optimizer()))
        for state in filter(None, checkpoint["optimizer_states"]):
            rename(state, names)
            # An encoding has no gradients, and so no moments, where a conversion has not begun to apply it. Resuming a
            # sharded run requires the moments of every parameter.
            for name, parameter in self.named_parameters() if state["state"] else ():
                if name not in state["state"]:
                    moments = {key: torch.zeros(parameter.shape) for key in ("exp_avg", "exp_avg_sq")}
                    state["state"][name] = {"step": torch.zeros(()), **moments}

    def on_load_checkpoint(self, checkpoint: dict) -> None:
        if self.device_mesh is None:
            numbers = {name: number for number, name in enumerate(self._names_in_optimizer())}
            for state in checkpoint["optimizer_states"]:
                rename(state, numbers)
                for group in state["param_groups"]:
                    group["fused"] = self._fused  # depends on this device, not on the one that wrote the checkpoint

    def _names_in_optimizer(self) -> list[str]:
        names = {id(parameter): name for name, parameter in self.named_parameters()}
        if self.device_mesh is not None:
            return list(names.values())
        return [names[id(parameter)] for group in self._parameter_groups() for parameter in group["params"]]

    def _parameter_groups(self) -> list[dict]:
        modules = self.transformer.position_modules
        spared = {id(parameter) for module in modules for parameter in module.undecayed()}
        decayed = [p for p in self.parameters() if p.ndim > 1 and id(p) not in spared]
        rest = [p for p in self.parameters() if p.ndim <= 1 or id(p) in spared]
        groups = [{"params": decayed, "weight_decay": self.options.weight_decay}, {"params": rest, "weight_decay": 0.0}]
        return [group for group in groups if group["params"]]

    def configure_optimizers(self) -> torch.optim.Optimizer:
        first, second = self.options.betas
        return torch.optim.AdamW(
            self._parameter_groups(), self.options.learning_rate, (first, second), fused=self._fused
        )

    @property
    def _fused(self) -> bool | None:
        return self.device.type == "cuda" or None


def rename(state: dict, names: Mapping) -> None:
    """Rename the parameters of an optimiser's state dictionary, in place."""
    state["state"] = {names[key]: value for key, value in state["state"].items()}
    for group in state["param_groups"]:
        group["params"] = [names[key] for key in group["params"]]
