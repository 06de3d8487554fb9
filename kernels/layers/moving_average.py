"""Causal moving averages with exponential decay, in chunks of matrix products."""

import torch
import torch.nn.functional as F
from torch import Tensor

CHUNK = 64


def moving_average(
    x: Tensor, log_decay: Tensor, positions: Tensor | None = None, before: Tensor | None = None
) -> Tensor:
    """`y_t = sum_s exp(log_decay_h)^(t-s) x_s` over the tokens s <= t of the same document.

    Args:
        x: `[B, T, C]`; C / H consecutive channels belong to each head.
        log_decay: logarithms of the decays, `[H]`, negative, with the dtype of x.
        positions: position of each token in its document, `[B, T]`; None if each row is one document.
        before: `y` of the token before the first, `[B, C]`, for rows that continue; None for zeros.

    Returns:
        `[B, T, C]`.
    """
    length = x.shape[1]
    size = max(min(CHUNK, length), 1)
    padding = -length % size
    chunks = (
        F.pad(x, (0, 0, 0, padding)).unflatten(1, (-1, size)).unflatten(-1, (len(log_decay), -1))
    )  # [B, N, t, H, d]
    at = torch.arange(size, device=x.device)
    distance = at[:, None] - at
    visible, reaches = distance >= 0, None
    if positions is not None:
        here = F.pad(positions, (0, padding)).unflatten(1, (-1, size))  # [B, N, t]
        visible = visible & (distance <= here[..., None])
        reaches = here > at  # whether the document began before this chunk
    weights = (distance.clamp(min=0) * log_decay[:, None, None]).exp()  # [H, t, s]
    weights = torch.where(visible.unsqueeze(-3), weights, 0.0)  # [H, t, s] or [B, N, H, t, s]
    y = (weights @ chunks.transpose(2, 3)).transpose(2, 3).flatten(-2)  # [B, N, t, C]
    if before is not None or y.shape[1] > 1:
        y = y + _carried(y[:, :, -1], size, log_decay, None if positions is None else here[..., -1], reaches, before)
    return y.flatten(1, 2)[:, :length]


def _carried(
    ends: Tensor, size: int, log_decay: Tensor, positions: Tensor | None, reaches: Tensor | None, before: Tensor | None
) -> Tensor:
    """What the tokens before each chunk add to its averages, `[B, N, size, C]`.

    Args:
        ends: averages of each chunk's last token over its chunk, `[B, N, C]`.
        positions: of the chunks' last tokens in their documents, `[B, N]`.
        reaches: whether each token's document began before its chunk, `[B, N, size]`.
        before: see `moving_average`.
    """
    if ends.shape[1] > 1:
        chunks = None if positions is None else positions // size
        ends = moving_average(ends, size * log_decay, chunks, before)
    first = torch.zeros_like(ends[:, :1]) if before is None else before[:, None]
    carried = torch.cat([first, ends[:, :-1]], 1)[:, :, None]
    steps = torch.arange(1, size + 1, device=ends.device)[:, None]
    decays = (steps * log_decay).exp().repeat_interleave(ends.shape[-1] // len(log_decay), -1)  # [size, C]
    carried = carried * decays
    return carried if reaches is None else torch.where(reaches[..., None], carried, 0.0)
