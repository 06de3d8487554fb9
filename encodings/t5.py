"""T5's relative bias: a learned bias for each head and bucket of distances."""

from typing import Any

import torch
from torch import Tensor, nn

from ..core.about import About, Paper
from .families.distance import DistanceBias, logarithmic
from .options import T5Options


class T5(DistanceBias):
    """Relative bias of T5, with one table per layer.

    The first half of the buckets hold one distance each; the others grow logarithmically up to `max_distance`. T5 uses
    one table for all layers and no scale of the dot products; here the scale is 1/sqrt(D), as in decoders with this
    bias. Initial values are N(0, 1/C), as in transformers' T5.

    Args:
        options: fields of `T5Options`.

    Raises:
        ValueError: an option is outside its range.
    """

    about = About(
        name="T5",
        mechanism="distance",
        summary="adds a learned bias for each head and bucket of distances to the score",
        equation=r"\text{score}(t, s) = q_t^\top k_s + b_{h,\,\beta(t - s)}, \qquad \beta(d) = \begin{cases} "
        r"d & d < n/2 \\ \min\left(n - 1,\ \frac n2 + \left\lfloor \frac n2 \frac{\ln(2d/n)}{\ln(2M/n)} "
        r"\right\rfloor\right) & d \ge n/2 \end{cases}",
        terms="$b$ is the table of learned biases, $n$ is `encoding.buckets` and $M$ is `encoding.max_distance`.",
        cache="keys and values",
        paper=Paper(
            "Raffel et al.",
            2019,
            "Exploring the Limits of Transfer Learning with a Unified Text-to-Text Transformer",
            "1910.10683",
        ),
    )

    no_weight_decay = keep_float32 = ("biases",)

    def __init__(self, width: int, heads: int, kv_heads: int, head_dim: int, **options: Any):
        given = T5Options(**options)
        super().__init__(width, heads, kv_heads, head_dim, given.implementation, given.window)
        self.buckets, self.max_distance = given.buckets, given.max_distance
        self.reach = given.max_distance + 1
        self.biases = nn.Parameter(torch.empty(heads, given.buckets, dtype=torch.float32))
        T5.reset_parameters(self)

    def reset_parameters(self) -> None:
        nn.init.normal_(self.biases, std=self.width**-0.5)

    def bias(self, distances: Tensor) -> Tensor:
        return self.biases[:, self.buckets_of(distances)]

    def buckets_of(self, distances: Tensor) -> Tensor:
        """The bucket of each distance, integers of the same shape (T5's causal form)."""
        exact = self.buckets // 2
        far = logarithmic(distances, exact, self.max_distance, self.buckets - exact).long().clamp(max=self.buckets - 1)
        return torch.where(distances < exact, distances, far)
