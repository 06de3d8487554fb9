"""Bases of modules with learned positions: initial values, weight decay, precision and auxiliary losses."""

from collections.abc import Callable
from operator import attrgetter
from typing import Any, Self

from torch import Tensor, nn

INIT_STD = 0.02  # of initial linear layers and embeddings


class PositionModule(nn.Module):
    """A module of an encoding that the model initialises, and whose parameters may need special treatment.

    Class attributes:
        no_weight_decay: names of parameters that the optimiser must not decay.
        keep_float32: names of parameters and buffers that stay float32 when the module is cast to a smaller dtype.
        auxiliary: names of `auxiliary_losses`, which are columns of metrics.csv.
    """

    no_weight_decay: tuple[str, ...] = ()
    keep_float32: tuple[str, ...] = ()
    auxiliary: tuple[str, ...] = ()

    @property
    def draws(self) -> bool:
        """Whether passes in training draw numbers that all tokens of a row must share."""
        return False

    def reset_parameters(self) -> None:
        """Initialise the parameters from the global generator, which the caller has seeded."""

    def diagnostics(self) -> dict[str, Tensor]:
        """Scalar tensors that describe the parameters, keyed by column name in metrics.csv."""
        return {}

    def auxiliary_losses(self, length: int) -> dict[str, Tensor]:
        """Scalar losses that a training step adds to the mean nats, by the names in `auxiliary`; none in evaluation.

        They are logged separately and are not part of any reported nats. A step of several micro-batches adds them
        once.

        Args:
            length: number of tokens in the rows of the step.
        """
        return {}

    def undecayed(self) -> list[nn.Parameter]:
        """The parameters in `no_weight_decay`. Parameters that are None with the given options are skipped.

        Raises:
            ValueError: a name is not a parameter.
        """
        found = []
        for name in self.no_weight_decay:
            try:
                found.append(attrgetter(name)(self))
            except AttributeError as error:
                names = ", ".join(dict(self.named_parameters())) or "none"
                raise ValueError(
                    f"no_weight_decay={name}: {type(self).__name__} has no such parameter; it has {names}"
                ) from error
        return [parameter for parameter in found if parameter is not None]

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        # Every cast and move of a module calls this. A cast below float32 moves the tensors that keep_float32 names to
        # the new device, but does not change their dtype.
        kept = {id(attrgetter(name)(self)) for name in self.keep_float32}

        def without_rounding(tensor: Tensor) -> Tensor:
            moved = fn(tensor)
            small = moved.is_floating_point() and moved.dtype.itemsize < 4
            return tensor.to(moved.device) if small and id(tensor) in kept else moved

        return super()._apply(without_rounding if kept else fn, recurse)


class SharedModule(PositionModule):
    """A module that all layers with the same encoding share, which computes something from positions.

    The model creates it once, and runs it once per pass. Layers find its result in `Context.shared`.
    """

    def forward(self, positions: Tensor) -> Any:
        """What the layers need for tokens at `positions`, `[T]` or `[B, T]` (see `Context`)."""
        raise NotImplementedError
