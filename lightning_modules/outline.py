"""Builds models without values, to read their sizes and parameter names."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

DRAWS = (nn.init.normal_, nn.init.uniform_, nn.init.kaiming_uniform_, Tensor.normal_, Tensor.uniform_)


class Undrawn(TorchFunctionMode):
    """Skips drawing initial values: on the meta device, PyTorch would import its compiler for it, which takes 2 s."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if func in DRAWS:
            return args[0] if args else kwargs["tensor"]
        return func(*args, **kwargs)


@contextmanager
def outlined() -> Iterator[None]:
    """Modules created in this context have parameters on PyTorch's "meta" device: shapes and dtypes only."""
    with torch.device("meta"), Undrawn():
        yield
