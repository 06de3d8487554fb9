"""Shared by Triton kernels of several folders: constants, launch arguments and the size of the GPU."""

import functools
import math

import torch
import triton.language as tl
from torch import Tensor

from .layout import Layout

LOG2E = tl.constexpr(math.log2(math.e))
LN2 = tl.constexpr(math.log(2))
# Below any score. Not -inf: a row with no visible key in its first tile would compute inf - inf. The values it
# accumulates there are scaled by 0 later.
UNSEEN = tl.constexpr(-1e30)


def strides(**tensors: Tensor | Layout | None) -> dict[str, int]:
    """Strides as launch arguments: `strides(q=q)` has keys `q_b`, `q_t`, `q_h` for `q [B, T, H, ...]`; 0 for None."""
    found = {}
    for name, x in tensors.items():
        steps = (0, 0, 0) if x is None else x.stride()[:3]
        found |= zip((f"{name}_b", f"{name}_t", f"{name}_h"), steps, strict=True)
    return found


def precision_of(dtype: torch.dtype) -> str:
    """`input_precision` for `tl.dot`, such that float32 inputs are not rounded."""
    return "ieee" if dtype == torch.float32 else "tf32"


@functools.cache
def processors(device: torch.device) -> int:
    """Number of multiprocessors of the GPU. The interpreter reports a few, so that tests cover split kernels too."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 4
