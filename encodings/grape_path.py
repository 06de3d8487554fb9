"""GRAPE-AP: a bias that sums, over the tokens from key to query, potentials that the query computes."""

from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..core.about import About
from ..kernels.attention.rope import cos_sin, phases, rotate_by
from ..kernels.attention.rows import Rows, attend_rows, sums_of_later_keys
from ..kernels.precision import wide
from .alibi import slopes_of
from .contract.context import Context
from .contract.state import KeyValueState, with_past
from .families.rows import RowEncoding
from .grape_additive import PAPER
from .options import GRAPEPathOptions

EPSILON = torch.finfo(torch.float32).eps  # of the RMS norm, as in the authors' float32


@dataclass
class ProbeState(KeyValueState):
    """Keys, values and rotated probes `[B, capacity, H, P]` of the tokens seen so far, in float32 or wider."""

    probes: Tensor = field(kw_only=True)

    def with_past_probes(self, probes: Tensor, seen: int) -> Tensor:
        """Append the probes of the newest tokens; returns those of the last `seen` tokens."""
        self.probes[:, self.length - probes.shape[1] : self.length] = probes
        return self.probes[:, self.length - seen : self.length]


class GRAPEPath(RowEncoding):
    """Path-integral additive GRAPE (GRAPE-AP).

    Each token has a probe p, a linear projection of its hidden state. The potential of a token u for a query t is the
    logarithm of a gate that depends on both, and the bias of a key is the sum of the potentials of the tokens after it.
    FoX is the case in which potentials depend on u only; with p = 0 the bias is ALiBi's, times ln 2.

    Follows the authors' code (llama-mha-grape-ap-v1 in model-architectures/GRAPE at f5b539f): the probe of token u is
    normalised and all its pairs are rotated by -u radians, while that of the query is used as it is. The paper
    normalises both. As only one is rotated, scores depend on absolute positions. The code's configurations have 8
    channels in each probe, weights from N(0, 0.25 / C), and the slopes of ALiBi as fixed factors.

    A block of rows computes the bias by one running sum. The state holds the rotated probes too.

    Args:
        options: fields of `GRAPEPathOptions`.

    Raises:
        ValueError: an option is outside its range.
    """

    about = About(
        name="GRAPE-AP",
        mechanism="decay",
        summary="adds potentials of the tokens between key and query, which the query computes, to the score",
        equation=r"\text{score}(t, s) = q_t^\top k_s + m_h \sum_{u=s+1}^{t} \log \sigma\!\left("
        r"\frac{p_t^\top R_u\, \hat{p}_u}{P}\right)",
        terms="$p_u$ is a linear projection of the hidden state of token $u$ to $P$ channels in each head, "
        "$\\hat{p}_u$ the same divided by its root mean square, and $R_u$ rotates all pairs of channels by $-u$ "
        "radians; $m_h$ is the slope of ALiBi; $P$ is `encoding.probe_channels`.",
        cache="keys, values, and one vector of $P$ numbers per query head in float32",
        paper=PAPER,
    )

    relative = False
    keep_float32 = ("projection.weight",)

    def __init__(self, width: int, heads: int, kv_heads: int, head_dim: int, **options: Any):
        given = GRAPEPathOptions(**options)
        super().__init__(width, heads, kv_heads, head_dim, given.implementation, given.window)
        self.channels = given.probe_channels
        self.projection = nn.Linear(width, heads * given.probe_channels, bias=False)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.normal_(self.projection.weight, std=0.5 * self.width**-0.5)

    def probes(self, x: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Probes of `x [B, T, C]` as queries and as tokens on the path, each `[B, T, H, P]` in float32 or wider."""
        with torch.autocast(x.device.type, enabled=False):
            probes = self.projection(x.to(self.projection.weight.dtype)).unflatten(-1, (self.heads, -1))
            probes = probes.to(wide(x))
            cos, sin = cos_sin(phases(positions, self.channels // 2, 1.0).unsqueeze(-2), wide(x))
            normalised = F.rms_norm(probes, (self.channels,), eps=EPSILON)
            return probes, rotate_by(normalised, cos, -sin)

    def forward(
        self, x: Tensor, q: Tensor, k: Tensor, v: Tensor, context: Context, state: ProbeState | None = None
    ) -> Tensor:
        own, path = self.probes(x, context.positions)
        k, v = with_past(k, v, state)
        if state is not None:
            path = state.with_past_probes(path, k.shape[1])
        scale, slopes = self.head_dim**-0.5, slopes_of(self.heads, q.device).to(own.dtype)

        def scores(block: Rows, own: Tensor, path: Tensor) -> Tensor:
            rows, keys = block.q.shape[1], block.k.shape[1]
            products = torch.einsum("brhp,bshp->bhrs", own.narrow(1, block.begin, rows), path[:, :keys])
            potentials = slopes[:, None, None] * F.logsigmoid(products / self.channels)
            potentials = potentials.masked_fill(block.distances() < 0, 0.0)
            return block.dots(scale) + sums_of_later_keys(potentials)

        return attend_rows(q, k, v, scores, (own, path), context.documents)

    def attention_flops(self, length: int) -> float:
        return super().attention_flops(length) * (1 + self.channels / (2 * self.head_dim))

    def new_state(self, batch: int, capacity: int, like: Tensor) -> ProbeState:
        plain = self.key_value_state(batch, capacity, like)
        probes = like.new_zeros(batch, capacity, self.heads, self.channels, dtype=wide(like))
        return ProbeState(plain.keys, plain.values, window=self.window, capacity=capacity, probes=probes)
