"""Inspects a trained model: where attention goes, and what its encodings have learned."""

from collections.abc import Iterator

import torch
from torch import Tensor

from ..domains.store import Store
from ..encodings.base import Encoding, Portrait
from ..encodings.contract.context import Context
from .transformer import Transformer

DOCUMENTS, LONGEST = 4, 512  # number of documents, and tokens of each


def sample_of(store: Store, split: str, length: int) -> Tensor:
    """The first tokens `[DOCUMENTS, T]` of the split's longest documents, with T at most `length` and LONGEST."""
    index = store.documents(split)
    longest = index[(-(store.offsets[index + 1] - store.offsets[index])).argsort(kind="stable")[:DOCUMENTS]]
    pieces = [
        torch.from_numpy(store.document(document)[: min(length, LONGEST)].astype("int64")) for document in longest
    ]
    shortest = min(map(len, pieces))
    return torch.stack([piece[:shortest] for piece in pieces])


@torch.inference_mode()
def look_inside(model: Transformer, tokens: Tensor) -> tuple[list[Tensor], list[dict[str, Portrait]]]:
    """Attention and portraits of each layer on `tokens [B, T]`.

    Returns:
        For each layer, attention probabilities `[H, T, T]` of query and key, averaged over B; and the results of
        `Encoding.portrait`.
    """
    found = []

    def look(encoding: Encoding, given: tuple, out) -> None:
        x, q, k, v, context = given[:5]
        found.append((probabilities(encoding, x, q, k, v, context), encoding.portrait(x)))

    hooks = [encoding.register_forward_hook(look) for encoding in model.encodings]
    try:
        model.hidden(tokens)
    finally:
        for hook in hooks:
            hook.remove()
    return [each[0] for each in found], [each[1] for each in found]


def probabilities(
    encoding: Encoding, x: Tensor, q: Tensor, k: Tensor, v: Tensor, context: Context | None = None
) -> Tensor:
    """Attention probabilities `[H, T, T]` of any encoding, averaged over the batch, measured with one-hot values.

    If the value of a token is 1 in one channel and 0 elsewhere, the output in that channel is the attention to that
    token. D channels measure D tokens at a time. By default the context is that of a whole sequence.
    """
    length, width = v.shape[1], v.shape[3]
    context, parts = context or Context.of(encoding, q), []
    for begin in range(0, length, width):
        marks = torch.zeros_like(v)
        here = torch.arange(begin, min(begin + width, length), device=v.device)
        marks[:, here, :, here - begin] = 1
        out = encoding.average(x, q, k, marks, context)
        parts.append(out[..., : len(here)].float().mean(0))
    weights = torch.cat(parts, -1).transpose(0, 1)
    return weights / weights.sum(-1, keepdim=True)  # URPE's weights do not sum to 1


def mass_by_distance(attention: Tensor) -> Iterator[tuple[int, int, Tensor]]:
    """Share of attention `[H, T, T]` at distances `low` to `high`, powers of two, for queries in the second half.

    Yields `low`, `high` and `[H]`.
    """
    length = attention.shape[-1]
    query = torch.arange(length // 2, length, device=attention.device)
    distance = query[:, None] - torch.arange(length, device=attention.device)
    low, high = 0, 0
    while low < length:
        here = (distance >= low) & (distance <= high)
        yield low, min(high, length - 1), (attention[:, query] * here).sum(-1).mean(-1)
        low, high = high + 1, 2 * (high + 1) - 1
