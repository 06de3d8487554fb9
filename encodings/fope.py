"""FoPE: a Fourier series instead of one frequency in each pair of channels."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..core.about import About, Paper
from ..kernels.attention.rope import geometric, phases
from .families.rotary import HeadRotary, full_turns
from .options import FoPEOptions


class FoPE(HeadRotary):
    """Fourier position embedding.

    The n frequencies of RoPE that make at least one turn within the trained length are kept. Pair m is multiplied by
    sum_c C[c, m] cos(omega_c t) + i S[c, m] sin(omega_c t), where C and S belong to a head and are the identity plus
    noise. The other pairs are not rotated. With sigma = 0 this is HoPE (high-frequency).

    Decisions where the paper (section 4 and appendix B) and its code differ or are silent:

    - C and S are random and not trained, as in the code. They are buffers, drawn by `reset_parameters`. The code can
      divide each column by its sum, but does not by default or in the published configurations; nor does this.
    - The paper draws the noise from N(0, sigma^2), its code by Xavier's rule with gain sigma, which is much smaller:
      sigma sqrt(2 / ((n + H) n)). This follows the code. sigma = 0.3 is the paper's best value at 60M parameters.
    - Pairs that are not rotated are multiplied by 1, as in equation 13. The code multiplies them by 1 + i, for q and k,
      which doubles their share of the score.
    - The code rotates at most half of the pairs. This rotates all pairs whose frequency is kept, as in equation 13.
    - The series has RoPE's own frequencies only; the paper also allows others between them.
    - Query heads that share a key head share its coefficients.

    The products depend on both positions, not only on their difference, so this encoding is not relative.

    Args:
        options: fields of `FoPEOptions`.

    Raises:
        ValueError: `head_dim` is odd, an option is outside its range, or no frequency is kept.
    """

    about = About(
        name="FoPE",
        mechanism="rotation",
        summary="RoPE with a Fourier series in each pair of channels, and without frequencies below one turn",
        equation=r"\text{score}(t, s) = \text{Re} \sum_{m=0}^{D/2-1} f_m(t)\, q_{t,m}\, \overline{f_m(s)\, k_{s,m}}, "
        r"\qquad f_m(t) = \sum_c C_{c,m} \cos(\omega_c t) + i\, S_{c,m} \sin(\omega_c t)",
        terms="$q_{t,m}$ is channel pair $m$ as a complex number; $C$ and $S$ are random, fixed and close to the "
        "identity; $f_m = 1$ where $\\omega_m = b^{-2m/D} < 2\\pi/L$; $L$ is `encoding.trained_length`, and $b$ is "
        "`encoding.base`.",
        cache="keys and values",
        paper=Paper(
            "Hua et al.",
            2024,
            "Fourier Position Embedding: Enhancing Attention's Periodic Extension for Length Generalization",
            "2412.17739",
        ),
    )

    relative = False
    keep_float32 = ("cosines", "sines")
    cosines: Tensor
    sines: Tensor

    def __init__(self, width: int, heads: int, kv_heads: int, head_dim: int, **options: Any):
        given = FoPEOptions(**options)
        super().__init__(width, heads, kv_heads, head_dim, given)
        self.base, self.sigma = given.base, given.sigma
        kept = full_turns(given.base, head_dim // 2, given.trained_length)
        for name in ("cosines", "sines"):
            self.register_buffer(name, torch.empty(kv_heads, kept, kept, dtype=torch.float32))
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        for part in (self.cosines, self.sines):
            nn.init.xavier_normal_(part, gain=self.sigma)
            part += torch.eye(part.shape[-1], device=part.device)

    def spectrum(self) -> Tensor | None:
        """The frequency whose coefficient is largest in each pair."""
        pairs, kept = self.head_dim // 2, self.cosines.shape[-1]
        return torch.tensor([geometric(self.base, pairs)[:kept] + (0.0,) * (pairs - kept)], dtype=torch.float64)

    def circle(self, positions: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        pairs, kept = self.head_dim // 2, self.cosines.shape[-1]
        angle = phases(positions, pairs, self.base)[..., :kept]
        parts = (angle.cos(), self.cosines, 1.0), (angle.sin(), self.sines, 0.0)
        cos, sin = (
            F.pad(torch.einsum("...c,hcm->...hm", wave, each.to(wave.dtype)), (0, pairs - kept), value=rest)
            for wave, each, rest in parts
        )
        return cos.to(dtype), sin.to(dtype)
