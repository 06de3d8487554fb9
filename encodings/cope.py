"""CoPE: positions that count the tokens which a query selects."""

from typing import Any

import torch
from torch import Tensor, nn

from ..core.about import About, Paper
from ..kernels.attention.rows import Rows
from .contract.context import Context
from .families.rows import RowEncoding
from .options import CoPEOptions


class CoPE(RowEncoding):
    """Contextual position encoding, with one table per layer that the heads share.

    The position of a key is the sum of the gates from the key up to the query, clipped at the last embedding. Keys that
    the query does not see have no gate. As in the paper's listing, the scale of the dot products does not apply to
    the embeddings; the authors' code scales both, except with `--cope-nodiv`. Gates are computed from the same keys as
    the scores. Embeddings start at 0.

    Gates are positive and summed backwards from the query. The rounding error of a position therefore depends on its
    size, not on the length of the sequence.

    Another CoPE (complex embeddings, arXiv 2508.18308) is unrelated.

    Args:
        options: fields of `CoPEOptions`.

    Raises:
        ValueError: an option is outside its range.
    """

    about = About(
        name="CoPE",
        mechanism="content",
        summary="adds an embedding of a position that counts only the tokens which the query selects",
        equation=r"\text{score}(t, s) = q_t^\top k_s + q_t^\top e\left(\min(p_{ts},\ n - 1)\right), \qquad "
        r"p_{ts} = \sum_{u=s}^{t} \sigma\left(q_t^\top k_u\right)",
        terms="$e$ are $n$ learned embeddings of $D$ channels, shared by the heads and interpolated linearly between "
        "whole positions; $n$ is `encoding.positions`.",
        cache="keys and values",
        paper=Paper(
            "Golovneva et al.", 2024, "Contextual Position Encoding: Learning to Count What's Important", "2405.18719"
        ),
    )

    no_weight_decay = ("embeddings",)
    block_tensors = 10  # includes gates and positions

    def __init__(self, width: int, heads: int, kv_heads: int, head_dim: int, **options: Any):
        given = CoPEOptions(**options)
        super().__init__(width, heads, kv_heads, head_dim, given.implementation, given.window)
        self.embeddings = nn.Parameter(torch.empty(given.positions, head_dim))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.zeros_(self.embeddings)

    def score_tensors(self, k: Tensor, context: Context) -> tuple[Tensor | None, ...]:
        return (self.embeddings,)

    def scores(self, block: Rows, *tensors: Tensor) -> Tensor:
        (embeddings,) = tensors
        dots = block.dots(self.head_dim**-0.5)
        gates = dots.sigmoid().masked_fill(~block.visible, 0.0)
        last = embeddings.shape[0] - 1
        positions = gates.flip(-1).cumsum(-1).flip(-1).clamp(max=last)
        below = positions.detach().long().clamp(max=last - 1)
        products = torch.einsum("brhd,nd->bhrn", block.q, embeddings.to(block.q.dtype))
        steps = products.diff(dim=-1)
        return dots + products.gather(-1, below) + (positions - below) * steps.gather(-1, below)

    def attention_flops(self, length: int) -> float:
        return super().attention_flops(length) + 2.0 * self.heads * self.embeddings.numel() * length
