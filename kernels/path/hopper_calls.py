"""Which calls the kernels in Gluon for Hopper support."""

import math

import torch
import triton

from .call import Call, Upstream

GLUON = "3.6."  # supported versions of Triton; Gluon is experimental and changes between versions


def on_hopper(call: Call) -> bool:
    """Whether the kernels support this call: on Hopper, heads without padding, whole sequences without documents."""
    sizes = call.sizes
    return (
        call.q.device.type == "cuda"
        and torch.cuda.get_device_capability(call.q.device) == (9, 0)
        and triton.__version__.startswith(GLUON)
        and call.q.dtype in (torch.float16, torch.bfloat16)
        and call.first is None
        and sizes.blocks > 1
        and not sizes.bordered
        and sizes.head_dim == sizes.value_dim
        and call.v.data_ptr() % 16 == 0
    )


def gradients_on_hopper(call: Call, up: Upstream, since: dict[int, int]) -> bool:
    """Whether the gradient kernels support this call and it has the tokens that `since` asks for its channels."""
    sizes = call.sizes
    return (
        on_hopper(call)
        and sizes.far
        and sizes.length >= since.get(sizes.head_dim, math.inf)
        and (sizes.batch == 1 or sizes.length == sizes.padded)  # a tile at the end would reach into the next sequence
        and up.dout.data_ptr() % 16 == 0
    )
