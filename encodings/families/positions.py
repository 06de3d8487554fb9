"""The positions that encodings use: the tokens' indices, or numbers drawn in training."""

import torch
from torch import Tensor

from ...kernels.precision import widest


def positions_used(
    index: Tensor,
    training: bool,
    randomise: int = 0,
    random_steps: bool = False,
    spacing: float = 1.0,
) -> Tensor:
    """The positions of tokens with the given indices in their documents, for all rows of one pass.

    Draws come from the global generator of the device, without waiting for it. CUDA graphs can capture them, and a
    resumed run repeats them.

    Evaluation draws nothing, so scores are deterministic and decoding equals a pass over the whole sequence. The code
    of Ruoss et al. draws positions in evaluation too. A `spacing` of `randomise` / T keeps the mean distance.

    Args:
        index: integers `[T]` or `[B, T]`, less than T in training.
        training: whether the pass is part of a training step.
        randomise: draw T of the positions from 0 to this number minus 1 without replacement; the p-th token of every
            document gets the p-th smallest (Ruoss et al., arXiv 2305.16843). At least T, or 0 to use indices.
        random_steps: draw T steps from U(0, 2); the p-th token of every document is at the sum of the first p. If the
            sum of all exceeds T, they are scaled to sum to T (Giraffe, Pal et al., arXiv 2308.10882, as in the authors'
            code).
        spacing: in evaluation, the distance between neighbouring tokens.

    Returns:
        Integers, or floats for `random_steps` and for a `spacing` other than 1, in the shape of `index`.
    """
    if not training:
        return index if spacing == 1 else index.to(widest(index.device)) * spacing
    length = index.shape[-1]
    if randomise:
        chosen = torch.rand(randomise, device=index.device).topk(length).indices
        return chosen.sort().values[index]
    if random_steps:
        ends = (2 * torch.rand(length, dtype=widest(index.device), device=index.device)).cumsum(0)
        return (ends * (length / ends[-1].clamp(min=length)))[index]
    return index
