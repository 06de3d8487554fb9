"""Bases of encodings that use only the distance between query and key: biases of the score, and learned embeddings."""

import math

import torch
from torch import Tensor

from ...core.legends import Elements, Legend
from ...kernels.attention.distance import distance_attention
from ...kernels.attention.rows import Rows, queries_in_block
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

    def bias_tensors(self, k: Tensor, context: Context) -> tuple[Tensor, ...]:
        """What `bias_of` needs for keys `[B, S, Hkv, D]`, in the form of `RowEncoding.score_tensors`."""
        return (self.table(k),)

    def bias_of(self, block: Rows, *tensors: Tensor) -> Tensor:
        """The bias of a block of queries, `[H, R, S]` or `[B, H, R, S]`, for encodings with scores by blocks."""
        (table,) = tensors
        return block.by_distance(table.unsqueeze(1))

    def bias_flops(self) -> float:
        """Floating-point operations of the bias for one pair of a query and a key; 0 if it comes from a table."""
        return 0.0

    def attention_flops(self, length: int) -> float:
        return super().attention_flops(length) + self.bias_flops() * self.pairs_seen(length)

    def forward(
        self, x: Tensor, q: Tensor, k: Tensor, v: Tensor, context: Context, state: KeyValueState | None = None
    ) -> Tensor:
        k, v = with_past(k, v, state)
        return distance_attention(q, k, v, self.table(k), context.documents, implementation=context.plan)

    def block_queries(self, batch: int, keys: int) -> int | None:
        return queries_in_block(batch, self.heads, keys)

    @property
    def needs(self) -> Needs:
        return super().needs._replace(bias=True)

    def portrait(self, x: Tensor) -> dict[str, Portrait]:
        """`bias` at the distances of a sequence as long as x."""
        return bias_portrait(self.bias(torch.arange(x.shape[1], device=x.device)))


class DistanceEmbedding(RowEncoding):
    """Adds the dot products of queries, keys or both with embeddings of the distance: q_t . k_s + q_t . p + k_s . r.

    A subclass overrides `embedding`, and `query_embedding` if there is one on the side of the queries.

    Attributes:
        reach: number of distances with an embedding; larger distances have that of the last of them. None if there is
            no limit. Each query is multiplied by each embedding, so a smaller number is faster.
        on_keys: whether p(t - s) is added to the key, which adds q_t . p to the score.
        on_queries: whether r(t - s) is added to the query, which adds k_s . r to the score.
    """

    reach: int | None = None
    on_keys: bool = True
    on_queries: bool = False

    def embedding(self, distances: Tensor) -> Tensor:
        """p at `distances [n]`, integers from 0, as `[n, D]`; the heads share it."""
        raise NotImplementedError

    def query_embedding(self, distances: Tensor) -> Tensor:
        """r at `distances [n]`, as `[n, D]`."""
        raise NotImplementedError

    def score_tensors(self, k: Tensor, context: Context) -> tuple[Tensor | None, ...]:
        entries = k.shape[1] if self.reach is None else min(k.shape[1], self.reach)
        distances = torch.arange(entries, device=k.device)
        return (
            self.embedding(distances) if self.on_keys else None,
            self.query_embedding(distances) if self.on_queries else None,
        )

    def scores(self, block: Rows, *tensors: Tensor | None) -> Tensor:
        embedding, query_embedding = tensors
        scale = self.head_dim**-0.5
        found = block.dots(scale)
        if embedding is not None:
            found = found + block.query_products(scale * embedding.to(block.q.dtype))
        if query_embedding is not None:
            found = found + block.key_products(scale * query_embedding.to(block.k.dtype))
        return found

    def attention_flops(self, length: int) -> float:
        heads = self.heads * self.on_keys + self.kv_heads * self.on_queries
        return super().attention_flops(length) + 2.0 * heads * self.head_dim * self.pairs_seen(length, self.reach)


def bias_portrait(bias: Tensor) -> dict[str, Portrait]:
    """The portrait `bias` of `bias [H, n]` at distances from 0."""
    elements = Elements(
        "distance between query and key, tokens",
        ticks={"-8": -8.0, "-4": -4.0, "0": 0.0, "4": 4.0},
        note="a bias b multiplies the attention weight by exp(b) before normalisation",
    )
    return {"bias": Portrait(bias, Legend("bias of the score", "The bias by distance", elements))}


def logarithmic(distances: Tensor, exact: int, max_distance: int, count: int) -> Tensor:
    """Interpolate from `exact` at distance `exact` to `exact + count` at `max_distance`, linearly in the log distance.

    The result is `exact` at smaller distances. Encodings round it to the index of a bucket.
    """
    return exact + count * ((distances.clamp(min=exact) / exact).log() / math.log(max_distance / exact))
