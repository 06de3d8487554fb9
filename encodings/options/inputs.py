"""Options of positions that are added to the embeddings."""

from dataclasses import dataclass
from typing import Literal

from ...core.options import Count, Positive
from .base import WindowOptions


@dataclass(frozen=True)
class AbsoluteLearnedOptions(WindowOptions):
    """A learned vector for each position, added to the embeddings.

    Attributes:
        length: number of positions, and so the longest context. Positions from data.length on are trained only with
            `draw`.
        draw: what training draws in each pass: nothing; offset, the position at which documents start; or subset, the
            positions of a row, in order (Ruoss et al.). Evaluation starts at 0 and leaves out no position.
    """

    length: Count = 2048
    draw: Literal["none", "offset", "subset"] = "none"


@dataclass(frozen=True)
class FixedTableOptions(WindowOptions):
    """Options of positions that are computed and added to the embeddings.

    Attributes:
        scale: learned multiplies the positions by one learned number, which initially makes them as large as the
            embeddings. raw multiplies the embeddings by the square root of model.width instead (Vaswani et al.).
    """

    scale: Literal["learned", "raw"] = "learned"


@dataclass(frozen=True)
class AbsoluteSinusoidalOptions(FixedTableOptions):
    """Sines and cosines of the position, added to the embeddings.

    Attributes:
        base: base of the frequencies; 10000 is common.
    """

    base: Positive = 10000.0


@dataclass(frozen=True)
class LegendreOptions(FixedTableOptions):
    """Legendre polynomials of a degree equal to the position, added to the embeddings."""


@dataclass(frozen=True)
class TPEOptions(WindowOptions):
    """A causal moving average of the embeddings, with a learned decay in each head."""
