"""RePo: rotations to positions that the tokens compute."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..core.about import About, Paper
from ..core.legends import Legend
from ..kernels.attention.rope import phases
from .base import Portrait
from .contract.context import Context
from .contract.state import KeyValueState
from .families.content import ContentRotary
from .options import RePoOptions


class RePo(ContentRotary):
    """Context re-positioning: RoPE at real-valued positions z that a small gated MLP computes from the hidden state.

    z is not a running sum: order is known only from the causal mask and from the hidden states. The authors keep RoPE
    in the first third of the layers; in a model of three, `encoding=pattern encoding.layers=[rope,repo,repo]` does so.
    In all layers of a small model, RePo stays close to NoPE (studies/zoo_jsb).

    Follows their code (SakanaAI/repo at 1508a73): the MLP's hidden width is C/8, and weights are drawn from N(0, 0.02)
    cut off at three standard deviations. Initially positions are close to 0, so that the model starts near NoPE. The
    code has a position per query head; here query heads share the position of their key head.

    Args:
        options: fields of `RePoOptions`.

    Raises:
        ValueError: `head_dim` is odd, or an option is outside its range.
    """

    about = About(
        name="RePo",
        mechanism="rotation",
        summary="rotates pairs of channels to real-valued positions that the tokens compute",
        equation=r"\text{score}(t, s) = q_t^\top R_{z_s - z_t}\, k_s, \qquad "
        r"z_u = w^\top \left(\text{SiLU}(G x_u) \odot E x_u\right), \qquad \theta_c = b^{-2c/D}",
        terms=r"$R_n$ rotates channel pair $c = 0, \dots, D/2-1$ by the angle $n\theta_c$; $x_u$ is the hidden state "
        "of token $u$; each key head has its own $w$; $b$ is `encoding.base`.",
        cache="keys and values",
        paper=Paper("Li et al.", 2025, "RePo: Language Models with Context Re-Positioning", "2512.14391"),
    )

    def __init__(self, width: int, heads: int, kv_heads: int, head_dim: int, **options: Any):
        given = RePoOptions(**options)
        super().__init__(width, heads, kv_heads, head_dim, given.implementation, given.window)
        self.base, hidden = given.base, given.hidden or max(width // 8, 1)
        self.gate, self.content = nn.Linear(width, hidden, bias=False), nn.Linear(width, hidden, bias=False)
        self.position = nn.Linear(hidden, kv_heads, bias=False)
        RePo.reset_parameters(self)

    def reset_parameters(self) -> None:
        for layer in (self.gate, self.content, self.position):
            nn.init.trunc_normal_(layer.weight, std=0.02, a=-0.06, b=0.06)

    def positions(self, x: Tensor) -> Tensor:
        """z of each token, `[B, T, Hkv]`, in float32 or wider."""
        with torch.autocast(x.device.type, enabled=False):
            x = x.to(self.position.weight.dtype)
            return self.position(F.silu(self.gate(x)) * self.content(x))

    def phases(self, x: Tensor, context: Context, state: KeyValueState | None = None) -> Tensor:
        return phases(self.positions(x), self.head_dim // 2, self.base)

    def portrait(self, x: Tensor) -> dict[str, Portrait]:
        """`position` of each token."""
        return {"position": Portrait(self.positions(x).flatten(0, 1).T, Legend("position of each token"))}
