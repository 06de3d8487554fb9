"""PaTH: position as a product of data-dependent reflections between query and key."""

import math
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..core.about import About, Paper
from ..core.legends import Legend
from ..kernels.attention.blocks import CHUNK
from ..kernels.attention.plain import differentiated
from ..kernels.choice import Needs, Plan
from ..kernels.layers.convolution import causal_convolution
from ..kernels.layers.fused_linear import FusedLinear
from ..kernels.path.attention import path_attention
from ..kernels.path.cache import Turns, new_turns
from ..kernels.path.cached import path_attention_cached
from ..kernels.path.slices import SHORT, slice_of
from ..kernels.precision import wide
from .base import Encoding, Portrait
from .contract.context import Context
from .contract.state import KeyValueState, TailState
from .fox import GatedState
from .options import PaTHOptions

PAPER = Paper(
    "Yang et al.",
    2025,
    "PaTH Attention: Position Encoding via Accumulating Householder Transformations",
    "2505.16381",
)


@dataclass(kw_only=True)
class PaTHState(KeyValueState, GatedState, TailState):
    """Keys, values, and the reflections that later tokens apply to the keys.

    Keys of a complete block are stored as seen from the end of the block; keys of the last block are stored raw.

    Attributes:
        turns: products of reflections; see `kernels/path/cache.py`.
    """

    turns: Turns

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, w: Tensor, beta: Tensor, scale: float, sums: Tensor | None, plan: Plan
    ) -> Tensor:
        """Attention of T new tokens, which are added to the state; for arguments see `path_attention`."""
        start = self.length
        self.append(k, v)
        if sums is not None:
            if self.sums is None:
                raise ValueError("the state has no gates: create it with `new_state` of this encoding")
            self.sums[:, start : self.length] = sums
        return path_attention_cached(q, w, beta, scale, self.keys, self.values, self.turns, self.sums, plan)


def ceiling(beta_max: float, dtype: torch.dtype) -> float:
    """The upper limit of beta if kernels compute in `dtype`.

    The unit vector w has a length of up to 1 + eps / 2 after rounding to 16 bits. H = I - beta w w^T does not expand
    if beta |w|^2 <= 2, so beta stays below 1.9844 in bfloat16 and 1.9980 in float16. With beta = 2 in bfloat16 an
    eigenvalue of H can reach -1.0157. The limit is a factor instead of a clamp, so that large logits get a gradient.
    """
    if dtype.itemsize > 2:
        return beta_max
    return min(beta_max, 2 / (1 + torch.finfo(dtype).eps / 2) ** 2)


