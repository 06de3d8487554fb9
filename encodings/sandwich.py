"""Sandwich: the dot product of sinusoidal position embeddings as a bias of the score."""

from typing import Any

import torch
from torch import Tensor

from ..core.about import About, Paper
from ..kernels.precision import widest
from .families.distance import DistanceBias
from .options import SandwichOptions


class Sandwich(DistanceBias):
    """Bias from the dot products of sinusoidal embeddings, without parameters.

    The bias at distance 0 is subtracted, which changes no attention weight. Head h has the factor H/(8h), as in
    NVIDIA's NeMo. NeMo has half as many sinusoids as a head has channels; here their number is an option, and the
    default is NeMo's for 128 channels.

    Args:
        options: fields of `SandwichOptions`.

    Raises:
        ValueError: an option is outside its range.
    """

    about = About(
        name="Sandwich",
        mechanism="distance",
        summary="adds dot products of sinusoidal position embeddings, divided by a constant of each head, to the score",
        equation=r"\text{score}(t, s) = q_t^\top k_s + \frac{H}{8h} \sum_{i=1}^{n} "
        r"\left(\cos\left((t - s)\,\omega_i\right) - 1\right), \qquad \omega_i = 10000^{-i/n}",
        terms="$h = 1, \\dots, H$ is the head and $n$ is `encoding.sinusoids`.",
        cache="keys and values",
        paper=Paper(
            "Chi et al.",
            2022,
            "Dissecting Transformer Length Extrapolation via the Lens of Receptive Field Analysis",
            "2212.10356",
        ),
    )

    def __init__(self, width: int, heads: int, kv_heads: int, head_dim: int, **options: Any):
        given = SandwichOptions(**options)
        super().__init__(width, heads, kv_heads, head_dim, given.implementation, given.window)
        self.sinusoids = given.sinusoids

    def bias(self, distances: Tensor) -> Tensor:
        exact = {"dtype": widest(distances.device), "device": distances.device}
        frequencies = 10000.0 ** (-torch.arange(1, self.sinusoids + 1, **exact) / self.sinusoids)
        sums = ((distances.unsqueeze(1) * frequencies).cos() - 1).sum(1)
        return self.heads / 8 / torch.arange(1, self.heads + 1, **exact).unsqueeze(1) * sums
