"""Inspects a trained model: where attention goes, and what its encodings have learned."""

from collections.abc import Callable
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from ..domains.store import Store
from ..encodings.base import Encoding, Portrait
from ..encodings.contract.context import Context
from .evaluation import Window, piece_of
from .transformer import Transformer

DOCUMENTS, LONGEST = 4, 512  # number of documents, and tokens of each
T = TypeVar("T")


def sample_of(store: Store, split: str, length: int) -> tuple[Tensor, Tensor]:
    """The first tokens of the split's longest documents, and the target after each of them.

    Returns:
        tokens: `[DOCUMENTS, T]`, with T at most `length` and LONGEST.
        targets: `[DOCUMENTS, T]`, IGNORED if they are not scored.
    """
    index = store.documents(split)
    sizes = store.offsets[index + 1] - store.offsets[index]
    chosen = (-sizes).argsort(kind="stable")[:DOCUMENTS]
    count = min(length, LONGEST, int(sizes[chosen].min()) - 1)
    pieces = [piece_of(store, document, Window(0, 0, 0, count)) for document in index[chosen]]
    tokens, targets = (np.stack([getattr(piece, name) for piece in pieces]) for name in ("inputs", "targets"))
    return torch.from_numpy(tokens), torch.from_numpy(targets)


@torch.inference_mode()
def look_inside(
    model: Transformer, tokens: Tensor, read: Callable[[Encoding, Tensor], T]
) -> tuple[list[T], list[dict[str, Portrait]]]:
    """Attention and portraits of each layer on `tokens [B, T]`.

    Args:
        read: called with each layer's encoding and its attention `[B, H, queries, keys]`. Only one layer's attention is
            in memory at a time.

    Returns:
        For each layer, the result of `read` and that of `Encoding.portrait`.
    """

    def look(encoding: Encoding, x: Tensor, q: Tensor, k: Tensor, v: Tensor, context: Context):
        return read(encoding, normalised(weights(encoding, x, q, k, v, context))), encoding.portrait(x)

    found = at_each_layer(model, tokens, look)
    return [each[0] for each in found], [each[1] for each in found]


@torch.inference_mode()
def look_with_keys_moved(
    model: Transformer, tokens: Tensor, read: Callable[[Encoding, Callable[[Tensor | None], Tensor]], T]
) -> list[T | None]:
    """What `read` returns for each layer on `tokens [B, T]`; None for layers whose weights do not depend on keys.

    Args:
        read: called with each layer's encoding and a function. This function takes an index `[T]` that reorders the
            keys, or None to keep their order, and returns the attention `[B, H, T, T]`. Only keys are reordered, not
            queries, values, or anything that an encoding computes from hidden states, such as gates.
    """

    def look(encoding: Encoding, x: Tensor, q: Tensor, k: Tensor, v: Tensor, context: Context) -> T | None:
        def moved(index: Tensor | None) -> Tensor:
            keys = k if index is None else k[:, index]
            return normalised(weights(encoding, x, q, keys, v, context))

        return read(encoding, moved) if encoding.reads_content else None

    return at_each_layer(model, tokens, look)


def at_each_layer(model: Transformer, tokens: Tensor, look: Callable[..., T]) -> list[T]:
    """What `look(encoding, x, q, k, v, context)` returns for each layer in a pass over `tokens [B, T]`."""
    found: list[T] = []
    hooks = [
        encoding.register_forward_hook(lambda encoding, given, out: found.append(look(encoding, *given[:5])))
        for encoding in model.encodings
    ]
    try:
        model.hidden(tokens)
    finally:
        for hook in hooks:
            hook.remove()
    return found


def probabilities(
    encoding: Encoding, x: Tensor, q: Tensor, k: Tensor, v: Tensor, context: Context | None = None
) -> Tensor:
    """Attention probabilities `[H, T, T]` of any encoding, averaged over the batch; see `weights`."""
    return normalised(weights(encoding, x, q, k, v, context).mean(0))


def weights(encoding: Encoding, x: Tensor, q: Tensor, k: Tensor, v: Tensor, context: Context | None = None) -> Tensor:
    """Attention weights `[B, H, T, T]` of any encoding, measured with one-hot values.

    If the value of a token is 1 in one channel and 0 elsewhere, the output in that channel is the attention to that
    token. D channels measure D tokens at a time. Encodings that compute attention by rows accept values of any
    width, so their scores are computed only once. By default the context is that of a whole sequence.
    """
    length = v.shape[1]
    width = length if encoding.needs.rows else v.shape[3]
    context, parts = context or Context.of(encoding, q), []
    for begin in range(0, length, width):
        marks = v.new_zeros(*v.shape[:3], width)
        here = torch.arange(begin, min(begin + width, length), device=v.device)
        marks[:, here, :, here - begin] = 1
        parts.append(encoding.average(x, q, k, marks, context)[..., : len(here)].float())
    return torch.cat(parts, -1).transpose(1, 2)


def normalised(weights: Tensor) -> Tensor:
    """`weights [..., T]`, divided by their sum, which is not 1 for URPE."""
    return weights / weights.sum(-1, keepdim=True)
