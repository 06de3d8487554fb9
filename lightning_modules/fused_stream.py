"""`x = x + attention(norm(x))` with each addition and the norm after it as one pass over the stream x.

The output of a block's MLP is added and then normed by the next block. For one pass both must happen in the same block,
as blocks are compiled one by one. So a block takes and returns a `Stream`, whose branch the next block, or `Ending`,
adds. On a CPU the result equals that of `Block` bit by bit, on a GPU up to the rounding of `added_norm`.
"""

from collections.abc import Iterable
from typing import NamedTuple, cast

from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from ..encodings.base import Context, State
from ..kernels.layers.added_norm import added_norm
from ..kernels.precision import compute_dtype


class Stream(NamedTuple):
    """The residual stream `x [B, T, C]`, and the branch that is still to be added to it, if any."""

    x: Tensor
    branch: Tensor | None = None

    def joined(self, dropout: nn.Dropout) -> Tensor:
        """x with the branch added."""
        return self.x if self.branch is None else self.x + dropout(self.branch)

    def normed(self, norm: nn.RMSNorm, dropout: nn.Dropout) -> tuple[Tensor, Tensor]:
        """x with the branch added, and its norm."""
        # Dropout is one pass with them if compiled.
        if self.branch is None or norm.eps is None or (dropout.training and dropout.p):
            x = self.joined(dropout)
            return x, norm(x)
        return added_norm(self.x, self.branch, norm.weight, norm.eps)


class Ending(nn.RMSNorm):
    """The norm of a stream, as the output layer reads it."""

    def __init__(self, width: int, eps: float, dropout: float):
        super().__init__(width, eps)
        self.dropout = nn.Dropout(dropout)

    def forward(self, stream: Stream) -> Tensor:
        out = super().forward(stream.joined(self.dropout))
        return out.to(compute_dtype(out))


def through(
    blocks: Iterable[nn.Module], x: Tensor, context: Context, states: list[State] | None, checkpointing: bool
) -> Stream:
    """The stream after all blocks, each called as `block(stream, context, state)`.

    Args:
        states: one a layer; None without.
        checkpointing: keep a block's input only and compute the rest again in the backward pass. The input is then
            joined first: one tensor and dropout's mask, instead of two.
    """
    stream = Stream(x)
    for layer, block in enumerate(blocks):
        if checkpointing:
            stream = Stream(stream.joined(cast("nn.Dropout", block.dropout)))
            stream = checkpoint(block, stream, context, use_reentrant=False)
        else:
            stream = block(stream, context, None if states is None else states[layer])
    return stream