class PaTH(Encoding):
    """PaTH attention.

    Per key head, w = normalise(SiLU(convolution(low-rank(x)))) and beta = beta_max sigmoid(linear(x)). Linear weights
    are initialised from N(0, 0.02), so that beta starts near beta_max / 2. The convolution is initialised as in
    PyTorch, from U(-1/sqrt(width), 1/sqrt(width)); the authors' code (fla-org/flash-linear-attention) draws it from
    N(0, 0.02). As w is normalised, this makes little difference.

    Args:
        options: fields of `PaTHOptions`. In 16 bits `ceiling` limits beta.

    Raises:
        ValueError: an option is outside its range.
    """

    about = About(
        name="PaTH",
        mechanism="reflections",
        summary="multiplies generalised Householder reflections of all tokens between key and query",
        equation=r"\text{score}(t, s) = q_t^\top H_t H_{t-1} \cdots H_{s+1}\, k_s, \qquad "
        r"H_u = I - \beta_u w_u w_u^\top",
        terms=r"The unit vector $w_u$ and $\beta_u$, between 0 and `encoding.beta_max`, are computed from the hidden "
        "state of token $u$.",
        cache="keys, values, and products of the reflections; see the kernels' notes for their layout",
        paper=PAPER,
    )

    no_weight_decay = ("strength_bias", "taps")
    windowed = False
    starts_exactly = True

    def __init__(self, width: int, heads: int, kv_heads: int, head_dim: int, **options: Any):
        given = PaTHOptions(**options)
        super().__init__(width, heads, kv_heads, head_dim, given.implementation)
        inner, rank, convolution = kv_heads * head_dim, given.rank, given.convolution
        self.convolution, self.silu, self.beta_max = convolution, given.silu, given.beta_max
        self.projection = FusedLinear(width, {"direction": rank or inner, "strength": kv_heads})
        self.direction = nn.Linear(rank, inner, bias=False) if rank else None
        self.taps = (
            nn.Parameter(torch.empty(convolution, inner)) if convolution else None
        )  # row 0 weighs the newest token
        self.strength_bias = nn.Parameter(torch.empty(kv_heads))
        PaTH.reset_parameters(self)

    def reset_parameters(self) -> None:
        direction, strength = (part.detach() for part in self.projection.parts().values())
        for weight in (direction, None if self.direction is None else self.direction.weight, strength):
            if weight is not None:
                nn.init.normal_(weight, std=0.02)
        nn.init.zeros_(self.strength_bias)
        if self.taps is not None:
            nn.init.uniform_(self.taps, -(self.convolution**-0.5), self.convolution**-0.5)

    def reflections(self, x: Tensor, context: Context, state: TailState | None = None) -> tuple[Tensor, Tensor]:
        """w `[B, T, Hkv, D]` and beta `[B, T, Hkv]`. The tail in `state` is updated in place.

        Both have at least float32 precision, except for w with Triton's kernels, which read it in the dtype of x.
        """
        w, strength = self.projected(x)
        beta = self.beta(strength, w.dtype)
        places = None if context.documents is None else context.documents.positions
        tail = w[:, :0] if state is None else state.before(w).to(w.dtype)
        if context.plan.implementation == "triton" and (state is None or differentiated(w, self.taps)):
            from ..kernels.path.direction import path_directions  # not every platform has Triton

            u = torch.cat([tail, w], 1) if tail.shape[1] else w
            w = path_directions(u, self.taps, places, self.kv_heads, self.silu)[:, tail.shape[1] :]
            if state is not None:
                state.tail = u[:, w.shape[1] :]
            return w, beta
        if self.taps is not None:
            w, tail = causal_convolution(w, self.taps, None if state is None else tail, places)
            if state is not None:
                state.tail = tail
        if self.silu:
            w = F.silu(w)
        w = w.to(wide(w)).unflatten(-1, (self.kv_heads, self.head_dim))
        # The small term keeps the gradient finite if w vanishes. It only shortens w: |w| <= 1.
        return w * torch.rsqrt(w.square().sum(-1, keepdim=True) + 1e-6), beta

    def projected(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Inputs of the convolution, `[B, T, Hkv D]`, and logits of beta, `[B, T, Hkv]`."""
        low, strength = self.projection(x).split(list(self.projection.outputs.values()), -1)
        return low if self.direction is None else self.direction(low), strength + self.strength_bias

    def beta(self, strength: Tensor, dtype: torch.dtype) -> Tensor:
        """beta `[B, T, Hkv]` from its logits, for kernels that compute in `dtype`."""
        beta = ceiling(self.beta_max, dtype) * strength.to(wide(strength)).sigmoid()
        return beta if self.strength is None else beta * self.strength.to(beta.dtype)

    def cumulative_gates(self, x: Tensor, state: PaTHState | None) -> Tensor | None:
        """Cumulative log-gates `[B, T, H]`; None without gates. PaTH-FoX overrides this."""
        return None

    def forward(
        self, x: Tensor, q: Tensor, k: Tensor, v: Tensor, context: Context, state: PaTHState | None = None
    ) -> Tensor:
        scale, plan, sums = self.head_dim**-0.5, context.plan, self.cumulative_gates(x, state)
        w, beta = self.reflections(x, context, state)
        if state is None:
            return path_attention(q, k, v, w, beta, scale, context.documents, sums, plan)
        return state.attend(q, k, v, w, beta, scale, sums, plan)

    @property
    def needs(self) -> Needs:
        return super().needs._replace(reflections=True)

    def portrait(self, x: Tensor) -> dict[str, Portrait]:
        """`beta` of each token."""
        w, strength = self.projected(x)
        legend = Legend("beta of each token: 0 leaves keys unchanged, 1 projects, 2 reflects")
        return {"beta": Portrait(self.beta(strength, w.dtype).flatten(0, 1).T, legend)}

    def new_state(self, batch: int, capacity: int, like: Tensor) -> PaTHState:
        plain = self.key_value_state(batch, capacity, like)
        return PaTHState(
            plain.keys,
            plain.values,
            turns=new_turns(batch, capacity, self.kv_heads, self.head_dim, like),
            tail=like.new_zeros(batch, max(self.convolution - 1, 0), self.kv_heads * self.head_dim),
        )

    def scratch_bytes(self, rows: int, queries: int, keys: int) -> int:
        # The backward kernels process slices of heads, with this number of float32 vectors per token and head.
        vectors = 6 if queries <= SHORT else 8
        return 4 * vectors * self.head_dim * min(rows * queries * self.heads, slice_of(queries))

    def attention_flops(self, length: int) -> float:
        d, joins = self.head_dim, math.ceil(math.log2(max(length / CHUNK, 1)))
        chunk = min(CHUNK, length)
        per_query = 4 * chunk * d + 2 * chunk**2 + joins * d**2
        per_key = 6 * chunk * d + chunk * (chunk + d) + (2 + joins) * d**2
        return super().attention_flops(length) + length * (self.heads * per_query + self.kv_heads * per_key)
