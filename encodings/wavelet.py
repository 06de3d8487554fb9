"""Wavelet-based positions: wavelets of the distance with many scales and shifts, added to the keys."""

import math
from typing import Any

import torch
from torch import Tensor

from ..core.about import About, Paper
from ..kernels.precision import widest
from .families.distance import DistanceEmbedding
from .options import WaveletOptions

# Values of x beyond which a wavelet is below 1e-16.
SUPPORT = {"ricker": 9.2, "gaussian": 6.1, "haar": 1.0, "morlet": 6.1}


class Wavelet(DistanceEmbedding):
    """Wavelet-based relative position representation, without parameters.

    Each channel of the embedding is a wavelet of the distance d at x = (d - b) / a with a scale a and a shift b
    (equation 14). Amplitudes do not depend on the scale. If the number of channels is not a multiple of the number of
    scales, some scales have one shift more than others.

    The Morlet wavelet is exp(-x^2) cos(d - b): the paper states that scales do not change the frequency of its cosine.
    The paper mirrors the Haar wavelet, because its relative positions are negative; here it has its usual form as a
    function of the distance. Embeddings end where all wavelets are below 1e-16, so that farther keys cost nothing.

    Args:
        options: fields of `WaveletOptions`.

    Raises:
        ValueError: an option is outside its range.
    """

    about = About(
        name="Wavelet",
        mechanism="distance",
        summary="adds wavelets of the distance, with many scales and shifts, to the key",
        equation=r"\text{score}(t, s) = q_t^\top \left(k_s + p(t - s)\right), \qquad "
        r"p(d)_c = \psi\left(\frac{d - b_c}{a_c}\right), \qquad \psi(x) = (1 - x^2)\, e^{-x^2/2}",
        terms="Channel $c$ has the scale $a_c = 2^{n}, 2^{n+1}, \\dots$ and the shift $b_c = 0, 1, \\dots$; $n$ is "
        "`encoding.first_scale`. `encoding.wavelet` selects another $\\psi$.",
        cache="keys and values",
        paper=Paper("Oka et al.", 2025, "Wavelet-based Positional Representation for Long Context", "2502.02004"),
    )

    def __init__(self, width: int, heads: int, kv_heads: int, head_dim: int, **options: Any):
        given = WaveletOptions(**options)
        super().__init__(width, heads, kv_heads, head_dim, given.implementation, given.window)
        self.wavelet, self.scales, self.first_scale = given.wavelet, given.scales, given.first_scale
        widest_scale = 2 ** (given.first_scale + given.scales - 1)
        self.reach = math.ceil(SUPPORT[given.wavelet] * widest_scale) + math.ceil(head_dim / given.scales) + 1

    def embedding(self, distances: Tensor) -> Tensor:
        exact = {"dtype": widest(distances.device), "device": distances.device}
        channels = torch.arange(self.head_dim, device=distances.device)
        scale = channels * self.scales // self.head_dim
        first = (scale * self.head_dim + self.scales - 1) // self.scales  # the first channel of this scale
        shifted = distances.to(**exact).unsqueeze(1) - (channels - first)
        x = shifted / 2.0 ** (self.first_scale + scale)
        if self.wavelet == "ricker":
            return (1 - x.square()) * (-x.square() / 2).exp()
        if self.wavelet == "haar":
            return ((x >= 0) & (x < 0.5)).to(x.dtype) - ((x >= 0.5) & (x < 1)).to(x.dtype)
        return (-x.square()).exp() * (shifted.cos() if self.wavelet == "morlet" else 1)
