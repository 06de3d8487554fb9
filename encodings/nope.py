"""NoPE: no positional encoding; order is known from the causal mask alone (Kazemnejad et al., arXiv 2305.19466)."""

from .base import Encoding


class NoPE(Encoding):
    """Causal attention on q and k as they are."""
