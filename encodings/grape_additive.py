"""GRAPE-A: linear biases whose slopes depend on the content of query and key."""

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..core.about import About, Paper
from ..kernels.attention.fox import fox_attention
from ..kernels.attention.rows import Rows, attend_rows
from ..kernels.choice import Needs
from ..kernels.precision import wide, widest
from .alibi import slopes_of
from .contract.context import Context
from .contract.state import KeyValueState, with_past
from .families.rows import RowEncoding
from .options import GRAPEAdditiveOptions

PAPER = Paper("Zhang et al.", 2025, "Group Representational Position Encoding", "2512.07805")


class GRAPEAdditive(RowEncoding):
    """Additive GRAPE with gated slopes: GRAPE-A-QK by default, GRAPE-A-Q and GRAPE-A-K with `gate`.

    In the paper the bias is the action of a unipotent matrix on queries and keys with two more channels. Without gates
    it is ALiBi. With a factor for each token instead of a power of one matrix it is FoX, which `fox` implements.

    Follows the authors' code (model-architectures/GRAPE at f5b539f): the slope of a head is its slope in ALiBi times
    the softplus of a learned number that starts at 1; directions u and v are drawn from N(0, 1/D) and normalised.
    Two differences: that code first normalises queries and keys (QK-norm), and here directions have no weight decay.

    Without gates FoX's kernels compute the attention. A gated slope is not a difference of two sums, so these forms are
    computed by blocks of rows.

    Args:
        options: fields of `GRAPEAdditiveOptions`.

    Raises:
        ValueError: an option is outside its range.
    """

    about = About(
        name="GRAPE-A",
        mechanism="distance",
        summary="subtracts the distance times a slope that query and key compute from the score (GRAPE-A-QK)",
        equation=r"\text{score}(t, s) = q_t^\top k_s - \omega_h\,(t - s)\left("
        r"\text{softplus}(v_h^\top q_t / \sqrt{D}) + \text{softplus}(u_h^\top k_s / \sqrt{D})\right)",
        terms="$\\omega_h > 0$ is learned and starts at the slope of ALiBi; $u_h$ and $v_h$ are learned directions of "
        "head $h$. `encoding.gate` leaves out one term, or replaces both by 1.",
        cache="keys and values",
        paper=PAPER,
    )

    no_weight_decay = keep_float32 = ("scale", "query_direction", "key_direction")

    def __init__(self, width: int, heads: int, kv_heads: int, head_dim: int, **options: Any):
        given = GRAPEAdditiveOptions(**options)
        super().__init__(width, heads, kv_heads, head_dim, given.implementation, given.window)
        self.gate = given.gate
        self.scale = nn.Parameter(torch.empty(heads, dtype=torch.float32))
        self.query_direction, self.key_direction = (
            nn.Parameter(torch.empty(heads, head_dim, dtype=torch.float32)) if given.gate in ("both", side) else None
            for side in ("query", "key")
        )
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.constant_(self.scale, math.log(math.expm1(1.0)))  # softplus of this is 1
        for direction in (self.query_direction, self.key_direction):
            if direction is not None:
                nn.init.normal_(direction, std=self.head_dim**-0.5)

    def slopes(self) -> Tensor:
        """omega of each head, `[H]`, in float32 or wider."""
        return F.softplus(self.scale) * slopes_of(self.heads, self.scale.device).to(self.scale.dtype)

    def forward(
        self, x: Tensor, q: Tensor, k: Tensor, v: Tensor, context: Context, state: KeyValueState | None = None
    ) -> Tensor:
        k, v = with_past(k, v, state)
        scale, limits = self.head_dim**-0.5, context.documents
        if self.gate == "none":
            tokens = torch.arange(k.shape[1], device=k.device, dtype=widest(k.device))
            sums = -(tokens.unsqueeze(1) * self.slopes()).expand(k.shape[0], -1, -1)
            return fox_attention(q, k, v, sums, limits, scale, context.plan)
        gates = self.gates(q, self.query_direction), self.gates(k, self.key_direction)

        def scores(block: Rows, slopes: Tensor, query_gates: Tensor, key_gates: Tensor) -> Tensor:
            rows, keys = block.q.shape[1], block.k.shape[1]
            of_query = query_gates.narrow(1, block.begin, rows).transpose(1, 2).unsqueeze(-1)
            of_key = key_gates[:, :keys].transpose(1, 2).unsqueeze(-2)
            return block.dots(scale) - slopes[:, None, None] * block.distances() * (of_query + of_key)

        return attend_rows(q, k, v, scores, (self.slopes(), *gates), limits)

    def gates(self, x: Tensor, direction: Tensor | None) -> Tensor:
        """Gates `[B, T, H]` of queries or keys `[B, T, heads, D]`, in float32 or wider; 0 without a direction."""
        if direction is None:
            return x.new_zeros((), dtype=wide(x)).expand(*x.shape[:2], self.heads)
        with torch.autocast(x.device.type, enabled=False):
            grouped = F.normalize(direction, dim=-1).to(wide(x)).unflatten(0, (x.shape[2], -1))
            logits = (x.to(wide(x)).unsqueeze(3) * grouped).sum(-1).flatten(2)
            return F.softplus(logits * self.head_dim**-0.5)

    def block_queries(self, batch: int, keys: int) -> int | None:
        return None if self.gate == "none" else super().block_queries(batch, keys)

    @property
    def needs(self) -> Needs:
        gated = self.gate != "none"
        return super().needs._replace(rows=gated, gates=not gated)
