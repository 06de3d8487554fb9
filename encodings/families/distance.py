"""Bases of encodings that use only the distance between query and key: biases of the score, and learned embeddings."""

import math

import torch
from torch import Tensor

from ...core.legends import Elements, Legend
from ...kernels.attention.distance import distance_attention
from ...kernels.attention.rows import Rows, attend_rows
from ...kernels.choice import Needs
from ...kernels.precision import wide
from ..base import Encoding, Portrait
from ..contract.context import Context
from ..contract.state import KeyValueState, with_past
from .rows import RowEncoding


class DistanceBias(Encoding):
    """Adds a bias to the score that depends on the head and on the distance d = t - s.

    A subclass overrides `bias`, and names its parameters in `keep_float32`, because scores are float32. The state holds
    keys and values as they are.

    Attributes:
        reach: number of distances with a bias; larger distances have the bias of the last of them. None if there is no
            limit.
    """

    reach: int | None = None

    def bias(self, distances: Tensor) -> Tensor:
        """The bias `[H, n]` at `distances [n]`, integers from 0, in float32 or wider."""
        raise NotImplementedError

    def table(self, k: Tensor) -> Tensor:
        """The bias `[H, N]` at the distances between keys `[B, S, ...]`, with N = S or `reach` if that is less."""
        entries = k.shape[1] if self.reach is None else min(k.shape[1], self.reach)
        return self.bias(torch.arange(entries, device=k.device)).to(wide(k))

    def forward(
        self, x: Tensor, q: Tensor, k: Tensor, v: Tensor, context: Context, state: KeyValueState | None = None
    ) -> Tensor:
        k, v = with_past(k, v, state)
        return distance_attention(q, k, v, self.table(k), context.documents, implementation=context.plan)

    @property
    def needs(self) -> Needs:
        return super().needs._replace(bias=True)

    def portrait(self, x: Tensor) -> dict[str, Portrait]:
        """`bias` at the distances of a sequence as long as x."""
        distances = torch.arange(x.shape[1], device=x.device)
        elements = Elements(
            "distance between query and key, tokens",
            ticks={"-8": -8.0, "-4": -4.0, "0": 0.0, "4": 4.0},
            note="a bias b multiplies the attention weight by exp(b) before normalisation",
        )
        legend = Legend("bias of the score", "The bias by distance", elements)
        return {"bias": Portrait(self.bias(distances), legend)}


class DistanceEmbedding(RowEncoding):
    """Adds the dot product of the query and an embedding of the distance to the score: q_t . (k_s + p(t - s)).

    A subclass overrides `embedding`. The state holds keys and values as they are.
    """

    def embedding(self, distances: Tensor) -> Tensor:
        """p at `distances [n]`, integers from 0, as `[n, D]`; the heads share it."""
        raise NotImplementedError

    def forward(
        self, x: Tensor, q: Tensor, k: Tensor, v: Tensor, context: Context, state: KeyValueState | None = None
    ) -> Tensor:
        k, v = with_past(k, v, state)
        embedded, scale = self.embedding(torch.arange(k.shape[1], device=k.device)), self.head_dim**-0.5

        def scores(block: Rows, embedded: Tensor) -> Tensor:
            by_embedding = torch.einsum("brhd,nd->bhrn", block.q, embedded.to(block.q.dtype))
            return scale * (block.dots() + block.by_distance(by_embedding))

        return attend_rows(q, k, v, scores, (embedded,), context.documents)

    def attention_flops(self, length: int) -> float:
        return 1.5 * super().attention_flops(length)  # the query also meets an embedding for each distance


def logarithmic(distances: Tensor, exact: int, max_distance: int, count: int) -> Tensor:
    """From `exact` at this distance to `exact + count` at `max_distance`, linear in the logarithm; floats.

    Encodings round it to the buckets of distances above `exact`. It is `exact` at smaller distances.
    """
    return exact + count * ((distances.clamp(min=exact) / exact).log() / math.log(max_distance / exact))
