"""Keeps torch.compile from tracing a function, or from computing a tensor several times."""

from collections.abc import Callable
from functools import lru_cache, wraps
from typing import ParamSpec, TypeVar

import torch
from torch import Tensor
from torch._compile import _disable_dynamo

P = ParamSpec("P")
R = TypeVar("R")


def uncompiled(function: Callable[P, R]) -> Callable[P, R]:
    """Decorator: exclude `function` from compilation; compiled code calls it as it is.

    Unlike torch.compiler.disable, it does not import the compiler, which takes 2 s, before `function` is called.
    """
    return _disable_dynamo(function)


def cached(function: Callable[P, R]) -> Callable[P, R]:
    """`lru_cache`, but not within torch.compile, which ignores the cache and warns about it."""

    @lru_cache(maxsize=1024)
    def remembered(*given: P.args, **named: P.kwargs) -> R:
        with torch.inference_mode(False):  # a gradient may need the result later
            return function(*given, **named)

    @wraps(function)
    def call(*given: P.args, **named: P.kwargs) -> R:
        return function(*given, **named) if torch.compiler.is_compiling() else remembered(*given, **named)

    call.cache_clear = remembered.cache_clear  # pyright: ignore[reportAttributeAccessIssue]
    return call


def once(x: Tensor) -> Tensor:
    """Return `x`, computed once. Otherwise the compiler computes it again for every head, which is slow in float64."""
    return computed_once(x) if torch.compiler.is_compiling() and not x.requires_grad else x


@torch.library.custom_op("bearings::computed_once", mutates_args=())
def computed_once(x: Tensor) -> Tensor:
    """A copy of `x`, which has no gradient."""
    return x.clone()


@computed_once.register_fake
def _(x):
    return torch.empty_like(x)
