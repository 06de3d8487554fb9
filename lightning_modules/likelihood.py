"""Log-likelihoods of continuations, given their contexts."""

from collections.abc import Callable, Sequence

import numpy as np
import torch

from ..core.errors import DivergedError
from .data_module import IGNORED, Piece
from .evaluation import Scored, batched, evaluating, figures_of


@torch.inference_mode()
def continuation_nats(
    model: Scored,
    pairs: Sequence[tuple[np.ndarray, np.ndarray]],
    length: int,
    precision: str,
    tokens_per_batch: int,
    on_batch: Callable[[int, int], None] = lambda done, total: None,
) -> tuple[np.ndarray, np.ndarray]:
    """Negative log-likelihood of each continuation, and whether greedy decoding gives it; both `[pairs]`.

    Args:
        pairs: ids of each context (at least one) and of its continuation (at most `length`). If both are too long for
            an input, the context is cut from the left.
        length: longest input in tokens.
        precision: as in `Evaluation`.
        tokens_per_batch: maximum number of tokens per forward pass, with padding; affects only speed and memory.
        on_batch: called with the number of finished pairs and of all pairs.

    Raises:
        ValueError: a context or continuation is empty, or a continuation is too long.
        DivergedError: a likelihood is not finite.
    """
    for number, (context, then) in enumerate(pairs):
        if not len(context) or not 0 < len(then) <= length:
            raise ValueError(f"pair {number} has {len(context)} + {len(then)} tokens, for an input of at most {length}")
    nats, greedy = np.zeros(len(pairs)), np.zeros(len(pairs), bool)
    done = 0
    device = next(model.parameters()).device
    sizes = [min(len(context) + len(then) - 1, length) for context, then in pairs]
    with evaluating(model):
        for batch in batched(range(len(pairs)), sizes, tokens_per_batch):
            pieces = []
            for index in batch:
                context, then = pairs[index]
                tokens = np.concatenate([context, then], dtype=np.int64)[-(length + 1) :]
                targets = tokens[1:].copy()
                targets[: -len(then)] = IGNORED
                pieces.append(Piece(tokens[:-1], targets))
            each, scored, right = figures_of(model, pieces, device, precision)
            nats[batch] = each.sum(-1).cpu().numpy()
            greedy[batch] = (right.bool() | ~scored).all(-1).cpu().numpy()
            done += len(batch)
            on_batch(done, len(pairs))
    if not np.isfinite(nats).all():
        raise DivergedError("the model's log-likelihoods are not finite: its training has diverged")
    return nats, greedy
