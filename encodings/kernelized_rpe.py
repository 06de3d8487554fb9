"""Kernelized attention with relative positional encoding: linear attention with a learned bias for each distance."""

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..core.about import About, Paper
from ..kernels.attention.kernelized import CHUNK, feature_sums, kernelized_attention
from ..kernels.precision import wide
from .base import Portrait
from .contract.context import Context
from .contract.state import State
from .families.distance import bias_portrait
from .families.rows import RowEncoding
from .options import KernelizedRPEOptions


@dataclass(kw_only=True)
class KernelizedState(State):
    """Features and values of the last tokens, and sums over all tokens before them. Its size is constant.

    Attributes:
        keys: features of the last keys, `[B, tokens, Hkv, M]` in float32 or wider; at most max_distance - 1 tokens.
        values: their values, `[B, tokens, Hkv, D]`.
        sums: `feature_sums` of all earlier tokens, `[B, Hkv, M, D + 1]` in float32 or wider.
        capacity: largest number of tokens.
    """

    keys: Tensor
    values: Tensor
    sums: Tensor
    capacity: int

    def append(self, keys: Tensor, values: Tensor, kept: int) -> tuple[Tensor, Tensor, Tensor]:
        """Add tokens and keep the last `kept`.

        Returns:
            Features and values of the kept and the new tokens, and the sums before them.

        Raises:
            ValueError: the tokens exceed the capacity.
        """
        end = self.length + keys.shape[1]
        if end > self.capacity:
            raise ValueError(f"the state holds {self.capacity} tokens, {end} were given: use a larger capacity")
        keys, values = torch.cat([self.keys, keys], 1), torch.cat([self.values, values], 1)
        found, older = (keys, values, self.sums), max(keys.shape[1] - kept, 0)
        self.sums = self.sums + feature_sums(keys[:, :older], values[:, :older])
        self.keys, self.values, self.length = keys[:, older:], values[:, older:], end
        return found


class KernelizedRPE(RowEncoding):
    """Linear attention with relative positional encoding (Luo et al.), in the causal form.

    Positive random features replace the exponential of the dot product: exp(w_i . x) for x of length 1 and fixed
    w_i ~ N(0, I), so that phi(q) . phi(k) approximates a multiple of exp(q . k). Queries and keys are normalised to
    length 1, which bounds the error of the approximation (the paper's normalised form). A learned bias for each head
    and distance multiplies the weights by exp(b). Factors that are common to a row cancel and are left out.

    The paper has a bias for each distance and uses the FFT in O(T log T). Here all distances from `max_distance` on
    share the last one, so that the cost is linear in T and the state has a constant size. Biases start at 0.

    The random features are buffers that `reset_parameters` draws, for each key head.

    Args:
        options: fields of `KernelizedRPEOptions`.

    Raises:
        ValueError: an option is outside its range.
    """

    about = About(
        name="Kernelized RPE",
        mechanism="linear attention",
        summary="linear attention by random features, with a learned bias for each distance",
        equation=r"\text{weight}(t, s) = \frac{e^{b_{h,\,t-s}}\, \varphi(q_t)^\top \varphi(k_s)}"
        r"{\sum_{u \le t} e^{b_{h,\,t-u}}\, \varphi(q_t)^\top \varphi(k_u)}, \qquad "
        r"\varphi_i(x) = \exp\left(w_i^\top x / \lVert x \rVert\right)",
        terms="$b$ is learned for each head $h$ and distance, and constant from `encoding.max_distance` $- 1$ on; "
        "$w_i$ are fixed random vectors.",
        cache="features and values of the last tokens, and one matrix of sums per head; its size is constant",
        paper=Paper(
            "Luo et al.",
            2021,
            "Stable, Fast and Accurate: Kernelized Attention with Relative Positional Encoding",
            "2106.12566",
        ),
    )

    windowed = False  # the sums contain all earlier tokens
    no_weight_decay = ("biases",)
    keep_float32 = ("biases", "directions")
    directions: Tensor

    def __init__(self, width: int, heads: int, kv_heads: int, head_dim: int, **options: Any):
        given = KernelizedRPEOptions(**options)
        super().__init__(width, heads, kv_heads, head_dim, given.implementation)
        self.biases = nn.Parameter(torch.empty(heads, given.max_distance, dtype=torch.float32))
        self.register_buffer("directions", torch.empty(kv_heads, given.features, head_dim, dtype=torch.float32))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.zeros_(self.biases)
        nn.init.normal_(self.directions)

    def features(self, x: Tensor) -> Tensor:
        """phi of queries or keys `[B, T, heads, D]`, `[B, T, heads, M]` in float32 or wider."""
        with torch.autocast(x.device.type, enabled=False):
            x = F.normalize(x.to(wide(x)), dim=-1).unflatten(2, (self.kv_heads, -1))
            return torch.einsum("bthgd,hmd->bthgm", x, self.directions.to(x.dtype)).flatten(2, 3).exp()

    def forward(
        self, x: Tensor, q: Tensor, k: Tensor, v: Tensor, context: Context, state: KernelizedState | None = None
    ) -> Tensor:
        queries, keys, sums = self.features(q), self.features(k), None
        if state is not None:
            keys, v, sums = state.append(keys, v, self.biases.shape[1] - 1)
        factors = (self.biases - self.biases.detach().amax(1, keepdim=True)).exp()
        return kernelized_attention(queries, keys, v, factors, context.documents, sums)

    def new_state(self, batch: int, capacity: int, like: Tensor) -> KernelizedState:
        features, dtype = self.directions.shape[1], wide(like)
        return KernelizedState(
            keys=like.new_zeros(batch, 0, self.kv_heads, features, dtype=dtype),
            values=like.new_zeros(batch, 0, self.kv_heads, self.head_dim),
            sums=like.new_zeros(batch, self.kv_heads, features, self.head_dim + 1, dtype=dtype),
            capacity=capacity,
        )

    def block_queries(self, batch: int, keys: int) -> None:
        return None

    def attention_flops(self, length: int) -> float:
        features, values = self.directions.shape[1], self.head_dim + 1  # values, and 1 for the denominator
        near = self.biases.shape[1] - 1 + min(CHUNK, length)
        pairs = near * (features + values) * self.heads
        sums = features * values * (self.heads + self.kv_heads)  # over earlier keys: read by queries, made from keys
        made = features * self.head_dim * (self.heads + self.kv_heads)
        return 2.0 * length * (pairs + sums + made)

    def portrait(self, x: Tensor) -> dict[str, Portrait]:
        """`bias` by distance."""
        return bias_portrait(self.biases)
