"""Communication between the processes (ranks) of one run. A single process is rank 0 of 1."""

import traceback
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor, distributed

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor


def rank() -> int:
    """Number of this process."""
    return distributed.get_rank() if distributed.is_initialized() else 0


def ranks() -> int:
    """Number of processes."""
    return distributed.get_world_size() if distributed.is_initialized() else 1


def total(tensor: Tensor) -> Tensor:
    """Sum `tensor` over all processes, in place."""
    if ranks() > 1:
        distributed.all_reduce(tensor)
    return tensor


def whole(tensor: Tensor) -> Tensor:
    """`tensor`, gathered from all processes if it is a DTensor. (Importing the class takes long.)"""
    return cast("DTensor", tensor).full_tensor() if hasattr(tensor, "full_tensor") else tensor


class Total:
    """An asynchronous sum of `tensor` over all processes, in place; calling it waits for the result."""

    def __init__(self, tensor: Tensor):
        self._tensor = tensor
        self._work = distributed.all_reduce(tensor, async_op=True) if ranks() > 1 else None

    def __call__(self) -> Tensor:
        if self._work is not None:
            self._work.wait()
        return self._tensor


def any_of(flag: bool, device: torch.device) -> bool:
    """Whether `flag` is set in any process. With several processes it waits for all of them."""
    return bool(total(torch.tensor(int(flag), device=device))) if ranks() > 1 else flag


def lost_touch(error: Exception) -> bool:
    """Whether `error` comes from communication between ranks. PyTorch has no class for most of these errors."""
    if ranks() == 1:
        return False
    modules = {frame.f_globals["__name__"] for frame, _ in traceback.walk_tb(error.__traceback__)}
    within = any(name.startswith("torch.distributed") for name in modules)
    # Gradients are exchanged inside the backward pass, which has no Python frames.
    return within or "gloo" in str(error) or "NCCL" in str(error)
