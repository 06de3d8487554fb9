"""A RoPE model as plain Llama: the configuration and the weights of `LlamaForCausalLM`."""

from collections.abc import Iterator
from typing import Any, cast

from torch import Tensor, nn

from ..core.errors import UserError
from ..encodings.rope import RoPE
from ..kernels.stretching import FAST, HIGH, LOW, SLOW, Stretch
from ..lightning_modules.blocks import SwiGLU
from ..lightning_modules.pretrained import places
from ..lightning_modules.transformer import Transformer
from ..pretrained.hugging_face import NAMES


def llama_settings(transformer: Transformer) -> dict[str, Any]:
    """The settings of `LlamaConfig` that depend on the model's options.

    Raises:
        UserError: Llama cannot express the model.
    """
    if reason := next(_differences(transformer), None):
        raise UserError(f"task.format=llama: {reason}: use task.format=hf")
    encoding = cast("RoPE", transformer.encodings[0])
    base, scaling = _rope(encoding)
    longest, stretch = {}, encoding.stretching
    if stretch is not None and stretch.form == "yarn":  # older transformers compute the factor from it
        longest = {"max_position_embeddings": round(stretch.factor * stretch.length)}
    return {
        **longest,
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "rope_theta": base,
        "rope_scaling": scaling,
    }


def llama_weights(transformer: Transformer) -> dict[str, Tensor]:
    """The weights of a model that `llama_settings` accepts, by their names in `LlamaForCausalLM`."""
    # Clone, because some weights are views of a fused weight, which would be stored completely.
    return {name: weight.detach().contiguous().clone() for _, name, weight in places(transformer, NAMES)}


def _differences(transformer: Transformer) -> Iterator[str]:
    """Features of the model that Llama lacks, in words."""
    settings = []
    for encoding in transformer.encodings:
        name = type(encoding).__name__
        if type(encoding) is not RoPE:
            yield f"Llama has RoPE only, and this model has {name}"
        elif encoding.window is not None:
            yield f"Llama has no sliding window, and this model has encoding.window={encoding.window}"
        elif encoding.clock != "index":
            yield f"Llama counts tokens, and this model has encoding.clock={encoding.clock}"
        elif not encoding.turns:
            yield "Llama rotates queries and keys, and this model has stopped doing so (encoding.drop_after)"
        elif encoding.placing and encoding.placing["spacing"] != 1:
            spacing = encoding.placing["spacing"]
            yield f"in Llama, neighbouring tokens have a distance of 1, and this model has encoding.spacing={spacing}"
        elif encoding.stretching is not None and encoding.stretching.form in ("power", "truncated"):
            yield f"Llama has no encoding.scaling={encoding.stretching.form}"
        settings.append((encoding.base, encoding.stretching))
    if any(each != settings[0] for each in settings):
        yield "all layers of Llama have the same frequencies, and those of this model differ"
    if not isinstance(cast("Any", transformer.blocks[0]).mlp, SwiGLU):
        yield "Llama has a gated MLP, and this model has model.mlp=gelu"
    width, heads = cast("nn.Embedding", transformer.embedding).embedding_dim, transformer.encodings[0].heads
    if width % heads:
        yield f"in Llama, the width is a multiple of the number of heads, and this model has {width} and {heads}"


def _rope(encoding: RoPE) -> tuple[float, dict[str, Any] | None]:
    """`rope_theta` and `rope_scaling`."""
    stretch: Stretch | None = encoding.stretching
    if stretch is None:
        return encoding.base, None
    if stretch.form == "ntk":  # the same frequencies as with a larger base
        return encoding.base * stretch.factor ** (encoding.count / max(1, encoding.count - 1)), None
    kind = {"interpolation": "linear", "yarn": "yarn", "llama3": "llama3"}[stretch.form]
    scaling: dict[str, Any] = {"rope_type": kind, "factor": stretch.factor}
    if stretch.form != "interpolation":
        scaling["original_max_position_embeddings"] = stretch.length
    if stretch.form == "yarn":
        scaling |= {"beta_fast": FAST, "beta_slow": SLOW}
    if stretch.form == "llama3":
        scaling |= {"high_freq_factor": HIGH, "low_freq_factor": LOW}
    return encoding.base, scaling
