"""RoPE: rotate pairs of channels of q and k by an angle proportional to the position."""

from typing import Any

from torch import Tensor

from ..core.about import About, Paper
from ..kernels.attention.rope import rope_attention, rotate
from ..kernels.stretching import Stretch
from .base import Encoding
from .contract.context import Context
from .contract.state import KeyValueState
from .options import RoPEOptions


class RoPE(Encoding):
    """Rotary position embedding. `kernels/attention/rope.py` describes how channels are paired.

    The state holds rotated keys, or raw keys if a kernel rotates them while it reads them.

    Args:
        options: fields of `RoPEOptions`.

    Raises:
        ValueError: `head_dim` is odd, or an option is outside its range.
    """

    about = About(
        name="RoPE",
        mechanism="rotation",
        summary="rotates pairs of channels of q and k by an angle proportional to the position",
        equation=r"\text{score}(t, s) = q_t^\top R_{s-t}\, k_s, \qquad \theta_c = b^{-2c/D}",
        terms="$R_n$ rotates channel pair $c = 0, \\dots, D/2-1$ by the angle $n\\theta_c$; $b$ is `encoding.base`.",
        cache="keys and values",
        paper=Paper("Su et al.", 2021, "RoFormer: Enhanced Transformer with Rotary Position Embedding", "2104.09864"),
    )

    form = "rotary"
    stretches = ("interpolation", "ntk", "dynamic_ntk", "yarn", "llama3", "longrope")

    def __init__(self, width: int, heads: int, kv_heads: int, head_dim: int, **options: Any):
        if head_dim % 2:
            raise ValueError(f"head_dim={head_dim}: RoPE rotates pairs of channels: use an even head_dim")
        given = RoPEOptions(**options)
        super().__init__(width, heads, kv_heads, head_dim, given.implementation, given.window)
        self.base = given.base

    def encode_query(self, q: Tensor, positions: Tensor) -> Tensor:
        return self._turned(q, positions)

    def encode_key(self, k: Tensor, positions: Tensor) -> Tensor:
        return self._turned(k, positions)

    def _turned(self, x: Tensor, positions: Tensor) -> Tensor:
        if self.stretching is None:
            return rotate(x, positions, self.base)
        stretched = self.stretching.at(positions, self.head_dim // 2, self.base)
        return rotate(x, positions, stretched) * self.stretching.attention_factor

    def stretch(self, stretch: Stretch | None) -> None:
        if stretch is not None:
            stretch.check(self.head_dim // 2, self.base)
        super().stretch(stretch)

    def forward(
        self, x: Tensor, q: Tensor, k: Tensor, v: Tensor, context: Context, state: KeyValueState | None = None
    ) -> Tensor:
        if self.form == "plain" or (state is not None and state.encoded):
            return super().forward(x, q, k, v, context, state)
        if state is not None:
            state.append(k, v)
            k, v = state.read()
        return rope_attention(q, k, v, self.base, context.documents, implementation=context.plan)
