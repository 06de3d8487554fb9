"""Nats of a complete split with a given context length, grouped by the number of tokens before each target."""

from collections.abc import Iterator, Sequence
from itertools import chain, groupby
from typing import NamedTuple

import numpy as np
import torch

from ..domains.store import Store
from .evaluation import Scored, batched, figures_of, piece_of, windows

OVERLAP = 0.5  # of a context: each target sees at least half of it, or all of its document


class Bucket(NamedTuple):
    """Targets that saw from `low` to `high` tokens, and their summed nats.

    `beyond`: more tokens than the trained length precede them in their documents, so longer contexts can help.
    """

    beyond: bool
    low: int
    high: int
    targets: int
    nats: float


@torch.inference_mode()
def score_by_position(
    model: Scored,
    store: Store,
    split: str,
    context: int,
    trained: int,
    precision: str,
    tokens_per_batch: int,
    period: int = 1,
    unpadded: bool = False,
) -> list[Bucket]:
    """Score every target of `split` once, in windows of at most `context` tokens.

    Args:
        trained: training length in tokens.
        precision, tokens_per_batch, period: see `Evaluation`.
        unpadded: all windows of a batch have the same length, for models that depend on the length of their input.
    """
    device = next(model.parameters()).device
    index = store.documents(split)
    lows = _lows(context)
    kinds = len(lows)
    totals = np.zeros((2, 2, kinds))  # targets and nats, within and beyond, by bucket
    flat = totals.reshape(2, -1)  # a view
    found = windows(store, index, context, OVERLAP, period)
    groups = [[*group] for _, group in groupby(found, lambda window: window.size)] if unpadded else [found]
    batches = (batched(group, [window.size for window in group], tokens_per_batch) for group in groups)
    for batch in chain.from_iterable(batches):
        pieces = [piece_of(store, index[w.document], w) for w in batch]
        nats, counted = (each.cpu().numpy() for each in figures_of(model, pieces, device, precision)[:2])
        for row, window in enumerate(batch):
            place = np.flatnonzero(counted[row])
            bucket = np.searchsorted(lows, place + 1, side="right") - 1
            beyond = (window.begin + place + 1 > trained).astype(int)
            np.add.at(flat[0], beyond * kinds + bucket, 1)
            np.add.at(flat[1], beyond * kinds + bucket, nats[row, place])
    return [*_buckets(totals, lows, context)]


def usual_contexts(trained: int) -> list[int]:
    """`trained` times powers of two from 1/4 to 16."""
    return [context for power in range(-2, 5) if (context := round(trained * 2.0**power)) >= 1]


def contexts_to_try(store: Store, split: str, trained: int) -> list[int]:
    """`usual_contexts`, up to the first that fits the longest document."""
    index = store.documents(split)
    longest = int((store.offsets[index + 1] - store.offsets[index] - 1).max())
    found = usual_contexts(trained)
    enough = next((i for i, context in enumerate(found) if context >= max(longest, trained)), len(found))
    return found[: enough + 1]


def _lows(context: int) -> list[int]:
    """The fewest tokens of each bucket: half of the context or more, a quarter or more, and so on, in ascending order.

    Targets that see half of the context are thus in a bucket of their own.
    """
    return sorted({-(-context // 2**power) for power in range(1, context.bit_length() + 1)})


def _buckets(totals: np.ndarray, lows: Sequence[int], context: int) -> Iterator[Bucket]:
    highs = [*(low - 1 for low in lows[1:]), context]
    for beyond in (0, 1):
        for kind in np.flatnonzero(totals[0, beyond]).tolist():
            targets, nats = totals[:, beyond, kind]
            yield Bucket(bool(beyond), lows[kind], highs[kind], int(targets), float(nats))
