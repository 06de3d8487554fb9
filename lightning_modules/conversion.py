"""Conversion of a trained RoPE model to another encoding: the annealing of its rotation, and the losses of each stage.

The PaTH paper (Yang et al., arXiv 2505.16381) converts in stages: match the outputs of attention, distil the
predictions, continue training. An encoding that can start without any effect (PaTH with beta = 0, FoX with open
gates, NoPE) needs no stages: it starts with queries and keys rotated as in the original model, so that both models are
equal, and the rotation is then annealed to zero.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from ..encodings.rope import RoPE
from ..kernels.attention.rope import cos_sin, phases, rotate_by
from ..kernels.documents import Documents
from ..kernels.loss.cross_entropy import IGNORED
from ..kernels.precision import wide
from .data_module import documents_of
from .transformer import Transformer

Stage = Literal["match", "distil", "train"]
PIECE = 2048  # number of tokens whose logits are in memory at a time, for both models


@dataclass(frozen=True)
class Annealed:
    """The original model's rotation with angles scaled by 1 - strength, for queries and keys of whole sequences.

    At position t, pair c is rotated by (1 - strength) t theta_c.

    Attributes:
        rope: the original encoding.
        strength: progress of the conversion, from 0 (the original rotation) to 1 (no rotation), as a scalar tensor.
    """

    rope: RoPE
    strength: Tensor

    def __call__(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        """Rotated `q [B, T, H, D]` and `k [B, T, Hkv, D]`."""
        positions, left = torch.arange(q.shape[1], device=q.device), 1 - self.strength
        angle = (phases(positions, q.shape[-1] // 2, self.rope.table(positions)) * left).unsqueeze(-2)
        cos, sin = cos_sin(angle, wide(q))
        q, k = rotate_by(q, cos, sin), rotate_by(k, cos, sin)
        if self.rope.stretching is None or self.rope.stretching.attention_factor == 1:
            return q, k
        factor = (1 + (self.rope.stretching.attention_factor - 1) * left).to(q.dtype)
        return q * factor, k * factor


@dataclass(frozen=True)
class Conversion:
    """The plan of a conversion.

    Attributes:
        origin: the encoding of the original model.
        teacher: the original model, frozen; None if no stage uses it.
        anneal_steps: steps over which the rotation is annealed.
        match_steps, distil_steps: steps of the first two stages.
    """

    origin: RoPE
    teacher: Transformer | None
    anneal_steps: int
    match_steps: int
    distil_steps: int

    def stage(self, step: int) -> Stage:
        """The stage of update `step`, counted from 0."""
        if step < self.match_steps:
            return "match"
        return "distil" if step < self.match_steps + self.distil_steps else "train"

    @property
    def starts(self) -> list[int]:
        """First steps of the stages after the first one."""
        return sorted({self.match_steps, self.match_steps + self.distil_steps} - {0})

    def strength(self, step: int) -> float:
        """Progress of the conversion at update `step`, from 0 to 1; see `Annealed`."""
        return min(1.0, step / self.anneal_steps) if self.anneal_steps else 1.0

    def apply(self, student: Transformer, strength: Tensor, step: int) -> None:
        """Prepare `student` for update `step`. Updates `strength`, a scalar tensor on its device, in place."""
        share = self.strength(step)
        strength.fill_(share)
        annealed = None if share == 1 else Annealed(self.origin, strength)
        for block in student.blocks:
            attention: Any = block.attention
            attention.annealed, attention.encoding.strength = annealed, None if share == 1 else strength
            attention.exact = share == 0

    def loss(self, student: Transformer, batch: Mapping[str, Tensor], step: int) -> Tensor:
        """The loss of update `step`, summed over the batch's targets."""
        documents = documents_of(batch)
        if self.teacher is None or (stage := self.stage(step)) == "train":
            return student.nats(batch["inputs"], batch["targets"], documents)
        counted = batch["targets"] != IGNORED
        return (matched if stage == "match" else distilled)(student, self.teacher, batch["inputs"], counted, documents)


def matched(
    student: Transformer,
    teacher: Transformer,
    tokens: Tensor,
    counted: Tensor,
    documents: Tensor | Documents | None = None,
) -> Tensor:
    """Squared error of the student's attention outputs, averaged over channels and layers.

    Each layer of the student gets the inputs of the teacher's layer and is compared with its output. Only the student's
    attention and the modules that its layers share are used, so no other weight gets a gradient.

    Args:
        tokens: ids `[B, T]`.
        counted: mask `[B, T]` of the tokens over which the error is summed.
        documents: see `Transformer.hidden`.
    """
    seen: list[tuple[Tensor, Tensor]] = []
    hooks = [
        block.attention.register_forward_hook(lambda _, given, out: seen.append((given[0], out)))  # pyright: ignore
        for block in teacher.blocks
    ]
    try:
        with torch.no_grad():
            teacher.hidden(tokens, None, documents)
    finally:
        for hook in hooks:
            hook.remove()
    contexts = student.contexts(tokens, seen[0][0], None, documents)
    error = torch.zeros((), device=tokens.device)
    for block, context, (x, out) in zip(student.blocks, contexts, seen, strict=True):
        attention: Any = block.attention
        error = error + ((attention(x, context) - out).float().square().mean(-1) * counted).sum()
    return error / len(seen)


def distilled(
    student: Transformer,
    teacher: Transformer,
    tokens: Tensor,
    counted: Tensor,
    documents: Tensor | Documents | None = None,
) -> Tensor:
    """Kullback-Leibler divergence of the student's predictions from the teacher's, in nats; see `matched`."""
    with torch.no_grad():
        theirs = teacher.hidden(tokens, None, documents).flatten(0, 1)
    ours = student.hidden(tokens, None, documents).flatten(0, 1)
    pieces = zip(ours.split(PIECE), theirs.split(PIECE), counted.flatten().split(PIECE), strict=True)
    divergence = torch.zeros((), device=tokens.device)
    for piece in pieces:
        divergence = divergence + checkpoint(_divergence, student.head, teacher.head, *piece, use_reentrant=False)
    return divergence


def _divergence(
    head: Callable[[Tensor], Tensor], other: Callable[[Tensor], Tensor], x: Tensor, y: Tensor, counted: Tensor
) -> Tensor:
    with torch.no_grad():
        wanted = other(y).float().log_softmax(-1)
    given = head(x).float().log_softmax(-1)
    return (F.kl_div(given, wanted, reduction="none", log_target=True).sum(-1) * counted).sum()


def frozen(model: Transformer) -> Transformer:
    """`model` in evaluation mode, without gradients."""
    return model.requires_grad_(False).eval()
