"""The one LightningModule: next-token loss, optimiser groups, learning rate, clipping, a watch for non-finite steps."""

from collections.abc import Sequence

import torch
from lightning.pytorch import LightningModule
from torch import Tensor

from bearings.kernels.loss import mean_nats
from bearings.lightning_modules.data_module import IGNORED
from bearings.lightning_modules.schedule import Schedule, learning_rate_factor
from bearings.lightning_modules.transformer import Transformer, derive_seed


class LanguageModel(LightningModule):
    """Trains a Transformer on next-token prediction with AdamW.

    Args:
        transformer, seed, steps: given by the task. Step s draws its dropout from (seed, s): a resumed run repeats it.
        learning_rate: peak, after `warmup_steps` of linear warm-up.
        betas, weight_decay: AdamW's. Norms, biases and what an encoding names in `no_weight_decay` are not decayed.
        schedule: shape after the warm-up; falls to `final_fraction` of the peak at the last step.
        clip: largest gradient norm; null for none.

    Raises:
        ValueError: a value outside its range.
    """

    def __init__(
        self,
        transformer: Transformer,
        seed: int,
        steps: int,
        learning_rate: float = 1e-3,
        betas: Sequence[float] = (0.9, 0.95),
        weight_decay: float = 0.01,
        warmup_steps: int = 100,
        schedule: Schedule = "cosine",
        final_fraction: float = 0.1,
        clip: float | None = 1.0,
    ):
        super().__init__()
        if learning_rate <= 0:
            raise ValueError(f"learning_rate={learning_rate}: it must be above 0")
        if len(betas) != 2 or not all(0 <= beta < 1 for beta in betas):
            raise ValueError(f"betas={list(betas)}: two numbers in [0, 1) are needed")
        if weight_decay < 0 or warmup_steps < 0:
            raise ValueError(f"weight_decay={weight_decay}, warmup_steps={warmup_steps}: neither may be negative")
        if not 0 <= final_fraction <= 1:
            raise ValueError(f"final_fraction={final_fraction}: it must lie in [0, 1]")
        if clip is not None and clip <= 0:
            raise ValueError(f"clip={clip}: it must be above 0, or null for no clipping")
        self.transformer, self.seed, self.steps = transformer, seed, steps
        self.learning_rate, self.betas, self.weight_decay = learning_rate, tuple(betas), weight_decay
        self.warmup_steps, self.schedule, self.final_fraction, self.clip = warmup_steps, schedule, final_fraction, clip
        # (step, gradient norm) of the first step that was not finite; on the device, so that watching costs no wait.
        self.register_buffer("trouble", torch.tensor([-1.0, 0.0], dtype=torch.float64), persistent=False)

    def learning_rate_at(self, step: int) -> float:
        """Learning rate of update `step`, counted from 0."""
        factor = learning_rate_factor(step, self.steps, self.warmup_steps, self.schedule, self.final_fraction)
        return self.learning_rate * factor

    def on_train_batch_start(self, batch: dict[str, Tensor], batch_idx: int) -> None:
        torch.manual_seed(derive_seed(self.seed, f"dropout {self.global_step}"))
        for group in self.optimizers().param_groups:
            group["lr"] = self.learning_rate_at(self.global_step)

    def training_step(self, batch: dict[str, Tensor], batch_idx: int) -> Tensor:
        """Mean nats a target."""
        hidden = self.transformer.hidden(batch["inputs"], documents=batch.get("documents"))
        loss = mean_nats(hidden.flatten(0, 1), self.transformer.head.weight, batch["targets"].flatten(), IGNORED)
        self.loss = loss.detach()
        return loss

    def configure_gradient_clipping(self, optimizer, gradient_clip_val=None, gradient_clip_algorithm=None) -> None:
        self.gradient_norm = torch.nn.utils.clip_grad_norm_(self.parameters(), self.clip or float("inf"))
        now = torch.stack([torch.full_like(self.gradient_norm, self.global_step), self.gradient_norm]).double()
        fine = torch.isfinite(self.loss) & torch.isfinite(self.gradient_norm)
        self.trouble = torch.where(fine | (self.trouble[0] >= 0), self.trouble, now)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        spared = {id(p) for e in self.transformer.encodings for n, p in e.named_parameters() if n in e.no_weight_decay}
        decayed = [p for p in self.parameters() if p.ndim > 1 and id(p) not in spared]
        rest = [p for p in self.parameters() if p.ndim <= 1 or id(p) in spared]
        groups = [{"params": decayed, "weight_decay": self.weight_decay}, {"params": rest, "weight_decay": 0.0}]
        return torch.optim.AdamW([g for g in groups if g["params"]], lr=self.learning_rate, betas=self.betas)
