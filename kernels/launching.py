"""Launches of Triton kernels: with little CPU time, and with the first tile sizes that fit the GPU."""

from collections.abc import Callable, Hashable, Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from triton.runtime.driver import driver
from triton.runtime.errors import OutOfResources

from .choice import INTERPRETED

LAYOUTS = 1024  # maximum launches that a function caches, one for each layout of its inputs


def current_device() -> int:
    """Index of the GPU on which Triton launches kernels."""
    return driver.active.get_current_device()  # pyright: ignore[reportAttributeAccessIssue]


Choice = tuple[tuple[int, ...], dict[str, Any]]


class Launch:
    """A launch of a kernel that is repeated with other tensors.

    Triton inspects every argument in each call to find the compiled kernel, which takes longer than a small kernel
    runs. Here everything except the tensors is fixed, so that only their dtypes and the alignment of their addresses
    can select another compiled kernel.

    Args:
        kernel: the Triton kernel.
        choices: tile sizes in order of preference, each as a grid and all arguments that are not tensors, including
            options such as `num_warps`. The first that fits the GPU is used.
    """

    def __init__(self, kernel: Any, *choices: Choice):
        self.kernel = kernel
        self.choices = choices
        self.ready: dict[Hashable, Ready] = {}

    def __call__(self, **tensors: Tensor | None) -> None:
        """Launch the kernel. Each call names the same tensors in the same order.

        Raises:
            RuntimeError: no choice fits the GPU.
        """
        if INTERPRETED:
            launch(self.kernel, self.choices, tensors)
            return
        given = tensors.values()
        dtypes = [None if x is None else x.dtype for x in given]
        kind = current_device(), *dtypes, *[x is None or x.data_ptr() % 16 == 0 for x in given]
        found = self.ready.get(kind)
        if found is None:
            found = self.ready[kind] = first_fit(self.kernel, self.choices, tensors)
        found.launch(tensors)


class Ready(NamedTuple):
    """A loaded kernel.

    Attributes:
        run: launches it with all arguments in order.
        arguments: these arguments, with None for the tensors.
        places: indices of the tensors among them.
    """

    run: Callable[..., None]
    arguments: list
    places: list[int]

    def launch(self, tensors: dict[str, Tensor | None]) -> None:
        """Launch it with these tensors, in the order of `places`."""
        arguments = self.arguments.copy()
        for place, x in zip(self.places, tensors.values(), strict=True):
            arguments[place] = x
        self.run(*arguments)


def launch(kernel: Any, choices: Iterable[Choice], tensors: dict[str, Tensor | None]) -> None:
    """Launch a kernel once, like `Launch(kernel, *choices)(**tensors)`, for settings that differ between calls."""
    if INTERPRETED:
        grid, settings = next(iter(choices))
        kernel[grid](**tensors, **settings)
    else:
        first_fit(kernel, choices, tensors).launch(tensors)


def first_fit(kernel: Any, choices: Iterable[Choice], tensors: dict[str, Tensor | None]) -> Ready:
    """The kernel with the first choice that fits the GPU.

    Raises:
        RuntimeError: no choice fits the GPU.
    """
    problem = None
    for grid, settings in choices:
        try:
            run = loaded(kernel, grid, tensors, settings)
        except OutOfResources as error:
            problem = error
        else:
            order = kernel.arg_names
            return Ready(run, [settings.get(name) for name in order], [order.index(name) for name in tensors])
    raise RuntimeError(
        f"{torch.cuda.get_device_name()} has too little shared memory for implementation=triton ({problem}): use "
        f"implementation=torch or a smaller head_dim"
    )


def loaded(
    kernel: Any, grid: tuple[int, ...], tensors: dict[str, Tensor | None], settings: dict[str, Any]
) -> Callable[..., None]:
    """Compile and load a kernel. The result launches it with all its arguments in order.

    Raises:
        OutOfResources: from Triton, if the kernel needs more shared memory than the GPU has.
    """
    return kernel.run(grid=grid, warmup=True, **tensors, **settings)[(*grid, 1, 1)[:3]]


def fits(kernel: Any, tensors: dict[str, Tensor | None], settings: dict[str, Any]) -> bool:
    """Whether a kernel fits the GPU. An empty tensor can stand in for any tensor of its dtype."""
    if not INTERPRETED:
        try:
            loaded(kernel, (1,), tensors, settings)
        except OutOfResources:
            return False
    return True


def split(arguments: dict[str, Any]) -> tuple[dict[str, Tensor | None], dict[str, Any]]:
    """Split launch arguments into tensors, including None for absent ones, and settings."""
    tensors = {name: x for name, x in arguments.items() if x is None or isinstance(x, Tensor)}
    return tensors, {name: x for name, x in arguments.items() if name not in tensors}
