"""Functions as PyTorch operators, called directly where nothing needs the operator.

An operator of `torch.library` stays whole in compiled graphs, but each call passes through the dispatcher, which takes
longer than the kernels do on small inputs.
"""

from collections.abc import Callable
from functools import wraps
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar

import torch
from torch import Tensor
from torch.autograd import Function

P = ParamSpec("P")
R = TypeVar("R")


def traced() -> bool:
    """Whether PyTorch intercepts operators: it is compiling, or a dispatch mode such as fake tensors is active."""
    return torch.compiler.is_compiling() or torch._C._len_torch_dispatch_stack() > 0


def on_its_gpu(function: Callable[Concatenate[Tensor, P], R]) -> Callable[Concatenate[Tensor, P], R]:
    """Decorator: make the GPU of the first argument the current one, on which Triton launches kernels."""

    @wraps(function)
    def call(x: Tensor, /, *given: P.args, **named: P.kwargs) -> R:
        device = x.device
        if device.type != "cuda" or device.index == torch.cuda.current_device():
            return function(x, *given, **named)
        with torch.cuda.device(device):
            return function(x, *given, **named)

    return call


class Operator(Generic[R]):
    """A function that mutates none of its arguments: tensors and settings, passed by position; the first is a tensor.

    Attributes:
        registered: the operator of `torch.library`, for compiled graphs and dispatch modes, such as fake tensors.
    """

    def __init__(self, name: str, function: Callable[..., R]):
        function = on_its_gpu(function)
        self.registered = torch.library.custom_op(name, function, mutates_args=())
        self.function = function
        self.name = name
        self.differentiable: type[Function] | None = None

    def register_fake(self, function: Callable[..., R]) -> None:
        """Like `torch.library.CustomOpDef.register_fake`."""
        self.registered.register_fake(function)

    def register_autograd(self, backward: Callable, setup_context: Callable | None = None) -> None:
        """Like `torch.library.CustomOpDef.register_autograd`."""
        self.registered.register_autograd(backward, setup_context=setup_context)
        function = self.function

        def forward(ctx: Any, *given: Any) -> R:
            out = function(*given)
            if setup_context is not None:
                setup_context(ctx, given, out)
            return out

        # PyTorch's own setup_context would inspect the signature in every call.
        methods = {"forward": staticmethod(forward), "backward": staticmethod(backward)}
        self.differentiable = type(self.name, (Function,), methods)

    def __call__(self, *given: Any) -> R:
        """Call the function, or the registered operator where PyTorch intercepts operators."""
        if traced():
            return self.registered(*given)
        if not torch.is_grad_enabled() or not any(isinstance(x, Tensor) and x.requires_grad for x in given):
            return self.function(*given)
        if self.differentiable is None:
            return self.registered(*given)  # which raises an error if the gradient is needed
        return self.differentiable.apply(*given)  # pyright: ignore[reportReturnType]


def operator(name: str) -> Callable[[Callable[..., R]], Operator[R]]:
    """Decorator: make a function an `Operator` called `name`, such as bearings::attention."""
    return lambda function: Operator(name, function)
