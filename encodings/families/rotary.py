"""Bases of rotary encodings, which turn each pair of channels of q and k by an angle that grows with the position."""

import math

import torch
from torch import Tensor

from ...kernels.attention.plain import scale_of
from ...kernels.attention.rope import geometric, rope_attention, rotate, rotate_by
from ...kernels.precision import wide
from ...kernels.stretching import Stretch
from ..contract.context import Context
from ..contract.state import KeyValueState, with_past
from ..options.base import WindowOptions
from .positional import PositionalEncoding


def full_turns(base: float, pairs: int, trained_length: int) -> int:
    """The number of RoPE's frequencies that make at least one turn within `trained_length`.

    Raises:
        ValueError: there are none.
    """
    kept = sum(theta >= 2 * math.pi / trained_length for theta in geometric(base, pairs))
    if not kept:
        raise ValueError(f"trained_length={trained_length}: no frequency makes a turn within it; use at least 7")
    return kept


class Rotary(PositionalEncoding):
    """Base of rotary encodings whose frequencies are fixed, `base^(-c/count)` for c = 0..count-1.

    The first `turned` pairs of channels have these frequencies, and the other pairs are not rotated. Kernels take the
    frequencies as a table and rotate q and k as they read them, so all tables cost the same. The state holds rotated
    keys, or raw keys if a kernel rotates them. `kernels/attention/rope.py` describes how channels are paired.

    A subclass with a table of another kind overrides `frequencies`. One that also transforms q and k in other ways
    overrides `encode_query`, `encode_key` and `forward`, and declares its `form`.

    Args:
        width, heads, kv_heads, head_dim, given: see `PositionalEncoding`.
        base: base of the frequencies.
        count: number of frequencies. Default: None, one per pair.
        turned: number of pairs that are rotated, from the highest frequency on. Default: None, `count`.

    Raises:
        ValueError: `head_dim` is odd.
    """

    form = "rotary"
    channels_multiple = 2
    stretches = ("interpolation", "ntk", "dynamic_ntk", "yarn", "llama3", "longrope", "lm_infinite")

    def __init__(
        self,
        width: int,
        heads: int,
        kv_heads: int,
        head_dim: int,
        given: WindowOptions,
        base: float,
        count: int | None = None,
        turned: int | None = None,
    ):
        super().__init__(width, heads, kv_heads, head_dim, given)
        self.base, self.pairs = base, head_dim // 2
        self.count = self.pairs if count is None else count
        self.turned = self.count if turned is None else turned

    def frequencies(self, tokens: int = 1) -> tuple[float, ...]:
        """The frequency of each pair in radians per token; 0 for pairs that are not rotated.

        Args:
            tokens: length of the sequence, for stretches that depend on it.
        """
        if self.stretching is None:
            table = geometric(self.base, self.count)
        else:
            table = self.stretching.frequencies(self.count, self.base, tokens)
        return table if self.turned == self.pairs else table[: self.turned] + (0.0,) * (self.pairs - self.turned)

    def table(self, positions: Tensor) -> float | tuple[float, ...]:
        """`frequencies` for a sequence whose last position is the largest of `positions`, or the base that gives them.

        RoPE passes the base, because PyTorch's powers differ from Python's in the last bit, which would change results.
        """
        if self.stretching is not None:
            table = self.frequencies(self.stretching.tokens(positions))
        else:
            table = self.base if self.turned == self.count == self.pairs else self.frequencies()
        return self.turning(table, self.pairs)

    def spectrum(self) -> Tensor | None:
        return torch.tensor([self.frequencies()], dtype=torch.float64)

    def encode_query(self, q: Tensor, positions: Tensor) -> Tensor:
        return self._rotated(q, positions)

    def encode_key(self, k: Tensor, positions: Tensor) -> Tensor:
        return self._rotated(k, positions)

    def _rotated(self, x: Tensor, positions: Tensor) -> Tensor:
        rotated = rotate(x, positions, self.table(positions))
        return rotated if self.stretching is None else rotated * self.stretching.attention_factor

    def _check_stretch(self, stretch: Stretch) -> None:
        super()._check_stretch(stretch)
        stretch.check(self.count, self.base)

    def forward(
        self, x: Tensor, q: Tensor, k: Tensor, v: Tensor, context: Context, state: KeyValueState | None = None
    ) -> Tensor:
        if self.form == "plain" or (state is not None and state.encoded):
            return super().forward(x, q, k, v, context, state)
        k, v = with_past(k, v, state)
        return self.attend(q, k, v, context)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, context: Context) -> Tensor:
        """Attention of raw `q [B, T, H, D]` over raw `k, v [B, S, Hkv, D]`; the last query is at the last key."""
        factor = 1.0 if self.stretching is None else self.stretching.attention_factor**2
        scale = scale_of(q, None) * factor
        return rope_attention(q, k, v, self.table(context.positions), context.documents, scale, context.plan)


class HeadRotary(PositionalEncoding):
    """Base of rotary encodings that multiply pairs of channels by complex numbers that differ between key heads.

    Query heads that share a key head share its numbers. PyTorch applies them, and the state holds encoded keys.
    A subclass overrides `circle`, and names in `keep_float32` what its phases depend on, because they grow with the
    position.

    Raises:
        ValueError: `head_dim` is odd.
    """

    channels_multiple = 2

    def circle(self, positions: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Real and imaginary parts of the numbers at `positions [T]` or `[B, T]`, each `[..., T, Hkv, D/2]`.

        The result has the given dtype, float32 or wider.
        """
        raise NotImplementedError

    def encode_query(self, q: Tensor, positions: Tensor) -> Tensor:
        group = self.heads // self.kv_heads
        return rotate_by(q, *(part.repeat_interleave(group, -2) for part in self._turned(positions, wide(q))))

    def encode_key(self, k: Tensor, positions: Tensor) -> Tensor:
        return rotate_by(k, *self._turned(positions, wide(k)))

    def _turned(self, positions: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """`circle`, with 1 for the pairs that `unturned` marks."""
        cos, sin = self.circle(positions, dtype)
        if self.unturned is None:
            return cos, sin
        still = self.unturned.to(cos.device)
        return cos.masked_fill(still, 1.0), sin.masked_fill(still, 0.0)
