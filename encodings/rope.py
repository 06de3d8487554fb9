"""RoPE: rotate pairs of channels of q and k by an angle proportional to the position."""

from typing import Any

import torch
from torch import Tensor

from ..core.about import About, Paper
from ..kernels.stretching import TUNED
from .families.rotary import Rotary
from .options import RoPEOptions


class RoPE(Rotary):
    """Rotary position embedding. `kernels/attention/rope.py` describes how channels are paired.

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

    stretches = (*Rotary.stretches, *TUNED)
    dropped: Tensor

    def __init__(self, width: int, heads: int, kv_heads: int, head_dim: int, **options: Any):
        given = RoPEOptions(**options)
        super().__init__(width, heads, kv_heads, head_dim, given, given.base)
        self.drop_after, self.turns = given.drop_after, True
        self.scale(given)
        self.place(given)
        if given.drop_after is not None:
            self.register_buffer("dropped", torch.zeros(()))  # 1 after `drop`, so that checkpoints contain it

    def drop(self) -> None:
        self.dropped.fill_(1.0)
        self._stop_turning()

    def _stop_turning(self) -> None:
        self.use_plain_form()
        self.turns, self.stretches = False, ("lm_infinite",)

    def _load_from_state_dict(self, state_dict: dict[str, Tensor], prefix: str, *rest: Any) -> None:
        super()._load_from_state_dict(state_dict, prefix, *rest)
        if self.drop_after is not None and self.dropped > 0:
            self._stop_turning()

    def spectrum(self) -> Tensor | None:
        return super().spectrum() if self.turns else None

    def _rotated(self, x: Tensor, positions: Tensor) -> Tensor:
        return super()._rotated(x, positions) if self.turns else x
