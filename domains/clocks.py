"""How tokens advance the time of their medium: beats, bases, bytes, or the steps and voices of a raster."""

from dataclasses import dataclass

import numpy as np

KEPT = -1  # in `places`: the token does not set the place


@dataclass(frozen=True)
class Clock:
    """The position of a token in the medium: the sum of `advances` up to this token, plus the last place that was set.

    Positions count from the first token of a row or document. That token is at its place, or at 0 if it sets none.
    Increments by token are those of V2PE (Ge et al., arXiv 2412.09616), fixed by the medium instead of drawn.

    Attributes:
        advances: units by which each token advances, integers `[vocabulary]`.
        places: offset that each token sets until the next token that sets one, integers `[vocabulary]`; KEPT for
            tokens that set none. None if no token sets one.
        columns: if not None, positions have two axes. Units are the cells of a raster with this number of columns, the
            first token is in the last cell of row -1, and positions are row and column.
    """

    advances: np.ndarray
    places: np.ndarray | None = None
    columns: int | None = None
