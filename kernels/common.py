"""What Triton kernels of several folders share: constants, launch arguments and the size of the GPU."""

import functools
import math

import torch
import triton.language as tl
from torch import Tensor

LOG2E = tl.constexpr(math.log2(math.e))
LN2 = tl.constexpr(math.log(2))
# Below any score. Not -inf: a row that sees nothing in its first tile would be inf - inf. What it gathers there is
# scaled by 0 later.
UNSEEN = tl.constexpr(-1e30)


def strides(**tensors: Tensor | None) -> dict[str, int]:
    """Launch arguments: `strides(q=q)` has `q_b`, `q_t` and `q_h` of `q [B, T, H, ...]`; zeros for None."""
    found = {}
    for name, x in tensors.items():
        steps = (0, 0, 0) if x is None else x.stride()[:3]
        found |= zip((f"{name}_b", f"{name}_t", f"{name}_h"), steps, strict=True)
    return found


def precision_of(dtype: torch.dtype) -> str:
    """`input_precision` of the products of tiles: float32 stays float32."""
    return "ieee" if dtype == torch.float32 else "tf32"


@functools.cache
def processors(device: torch.device) -> int:
    """Multiprocessors of a GPU; the interpreter gets a few, so that it splits as well."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 4
