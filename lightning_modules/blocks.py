"""The blocks of the Transformer: attention computed by the encoding, and an MLP."""

from collections.abc import Callable
from dataclasses import replace
from typing import cast

import torch.nn.functional as F
from torch import Tensor, nn

from ..encodings.base import Encoding
from ..encodings.contract.context import Context
from ..encodings.contract.state import State
from ..encodings.families.carrying import CarryingEncoding
from ..kernels.attention.nope import nope_attention
from ..kernels.layers.fused_linear import FusedLinear
from ..kernels.layers.swiglu import silu_product
from .fused_stream import Stream
from .options import ModelOptions

EPSILON = ModelOptions.norm_epsilon


class Block(nn.Module):
    """Attention and an MLP, each applied to the normalised residual stream x and added back to it."""

    def __init__(self, width: int, attention: "Attention", mlp: nn.Module, dropout: float, epsilon: float = EPSILON):
        super().__init__()
        self.attention_norm, self.attention = nn.RMSNorm(width, epsilon), attention
        self.mlp_norm, self.mlp = nn.RMSNorm(width, epsilon), mlp
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, context: Context, state: State | None = None) -> Tensor:
        """`x [B, T, C]` to `[B, T, C]`; `state` is updated in place."""
        x = x + self.dropout(self.attention(self.attention_norm(x), context, state))
        return x + self.dropout(self.mlp(self.mlp_norm(x)))


class FusedBlock(Block):
    """The block that models use. It computes the same as `Block` in fewer passes over the stream (fused_stream.py)."""

    def forward(self, stream: Stream, context: Context, state: State | None = None) -> Stream:
        x, normed = stream.normed(self.attention_norm, self.dropout)
        x, normed = Stream(x, self.attention(normed, context, state)).normed(self.mlp_norm, self.dropout)
        return Stream(x, self.mlp(normed), stream.carried)


class CarryingBlock(FusedBlock):
    """The block of a `CarryingEncoding`, which reads what the stream carries and updates it."""

    def forward(self, stream: Stream, context: Context, state: State | None = None) -> Stream:
        attention = cast("CarryingAttention", self.attention)
        encoding = cast("CarryingEncoding", attention.encoding)
        x, normed = stream.normed(self.attention_norm, self.dropout)
        carried = encoding.start(context, normed) if stream.carried is None else stream.carried
        out, averaged = attention.passing(normed, replace(context, carried=carried), state)
        x, normed = Stream(x, out).normed(self.mlp_norm, self.dropout)
        branch = self.mlp(normed)
        return Stream(x, branch, None if encoding.last else encoding.updated(carried, averaged, branch))


class Attention(nn.Module):
    """Input and output projections; the encoding between them computes the attention.

    Attributes:
        annealed: rotates q and k before the encoding, while a RoPE model is converted to it; None otherwise.
        exact: whether the encoding has no effect yet, so that attention is bit-identical to the original model's.
    """

    annealed: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]] | None = None
    exact = False

    def __init__(self, width: int, encoding: Encoding):
        super().__init__()
        heads = {"query": encoding.query_heads, "key": encoding.kv_heads, "value": encoding.kv_heads}
        if not encoding.reads_content:
            heads = {"value": encoding.kv_heads}
        self.head_dim, self.heads = encoding.head_dim, [*heads.values()]
        self.qkv = FusedLinear(width, {name: count * self.head_dim for name, count in heads.items()})
        self.output = nn.Linear(encoding.heads * self.head_dim, width, bias=False)
        self.encoding = encoding

    def forward(self, x: Tensor, context: Context, state: State | None = None) -> Tensor:
        """`x [B, T, C]` to `[B, T, C]`; `state` is updated in place."""
        return self.output(self.attend(x, context, state).flatten(-2))

    def attend(self, x: Tensor, context: Context, state: State | None) -> Tensor:
        """What the encoding returns, `[B, T, H, value_dim]`."""
        *content, v = self.qkv(x).unflatten(-1, (-1, self.head_dim)).split(self.heads, 2)
        q, k = content or (v[:, :, :0], v[:, :, :0])  # tensors without heads for an encoding that does not read them
        if self.annealed is not None:
            q, k = self.annealed(q, k)
            if self.exact:
                return nope_attention(q, k, v, context.documents)
        if state is None:
            return self.encoding(x, q, k, v, context)
        return state.apply(self.encoding, x, q, k, v, context)


class CarryingAttention(Attention):
    """The attention of a `CarryingEncoding`."""

    def forward(self, x: Tensor, context: Context, state: State | None = None) -> Tensor:
        return self.passing(x, context, state)[0]

    def passing(self, x: Tensor, context: Context, state: State | None) -> tuple[Tensor, Tensor]:
        """The result of `forward`, and the attention-weighted average of what the tokens carry."""
        out = self.attend(x, context, state)
        return self.output(out[..., : self.head_dim].flatten(-2)), out[..., self.head_dim :]


class SwiGLU(nn.Module):
    """Gated MLP without biases (Shazeer, arXiv 2002.05202)."""

    def __init__(self, width: int, hidden: int):
        super().__init__()
        self.gate_up = FusedLinear(width, {"gate": hidden, "up": hidden})
        self.down = nn.Linear(hidden, width, bias=False)

    @staticmethod
    def usual_hidden(width: int) -> int:
        """8/3 of `width`, rounded up to a multiple of 32: about as many parameters as with `GELU`."""
        return -(-8 * width // (3 * 32)) * 32

    def forward(self, x: Tensor) -> Tensor:
        return self.down(silu_product(self.gate_up(x)))


class GELU(nn.Module):
    """Two-layer MLP with a GELU in between."""

    def __init__(self, width: int, hidden: int):
        super().__init__()
        self.up = nn.Linear(width, hidden, bias=False)
        self.down = nn.Linear(hidden, width, bias=False)

    @staticmethod
    def usual_hidden(width: int) -> int:
        """4 times `width`."""
        return 4 * width

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.gelu(self.up(x)))
