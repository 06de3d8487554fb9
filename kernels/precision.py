"""The two dtypes that operators compute in beside their inputs' own."""

import torch
from torch import Tensor


def wide(x: Tensor) -> torch.dtype:
    """float32, or float64 for a float64 `x`."""
    return torch.promote_types(x.dtype, torch.float32)


def widest(device: torch.device) -> torch.dtype:
    """float64, for what grows with the length (phases, sums of gates); Apple's mps has none and gets float32."""
    return torch.float32 if device.type == "mps" else torch.float64
