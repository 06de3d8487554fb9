"""iRPE, contextual: learned embeddings of piecewise buckets of distances, added to keys or queries."""

from typing import Any

import torch
from torch import Tensor, nn

from ..core.about import About, Paper
from .families.distance import DistanceEmbedding, logarithmic
from .options import IRPEOptions


class IRPE(DistanceEmbedding):
    """Image relative position encoding in contextual mode, along one axis.

    The embeddings are added to the keys, to the queries, or to both, with a table for each. The paper's methods for two
    axes (Euclidean, quantisation, cross and product) are the same along one. Embeddings on values, which would not
    change scores, are left out. The paper's bias mode is `t5` with the buckets below.

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
        summary="adds a learned embedding of a piecewise bucket of the distance to the key or the query",
        equation=r"\text{score}(t, s) = q_t^\top k_s + q_t^\top p_{g(t - s)} + r_{g(t - s)}^\top k_s, \qquad "
        r"g(d) = \begin{cases} d & d \le \alpha \\ \min\left(\beta,\ \left[\alpha + "
        r"\frac{\ln(d/\alpha)}{\ln(\gamma/\alpha)} (\beta - \alpha)\right]\right) & d > \alpha \end{cases}",
        terms="$p$ and $r$ are learned embeddings of $D$ channels, shared by the heads; `encoding.on` selects which of "
        "them there are, by default $p$. $[\\cdot]$ rounds. $\\alpha$ is `encoding.exact`, $\\beta$ is "
        "`encoding.last_bucket` and $\\gamma$ is `encoding.max_distance`.",
        cache="keys and values",
        paper=Paper(
            "Wu et al.",
            2021,
            "Rethinking and Improving Relative Position Encoding for Vision Transformer",
            "2107.14222",
        ),
    )

    embeddings: Tensor
    query_embeddings: Tensor

    def __init__(self, width: int, heads: int, kv_heads: int, head_dim: int, **options: Any):
        given = IRPEOptions(**options)
        super().__init__(width, heads, kv_heads, head_dim, given.implementation, given.window)
        self.exact, self.last_bucket, self.max_distance = given.exact, given.last_bucket, given.max_distance
        self.reach = given.max_distance + 1
        self.on_keys, self.on_queries = given.on != "queries", given.on != "keys"
        for name, used in (("embeddings", self.on_keys), ("query_embeddings", self.on_queries)):
            table = nn.Parameter(torch.empty(given.last_bucket + 1, head_dim)) if used else None
            self.register_parameter(name, table)
        self.reset_parameters()

    @property
    def no_weight_decay(self) -> tuple[str, ...]:
        return tuple(name for name, _ in self.named_parameters())

    def reset_parameters(self) -> None:
        for table in self.parameters():
            nn.init.zeros_(table)

    def embedding(self, distances: Tensor) -> Tensor:
        return self.embeddings[self.buckets_of(distances)]

    def query_embedding(self, distances: Tensor) -> Tensor:
        return self.query_embeddings[self.buckets_of(distances)]

    def buckets_of(self, distances: Tensor) -> Tensor:
        """The bucket of each distance, integers of the same shape."""
        far = logarithmic(distances, self.exact, self.max_distance, self.last_bucket - self.exact)
        far = far.round().long().clamp(max=self.last_bucket)
        return torch.where(distances <= self.exact, distances, far)
