"""Dense references of encodings with scores made of content, from their equations and parameters."""

import math

import torch
from distance_support import distance_bias
from torch import Tensor
from torch.nn import functional

from bearings.encodings.base import Encoding
from bearings.kernels import reference


def content_oracle(name: str, encoding: Encoding, q: Tensor, k: Tensor, v: Tensor) -> Tensor | None:
    """Attention `[B, T, H, D]`; None for an encoding that it does not know."""
    if name not in SCORES:
        return None
    scores = SCORES[name](encoding, q, k)
    return reference.attend(scores * q.shape[-1] ** 0.5, q, v, None)


def cope_scores(encoding: Encoding, q: Tensor, k: Tensor) -> Tensor:
    scores, table = reference.dots(q, k) / q.shape[-1] ** 0.5, encoding.embeddings.detach()
    out = scores.clone()
    for t in range(q.shape[1]):
        gates = 1 / (1 + (-scores[:, :, t, : t + 1]).exp())
        positions = (gates @ gates.new_ones(t + 1, t + 1).tril()).clamp(max=len(table) - 1)
        low, high = positions.floor(), positions.ceil()
        share = (positions - low).unsqueeze(-1)
        embedding = (1 - share) * table[low.long()] + share * table[high.long()]
        out[:, :, t, : t + 1] += torch.einsum("bhd,bhsd->bhs", q[:, t], embedding)
    return out


def tapa_scores(encoding: Encoding, q: Tensor, k: Tensor) -> Tensor:
    """With the default options."""
    half, time = q.shape[-1] // 2, torch.arange(q.shape[1])
    amplitude = reference.dots(q[..., :half], k[..., :half]) / half**0.5
    phase = reference.dots(q[..., half:], k[..., half:]) / half**0.5
    return amplitude * (2 * math.pi * (time[:, None] - time).abs().double() ** 0.1 * phase).cos()


def dape_scores(encoding: Encoding, q: Tensor, k: Tensor, bias: Tensor | None = None) -> Tensor:
    """By PyTorch's convolution of one row at a time; with KERPLE's bias unless `bias [H, T, T]` is given."""
    dots, side = reference.dots(q, k) / q.shape[-1] ** 0.5, encoding.kernel // 2
    bias = distance_bias("kerple_log", encoding.bias, q.shape[1]) if bias is None else bias
    layers = [
        (getattr(encoding, f"{name}_weight").detach().permute(1, 2, 0).unsqueeze(2), getattr(encoding, f"{name}_bias"))
        for name in ("hidden", "output")
    ]
    out = dots + bias
    for t in range(q.shape[1]):
        row = torch.cat([dots, bias.expand_as(dots)], 1)[:, :, t : t + 1, : t + 1]
        x = functional.pad(row, (0, 2 * side))
        for layer, (weight, offset) in enumerate(layers):
            x = functional.conv2d(functional.leaky_relu(x) if layer else x, weight, offset.detach(), padding=(0, side))
        out[:, :, t, : t + 1] += x[:, :, 0, : t + 1]
    return out


SCORES = {"cope": cope_scores, "dape": dape_scores, "tapa": tapa_scores}
