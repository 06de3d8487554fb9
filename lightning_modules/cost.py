"""What a model costs: operations, memory, and the peak of the chip it runs on."""

import torch
import torch.nn.functional as F

from bearings.lightning_modules.evaluation import autocast
from bearings.lightning_modules.transformer import Transformer

# Dense bf16 matrix rate without sparsity, FLOP/s, from the vendors' data sheets.
PEAK_BF16 = {
    "B200": 2250e12,
    "H200": 989e12,
    "H100 PCIe": 756e12,
    "H100": 989e12,
    "A100": 312e12,
    "L40S": 362e12,
    "L4": 121e12,
    "A10": 125e12,
    "RTX 4090": 165e12,
    "RTX 3090": 71e12,
}


def peak_flops(device: torch.device) -> float | None:
    """Peak bf16 FLOP/s of `device`, or None where it is not known."""
    if device.type != "cuda":
        return None
    name = torch.cuda.get_device_name(device)
    return next((peak for chip, peak in PEAK_BF16.items() if chip in name), None)


def training_memory(model: Transformer, batch_size: int, length: int, precision: str) -> float:
    """Bytes that a training step holds at its peak: weights, gradients, AdamW's moments and saved activations.

    The activations are those that one row of `length` tokens leaves for its backward pass, measured by running it,
    times `batch_size`.
    """
    device = model.embedding.weight.device
    states = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    saved: dict[int, int] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in states:
            saved[storage.data_ptr()] = storage.nbytes()
            alive.append(tensor)
        return tensor

    alive: list[torch.Tensor] = []
    tokens = torch.zeros(1, length, dtype=torch.int64, device=device)
    with torch.random.fork_rng(), torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        with autocast(device, precision):
            logits = model(tokens)
        F.cross_entropy(logits.float().flatten(0, 1), tokens.flatten())
    return 16.0 * model.parameter_count() + batch_size * float(sum(saved.values()))
