"""Soft-masking as marks of a store: which tokens of a genome lie in repeats, which files have in lower case."""

import numpy as np

from .nucleotides import Bases, Sixmers
from .sequences import SOFT
from .store import UNSCORED

GROUPS = ("unique", "repeat", "N")
UNKNOWN = GROUPS.index("N")
BLOCK = 1 << 18  # tokens marked at a time: bounds memory


def marks(tokens: np.ndarray, codes: np.ndarray, tokenizer: Bases | Sixmers) -> np.ndarray:
    """Groups of `tokens`, start first, which `tokenizer` made of `codes`, where repeats have SOFT set.

    A token is a repeat when more than half of its bases are: a 6-mer of three and three is unique. N is a group of its
    own, because an assembly's gaps cost next to nothing and would flatter either of the others.
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
