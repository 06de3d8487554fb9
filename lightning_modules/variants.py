"""Scores of single-base variants: how much less likely the alternative allele is than the reference."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch

from ..domains.genome import Genome
from ..domains.nucleotides import reverse_complement
from ..domains.sequences import LETTERS
from ..domains.variants import Reference, Variants
from .data_module import IGNORED, Piece, collate
from .evaluation import Scored, autocast


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
    """
    alleles, places = _alleles(domain, variants, reference, window)
    order = sorted(range(len(alleles)), key=lambda i: -len(alleles[i].tokens))
    nats, device = np.zeros(len(alleles)), next(model.parameters()).device
    was_training = model.training
    model.eval()
    at = 0
    with torch.inference_mode():
        while at < len(order):
            batch = order[at : at + max(1, tokens_per_batch // len(alleles[order[at]].tokens))]
            tensors = collate([[alleles[i].piece()] for i in batch])
            with autocast(device, precision):
                found, _ = model.token_nats(tensors["inputs"].to(device), tensors["targets"].to(device))
            nats[batch] = found.double().sum(-1).cpu().numpy()
            at += len(batch)
            on_batch(at, len(order))
    model.train(was_training)
    return (nats[places[:, 0]] - nats[places[:, 1]]).mean(-1)


class _Allele(NamedTuple):
    """Tokens of a sequence, and the first that is scored."""

    tokens: np.ndarray
    first: int

    def piece(self) -> Piece:
        piece = Piece.of(self.tokens)
        targets = piece.targets.copy()
        targets[: self.first - 1] = IGNORED
        return Piece(piece.inputs, targets)


def _alleles(domain: Genome, variants: Variants, reference: Reference, window: int) -> tuple[list[_Allele], np.ndarray]:
    """Each distinct sequence once, and its index by variant, allele (alternative, reference) and strand."""
    index: dict[tuple[int, bytes], int] = {}
    found: list[_Allele] = []
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
                    found.append(_Allele(tokens, first))
                places[i, allele, strand] = place_of
    return found, places
