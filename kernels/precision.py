"""The dtypes that operators compute in: autocast's, and two that are wider than their inputs' own."""

import torch
from torch import Tensor


def wide(x: Tensor) -> torch.dtype:
    """float32, or float64 for a float64 `x`."""
    return torch.promote_types(x.dtype, torch.float32)


def widest(device: torch.device) -> torch.dtype:
    """float64, for what grows with the length (phases, sums of gates); Apple's mps has none and gets float32."""
    return torch.float32 if device.type == "mps" else torch.float64


def compute_dtype(x: Tensor) -> torch.dtype:
    """The dtype of products of `x`: autocast's, where it is on; but autocast leaves float64 as it is."""
    kind = x.device.type
    lowered = torch.is_autocast_enabled(kind) and x.dtype != torch.float64
    return torch.get_autocast_dtype(kind) if lowered else x.dtype
