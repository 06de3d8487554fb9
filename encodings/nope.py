"""NoPE: no positional encoding."""

from ..core.about import About, Paper
from .base import Encoding


class NoPE(Encoding):
    """Causal attention on unchanged queries and keys. Only the causal mask carries information about order."""

    about = About(
        name="NoPE",
        mechanism="causal mask only",
        summary="no encoding: order is known from the causal mask only",
        equation=r"\text{score}(t, s) = q_t^\top k_s",
        terms="$q_t$ is the query at position $t$, $k_s$ the key at position $s \\le t$.",
        cache="keys and values",
        paper=Paper(
            "Kazemnejad et al.",
            2023,
            "The Impact of Positional Encoding on Length Generalization in Transformers",
            "2305.19466",
        ),
    )

    stretches = ("lm_infinite",)
