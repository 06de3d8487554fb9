"""PoPE: magnitudes from content, phases from position, and a learned phase offset."""

import math
from typing import Any

import torch
from torch import Tensor, nn

from ..core.about import About, Paper
from ..core.legends import Elements, Legend
from ..kernels.attention.pope import magnitude, pope_attention, pope_key, pope_query
from ..kernels.attention.rope import frequencies_of
from ..kernels.stretching import TUNED
from .base import Portrait
from .contract.context import Context
from .contract.state import KeyValueState, with_past
from .families.positional import PositionalEncoding
from .options import PoPEOptions


class PoPE(PositionalEncoding):
    """Polar coordinate position embedding.

    `delta [Hkv, D]` is added to the phase of the keys, so query heads that share a key head share its delta. It stays
    float32 when the module is cast to a smaller dtype: bfloat16 would round a phase by up to 0.016. If a kernel
    applies the phase while it reads the keys, the state holds softplus(k) with D channels. Otherwise it holds encoded
    keys with 2D channels.

    Args:
        options: fields of `PoPEOptions`.

    Raises:
        ValueError: an option is outside its range.
    """

    about = About(
        name="PoPE",
        mechanism="rotation",
        summary="magnitude from content, phase from position, and a learned phase offset",
        equation=r"\text{score}(t, s) = \sum_{c=0}^{D-1} \mu(q_{t,c})\, \mu(k_{s,c}) "
        r"\cos\left((s - t)\,\theta_c + \delta_{h,c}\right), \qquad \theta_c = b^{-c/D}",
        terms=r"$\mu$ is softplus, $\delta_h$ the learned phase offset of head $h$; $b$ is `encoding.base`.",
        cache="keys and values; with PyTorch's attention the keys have twice as many channels",
        paper=Paper(
            "Gopalakrishnan et al.",
            2025,
            'Decoupling the "What" and "Where" With Polar Coordinate Positional Embeddings',
            "2509.10534",
        ),
    )

    no_weight_decay = keep_float32 = ("delta",)
    form = "polar"
    stretches = ("interpolation", "ntk", "dynamic_ntk", *TUNED, "lm_infinite")

    def __init__(self, width: int, heads: int, kv_heads: int, head_dim: int, **options: Any):
        given = PoPEOptions(**options)
        super().__init__(width, heads, kv_heads, head_dim, given)
        self.score_dim = 2 * head_dim
        self.delta_init, self.clamp, self.base = given.delta_init, given.clamp, given.base
        self.scale(given)
        self.place(given)
        self.delta = nn.Parameter(torch.empty(kv_heads, head_dim, dtype=torch.float32))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        low = -2 * math.pi if self.delta_init == "uniform" else 0.0
        nn.init.uniform_(self.delta, low, 0.0)

    def phase_offset(self) -> Tensor:
        """delta `[Hkv, D]` as it is added to the phases, after the clamp."""
        if self.clamp == "periodic":
            return self.delta
        clamped = self.delta.clamp(-2 * math.pi, 0.0)
        if self.clamp == "clamp":
            return clamped
        return self.delta + (clamped - self.delta).detach()

    def encode_query(self, q: Tensor, positions: Tensor) -> Tensor:
        return pope_query(q, positions, self._base(positions))

    def encode_key(self, k: Tensor, positions: Tensor) -> Tensor:
        return pope_key(k, positions, self.phase_offset(), self._base(positions))

    def _base(self, positions: Tensor) -> float | tuple[float, ...]:
        """The base, or the changed frequencies for a sequence of `positions`."""
        table, stretch = self.base, self.stretching
        if stretch is not None:
            table = stretch.frequencies(self.head_dim, self.base, stretch.tokens(positions))
        return self.turning(table, self.head_dim)

    def spectrum(self) -> Tensor | None:
        return torch.tensor([frequencies_of(self._base(torch.zeros(1)), self.head_dim)], dtype=torch.float64)

    def forward(
        self, x: Tensor, q: Tensor, k: Tensor, v: Tensor, context: Context, state: KeyValueState | None = None
    ) -> Tensor:
        if self.form == "plain" or (state is not None and state.encoded):
            return super().forward(x, q, k, v, context, state)
        if state is not None:
            k, v = with_past(magnitude(k), v, state)
        given = {"implementation": context.plan, "magnitudes": state is not None}
        return pope_attention(q, k, v, self.phase_offset(), self._base(context.positions), context.documents, **given)

    def portrait(self, x: Tensor) -> dict[str, Portrait]:
        """`delta` before the clamp, from the highest frequency to the lowest."""
        elements = Elements(
            "element c of the head, from the highest frequency to the lowest",
            ticks={"-2π": -2 * math.pi, "-π": -math.pi, "0": 0.0},
            facts={"theta": [*frequencies_of(self._base(torch.zeros(1)), self.head_dim)]},
            note="-2π and 0 are the same phase",
            period=2 * math.pi if self.clamp == "periodic" else None,
            frozen="outside the clamp, where no gradient passes" if self.clamp == "clamp" else None,
        )
        return {"delta": Portrait(self.delta, Legend("delta, radians", "The learned phase offset", elements))}

    def diagnostics(self) -> dict[str, Tensor]:
        """`delta_frozen_share`: the share of delta outside [-2 pi, 0], where `clamp=clamp` passes no gradient.

        It is 0 for the other values of `clamp`. The bounds themselves pass a gradient.
        """
        if self.clamp != "clamp":
            return {"delta_frozen_share": self.delta.new_zeros(())}
        outside = (self.delta > 0) | (self.delta < -2 * math.pi)
        return {"delta_frozen_share": outside.float().mean()}
