"""Shaw's relative position representations: learned embeddings of clipped distances, added to the keys."""

from typing import Any

import torch
from torch import Tensor, nn

from ..core.about import About, Paper
from .families.distance import DistanceEmbedding
from .options import ShawOptions


class Shaw(DistanceEmbedding):
    """Relative position representations on the side of the keys, with one table per layer that the heads share.

    The paper also adds embeddings to the values, which is left out, as in later work (T5, iRPE's keys). The paper does
    not state the initial values; Xavier uniform is used, as in fairseq2.

    Args:
        options: fields of `ShawOptions`.

    Raises:
        ValueError: an option is outside its range.
    """

    about = About(
        name="Shaw",
        mechanism="distance",
        summary="adds a learned embedding of the clipped distance to the key",
        equation=r"\text{score}(t, s) = q_t^\top \left(k_s + p_{\min(t - s,\ n)}\right)",
        terms="$p$ is a learned embedding of $D$ channels, shared by the heads, and $n$ is `encoding.max_distance`.",
        cache="keys and values",
        paper=Paper("Shaw et al.", 2018, "Self-Attention with Relative Position Representations", "1803.02155"),
    )

    no_weight_decay = ("embeddings",)

    def __init__(self, width: int, heads: int, kv_heads: int, head_dim: int, **options: Any):
        given = ShawOptions(**options)
        super().__init__(width, heads, kv_heads, head_dim, given.implementation, given.window)
        self.reach = given.max_distance + 1
        self.embeddings = nn.Parameter(torch.empty(given.max_distance + 1, head_dim))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.xavier_uniform_(self.embeddings)

    def embedding(self, distances: Tensor) -> Tensor:
        return self.embeddings[distances.clamp(max=len(self.embeddings) - 1)]
