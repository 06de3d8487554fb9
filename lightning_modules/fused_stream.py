"""`x = x + attention(norm(x))` with each addition and the following norm fused into one pass over the stream x.

In the plain form, a block adds the output of its MLP, and the next block applies the norm. Blocks are compiled
separately, so both must happen in one block to be fused. A block therefore takes and returns a `Stream`; the next block
or `Ending` adds its branch. On a CPU the result is bit-identical to that of `Block`; on a GPU it differs by the
rounding of `added_norm`.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple, cast

from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from ..encodings.contract.context import Context
from ..encodings.contract.state import State
from ..kernels.layers.added_norm import added_norm
from ..kernels.precision import compute_dtype


class Stream(NamedTuple):
    """The residual stream `x [B, T, C]`, and a branch that is not yet added to it, if any.

    `carried` is what the layers of a `CarryingEncoding` pass on; other layers leave it as it is.
    """

    x: Tensor
    branch: Tensor | None = None
    carried: Tensor | None = None

    def joined(self, dropout: nn.Dropout) -> Tensor:
        """x with the branch added."""
        return self.x if self.branch is None else self.x + dropout(self.branch)

    def normed(self, norm: nn.RMSNorm, dropout: nn.Dropout) -> tuple[Tensor, Tensor]:
        """x with the branch added, and its norm."""
        # With dropout, torch.compile fuses the operations instead.
        if self.branch is None or norm.eps is None or (dropout.training and dropout.p):
            x = self.joined(dropout)
            return x, norm(x)
        return added_norm(self.x, self.branch, norm.weight, norm.eps)


class Ending(nn.RMSNorm):
    """The final norm, whose output the output layer reads."""

    def __init__(self, width: int, eps: float, dropout: float):
        super().__init__(width, eps)
        self.dropout = nn.Dropout(dropout)

    def forward(self, stream: Stream) -> Tensor:
        out = super().forward(stream.joined(self.dropout))
        return out.to(compute_dtype(out))


def through(
    blocks: Iterable[nn.Module],
    x: Tensor,
    contexts: Sequence[Context],
    states: Sequence[State] | None,
    checkpointing: bool,
) -> Stream:
    """The stream after all blocks, each called as `block(stream, context, state)`.

    Args:
        contexts, states: one per layer; `states` may be None.
        checkpointing: save only each block's input and recompute the rest in the backward pass. The branch is added
            first, so that the input is one tensor (and dropout's mask) instead of two.
    """
    stream = Stream(x)
    for layer, block in enumerate(blocks):
        if checkpointing:
            x = stream.joined(cast("nn.Dropout", block.dropout))
            stream = checkpoint(_call, block, contexts[layer], x, stream.carried, use_reentrant=False)
        else:
            stream = block(stream, contexts[layer], None if states is None else states[layer])
    return stream


def _call(block: nn.Module, context: Context, x: Tensor, carried: Tensor | None) -> Stream:
    """Call `block` with plain tensors, because saved-tensor hooks do not see tensors inside a `Stream`."""
    return block(Stream(x, None, carried), context)
