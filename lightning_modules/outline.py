"""Models without values, for their sizes and their names."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

DRAWS = (nn.init.normal_, nn.init.uniform_, nn.init.kaiming_uniform_, Tensor.normal_, Tensor.uniform_)


class Undrawn(TorchFunctionMode):
    """Initial values are not drawn: for tensors that hold none PyTorch would import its compiler, which takes 2 s."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if func in DRAWS:
            return args[0] if args else kwargs["tensor"]
        return func(*args, **kwargs)


@contextmanager
def outlined() -> Iterator[None]:
    """Modules made in this context have parameters of PyTorch's "meta" device: shapes and dtypes only."""
    with torch.device("meta"), Undrawn():
        yield
