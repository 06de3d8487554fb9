"""A learned bias for each head and distance."""

from typing import Any

import torch
from torch import Tensor, nn

from ..core.about import About, Paper
from .families.distance import DistanceBias
from .options import LearnedDistanceOptions


class LearnedDistance(DistanceBias):
    """A table of learned biases, one for each head and distance, in each layer.

    It is the relative position bias of the Swin Transformer along one axis. Distances from `max_distance` on share an
    entry. Initial values are N(0, 0.02), as in Swin.

    Args:
        options: fields of `LearnedDistanceOptions`.

    Raises:
        ValueError: an option is outside its range.
    """

    about = About(
        name="Learned distance",
        mechanism="distance",
        summary="adds a learned bias for each head and distance to the score",
        equation=r"\text{score}(t, s) = q_t^\top k_s + b_{h,\,\min(t - s,\ n)}",
        terms="$b$ is the table of learned biases and $n$ is `encoding.max_distance`.",
        cache="keys and values",
        paper=Paper(
            "Liu et al.",
            2021,
            "Swin Transformer: Hierarchical Vision Transformer using Shifted Windows",
            "2103.14030",
        ),
    )

    no_weight_decay = keep_float32 = ("biases",)

    def __init__(self, width: int, heads: int, kv_heads: int, head_dim: int, **options: Any):
        given = LearnedDistanceOptions(**options)
        super().__init__(width, heads, kv_heads, head_dim, given.implementation, given.window)
        self.reach = given.max_distance + 1
        self.biases = nn.Parameter(torch.empty(heads, self.reach, dtype=torch.float32))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.normal_(self.biases, std=0.02)

    def bias(self, distances: Tensor) -> Tensor:
        return self.biases[:, distances.clamp(max=self.biases.shape[1] - 1)]
