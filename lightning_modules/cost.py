"""Estimates the cost of a model: operations, memory, and the peak rate of its GPU."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn

from ..kernels.loss.cross_entropy import LARGE, piece_rows
from .context_parallel import ContextParallel, SimulatedRank
from .evaluation import autocast
from .transformer import Transformer
from .working_memory import working_bytes

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
USUAL_SHARE, USUAL_PEAK = 0.35, 200e12  # share of the peak that a model reaches; peak of a GPU not listed
REACHED = (0.1, 0.4)  # shares of the peak that small and large models reach
REFERENCE = "NVIDIA H200"  # the GPU of an estimate without one
LAUNCH_SECONDS = 2.5e-3  # per layer, forward and backward
SHORT_ROWS = (128, 256, 512)  # tokens of a rank, beyond windows, measured on a CPU to extrapolate to longer rows


def peak_flops(device: torch.device) -> float | None:
    """Peak bf16 FLOP/s of `device`, or None if unknown."""
    return PEAK_BF16.get(torch.cuda.get_device_name(device)) if device.type == "cuda" else None


def training_time_text(flops: float, device: torch.device) -> str:
    """The time that training with so many FLOPs takes on one GPU: a range, for `device` if its peak is known."""
    known = peak_flops(device)
    name, peak = (torch.cuda.get_device_name(device), known) if known else (REFERENCE, PEAK_BF16[REFERENCE])
    slow, fast = (flops / peak / share for share in REACHED)
    if slow < 60:
        return f"{flops:.2g} FLOPs, under a minute on one {name}"
    unit, seconds = ("hours", 3600) if slow >= 3600 else ("minutes", 60)
    low, high = (f"{100 * share:.0f} %" for share in REACHED)
    time = f"{fast / seconds:.2g} to {slow / seconds:.2g} {unit}"
    return f"{flops:.2g} FLOPs, {time} on one {name} at {high} to {low} of its peak"


def step_seconds(model: Transformer, batch_size: int, length: int, device: torch.device) -> tuple[float, float]:
    """Rough seconds of a training step: arithmetic on the GPU, and kernel launches on the CPU.

    The encoding's own arithmetic is not counted, so that decisions based on these times are equal for all encodings.
    """
    own = {id(module) for encoding in model.position_modules for module in encoding.modules()}
    linear = (module for module in model.modules() if isinstance(module, nn.Linear) and id(module) not in own)
    plain = (4.0 * each.heads * each.head_dim * each.pairs_seen(length) for each in model.encodings)
    attention = sum(plain) / length
    flops = 3 * (2 * sum(module.weight.numel() for module in linear) + attention) * batch_size * length
    rate = USUAL_SHARE * (peak_flops(device) or USUAL_PEAK)
    return flops / rate, LAUNCH_SECONDS * len(model.blocks)


def free_memory(device: torch.device) -> int:
    """Bytes that PyTorch can still allocate on a CUDA `device`, including its unused cache."""
    unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return torch.cuda.mem_get_info(device)[0] + unused


def total_memory(device: torch.device) -> int:
    """Total memory of a CUDA `device`, or of this machine for the CPU, in bytes."""
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).total_memory
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def training_memory(
    model: Transformer, batch_size: int, length: int, precision: str, compiled: bool = False, ranks: int = 1
) -> float:
    """Peak memory of a training step on one device, in bytes.

    The sum of weights, AdamW's moments, the tensors saved by the forward pass, and the working memory of the loss, of
    one block or of its encoding, whichever is largest; or, if larger, weights, moments, all gradients and one block.
    Saved tensors are measured on two and three rows of `length` tokens (on a CPU, at most 512 per rank more than
    the window) and extrapolated to `batch_size` rows. On a CPU, so is the working memory of blocks.

    Args:
        compiled: the blocks will be compiled, which saves less and recomputes more.
        ranks: number of devices that share each row.
    """
    rows, weights = batch_size, 4.0 * model.parameter_count()
    saves = partial(_extrapolated, model, rows, length, precision, compiled, ranks)
    saved = saves()
    if model.embedding.weight.device.type == "cpu" and ranks == 1:
        block = working_bytes(model, rows, length, precision)
    else:
        block = _block_bytes(model, rows, length, ranks, saved, saves)
    loss = _loss_bytes(rows * _own_tokens(length, ranks), model.head.weight, precision)
    return max(3 * weights + saved + max(loss, block), 4 * weights + block)


def _block_bytes(
    model: Transformer, rows: int, length: int, ranks: int, saved: float, saves: Callable[[], float]
) -> float:
    """Working memory of one block or its encoding in bytes, from what all blocks save."""
    layers = len(model.blocks)
    queries = length if ranks == 1 else ContextParallel(ranks).chunk(length)  # a rank processes one chunk at a time
    scratch = max(encoding.scratch_bytes(rows, queries, length) for encoding in model.encodings)
    if not model.checkpointing:
        return max(saved / layers, scratch)
    # Only each block's input is saved; the backward pass recomputes the rest, block by block. It also needs working
    # memory: first for the MLP, a quarter of what the block saves, and after freeing that, for the encoding.
    model.checkpointing = False
    try:
        block = (saves() - saved) / layers
    finally:
        model.checkpointing = True
    return block + max(block / 4, scratch)


def _own_tokens(length: int, ranks: int) -> int:
    """Tokens of a row that a rank processes, padding included."""
    return length if ranks == 1 else 2 * ContextParallel(ranks).chunk(length)


def _extrapolated(model: Transformer, rows: int, length: int, precision: str, compiled: bool, ranks: int = 1) -> float:
    """`_saved_bytes` of `rows` rows, extrapolated from two and three rows; on a CPU also from short to long rows."""
    # Attention within a window needs a mask only in rows that are longer than the window.
    windows = (encoding.window for encoding in model.encodings if encoding.window is not None)
    passed = max((window for window in windows if window < length), default=0)
    shorts = [passed + ranks * short for short in SHORT_ROWS]
    if model.embedding.weight.device.type == "cpu" and length > shorts[-1]:
        # A long forward pass would take minutes or all memory. Saved memory grows at most quadratically.
        saved = [_extrapolated(model, rows, short, precision, compiled, ranks) for short in shorts]
        return float(np.polyval(np.polyfit(shorts, saved, 2), length))
    two, three = (_saved_bytes(model, few, length, precision, compiled, ranks) for few in (2, 3))
    return two + (rows - 2) * (three - two)


def _loss_bytes(tokens: int, weight: torch.Tensor, precision: str) -> float:
    """Working memory of the loss in bytes: logits in low precision, and gradients of all of them or of a piece."""
    vocabulary, size = len(weight), 2 if precision == "bf16-mixed" else 4
    if weight.device.type == "cuda" and size == 2 and vocabulary >= LARGE:
        return size * (min(tokens, piece_rows(tokens, vocabulary)) * vocabulary + weight.numel())
    return (size + 4) * tokens * vocabulary


def scoring_bytes(tokens: int, weight: torch.Tensor, precision: str) -> float:
    """Working memory of scoring `tokens` at a time after the last block, in bytes: logits of a piece, and a copy of
    `weight [V, C]` in half precision.

    PyTorch's cross entropy computes log-probabilities, and copies of half-precision logits, in float32.
    """
    vocabulary, size, device = len(weight), 2 if precision == "bf16-mixed" else 4, weight.device.type
    copies = 0 if device == "cuda" else 8 if size == 2 else 4
    rows = min(tokens, piece_rows(tokens, vocabulary, device))
    return (size + copies) * rows * vocabulary + (size * weight.numel() if size == 2 else 0)


def _saved_bytes(
    model: Transformer, rows: int, length: int, precision: str, compiled: bool = False, ranks: int = 1
) -> int:
    """Bytes that a forward pass on one of `ranks` saves for the backward pass, not counting the weights."""
    device = model.embedding.weight.device
    tokens = torch.zeros(rows, _own_tokens(length, ranks), dtype=torch.int64, device=device)
    nats = model.nats if ranks == 1 else partial(SimulatedRank(ranks).nats, model)
    with _partitioned(model, compiled and not model.checkpointing), autocast(device, precision):
        return bytes_saved_by(model, lambda: nats(tokens, tokens))


def bytes_saved_by(model: Transformer, forward: Callable[[], Tensor]) -> int:
    """Bytes that `forward` saves for the backward pass, not counting the weights of `model`."""
    device = model.embedding.weight.device
    weights = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    # Keeps the storages alive, so that no later one gets the same address.
    saved: dict[int, torch.UntypedStorage] = {}

    def keep(tensor: torch.Tensor) -> None:  # returning the tensor would create a reference cycle
        if tensor.untyped_storage().data_ptr() not in weights:
            saved[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage()

    keeping = torch.autograd.graph.saved_tensors_hooks(keep, lambda nothing: nothing)
    drawn_on = [device] if device.type == "cuda" else []  # other GPUs draw no random numbers
    with torch.random.fork_rng(devices=drawn_on), keeping:
        forward()
    return sum(storage.nbytes() for storage in saved.values())


@contextmanager
def _partitioned(model: Transformer, compiled: bool) -> Iterator[None]:
    """Make blocks save the same tensors as compiled ones, without the minute that compiling takes."""
    if compiled:
        model.compile_parts(dynamic=False, backend="aot_eager_decomp_partition")
    try:
        yield
    finally:
        if compiled:
            for part in (*model.blocks, model.norm):
                part._compiled_call_impl = None
            torch.compiler.reset()
