"""Initial weights: a function of the seed and each layer's name only, independent of the rest of the model."""

import hashlib
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from ..encodings.contract.module import INIT_STD, PositionModule
from ..kernels.layers.fused_linear import FusedLinear


@torch.no_grad()
def initialise(model: nn.Module, layers: int, seed: int) -> None:
    """Draw linear layers and embeddings from N(0, INIT_STD^2); smaller where a residual branch ends.

    Encodings are initialised by their `reset_parameters`. A model on PyTorch's "meta" device has no values to draw.

    Args:
        layers: number of blocks, with two residual branches each.
        seed: the run's seed.
    """
    if next(model.parameters()).is_meta:
        return
    residual_std = INIT_STD / (2 * layers) ** 0.5
    encodings = {name: module for name, module in model.named_modules() if isinstance(module, PositionModule)}
    inside_encodings = {id(module) for encoding in encodings.values() for module in encoding.modules()}
    for name, module in model.named_modules():
        if name in encodings:
            draw_from(derive_seed(seed, name), next(model.parameters()).device)
            encodings[name].reset_parameters()
        elif isinstance(module, nn.Linear | nn.Embedding) and id(module) not in inside_encodings:
            ends_residual = name.endswith(("attention.output", "mlp.down"))
            for layer, weight in layers_of(name, module):
                draw_from(derive_seed(seed, layer), weight.device)
                nn.init.normal_(weight, std=residual_std if ends_residual else INIT_STD)


def layers_of(name: str, module: nn.Linear | nn.Embedding) -> Iterator[tuple[str, Tensor]]:
    """The weight of `module`, or of each layer fused in it, with the name that seeds its initial values."""
    if isinstance(module, FusedLinear):
        parent = name.rpartition(".")[0]
        yield from ((f"{parent}.{part}", rows) for part, rows in module.parts().items())
    else:
        yield name, module.weight


def derive_seed(seed: int, name: str) -> int:
    """A seed for `name`. It is hashed, as PyTorch's CPU generator uses only the low 32 bits."""
    return int.from_bytes(hashlib.sha256(f"{seed} {name}".encode()).digest()[:7])


def draw_from(seed: int, device: torch.device) -> None:
    """Seed the random generators of `device` and of the CPU.

    torch.manual_seed is slower: it records a stack trace for each kind of device that is absent.
    """
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        torch.cuda.default_generators[device.index].manual_seed(seed)
