"""iRPE, contextual: learned embeddings of piecewise buckets of distances, added to the keys."""

from typing import Any

import torch
from torch import Tensor, nn

from ..core.about import About, Paper
from .families.distance import DistanceEmbedding, logarithmic
from .options import IRPEOptions


class IRPE(DistanceEmbedding):
    """Image relative position encoding in contextual mode, on the side of the keys, along one axis.

    Distances up to `exact` have a bucket each. Beyond it the buckets grow logarithmically up to `max_distance`. The
    authors' code has the ratio 1 : 2 : 8 of exact, last bucket and maximum distance, with small values for images; the
    defaults keep the ratio at the scale of text. As in that code, heads share the table, and initial values are 0.

    Args:
        options: fields of `IRPEOptions`.

    Raises:
        ValueError: an option is outside its range.
    """

    about = About(
        name="iRPE",
        mechanism="distance",
        summary="adds a learned embedding of a piecewise bucket of the distance to the key",
        equation=r"\text{score}(t, s) = q_t^\top \left(k_s + p_{g(t - s)}\right), \qquad g(d) = \begin{cases} d & "
        r"d \le \alpha \\ \min\left(\beta,\ \left[\alpha + \frac{\ln(d/\alpha)}{\ln(\gamma/\alpha)} (\beta - \alpha)"
        r"\right]\right) & d > \alpha \end{cases}",
        terms="$p$ is a learned embedding of $D$ channels, shared by the heads; $[\\cdot]$ rounds. $\\alpha$ is "
        "`encoding.exact`, $\\beta$ is `encoding.last_bucket` and $\\gamma$ is `encoding.max_distance`.",
        cache="keys and values",
        paper=Paper(
            "Wu et al.",
            2021,
            "Rethinking and Improving Relative Position Encoding for Vision Transformer",
            "2107.14222",
        ),
    )

    no_weight_decay = ("embeddings",)

    def __init__(self, width: int, heads: int, kv_heads: int, head_dim: int, **options: Any):
        given = IRPEOptions(**options)
        super().__init__(width, heads, kv_heads, head_dim, given.implementation, given.window)
        self.exact, self.last_bucket, self.max_distance = given.exact, given.last_bucket, given.max_distance
        self.embeddings = nn.Parameter(torch.empty(given.last_bucket + 1, head_dim))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.zeros_(self.embeddings)

    def embedding(self, distances: Tensor) -> Tensor:
        far = logarithmic(distances, self.exact, self.max_distance, self.last_bucket - self.exact)
        far = far.round().long().clamp(max=self.last_bucket)
        return self.embeddings[torch.where(distances <= self.exact, distances, far)]
