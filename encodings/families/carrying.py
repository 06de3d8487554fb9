"""Base of encodings whose layers pass on a tensor in addition to x."""

from torch import Tensor

from ..base import Encoding
from ..contract.context import Context


class CarryingEncoding(Encoding):
    """An encoding with a tensor that each layer reads, updates and passes to the next layer with such an encoding.

    The first such layer calls `start`. Attention averages values and, with the same weights, what the tokens carry:
    `forward` finds it in `context.carried`, calls `start` if that is None, and returns both averages as channels of one
    tensor. After the MLP, the block calls `updated`. Layers with another encoding pass the tensor on unchanged.

    A subclass sets `value_dim` to D plus the number of averaged channels, and its state holds what past tokens carry.

    Attributes:
        last: whether this is the last layer with such an encoding. It averages values only and does not call `updated`.
    """

    last: bool = False

    def end(self) -> None:
        """Drop what only later layers would use. The model calls this once, for the last such layer."""
        self.last, self.value_dim = True, self.head_dim

    def start(self, context: Context, like: Tensor) -> Tensor:
        """What tokens at `context.positions` carry before the first layer, `[B, T, ...]`.

        Args:
            context: see `Encoding.forward`.
            like: a tensor `[B, T, ...]` of the layer, for its size, device and dtype.
        """
        raise NotImplementedError

    def updated(self, carried: Tensor, averaged: Tensor, branch: Tensor) -> Tensor:
        """The tensor for the next layer.

        Args:
            carried: the tensor that this layer received.
            averaged: the channels of `forward`'s result after the first D, `[B, T, H, value_dim - D]`.
            branch: the output of the layer's MLP, `[B, T, C]`.
        """
        raise NotImplementedError

    def average(self, x: Tensor, q: Tensor, k: Tensor, v: Tensor, context: Context) -> Tensor:
        return self.forward(x, q, k, v, context)[..., : self.head_dim]
