"""What a model costs: operations, memory, and the peak of the chip it runs on."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch import nn

from ..encodings.base import Encoding
from ..kernels.loss.cross_entropy import LARGE, piece_rows
from .evaluation import autocast
from .transformer import Transformer

# Dense bf16 matrix rate without sparsity, FLOP/s, from the vendors' data sheets, by the name the driver gives.
PEAK_BF16 = {
    "NVIDIA B200": 2250e12,
    "NVIDIA H200": 989e12,
    "NVIDIA H100 80GB HBM3": 989e12,
    "NVIDIA H100 PCIe": 756e12,
    "NVIDIA A100-SXM4-40GB": 312e12,
    "NVIDIA A100-SXM4-80GB": 312e12,
    "NVIDIA A100-PCIE-40GB": 312e12,
    "NVIDIA A100 80GB PCIe": 312e12,
    "NVIDIA L40S": 362e12,
    "NVIDIA L4": 121e12,
    "NVIDIA A10": 125e12,
    "NVIDIA GeForce RTX 4090": 165e12,
    "NVIDIA GeForce RTX 3090": 71e12,
}
USUAL_SHARE, USUAL_PEAK = 0.35, 200e12  # of its peak that a model reaches; the peak of a GPU not listed
LAUNCH_SECONDS = 2.5e-3  # a layer, forward and backward
SHORT_ROWS = (128, 256, 512)  # tokens of a row, of which a CPU measures what longer ones would save


def peak_flops(device: torch.device) -> float | None:
    """Peak bf16 FLOP/s of `device`, or None where it is not known."""
    return PEAK_BF16.get(torch.cuda.get_device_name(device)) if device.type == "cuda" else None


def step_seconds(model: Transformer, batch_size: int, length: int, device: torch.device) -> tuple[float, float]:
    """Rough seconds of a training step: of its arithmetic on the GPU, and of the CPU that launches its kernels.

    The encoding's own arithmetic is left out: what is decided by these shall not differ between encodings.
    """
    own = {id(module) for encoding in model.encodings for module in encoding.modules()}
    linear = (module for module in model.modules() if isinstance(module, nn.Linear) and id(module) not in own)
    attention = sum(Encoding.attention_flops(encoding, length) for encoding in model.encodings) / length
    flops = 3 * (2 * sum(module.weight.numel() for module in linear) + attention) * batch_size * length
    rate = USUAL_SHARE * (peak_flops(device) or USUAL_PEAK)
    return flops / rate, LAUNCH_SECONDS * len(model.blocks)


def free_memory(device: torch.device) -> int:
    """Bytes that PyTorch can still get on a CUDA `device`, those that it holds unused among them."""
    unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return torch.cuda.mem_get_info(device)[0] + unused


def total_memory(device: torch.device) -> int:
    """Bytes of a CUDA `device`, or of this machine for the CPU."""
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).total_memory
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def training_memory(model: Transformer, batch_size: int, length: int, precision: str, compiled: bool = False) -> float:
    """Bytes that a training step of one device holds at its peak.

    Weights and AdamW's moments, what the forward pass saves, and the larger of what the loss and what one block work
    with beside it; or, where that is more, the gradients of all weights and one block. What is saved is measured on two
    and three rows of `length` tokens, on a CPU of up to 512, and carried on to `batch_size` rows of `length`.

    Args:
        compiled: the blocks will be compiled, which saves less and computes some of it again.
    """
    layers, rows = len(model.blocks), batch_size
    weights = 4.0 * model.parameter_count()
    saved = _carried_on(model, rows, length, precision, compiled)
    block = saved / layers
    if model.checkpointing:
        # Of each block its input is kept; in its turn it makes the rest. Beside that lies what the MLP works with, a
        # quarter as much, or else what the encoding needs for a while: by then what the MLP made and saved has gone.
        model.checkpointing = False
        try:
            block = (_carried_on(model, rows, length, precision, compiled) - saved) / layers
            block += max(block / 4, model.encodings[0].scratch_bytes(rows, length))
        finally:
            model.checkpointing = True
    loss = _loss_bytes(rows * length, model.head.weight, precision)
    return max(3 * weights + saved + max(loss, block), 4 * weights + block)


def _carried_on(model: Transformer, rows: int, length: int, precision: str, compiled: bool) -> float:
    """`_saved_bytes` of `rows` rows, from those of two and three; on a CPU of long rows, from those of short ones."""
    if model.embedding.weight.device.type == "cpu" and length > SHORT_ROWS[-1]:
        # A long forward pass takes minutes there, or all memory. Attention saves at most what grows with the square.
        saved = [_carried_on(model, rows, short, precision, compiled) for short in SHORT_ROWS]
        return float(np.polyval(np.polyfit(SHORT_ROWS, saved, 2), length))
    two, three = (_saved_bytes(model, few, length, precision, compiled) for few in (2, 3))
    return two + (rows - 2) * (three - two)


def _loss_bytes(tokens: int, weight: torch.Tensor, precision: str) -> float:
    """Bytes that the loss works with beside what it saves: logits in low precision, and gradients of all or a piece."""
    vocabulary, size = len(weight), 2 if precision == "bf16-mixed" else 4
    if weight.device.type == "cuda" and size == 2 and vocabulary >= LARGE:
        return size * (min(tokens, piece_rows(tokens, vocabulary)) * vocabulary + weight.numel())
    return (size + 4) * tokens * vocabulary


def scoring_bytes(tokens: int, weight: torch.Tensor, precision: str) -> float:
    """Bytes that scoring `tokens` at a time works with after the last block: logits of a piece, `weight [V, C]` too.

    Cross entropy of PyTorch makes its logarithms, and from half precision the logits, in float32.
    """
    vocabulary, size, device = len(weight), 2 if precision == "bf16-mixed" else 4, weight.device.type
    copies = 0 if device == "cuda" else 8 if size == 2 else 4
    rows = min(tokens, piece_rows(tokens, vocabulary, device))
    return (size + copies) * rows * vocabulary + (size * weight.numel() if size == 2 else 0)


def _saved_bytes(model: Transformer, rows: int, length: int, precision: str, compiled: bool = False) -> int:
    """Bytes that a forward pass saves for the backward pass, the weights themselves not counted."""
    device = model.embedding.weight.device
    weights = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    # Held so that no later one gets their address.
    saved: dict[int, torch.UntypedStorage] = {}

    def keep(tensor: torch.Tensor) -> None:  # returned to the graph, a tensor that it has made would keep it for ever
        if tensor.untyped_storage().data_ptr() not in weights:
            saved[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage()

    tokens = torch.zeros(rows, length, dtype=torch.int64, device=device)
    keeping = torch.autograd.graph.saved_tensors_hooks(keep, lambda nothing: nothing)
    partitioned = _partitioned(model, compiled and not model.checkpointing)
    drawn_on = [device] if device.type == "cuda" else []  # of several GPUs the others draw nothing
    with torch.random.fork_rng(devices=drawn_on), keeping, autocast(device, precision), partitioned:
        model.nats(tokens, tokens)
    return sum(storage.nbytes() for storage in saved.values())


@contextmanager
def _partitioned(model: Transformer, compiled: bool) -> Iterator[None]:
    """Blocks that save what compiled ones would, without the minute that compiling takes."""
    if compiled:
        model.compile_parts(dynamic=False, backend="aot_eager_decomp_partition")
    try:
        yield
    finally:
        if compiled:
            for part in (*model.blocks, model.norm):
                part._compiled_call_impl = None
            torch.compiler.reset()
