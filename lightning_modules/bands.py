"""Measures what a rotary model uses each frequency band for, by its loss without that band."""

import math
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import NamedTuple

import torch
from torch import Tensor

from ..encodings.base import Encoding
from ..kernels.loss.cross_entropy import IGNORED
from .transformer import Transformer

STEP = 4  # ratio of the ends of a band's wavelengths
SILENT = -1e4  # its softplus is 0


class Band(NamedTuple):
    """Nats per token of a model with and without a frequency band.

    Attributes:
        low, high: the band has wavelengths 2 pi / theta from `low` to below `high`, in positions.
        elements: number of channel pairs (PoPE: channels) in the band, over all layers and key heads.
        plain: nats per token of the unchanged model.
        unrotated: nats per token if the band's rotation stops in all layers: its channels compare content only.
        removed: nats per token if the band's channels do not contribute to scores.
    """

    low: int
    high: int
    elements: int
    plain: float
    unrotated: float
    removed: float


@torch.inference_mode()
def loss_by_band(model: Transformer, tokens: Tensor, targets: Tensor) -> list[Band]:
    """Nats per token without each frequency band; empty if the model does not rotate channels, or nothing is scored.

    Stopping the rotation of a band (Oka et al., "Frequency Bands in RoPE", ICLR 2026) leaves channels that compare
    content only, which p-RoPE has from the start of training (Barbero et al., arXiv 2410.06205). The increase of the
    loss shows whether the model uses the positions in these channels. Removing the channels also shows whether it uses
    their content. The model is not retrained.

    Args:
        tokens, targets: `[B, T]`, as from `sample_of`.
    """
    spectra = {encoding: turned_by(encoding) for encoding in model.encodings}
    numbers = {encoding: _numbers(spectrum) for encoding, spectrum in spectra.items() if spectrum is not None}
    if not numbers or not (targets != IGNORED).any():
        return []
    plain, found = _nats(model, tokens, targets), []
    for number in sorted({int(n) for each in numbers.values() for n in each.unique() if n >= 0}):
        bands, nats = {encoding: each == number for encoding, each in numbers.items()}, []
        for changed in (_unrotated, _removed):
            with ExitStack() as stack:
                for encoding, band in bands.items():
                    stack.enter_context(changed(encoding, band))
                nats.append(_nats(model, tokens, targets))
        elements = sum(int(band.sum()) for band in bands.values())
        found.append(Band(STEP**number, STEP ** (number + 1), elements, plain, *nats))
    return found


def turned_by(encoding: Encoding) -> Tensor | None:
    """The encoding's `spectrum`; None if it has none or all frequencies are 0."""
    spectrum = encoding.spectrum()
    return None if spectrum is None or not spectrum.any() else spectrum.detach().cpu()


def _numbers(spectrum: Tensor) -> Tensor:
    """Index n of each frequency's band, whose wavelengths begin at STEP**n; -1 for a frequency of 0."""
    wavelength = 2 * math.pi / spectrum.abs()
    return torch.where(spectrum == 0, -1, (wavelength.log() / math.log(STEP)).clamp(0, 24)).floor().long()


@contextmanager
def _unrotated(encoding: Encoding, band: Tensor) -> Iterator[None]:
    encoding.unturned = band
    try:
        yield
    finally:
        encoding.unturned = None


@contextmanager
def _removed(encoding: Encoding, band: Tensor) -> Iterator[None]:
    """In this context, queries lack the channels in `band [1 or Hkv, n]`."""
    per_pair = encoding.head_dim // band.shape[1]
    group = encoding.query_heads // encoding.kv_heads
    marks = band.repeat(1, per_pair).expand(encoding.kv_heads, -1).repeat_interleave(group, 0)
    silent = 0.0 if per_pair == 2 else SILENT

    def hook(module: Encoding, given: tuple) -> tuple:
        x, q, *rest = given
        return x, q.masked_fill(marks.to(q.device), silent), *rest

    handle = encoding.register_forward_pre_hook(hook)
    try:
        yield
    finally:
        handle.remove()


def _nats(model: Transformer, tokens: Tensor, targets: Tensor) -> float:
    nats, _ = model.token_nats(tokens, targets)
    return float(nats[targets != IGNORED].double().mean())
