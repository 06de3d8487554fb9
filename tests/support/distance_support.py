"""Dense references of the distance biases, from their equations and the encodings' parameters."""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from bearings.encodings.base import Encoding
from bearings.kernels import reference


def pairwise(function: Callable[[int], Tensor], length: int) -> Tensor:
    """`function(t - s)` for each s <= t, `[T, T, ...]`; arbitrary elsewhere."""
    values = torch.stack([function(distance) for distance in range(length)])
    return values[(torch.arange(length)[:, None] - torch.arange(length)).clamp(min=0)]


def alibi_slopes(heads: int) -> list[float]:
    """The recursive definition: the slopes of the power of 2 below, and every other one of twice as many heads."""
    if math.log2(heads).is_integer():
        return [2 ** (-8 * h / heads) for h in range(1, heads + 1)]
    below = 2 ** math.floor(math.log2(heads))
    return alibi_slopes(below) + alibi_slopes(2 * below)[::2][: heads - below]


def t5_bucket(distance: int, buckets: int, most: int) -> int:
    half = buckets // 2
    if distance < half:
        return distance
    return min(buckets - 1, half + math.floor((buckets - half) * math.log(distance / half) / math.log(most / half)))


def irpe_bucket(distance: int, alpha: int, beta: int, gamma: int) -> int:
    if distance <= alpha:
        return distance
    return min(beta, round(alpha + math.log(distance / alpha) / math.log(gamma / alpha) * (beta - alpha)))


def ricker(distance: int, channels: int) -> Tensor:
    """Ricker wavelets `[D]` with scales 1, 2, .. 128, for a multiple of 8 channels."""
    shifts = channels // 8
    x = torch.tensor([(distance - c % shifts) / 2 ** (c // shifts) for c in range(channels)], dtype=torch.float64)
    return (1 - x**2) * (-(x**2) / 2).exp()


def distance_bias(name: str, encoding: Encoding, length: int) -> Tensor | None:
    """The bias `[H, T, T]` of a sequence; None for an encoding without one."""
    given = {parameter_name: each.detach() for parameter_name, each in encoding.named_parameters()}
    heads = torch.arange(1, encoding.heads + 1, dtype=torch.float64)
    if name == "alibi":
        slopes = torch.tensor(alibi_slopes(encoding.heads), dtype=torch.float64)
        found = pairwise(lambda d: -slopes * d, length)
    elif name in ("t5", "urpe"):
        sizes = encoding.buckets, encoding.max_distance
        found = pairwise(lambda d: given["biases"][:, t5_bucket(d, *sizes)], length)
    elif name == "kerple_log":
        p, a = (0.01 + given[each][:, 0].exp().add(1).log() for each in "pa")
        found = pairwise(lambda d: -p * (1 + a * d).log(), length)
    elif name == "kerple_power":
        p, a = 0.01 + given["p"][:, 0].exp().add(1).log(), 2 / (1 + (-given["a"][:, 0]).exp())
        found = pairwise(lambda d: -p * float(d) ** a, length)
    elif name == "bam":
        found = pairwise(lambda d: -given["alpha"][:, 0].exp() * (d + 1e-5) ** given["beta"][:, 0], length)
    elif name == "sandwich":
        n = encoding.sinusoids
        waves = [10000 ** (-i / n) for i in range(1, n + 1)]
        found = pairwise(
            lambda d: encoding.heads / (8 * heads) * (sum(math.cos(d * wave) for wave in waves) - n), length
        )
    elif name == "learned_distance":
        table = given["biases"]
        found = pairwise(lambda d: table[:, min(d, table.shape[1] - 1)], length)
    elif name == "fire":
        position = torch.arange(length, dtype=torch.float64)
        ends = position.clamp(min=float(encoding.threshold * given["multiplier"].abs())).unsqueeze(1)
        top, bottom = ((given["c"] * each).abs().add(1).log() for each in (position.unsqueeze(1) - position, ends))
        hidden = (given["hidden_weight"][:, 0] * (top / (bottom + 1e-6)).unsqueeze(-1) + given["hidden_bias"]).relu()
        found = hidden @ given["output_weight"].T + given["output_bias"]
    else:
        return None
    return found.movedim(-1, 0)


def distance_oracle(name: str, encoding: Encoding, q: Tensor, k: Tensor, v: Tensor) -> Tensor | None:
    """Attention `[B, T, H, D]` with the bias or embedding of the encoding; None for an encoding without one."""
    length = q.shape[1]
    if name in ("shaw", "irpe"):
        table = encoding.embeddings.detach()
        sizes = () if name == "shaw" else (encoding.exact, encoding.last_bucket, encoding.max_distance)
        bucket = irpe_bucket if sizes else lambda d: min(d, len(table) - 1)
        return reference.embedded_attention(q, k, v, pairwise(lambda d: table[bucket(d, *sizes)], length))
    if name == "wavelet":
        return reference.embedded_attention(q, k, v, pairwise(lambda d: ricker(d, q.shape[-1]), length))
    bias = distance_bias(name, encoding, length)
    if bias is None:
        return None
    if name != "urpe":
        return reference.biased_attention(q, k, v, bias)
    logs = encoding.multipliers.detach()
    sizes = encoding.buckets, encoding.max_distance
    log_multiplier = pairwise(lambda d: logs[:, t5_bucket(d, *sizes)], length).movedim(-1, 0)
    # softmax(a) exp(c) = softmax(a + c) exp(lse(a + c) - lse(a))
    weights = reference.dots(q, k) / q.shape[-1] ** 0.5 + bias
    seen = torch.ones(length, length, dtype=torch.bool).tril()
    sums = [(weights + each).masked_fill(~seen, -math.inf).logsumexp(-1) for each in (log_multiplier, 0)]
    ratio = (sums[0] - sums[1]).exp().transpose(1, 2).unsqueeze(-1)
    return reference.biased_attention(q, k, v, bias + log_multiplier) * ratio
