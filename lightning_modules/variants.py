"""Scores of single-base variants: how much less likely the alternative allele is than the reference."""

from collections.abc import Callable

import numpy as np

from ..domains.genome import Genome
from ..domains.nucleotides import reverse_complement
from ..domains.sequences import LETTERS
from ..domains.variants import Reference, Variants
from .evaluation import Scored
from .likelihood import continuation_nats


def variant_nats(
    model: Scored,
    domain: Genome,
    variants: Variants,
    reference: Reference,
    window: int,
    precision: str,
    tokens_per_batch: int,
    on_batch: Callable[[int, int], None] = lambda done, total: None,
) -> np.ndarray:
    """Nats of the alternative allele minus those of the reference, mean of both strands, `[variants]`.

    Each allele is scored within `window` bases around the variant, as a document. Tokens before the first that differs
    have equal nats and are left out.

    Args:
        precision, tokens_per_batch: see `Evaluation`.
        on_batch: called with the number of finished sequences and of all sequences.

    Raises:
        DivergedError: a score is not finite.
    """
    pairs, places = _alleles(domain, variants, reference, window)
    length = max(len(context) + len(then) for context, then in pairs) - 1
    nats, _ = continuation_nats(model, pairs, length, precision, tokens_per_batch, on_batch)
    return (nats[places[:, 0]] - nats[places[:, 1]]).mean(-1)


def _alleles(
    domain: Genome, variants: Variants, reference: Reference, window: int
) -> tuple[list[tuple[np.ndarray, np.ndarray]], np.ndarray]:
    """Each distinct sequence once, cut before the first token that differs between the alleles of a variant.

    Also its index by variant, allele (alternative, reference) and strand.
    """
    index: dict[tuple[int, bytes], int] = {}
    found: list[tuple[np.ndarray, np.ndarray]] = []
    places = np.zeros((len(variants.names), 2, 2), np.int64)
    rows = zip(variants.records.tolist(), variants.positions.tolist(), variants.alternatives.tolist(), strict=True)
    for i, (record, at, letter) in enumerate(rows):
        codes, place = reference.window(record, at, window)
        changed = codes.copy()
        changed[place] = LETTERS.index(letter)
        for strand in (0, 1):
            both = [domain.encode_codes(reverse_complement(each) if strand else each) for each in (changed, codes)]
            first = int(np.argmax(both[0] != both[1]))  # both have the same number of tokens
            for allele, tokens in enumerate(both):
                place_of = index.setdefault((first, tokens.tobytes()), len(found))
                if place_of == len(found):
                    found.append((tokens[:first], tokens[first:]))
                places[i, allele, strand] = place_of
    return found, places
