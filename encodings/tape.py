"""TAPE: rotations that start as RoPE's and that each layer updates from the content of the tokens."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..core.about import About, Paper
from ..kernels.attention.nope import nope_attention
from ..kernels.attention.rope import cos_sin, phases, rotate_by
from ..kernels.choice import HEAD_DIMS, Needs
from ..kernels.precision import wide
from ..kernels.stretching import TUNED
from .contract.context import Context
from .contract.module import INIT_STD
from .contract.state import KeyValueState, with_past
from .families.carrying import CarryingEncoding
from .families.rotary import Rotary
from .options import TAPEOptions


class TAPE(CarryingEncoding, Rotary):
    """Contextualised equivariant position encoding.

    Each token carries complex numbers e `[Hkv, D/2]`, by which the channel pairs of q and k are multiplied. In the
    first layer they are those of RoPE, `exp(i t theta_c)`; later their absolute value need not be 1. A layer adds to e
    its average by the attention weights, with one learned factor per head, and then a mix of the heads that depends on
    the output of the MLP. Both updates are linear in e and the same for all pairs, so a rotation of all tokens' e by
    the same angles, such as a shift of all positions, changes no score. All updates start at 0, which is RoPE. The last
    layer has none, as nothing would use it.

    What the paper leaves open follows the authors' code (VITA-Group/TAPE, models/llama/adape.py):

    - The mix has 4 hidden units per head (`position_size` is 48 for 12 heads). `up` starts at 0, `down` and the gate
      start from N(0, 0.02).
    - The average has one factor per head. The code multiplies by the row sums of an H x H matrix, which is the same.
    - The gate reads the output of the MLP before it is added to the residual stream.

    Differences from the code:

    - The code adds one random number to all positions in training. No score depends on it, so none is drawn here.
    - The code has as many key heads as query heads. Here query heads that share a key head share its e, and their
      averages are added.
    - e is float32. The matrices of the mix are multiplied with each other first, which gives the same function with
      fewer operations.

    Values and e are concatenated to values of 2D channels if a kernel supports it; otherwise attention runs once for
    each. The state holds rotated keys, values and e.

    Args:
        options: fields of `TAPEOptions`.

    Raises:
        ValueError: `head_dim` is odd, or an option is outside its range.
    """

    about = About(
        name="TAPE",
        mechanism="content",
        summary="rotates channel pairs of q and k by numbers that each layer updates from the content",
        equation=r"\begin{gathered} \text{score}(t, s) = \operatorname{Re} \sum_{c=0}^{D/2-1} q_{t,c}\, e_{t,c}\, "
        r"\overline{k_{s,c}\, e_{s,c}} \\ e'_t = e_t + w \sum_{s \le t} a_{ts}\, e_s, \qquad "
        r"e''_t = e'_t + V \operatorname{diag}(\text{silu}(G m_t))\, U e'_t \end{gathered}",
        terms="$q_{t,c}$ and $k_{s,c}$ are pairs of channels as complex numbers. $e_{t,c}$ is "
        "$\\exp(i\\, t\\, b^{-2c/D})$ in the first layer, with $b$ `encoding.base`; $e''$ is $e$ of the next layer. "
        "$a_{ts}$ are the attention weights, $w$ is a learned factor of each head, and $m_t$ is the output of the MLP. "
        "$U$ and $V$ mix the heads, with `encoding.hidden` hidden units and the gate $G$.",
        cache="keys, values, and rotations with as many channels as keys",
        paper=Paper(
            "Zhu et al.",
            2025,
            "Rethinking Addressing in Language Models via Contextualized Equivariant Positional Encoding",
            "2501.00712",
        ),
    )

    form = "plain"
    stretches = ("interpolation", "ntk", "yarn", "llama3", *TUNED)  # others would change keys in the state

    def __init__(self, width: int, heads: int, kv_heads: int, head_dim: int, **options: Any):
        given = TAPEOptions(**options)
        super().__init__(width, heads, kv_heads, head_dim, given, given.base)
        self.value_dim = 2 * head_dim
        self.scale(given)
        self.place(given)
        hidden = 4 * kv_heads if given.hidden is None else given.hidden
        self.update: Update | None = Update(width, heads, kv_heads, hidden)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        if self.update is not None:
            self.update.reset_parameters()

    def end(self) -> None:
        super().end()
        self.update = None

    def start(self, context: Context, like: Tensor) -> Tensor:
        """RoPE's numbers, `[B, T, Hkv, D]`: the real parts of all pairs, then the imaginary parts."""
        angle = phases(context.positions, self.pairs, self.table(context.positions)).unsqueeze(-2)
        circle = torch.cat(cos_sin(angle, wide(like)), -1)
        return circle.expand(*like.shape[:2], self.kv_heads, -1)

    def forward(
        self, x: Tensor, q: Tensor, k: Tensor, v: Tensor, context: Context, state: KeyValueState | None = None
    ) -> Tensor:
        carried = self.start(context, v) if context.carried is None else context.carried
        q = rotate_by(q, *carried.repeat_interleave(self.heads // self.kv_heads, 2).chunk(2, -1))
        k = rotate_by(k, *carried.chunk(2, -1))
        if not self.last:
            v = torch.cat([v, carried.to(v.dtype)], -1)
        k, v = with_past(k, v, state)
        scale = self.head_dim**-0.5
        if self.stretching is not None:
            scale *= self.stretching.attention_factor**2
        parts = v.split(self.averaged_dim, -1)
        out = [nope_attention(q, k, part, context.documents, scale, context.plan) for part in parts]
        return out[0] if len(out) == 1 else torch.cat(out, -1)

    def updated(self, carried: Tensor, averaged: Tensor, branch: Tensor) -> Tensor:
        return carried if self.update is None else self.update(carried, averaged, branch)

    @property
    def averaged_dim(self) -> int:
        """Number of channels that one call of attention averages."""
        return self.value_dim if self.head_dim in HEAD_DIMS and self.value_dim in HEAD_DIMS else self.head_dim

    @property
    def needs(self) -> Needs:
        return super().needs._replace(value_dim=self.averaged_dim)

    def attention_flops(self, length: int) -> float:
        update = 0.0 if self.update is None else self.update.flops(self.head_dim)
        return super().attention_flops(length) + update * length


class Update(nn.Module):
    """What a layer adds to the rotations.

    Args:
        width: number of channels C of the gate's input.
        heads, kv_heads: numbers of heads.
        hidden: hidden width I.
    """

    def __init__(self, width: int, heads: int, kv_heads: int, hidden: int):
        super().__init__()
        self.factor = nn.Parameter(torch.empty(heads))
        self.gate = nn.Linear(width, hidden, bias=False)
        self.up, self.down = nn.Parameter(torch.empty(hidden, kv_heads)), nn.Parameter(torch.empty(kv_heads, hidden))

    def reset_parameters(self) -> None:
        """Start with no effect."""
        nn.init.zeros_(self.factor)
        nn.init.zeros_(self.up)
        nn.init.normal_(self.gate.weight, std=INIT_STD)
        nn.init.normal_(self.down, std=INIT_STD)

    def forward(self, carried: Tensor, averaged: Tensor, branch: Tensor) -> Tensor:
        """`carried [B, T, Hkv, D]` with `averaged [B, T, H, D]` added, then the mix that `branch [B, T, C]` gates."""
        kv_heads = carried.shape[2]
        weighted = averaged.to(carried.dtype) * self.factor.to(carried.dtype).unsqueeze(-1)
        carried = carried + weighted.unflatten(2, (kv_heads, -1)).sum(3)
        products = (self.down.unsqueeze(1) * self.up.mT).flatten(0, 1)  # [Hkv * Hkv, I]
        mix = F.linear(F.silu(self.gate(branch)), products).unflatten(-1, (kv_heads, kv_heads))
        return carried + (mix.to(carried.dtype) @ carried).to(carried.dtype)

    def flops(self, head_dim: int) -> float:
        """Floating-point operations per token in the forward pass, except for the gate."""
        hidden, kv_heads = self.up.shape
        return 2.0 * (len(self.factor) * head_dim + kv_heads**2 * (hidden + head_dim))
