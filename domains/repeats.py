"""Marks tokens of a genome that are repeats, which sequence files have in lower case (soft masking)."""

import numpy as np

from .nucleotides import Bases, Sixmers
from .sequences import SOFT
from .store import UNSCORED

GROUPS = ("unique", "repeat", "N")
UNKNOWN = GROUPS.index("N")
BLOCK = 1 << 18  # tokens marked at a time, to limit memory


def marks(tokens: np.ndarray, codes: np.ndarray, tokenizer: Bases | Sixmers) -> np.ndarray:
    """Groups of `tokens`, start token first, encoded by `tokenizer` from `codes`, in which repeats have SOFT set.

    A token is a repeat if more than half of its bases are; a 6-mer with three of six is not. N is a separate group,
    because gaps of an assembly have almost no nats and would improve the scores of the other groups.
    """
    found = np.empty(len(tokens), np.uint8)
    found[0] = UNSCORED
    at = 0
    for first in range(1, len(tokens), BLOCK):
        block = tokens[first : first + BLOCK]
        end = at + int(tokenizer.widths[block].sum())
        soft = codes[at:end] & SOFT != 0
        found[first : first + BLOCK] = tokenizer.mostly(block, soft)
        found[first : first + BLOCK][block == tokenizer.unknown] = UNKNOWN
        at = end
    return found
