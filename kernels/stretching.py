"""Changes to an encoding for contexts longer than in training: other frequencies, or fewer visible keys."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from torch import Tensor

Form = Literal[
    "interpolation", "ntk", "dynamic_ntk", "yarn", "llama3", "longrope", "power", "truncated", "lm_infinite", "window"
]
TUNED = ("power", "truncated")  # for models that are trained with them
FOLLOWING = ("dynamic_ntk", "longrope")  # their frequencies depend on the length of the sequence
COUNTING = (*FOLLOWING, "lm_infinite")  # a later token can change how the keys before it are encoded
ON_REQUEST = (*TUNED, "lm_infinite", "window")  # task=extrapolate tries these only by name
FAST, SLOW = 32.0, 1.0  # YaRN's beta_fast and beta_slow, in turns within the trained length
HIGH, LOW = 4.0, 1.0  # Llama 3's high_freq_factor and low_freq_factor, in turns within the trained length
POWER = 0.5  # exponent of Giraffe's power basis in its authors' comparison (README of abacusai/Long-Context)


@dataclass(frozen=True)
class Stretch:
    """Scales the frequencies `theta_c = base^(-c/count)`, c = 0..count-1, for contexts of s = `factor` trained lengths.

    With D = 2 count, the head dimension of RoPE, the forms match `transformers`:

    - interpolation (Chen et al., arXiv 2306.15595): theta_c / s.
    - ntk (NTK-aware scaling, arXiv 2309.00071, section 3.1): multiplies the base by s^(D/(D-2)). This keeps the highest
      frequency and divides the lowest by s.
    - dynamic_ntk (as in `transformers`): ntk with s n / length - (s - 1) instead of s for sequences of n > length
      tokens. Shorter sequences are not scaled. In arXiv 2309.00071, section 3.3, the scale is n / length, which is the
      case s = 1. At n = s length the scale here is s^2 - s + 1, so frequencies are lower than with ntk.
    - yarn (Peng et al., arXiv 2309.00071, as in the authors' code): m_c theta_c + (1 - m_c) theta_c / s. The weight
      m_c falls linearly in the index c from 1 to 0 between floor(dim(FAST)) and ceil(dim(SLOW)), where dim(r) =
      D ln(length / (2 pi r)) / (2 ln base) is the index that makes r turns in `length`. The paper gives a different
      ramp, linear in the number of turns.
    - llama3 (Llama 3.1's code): the same blend, with m_c rising linearly in the turns within `length` from LOW to HIGH.
    - longrope (Ding et al., arXiv 2402.13753): divides theta_c by `long_factors` in sequences of more than `length`
      tokens and by `short_factors` in others.
    - power (Giraffe, Pal et al., arXiv 2308.10882): theta_c (1 - c/count)^POWER. Does not depend on s.
    - truncated (Giraffe): with u = 2 pi / length, keeps theta_c >= u, replaces those from u/8 to u by u/16 and smaller
      ones by 0, as in the authors' code. Does not depend on s.
    - lm_infinite (Han et al., arXiv 2308.16137) keeps the frequencies. A query sees the last `length` keys as in
      training, and the `first` keys of its sequence as if they were `length` tokens away.
    - window keeps the frequencies. A query sees the last `length` keys.

    power and truncated are meant for models that are trained or fine-tuned with them; they harm other models.

    n includes cached tokens. Cached keys are rotated as if the whole sequence had been processed in one pass;
    `transformers` keeps the frequencies that applied when the key was cached.

    Args:
        form: one of the forms above.
        factor: s, at least 1.
        length: trained length in tokens.
        long_factors: one positive number per frequency for longrope; the result of a search for one model.
        short_factors: the same for short sequences. Default: 1 each. The attention factor applies to them too.
        first: number of first keys for lm_infinite, less than `length`. Default: 10; the authors report similar results
            for 10 to 100.

    Raises:
        ValueError: a value is out of range.
    """

    form: Form
    factor: float
    length: int
    long_factors: Sequence[float] = ()
    short_factors: Sequence[float] = ()
    first: int = 10

    def __post_init__(self):
        if self.form not in get_args(Form):
            raise ValueError(f"stretch={self.form}: it must be one of {', '.join(get_args(Form))}")
        if not (1 <= self.factor < math.inf and 1 <= self.length < math.inf):  # also for NaN
            raise ValueError(
                f"stretch: factor={self.factor} and length={self.length}: both must be at least 1, and finite"
            )
        if self.form == "lm_infinite" and not 1 <= self.first < self.length:
            raise ValueError(
                f"first_tokens={self.first}: lm_infinite needs at least 1 and fewer than the trained {self.length}"
            )
        if self.form == "longrope":
            if self.length < 2:
                raise ValueError("length=1: longrope divides by its logarithm; use a length of at least 2")
            if not self.long_factors:
                raise ValueError("long_factors=[]: longrope needs one number per frequency of the model")
            for name, factors in (("long_factors", self.long_factors), ("short_factors", self.short_factors)):
                if wrong := [factor for factor in factors if not 0 < factor < math.inf]:
                    raise ValueError(f"{name}: {wrong[0]} is not allowed; each number must be finite and above 0")

    @property
    def follows_length(self) -> bool:
        """Whether the frequencies depend on the length of the sequence."""
        return self.form in FOLLOWING

    @property
    def needs_raw_keys(self) -> bool:
        """Whether a later token can change how the keys before it are encoded."""
        return self.form in COUNTING

    def check(self, count: int, base: float) -> None:
        """Raise ValueError if `frequencies` would raise it for a short or a long sequence."""
        for tokens in (self.length, self.length + 1):
            self.frequencies(count, base, tokens)

    def tokens(self, positions: Tensor) -> int:
        """Length of a sequence whose last position is the largest of `positions`; 1 if the length does not matter."""
        # Reading from the device synchronises, so this is done only if the length matters.
        return int(positions.max()) + 1 if self.follows_length else 1

    def frequencies(self, count: int, base: float, tokens: int) -> tuple[float, ...]:
        """The `count` frequencies for a sequence of `tokens`, in radians per token, from high to low.

        Raises:
            ValueError: the form does not support the base or the number of factors.
        """
        plain = [base ** (-c / count) for c in range(count)]
        if self.form == "interpolation":
            return tuple(theta / self.factor for theta in plain)
        if self.form == "power":
            return tuple(theta * (1 - c / count) ** POWER for c, theta in enumerate(plain))
        if self.form == "truncated":
            least = 2 * math.pi / self.length
            return tuple(theta if theta >= least else least / 16 * (theta >= least / 8) for theta in plain)
        if self.form in ("lm_infinite", "window"):
            return tuple(plain)
        if self.form in ("ntk", "dynamic_ntk"):
            scale = self.factor
            if self.form == "dynamic_ntk":
                scale = 1 + self.factor * (max(tokens, self.length) / self.length - 1)
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
            raise ValueError(f"{which}_factors: got {len(factors)} numbers; the encoding has {count} frequencies")
        return factors

    @property
    def attention_factor(self) -> float:
        """Factor of queries and of keys; scores are multiplied by its square.

        yarn: 0.1 ln s + 1; longrope: sqrt(1 + ln s / ln length); other forms: 1.
        """
        if self.form == "yarn":
            return 0.1 * math.log(self.factor) + 1
        if self.form == "longrope":
            return math.sqrt(1 + math.log(self.factor) / math.log(self.length))
        return 1.0


def _clamped(share: float) -> float:
    return min(1.0, max(0.0, share))
