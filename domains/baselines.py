"""Baselines without a neural network, scored on the same split: unigram, smoothed order-k Markov, and xz."""

import lzma
import math
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from .store import UNSCORED, Store

XZ_WINDOW = 64 << 20
LEARNT = 1 << 25  # maximum training tokens of Markov models, at about 80 bytes of memory each


def markov(store: Store, split: str, max_order: int) -> dict[int, np.ndarray]:
    """Nats of each document of `split` under Markov models of order 0 (unigram) to `max_order`.

    Counts come only from the training split; if it has more than LEARNT tokens, from its last documents. Each order is
    interpolated with the one below (Witten and Bell, IEEE Trans. Inf. Theory 37(4), 1991, method C):
    P_k(x|c) = (n(c,x) + d(c) P_{k-1}(x)) / (n(c) + d(c)), where d(c) is the number of distinct tokens after context c.
    Order 0 is interpolated with the uniform distribution. Only scored targets are counted.
    """
    train = store.documents("train")
    from_the_end = np.cumsum((store.offsets[train + 1] - store.offsets[train])[::-1])
    parts = [train[-max(1, int((from_the_end <= LEARNT).sum())) :], store.documents(split)]
    tokens = np.concatenate([store.document(i) for part in parts for i in part])
    sizes = np.concatenate([store.offsets[part + 1] - store.offsets[part] for part in parts])
    begins = np.cumsum(sizes) - sizes
    place = (np.arange(len(tokens)) - np.repeat(begins, sizes)).astype(np.uint32)
    symbols = store.manifest["vocabulary"] + 1  # one more for "before the document"
    target = place > 0
    if store.marks is not None:
        marks = [store.marks[store.offsets[i] : store.offsets[i + 1]] for part in parts for i in part]
        target &= np.concatenate(marks) != UNSCORED
    at = np.flatnonzero(target)  # targets of the training split, then those to score
    learnt = int(np.searchsorted(at, sizes[: len(parts[0])].sum()))
    document = np.searchsorted(begins, at[learnt:], side="right") - 1 - len(parts[0])
    probability = np.full(len(document), 1.0 / store.manifest["vocabulary"])
    scored = np.arange(len(document))
    context = np.zeros(len(at), np.int64)
    nats = {}
    for order in range(max_order + 1):
        if order:
            before = np.where(place[at] >= order, tokens[at - order].astype(np.int64), symbols - 1)
            context = np.unique(context * symbols + before, return_inverse=True)[1]
        n = np.bincount(context[:learnt], minlength=int(context.max(initial=-1)) + 1)
        asked = np.zeros(len(n), bool)
        asked[context[learnt:]] = True
        # Drop contexts that do not occur in both parts; longer contexts that include them do not either.
        kept = np.concatenate([asked[context[:learnt]], n[context[learnt:]] > 0])
        scored, at, context = scored[kept[learnt:]], at[kept], context[kept]
        learnt = len(at) - len(scored)
        events, counts = np.unique(context[:learnt] * symbols + tokens[at[:learnt]], return_counts=True)
        d = np.bincount(events // symbols, minlength=len(n))
        wanted, context_of = context[learnt:] * symbols + tokens[at[learnt:]], context[learnt:]
        found = np.minimum(np.searchsorted(events, wanted), len(events) - 1)
        count = np.where(events[found] == wanted, counts[found], 0)
        probability[scored] = (count + d[context_of] * probability[scored]) / (n[context_of] + d[context_of])
        nats[order] = np.bincount(document, -np.log(probability), minlength=len(parts[1]))
    return nats


def xz(store: Store, split: str) -> float:
    """Nats that `xz -9e` needs for the tokens of `split` given the training split.

    This is the compressed size of both minus that of the training split. If the training split exceeds the window of
    xz, only its end is used.
    """

    def joined(name: str, limit: int | None = None) -> bytes:
        parts, size = [], 0
        for i in store.documents(name)[::-1]:
            parts.append(store.document(i)[1:].tobytes())
            size += len(parts[-1])
            if limit is not None and size >= limit:
                break
        return b"".join(parts[::-1])[-limit if limit else 0 :]

    train = joined("train", XZ_WINDOW)
    filters = [{"id": lzma.FILTER_LZMA2, "preset": 9 | lzma.PRESET_EXTREME, "dict_size": XZ_WINDOW}]

    def size(data: bytes) -> int:
        return len(lzma.compress(data, format=lzma.FORMAT_RAW, filters=filters))

    with ThreadPoolExecutor(2) as pool:  # xz releases the interpreter's lock
        alone, both = pool.map(size, (train, train + joined(split)))
    return (both - alone) * 8 * math.log(2)
