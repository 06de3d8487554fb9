"""What a model costs: operations, memory, and the peak of the chip it runs on."""

import torch

from bearings.lightning_modules.evaluation import autocast
from bearings.lightning_modules.transformer import Transformer

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
LAUNCH_SECONDS = 3e-3  # a layer, forward and backward


def peak_flops(device: torch.device) -> float | None:
    """Peak bf16 FLOP/s of `device`, or None where it is not known."""
    return PEAK_BF16.get(torch.cuda.get_device_name(device)) if device.type == "cuda" else None


def step_seconds(model: Transformer, batch_size: int, length: int, device: torch.device) -> tuple[float, float]:
    """Rough seconds of a training step: of its arithmetic on the GPU, and of the CPU that launches its kernels."""
    flops = 3 * model.flops_per_token(length) * batch_size * length
    rate = USUAL_SHARE * (peak_flops(device) or USUAL_PEAK)
    return flops / rate, LAUNCH_SECONDS * len(model.blocks)


def training_memory(model: Transformer, batch_size: int, length: int, precision: str) -> float:
    """Bytes that a training step holds at its peak: weights, gradients, AdamW's moments and saved activations.

    The activations are those that one row and two rows of `length` tokens leave for their backward pass, measured by
    running them, carried on to `batch_size` rows.
    """
    fixed, one = 16.0 * model.parameter_count(), _saved_bytes(model, 1, length, precision)
    if batch_size == 1:
        return fixed + one
    return fixed + one + (batch_size - 1) * (_saved_bytes(model, 2, length, precision) - one)


def _saved_bytes(model: Transformer, rows: int, length: int, precision: str) -> int:
    """Bytes that a forward pass saves for the backward pass, the weights themselves not counted."""
    device = model.embedding.weight.device
    weights = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    saved: dict[int, torch.Tensor] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.untyped_storage().data_ptr() not in weights:
            saved[tensor.untyped_storage().data_ptr()] = tensor  # held, so that no later one gets its address
        return tensor

    tokens = torch.zeros(rows, length, dtype=torch.int64, device=device)
    keeping = torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor)
    with torch.random.fork_rng(), keeping, autocast(device, precision):
        model.nats(tokens, tokens)
    return sum(tensor.untyped_storage().nbytes() for tensor in saved.values())
