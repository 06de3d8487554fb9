"""Selective RoPE: rotations by running sums of angles that the tokens compute."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..core.about import About, Paper
from ..core.legends import Legend
from ..kernels.attention.rope import phases
from ..kernels.layers.convolution import causal_convolution
from .base import Portrait
from .contract.state import TailState
from .families.content import CumulativeRotary
from .options import SelectiveRoPEOptions


class SelectiveRoPE(CumulativeRotary):
    """Selective rotary position embedding. Pairs turn in both directions, by unbounded angles.

    Follows the authors' code (timurcarstensen/selective-rope at d12e825) and its language-model configuration: x is
    divided into one slice per head, each L2-normalised; a low-rank projection gives D/2 values per key head; a causal
    depthwise convolution of width 4 follows, without activation; RoPE's frequencies with base 500,000 are the
    temperatures, which are not trained. All weights are drawn from N(0, 0.02), so that initially the angles are close
    to 0 and the model starts near NoPE. The paper's SiLU, phase gate and bias are options, off as in that
    configuration. With the bias, which the code adds as exp(0) = 1 before the sum, the model starts near RoPE.
    The code computes angles for each query head; here query heads share the angles of their key head.

    Args:
        options: fields of `SelectiveRoPEOptions`.

    Raises:
        ValueError: `head_dim` is odd, `width` is not a multiple of `kv_heads`, or an option is outside its range.
    """

    about = About(
        name="Selective RoPE",
        mechanism="rotation",
        summary="rotates pairs of channels by running sums of angles that the tokens compute",
        equation=r"\text{score}(t, s) = q_t^\top R(\phi_s - \phi_t)\, k_s, \qquad "
        r"\phi_{t,c} = \tau_c \sum_{u \le t} \omega_{u,c}, \qquad \omega = \text{conv}(U V \hat{x}), \qquad "
        r"\tau_c = b^{-2c/D}",
        terms=r"$R(\phi)$ rotates channel pair $c = 0, \dots, D/2-1$ by the angle $\phi_c$; $\hat{x}$ is the "
        r"normalised hidden state, $V$ and $U$ a low-rank projection; $b$ is `encoding.base`.",
        cache="keys, values, one vector of running angles, and the last inputs of the convolution",
        paper=Paper("Movahedi et al.", 2025, "Selective Rotary Position Embedding", "2511.17388"),
    )

    no_weight_decay = ("taps",)
    windowed = False  # the convolution reads tokens before the window

    def __init__(self, width: int, heads: int, kv_heads: int, head_dim: int, **options: Any):
        given = SelectiveRoPEOptions(**options)
        super().__init__(width, heads, kv_heads, head_dim, given.implementation)
        if width % kv_heads:
            raise ValueError(f"width={width}, kv_heads={kv_heads}: SelectiveRoPE needs a multiple of kv_heads")
        self.base, self.silu = given.base, given.silu
        angles = kv_heads * head_dim // 2
        self.down = nn.Linear(width, given.rank, bias=False)
        self.up = nn.Linear(given.rank, angles, bias=False)
        self.taps = nn.Parameter(torch.empty(given.convolution, angles))  # row 0 weighs the newest token
        self.gate = nn.Linear(width, kv_heads) if given.gate else None
        self.bias = nn.Parameter(torch.empty(angles)) if given.bias else None
        SelectiveRoPE.reset_parameters(self)

    def reset_parameters(self) -> None:
        for weight in (self.down.weight, self.up.weight, self.taps):
            nn.init.normal_(weight, std=0.02)
        if self.gate is not None:
            nn.init.normal_(self.gate.weight, std=0.02)
            nn.init.zeros_(self.gate.bias)
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def rates(self, x: Tensor, places: Tensor | None = None, state: TailState | None = None) -> Tensor:
        with torch.autocast(x.device.type, enabled=False):
            slices = x.to(self.taps.dtype).unflatten(-1, (self.kv_heads, -1))
            x = (slices * torch.rsqrt(slices.square().sum(-1, keepdim=True) + 1e-6)).flatten(-2)
            omega = self.up(self.down(x))
            omega, tail = causal_convolution(omega, self.taps, None if state is None else state.before(omega), places)
            if state is not None:
                state.tail = tail
            if self.silu:
                omega = F.silu(omega)
            if self.bias is not None:
                omega = omega + self.bias.exp()
            omega = omega.unflatten(-1, (self.kv_heads, -1))
            if self.gate is not None:
                omega = omega * self.gate(x).sigmoid().unsqueeze(-1)
        return omega * phases(torch.ones((), device=x.device), self.head_dim // 2, self.base)

    def new_tail(self, batch: int, like: Tensor) -> Tensor:
        return like.new_zeros(batch, len(self.taps) - 1, self.taps.shape[1], dtype=self.taps.dtype)

    def portrait(self, x: Tensor) -> dict[str, Portrait]:
        """`angle` by which each token turns the pair with temperature 1."""
        legend = Legend("angle of each token, radians: how far it turns the first pair, in either direction")
        return {"angle": Portrait(self.rates(x)[..., 0].flatten(0, 1).T, legend)}
