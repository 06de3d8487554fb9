"""Base of modules with learned positions: initial values, weight decay and precision."""

from collections.abc import Callable
from operator import attrgetter
from typing import Self

from torch import Tensor, nn


class PositionModule(nn.Module):
    """A module of an encoding that the model initialises, and whose parameters may need special treatment.

    Class attributes:
        no_weight_decay: names of parameters that the optimiser must not decay.
        keep_float32: names of parameters and buffers that stay float32 when the module is cast to a smaller dtype.
    """

    no_weight_decay: tuple[str, ...] = ()
    keep_float32: tuple[str, ...] = ()

    def reset_parameters(self) -> None:
        """Initialise the parameters from the global generator, which the caller has seeded."""

    def diagnostics(self) -> dict[str, Tensor]:
        """Scalar tensors that describe the parameters, keyed by column name in metrics.csv."""
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
        # Every cast and move of a module calls this. A cast below float32 only moves what keep_float32 names.
        kept = {id(attrgetter(name)(self)) for name in self.keep_float32}

        def without_rounding(tensor: Tensor) -> Tensor:
            moved = fn(tensor)
            small = moved.is_floating_point() and moved.dtype.itemsize < 4
            return tensor.to(moved.device) if small and id(tensor) in kept else moved

        return super()._apply(without_rounding if kept else fn, recurse)
