"""Different encodings in different layers, such as three layers of RoPE with a window and then one of NoPE.

Files in configs/encoding name patterns; PATTERNS describes them.
"""

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, cast

from ..core.about import About, Paper
from .base import Encoding
from .contract.catalogue import class_of
from .families.carrying import CarryingEncoding
from .options import LayerPatternOptions


class LayerPattern(Encoding):
    """Layer i uses `layers[i % len(layers)]`, the name of an encoding in this folder, with or without options.

    Args:
        options: fields of `LayerPatternOptions`.

    Raises:
        ValueError: a name or one of its options is unknown, or several encodings add positions to the embeddings.
    """

    about = About(
        name="Layer pattern",
        mechanism="layers",
        summary="different encodings in different layers, as `encoding.layers` lists them",
        equation=r"\text{score}(t, s) = \text{score}_{\ell \bmod n}(t, s)",
        terms="$\\ell = 0, 1, \\dots$ is the layer, and $\\text{score}_i$ the score of the $i$-th of the $n$ encodings "
        "in `encoding.layers`. A query with a window of $w$ tokens sees only $t - w < s \\le t$.",
        cache="as the encoding of each layer; a layer with a window keeps at most twice its window",
        paper=None,
    )

    def __init__(self, width: int, heads: int, kv_heads: int, head_dim: int, **options: Any):
        given = LayerPatternOptions(**options)
        super().__init__(width, heads, kv_heads, head_dim, given.implementation)
        self.layers = [entry if isinstance(entry, Mapping) else {entry: {}} for entry in given.layers]
        different = [at for at, entry in enumerate(self.layers) if entry not in self.layers[:at]]
        found = [(next(iter(self.layers[at])), self.for_layer(at)) for at in different]
        adding = [name for name, each in found if type(each).input_encoding is not Encoding.input_encoding]
        if len(adding) > 1:
            names = " and ".join(adding)
            raise ValueError(f"layers: {names} add positions to the embeddings, which only one encoding of a model can")
        sharing = [name for name, each in found if each.shared_name is not None]
        for name in sharing:
            if sharing.count(name) > 1:
                raise ValueError(f"layers: {name} has one module for all layers: give all its layers the same options")
        carrying = [name for name, each in found if isinstance(each, CarryingEncoding)]
        if len(carrying) > 1:
            names = " and ".join(dict.fromkeys(carrying))
            raise ValueError(f"layers: {names} has one tensor for all layers: give all their layers the same options")

    def for_layer(self, layer: int) -> Encoding:
        ((name, options),) = self.layers[layer % len(self.layers)].items()
        shared = {"implementation": self.implementation}
        try:
            return class_of(name)(self.width, self.heads, self.kv_heads, self.head_dim, **{**shared, **options})
        except (TypeError, ValueError) as error:
            unknown = re.search(r"unexpected keyword argument '(\w+)'", str(error))
            problem = f"unknown option {unknown[1]}; see python main.py encoding={name} --help" if unknown else error
            raise ValueError(f"layers: {name}: {problem}") from error


def pattern(name: str, summary: str, *paper: Any, **address: str) -> About:
    """The description of a configuration of `LayerPattern`."""
    return replace(cast("About", LayerPattern.about), name=name, summary=summary, paper=Paper(*paper, **address))


PATTERNS: dict[str, About] = {
    "pattern": cast("About", LayerPattern.about),
    "sliding_window": pattern(
        "Sliding window",
        "RoPE with a window in every layer",
        "Beltagy et al.",
        2020,
        "Longformer: The Long-Document Transformer",
        "2004.05150",
    ),
    "local_global": pattern(
        "Local and global RoPE",
        "five layers of RoPE with a window, then one without and with a larger base (Gemma 3)",
        "Gemma Team",
        2025,
        "Gemma 3 Technical Report",
        "2503.19786",
    ),
    "rnope_swa": pattern(
        "RNoPE-SWA",
        "three layers of RoPE with a window, then one of NoPE",
        "Yang et al.",
        2025,
        "Rope to Nope and Back Again: A New Hybrid Attention Strategy",
        "2501.18795",
    ),
    "swan": pattern(
        "SWAN",
        "one layer of NoPE whose scores grow with the log of the position, then three of RoPE with a window",
        "Puvvada et al.",
        2025,
        "SWAN-GPT: An Efficient and Scalable Approach for Long-Context Language Modeling",
        "2504.08719",
    ),
    "irope": pattern(
        "iRoPE",
        "three layers of RoPE with a window, then one of NoPE whose scores grow with the position (Llama 4)",
        "Meta AI",
        2025,
        "The Llama 4 herd: The beginning of a new era of natively multimodal AI innovation",
        address="https://ai.meta.com/blog/llama-4-multimodal-intelligence/",
    ),
}
