"""Dense references of biases that tokens compute, of stick-breaking attention and of linear attention."""

import torch
from distance_support import alibi_slopes
from torch import Tensor

from bearings.encodings.base import Encoding
from bearings.kernels import reference


def cumulative_oracle(name: str, encoding: Encoding, x: Tensor, q: Tensor, k: Tensor, v: Tensor) -> Tensor | None:
    """Attention `[B, T, H, D]` from the equation of the encoding; None for an encoding that is not known here."""
    if name == "grape_additive":
        return reference.biased_attention(q, k, v, gated_bias(encoding, q, k))
    if name == "grape_path":
        return reference.biased_attention(q, k, v, path_bias(encoding, x))
    if name == "stick_breaking":
        return reference.stick_breaking_attention(q, k, v)
    if name == "kernelized_rpe":
        return reference.kernelized_attention(*random_features(encoding, q, k), v, encoding.biases.detach().exp())
    return None


def slopes(encoding: Encoding) -> Tensor:
    return torch.tensor(alibi_slopes(encoding.heads), dtype=torch.float64)


def gated_bias(encoding: Encoding, q: Tensor, k: Tensor) -> Tensor:
    """`[B, H, T, T]` of GRAPE-A-QK."""
    k = k.repeat_interleave(q.shape[2] // k.shape[2], 2)
    gates = []
    for vectors, direction in ((q, encoding.query_direction), (k, encoding.key_direction)):
        unit = direction / direction.norm(dim=1, keepdim=True)
        gates.append((torch.einsum("bthd,hd->bht", vectors, unit) / q.shape[-1] ** 0.5).exp().log1p())
    places = torch.arange(q.shape[1])
    rates = (slopes(encoding) * encoding.scale.exp().log1p())[:, None, None]
    return -rates * (places[:, None] - places) * (gates[0].unsqueeze(-1) + gates[1].unsqueeze(-2))


def path_bias(encoding: Encoding, x: Tensor) -> Tensor:
    """`[B, H, T, T]` of GRAPE-AP: a sum over the path as a product with a triangular matrix."""
    return path_potentials(encoding, x).tril() @ torch.ones(x.shape[1], x.shape[1]).double().tril(-1)


def path_potentials(encoding: Encoding, x: Tensor) -> Tensor:
    """Potential of each token u for each query t, `[B, H, T, T]`."""
    length, half = x.shape[1], encoding.channels // 2
    probes = (x @ encoding.projection.weight.T).unflatten(-1, (encoding.heads, -1)).transpose(1, 2)
    unit = probes / (probes.square().mean(-1, keepdim=True) + torch.finfo(torch.float32).eps).sqrt()
    turn = torch.polar(torch.ones(length).double(), -torch.arange(length).double()).unsqueeze(-1)
    turned = torch.complex(unit[..., :half], unit[..., half:]) * turn
    products = probes @ torch.cat([turned.real, turned.imag], -1).mT
    return slopes(encoding)[:, None, None] * (products / encoding.channels).sigmoid().log()


def random_features(encoding: Encoding, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
    group = encoding.heads // encoding.kv_heads
    for_query = encoding.directions.repeat_interleave(group, 0)
    pairs = (q, for_query), (k, encoding.directions)
    first, second = (
        torch.einsum("bthd,hmd->bthm", each / each.norm(dim=-1, keepdim=True), w).exp() for each, w in pairs
    )
    return first, second


def step_phases(encoding: Encoding, x: Tensor) -> Tensor:
    """Phases of GRAPE-M `[B, T, Hkv, D/2]`."""
    steps = 1 / (1 + (-(x @ encoding.step.weight.T + encoding.step.bias) / 16).exp())
    positions = torch.cat([torch.zeros_like(steps[:, :1]), steps[:, :-1]], 1).cumsum(1)
    return (positions * encoding.log_frequencies.exp()).unsqueeze(2).expand(-1, -1, encoding.kv_heads, -1)
