"""Properties of a GPU on which the choice of kernels depends. Reading them takes longer than a small kernel runs."""

import torch

from .compiling import cached


@cached
def capability_of(device: torch.device) -> tuple[int, int]:
    """Compute capability, such as (9, 0)."""
    return torch.cuda.get_device_capability(device)
