"""Tokenizers of nucleotide codes (0 to 4 for A C G T N): single bases, and 6-mers as in the Nucleotide Transformer."""

from collections.abc import Iterator

import numpy as np

from .sequences import LETTERS, N

START = 0
BEGIN = len(LETTERS)  # the code of a start token
K = 6
KMERS = 4**K
PIECE = K << 17  # bases encoded at a time, to limit memory


class Bases:
    """One token per base: 0 starts a document, 1 to 5 are A C G T N."""

    vocabulary = 1 + len(LETTERS)
    bases = np.array([0, 1, 1, 1, 1, 0], np.float64)  # non-N bases of each token
    widths = np.array([0, 1, 1, 1, 1, 1])  # letters of each token
    unknown = vocabulary - 1  # an N

    def encode(self, codes: np.ndarray) -> np.ndarray:
        """Tokens, start first, of `codes`."""
        tokens = np.empty(len(codes) + 1, np.uint8)
        tokens[0] = START
        np.add(codes, 1, out=tokens[1:])
        return tokens

    def codes(self, tokens: np.ndarray) -> np.ndarray:
        """Codes of known `tokens`, BEGIN for a start token."""
        return np.array([BEGIN, 0, 1, 2, 3, N], np.uint8)[tokens]

    def mostly(self, tokens: np.ndarray, flags: np.ndarray) -> np.ndarray:
        """Whether more than half of the letters of each of `tokens`, without a start token, have `flags`."""
        return flags


class Sixmers:
    """Non-overlapping 6-mers, and single letters where fewer than six bases without N remain.

    Token 0 starts a document; 1 to 4096 are 6-mers in alphabetical order; 4097 to 4101 are A C G T N. As in the
    Nucleotide Transformer (Dalla-Torre et al., Nature Methods 22, 2025), each run between Ns is cut from its left end,
    and the remainder of up to five bases is encoded as single letters.
    """

    vocabulary = 1 + KMERS + len(LETTERS)
    bases = np.array([0] + [K] * KMERS + [1, 1, 1, 1, 0], np.float64)
    widths = np.array([0] + [K] * KMERS + [1] * len(LETTERS))
    unknown = vocabulary - 1

    def __init__(self):
        places = 4 ** np.arange(K - 1, -1, -1)
        self._places = places.astype(np.uint16)
        self._spelt = np.zeros((self.vocabulary, K), np.uint8)
        self._spelt[1 : 1 + KMERS] = np.arange(KMERS)[:, None] // places % 4
        self._spelt[1 + KMERS :, 0] = range(len(LETTERS))
        self._spelt[START, 0] = BEGIN
        self._is_kmer = np.zeros(self.vocabulary, bool)
        self._is_kmer[1 : 1 + KMERS] = True

    def encode(self, codes: np.ndarray) -> np.ndarray:
        """Tokens, start first, of `codes`."""
        return np.concatenate([np.array([START], np.uint16), *self._pieces(codes)])

    def _pieces(self, codes: np.ndarray) -> Iterator[np.ndarray]:
        at = 0
        while at < len(codes):
            piece = codes[at : at + PIECE]
            at += len(piece)
            ns = np.flatnonzero(piece == N)
            if at < len(codes):
                over = (len(piece) - (int(ns[-1]) + 1 if len(ns) else 0)) % K
                at -= over  # the next piece begins at the boundary of a 6-mer
                piece = piece[: len(piece) - over]
            if len(ns) == len(piece):
                yield np.full(len(piece), 1 + KMERS + N, np.uint16)
            elif len(ns):
                yield self._around(piece, ns)
            else:
                whole = len(piece) // K * K
                yield 1 + piece[:whole].reshape(-1, K) @ self._places
                yield piece[whole:].astype(np.uint16) + np.uint16(1 + KMERS)

    def _around(self, piece: np.ndarray, ns: np.ndarray) -> np.ndarray:
        """Tokens of a `piece` with N at the positions `ns`."""
        begins = np.concatenate([[0], ns + 1])
        lengths = np.concatenate([ns, [len(piece)]]) - begins
        within = np.arange(len(piece)) - np.repeat(begins, lengths + 1)[: len(piece)]
        left = np.repeat(lengths - lengths % K, lengths + 1)[: len(piece)]
        kmer = within < left  # the base is part of a 6-mer
        tokens = piece.astype(np.uint16) + np.uint16(1 + KMERS)
        first = kmer & (within % K == 0)
        tokens[first] = 1 + piece[kmer].reshape(-1, K) @ self._places
        return tokens[first | ~kmer]

    def codes(self, tokens: np.ndarray) -> np.ndarray:
        """Codes of known `tokens`, BEGIN for a start token."""
        kmer = self._is_kmer[tokens]
        if kmer.all():
            return self._spelt[tokens].ravel()
        wanted = np.repeat(kmer[:, None], K, 1)
        wanted[:, 0] = True
        return self._spelt[tokens][wanted]

    def mostly(self, tokens: np.ndarray, flags: np.ndarray) -> np.ndarray:
        """Whether more than half of the letters of each of `tokens`, without a start token, have `flags`."""
        whole = len(flags) // K
        if self._is_kmer[tokens[:whole]].all():  # single letters follow
            flagged = flags[: whole * K].reshape(-1, K).view(np.uint8) @ np.ones(K, np.uint8)
            return np.concatenate([flagged > K // 2, flags[whole * K :]])
        widths = self.widths[tokens]
        return 2 * np.add.reduceat(flags, np.cumsum(widths) - widths, dtype=np.int64) > widths


TOKENIZERS = {"kmer6": Sixmers, "base": Bases}


def reverse_complement(codes: np.ndarray) -> np.ndarray:
    """The reverse complement of `codes`."""
    return np.array([3, 2, 1, 0, N], np.uint8)[codes[::-1]]
