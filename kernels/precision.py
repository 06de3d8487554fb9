"""The dtypes that operators compute in: autocast's, and two that are wider than the inputs."""

import torch
from torch import Tensor


def wide(x: Tensor) -> torch.dtype:
    """float32, or float64 for a float64 `x`."""
    return torch.promote_types(x.dtype, torch.float32)


def widest(device: torch.device) -> torch.dtype:
    """float64, for quantities that grow with the length (phases, sums of gates); float32 on mps."""
    return torch.float32 if device.type == "mps" else torch.float64


def compute_dtype(x: Tensor) -> torch.dtype:
    """The dtype of matrix products of `x`: autocast's if enabled, otherwise that of x. float64 is never lowered."""
    kind = x.device.type
    lowered = torch.is_autocast_enabled(kind) and x.dtype != torch.float64
    return torch.get_autocast_dtype(kind) if lowered else x.dtype
