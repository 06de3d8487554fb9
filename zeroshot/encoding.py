"""Tokens of contexts and continuations, as lm-evaluation-harness encodes them."""

from collections.abc import Sequence

import numpy as np

from ..domains.documents import Document
from ..domains.tokenization import Tokenizer
from .questions import Pair

Tokens = tuple[np.ndarray, np.ndarray]  # of a context, at least one token, and of its continuation


def encoded(texts: Sequence[str], tokenizer: Tokenizer) -> list[np.ndarray]:
    """Ids of each text; `<|endoftext|>` is encoded like other text."""
    raw = ((text, text.encode()) for text in texts)
    return tokenizer.encode([Document("", text, content, len(content)) for text, content in raw])


def encode_pairs(pairs: Sequence[Pair], tokenizer: Tokenizer, prefixed: bool = True) -> list[Tokens]:
    """Tokens of each context and its continuation.

    White space at the end of a context becomes part of the continuation. Both are encoded as one text. If the context
    by itself has n tokens, the first n are the context and the rest is the continuation. An empty context becomes the
    token that begins documents.

    Args:
        prefixed: contexts begin with the token that begins documents.
    """
    moved = []
    for context, continuation in pairs:
        kept = context.rstrip() if context else ""
        moved.append((kept, context[len(kept) :] + continuation))
    wholes = [context + continuation for context, continuation in moved]
    unique = list(dict.fromkeys([*wholes, *(context for context, _ in moved if context)]))
    ids = dict(zip(unique, encoded(unique, tokenizer), strict=True))
    start = np.array([tokenizer.start])
    found = []
    for (context, _), whole in zip(moved, wholes, strict=True):
        before = len(ids[context]) if context else 0
        begin = [start] if prefixed or not before else []
        found.append((np.concatenate([*begin, ids[whole][:before]]), ids[whole][before:]))
    return found
