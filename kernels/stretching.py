"""Frequencies changed after training, so that a context longer than that of training holds phases the model knows."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from torch import Tensor

Form = Literal["interpolation", "ntk", "dynamic_ntk", "yarn", "llama3", "longrope"]
FAST, SLOW = 32.0, 1.0  # YaRN's beta_fast and beta_slow, in turns within the trained length
HIGH, LOW = 4.0, 1.0  # Llama 3's high_freq_factor and low_freq_factor, likewise


@dataclass(frozen=True)
class Stretch:
    """One way to stretch `theta_c = base^(-c/count)`, c = 0..count-1, for contexts of s = `factor` trained lengths.

    With D = 2 count, the head dimension of RoPE, and as `transformers` computes them:

    - interpolation (Chen et al., arXiv 2306.15595): theta_c / s.
    - ntk (NTK-aware scaling, arXiv 2309.00071, section 3.1): the base times s^(D/(D-2)), which keeps the highest
      frequency and divides the lowest by s.
    - dynamic_ntk (the same, section 3.3, in `transformers`' form): ntk with s n / length - (s - 1) instead of s, for
      a sequence of n > length tokens; a shorter one is not stretched.
    - yarn (Peng et al., arXiv 2309.00071, as its authors' code has it): m_c theta_c + (1 - m_c) theta_c / s. The share
      m_c falls linearly in the index c from 1 to 0 between floor(dim(FAST)) and ceil(dim(SLOW)), where dim(r) =
      D ln(length / (2 pi r)) / (2 ln base) is the index that makes r turns in `length`. The paper's equation prints
      another ramp, linear in the turns.
    - llama3 (Llama 3.1's code): the same blend, m_c rising linearly in the turns within `length` from LOW to HIGH.
    - longrope (Ding et al., arXiv 2402.13753): theta_c divided by `long_factors` in a sequence of more than `length`
      tokens, by `short_factors` in others.

    The n tokens of a sequence include cached ones, and a cached key is turned as if the sequence had been read at once.
    In `transformers` it keeps the frequencies of the length at which it was read.

    Args:
        form: one of the above.
        factor: s, at least 1.
        length: trained length in tokens.
        long_factors: of longrope, one for each frequency, as its search found them for one model.
        short_factors: likewise; 1 each by default. The attention factor applies to short sequences too.

    Raises:
        ValueError: a value outside its range.
    """

    form: Form
    factor: float
    length: int
    long_factors: Sequence[float] = ()
    short_factors: Sequence[float] = ()

    def __post_init__(self):
        if self.form not in get_args(Form):
            raise ValueError(f"stretch={self.form}: it must be {', '.join(get_args(Form))}")
        if self.factor < 1 or self.length < 1:
            raise ValueError(f"stretch by {self.factor} from length {self.length}: both must be at least 1")
        if self.form == "longrope":
            if self.length < 2:
                raise ValueError("length=1: longrope divides by its logarithm: at least 2 tokens are needed")
            if not self.long_factors:
                raise ValueError("long_factors=[]: longrope needs a number for each frequency of the model")
            if not all(0 < factor < math.inf for factor in (*self.long_factors, *self.short_factors)):
                raise ValueError("long_factors, short_factors: each number must be finite and above 0")

    @property
    def follows_length(self) -> bool:
        """Whether the frequencies depend on the length of the sequence."""
        return self.form in ("dynamic_ntk", "longrope")

    def check(self, count: int, base: float) -> None:
        """Raise ValueError where `frequencies` does, for a short or a long sequence."""
        for tokens in (self.length, self.length + 1):
            self.frequencies(count, base, tokens)

    def at(self, positions: Tensor, count: int, base: float) -> tuple[float, ...]:
        """`frequencies` for a sequence whose last position is the largest of `positions`."""
        # Read from the device only where it matters.
        return self.frequencies(count, base, int(positions.max()) + 1 if self.follows_length else 1)

    def frequencies(self, count: int, base: float, tokens: int) -> tuple[float, ...]:
        """Radians per token of a sequence of `tokens`: `count` of them, from high to low.

        Raises:
            ValueError: a base, or a number of factors, that the form does not take.
        """
        plain = [base ** (-c / count) for c in range(count)]
        if self.form == "interpolation":
            return tuple(theta / self.factor for theta in plain)
        if self.form in ("ntk", "dynamic_ntk"):
            scale = self.factor
            if self.form == "dynamic_ntk":
                scale = self.factor * max(tokens, self.length) / self.length - (self.factor - 1)
            return tuple(theta * scale ** (-c / max(1, count - 1)) for c, theta in enumerate(plain))
        if self.form == "longrope":
            factors = self._factors("long" if tokens > self.length else "short", count)
            return tuple(theta / factor for theta, factor in zip(plain, factors, strict=True))
        shares = self._shares_by_index(count, base) if self.form == "yarn" else self._shares_by_turns(plain)
        return tuple(m * theta + (1 - m) * theta / self.factor for m, theta in zip(shares, plain, strict=True))

    def _shares_by_index(self, count: int, base: float) -> list[float]:
        """YaRN's m_c."""
        if base <= 1:
            raise ValueError(f"base={base}: yarn needs a base above 1")

        def dim(turns: float) -> float:
            return count * math.log(self.length / (2 * math.pi * turns)) / math.log(base)

        low, high = max(math.floor(dim(FAST)), 0), min(math.ceil(dim(SLOW)), 2 * count - 1)
        width = high - low or 0.001
        return [1 - _clamped((c - low) / width) for c in range(count)]

    def _shares_by_turns(self, plain: Sequence[float]) -> list[float]:
        """Llama 3's m_c."""
        turns = (self.length * theta / (2 * math.pi) for theta in plain)
        return [_clamped((each - LOW) / (HIGH - LOW)) for each in turns]

    def _factors(self, which: Literal["long", "short"], count: int) -> Sequence[float]:
        factors = self.long_factors if which == "long" else self.short_factors or [1.0] * count
        if len(factors) != count:
            raise ValueError(f"{which}_factors: {len(factors)} numbers given, the encoding has {count} frequencies")
        return factors

    @property
    def attention_factor(self) -> float:
        """What queries and keys are multiplied by, each, so that scores are multiplied by its square.

        Of yarn 0.1 ln s + 1, of longrope sqrt(1 + ln s / ln length); 1 of the others.
        """
        if self.form == "yarn":
            return 0.1 * math.log(self.factor) + 1
        if self.form == "longrope":
            return math.sqrt(1 + math.log(self.factor) / math.log(self.length))
        return 1.0


def _clamped(share: float) -> float:
    return min(1.0, max(0.0, share))
