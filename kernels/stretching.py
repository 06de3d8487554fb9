"""Frequencies changed after training, so that a longer context than that of training holds phases the model knows."""

import math
from dataclasses import dataclass
from typing import Literal

Form = Literal["interpolation", "ntk", "yarn"]
FAST, SLOW = 32.0, 1.0  # YaRN's beta and alpha, in turns


@dataclass(frozen=True)
class Stretch:
    """One way to stretch `base^(-c/count)`, c = 0..count-1, for contexts `factor` times the trained `length` in tokens.

    - interpolation (Chen et al., arXiv 2306.15595): every frequency divided by `factor`.
    - ntk (NTK-aware scaling, as arXiv 2309.00071 tells it): a larger base, which keeps the highest frequency and
      divides the lowest by `factor`.
    - yarn (Peng et al., arXiv 2309.00071): frequencies that turn more than FAST times in `length` are kept, those that
      turn less than SLOW times are divided, a line lies between; queries and keys times 0.1 ln(factor) + 1 each.

    Raises:
        ValueError: a value outside its range.
    """

    form: Form
    factor: float
    length: int

    def __post_init__(self):
        if self.form not in ("interpolation", "ntk", "yarn"):
            raise ValueError(f"stretch={self.form}: it must be interpolation, ntk or yarn")
        if self.factor < 1 or self.length < 1:
            raise ValueError(f"stretch by {self.factor} from length {self.length}: both must be at least 1")

    def frequencies(self, count: int, base: float) -> tuple[float, ...]:
        """Radians a token, `count` of them, from high to low."""
        plain = [base ** (-c / count) for c in range(count)]
        if self.form == "interpolation":
            return tuple(theta / self.factor for theta in plain)
        if self.form == "ntk":
            return tuple(theta * self.factor ** (-c / max(1, count - 1)) for c, theta in enumerate(plain))
        kept = [(self.length * theta / (2 * math.pi) - SLOW) / (FAST - SLOW) for theta in plain]
        kept = [min(1.0, max(0.0, share)) for share in kept]
        return tuple(
            share * theta + (1 - share) * theta / self.factor for share, theta in zip(kept, plain, strict=True)
        )

    @property
    def attention_factor(self) -> float:
        """What queries and keys are multiplied by, each."""
        return 0.1 * math.log(self.factor) + 1 if self.form == "yarn" else 1.0
