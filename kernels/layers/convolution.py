"""Causal depthwise convolution over tokens, with a tail for decoding and a restart in each packed document."""

import torch
from torch import Tensor


def causal_convolution(
    u: Tensor, taps: Tensor, tail: Tensor | None = None, places: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Convolve each channel with its own weights: out_t = sum_i taps_i u_{t-i}.

    Args:
        u: inputs `[B, T, channels]`.
        taps: weights `[width, channels]`; row 0 weighs the newest token.
        tail: inputs of the preceding tokens, `[B, width - 1, channels]`. Default: None, the beginning of a sequence.
        places: positions within documents `[B, T]`. Default: None, each row is one document.

    Returns:
        Outputs with the shape of `u`, and the next `tail`.

    Raises:
        ValueError: a `tail` of another shape.
    """
    length, reach = u.shape[1], len(taps) - 1
    if tail is not None and tail.shape != (u.shape[0], reach, u.shape[2]):
        raise ValueError(
            f"tail {list(tail.shape)} with u {list(u.shape)}, {len(taps)} taps: the shape must be "
            f"{[u.shape[0], reach, u.shape[2]]}"
        )
    before = u.new_zeros(u.shape[0], reach, u.shape[2]) if tail is None else tail.to(u.dtype)
    padded = torch.cat([before, u], 1)
    out = u * taps[0]
    for back in range(1, len(taps)):
        shifted = padded[:, reach - back : reach - back + length]
        if places is not None:
            shifted = shifted * (places >= back).unsqueeze(-1)
        out = out + shifted * taps[back]
    return out, padded[:, length:]
