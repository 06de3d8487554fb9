"""SeqPE: vectors of positions from an encoder that reads their digits, as additional channels of q and k."""

from typing import Any

import torch
from torch import Tensor

from ..core.about import About, Paper
from .base import Encoding
from .contract.context import Context
from .contract.state import KeyValueState
from .families.digits import DigitEncoder
from .options import SeqPEOptions


class SeqPE(Encoding):
    """Sequential position encoding, in the form of the authors' language models: a term that is added to the score.

    A small Transformer reads the decimal digits of each position. All layers share it, and also the projection of its
    output to queries and keys, so that a pass computes both once per position (see `DigitEncoder`). Layers have no
    parameters of this encoding. In training, all positions of some passes are shifted by a random number; the authors'
    code draws it for each of 16 parts of the batch, from 320 numbers that it draws once.

    Args:
        options: fields of `SeqPEOptions`.

    Raises:
        ValueError: `width` is not a multiple of `heads`, or an option is outside its range.
    """

    about = About(
        name="SeqPE",
        mechanism="channels",
        summary="adds the product of vectors that a small Transformer computes from the digits of the positions",
        equation=r"\text{score}(t, s) = q_t^\top k_s + (W_q\, e_t)^\top W_k\, e_s, \qquad "
        r"e_t = \text{encoder}(\text{digits of } t)",
        terms="The encoder and, for each head, $W_q$ and $W_k$ are learned and shared by all layers.",
        cache="keys with twice as many channels, and values",
        paper=Paper("Li et al.", 2025, "SeqPE: Transformer with Sequential Position Encoding", "2506.13277"),
    )

    relative = False

    def __init__(self, width: int, heads: int, kv_heads: int, head_dim: int, **options: Any):
        given = SeqPEOptions(**options)
        super().__init__(width, heads, kv_heads, head_dim, given.implementation, given.window)
        if width % heads:
            raise ValueError(f"width={width}: SeqPE's encoder has {heads} heads: use a multiple of heads")
        self.score_dim, self.longest = 2 * head_dim, given.length
        self.encoder = {
            "length": given.length,
            "layers": given.encoder_layers,
            "dropout": given.dropout,
            "shift_rate": given.shift_rate,
            "contrastive": given.contrastive,
            "transfer": given.transfer,
        }

    def shared_module(self) -> DigitEncoder:
        return DigitEncoder(self.width, self.heads, self.kv_heads, self.head_dim, **self.encoder)

    def forward(
        self, x: Tensor, q: Tensor, k: Tensor, v: Tensor, context: Context, state: KeyValueState | None = None
    ) -> Tensor:
        q, k = (
            torch.cat([content, position.to(content.dtype).expand_as(content)], -1)
            for content, position in zip((q, k), context.shared, strict=True)
        )
        return super().forward(x, q, k, v, context, state)
