"""match=params|flops: an MLP resized so that every encoding's model costs what the same model without one costs."""

from collections.abc import Mapping
from functools import partial

from ..core.errors import UserError
from ..encodings.nope import NoPE
from ..lightning_modules.outline import outlined
from ..lightning_modules.transformer import Transformer
from .configuration import build

MULTIPLE = 8  # of the MLP's size: matrices of other sizes are slow on a GPU
VOCABULARY = 2  # any: encodings change nothing about it


def matched(config: Mapping) -> dict:
    """`config` with `model.mlp_hidden` chosen as its `match` asks, and what it was before under `unmatched_hidden`.

    Raises:
        UserError: no MLP is small enough to make up for the encoding.
    """
    if config.get("match") is None or "unmatched_hidden" in config:
        return dict(config)
    target = _cost(_model(config, NoPE), config)

    def cost(hidden: int | None) -> float:
        return _cost(_model({**config, "model": {**config["model"], "mlp_hidden": hidden}}), config)

    # Parameters and operations are both linear in the size of the MLP.
    slope = (cost(2 * MULTIPLE) - cost(MULTIPLE)) / MULTIPLE
    hidden = MULTIPLE * round((MULTIPLE + (target - cost(MULTIPLE)) / slope) / MULTIPLE)
    if hidden < MULTIPLE:
        raise UserError(
            f"match={config['match']}: the encoding alone costs more than an MLP of model {config['names']['model']}: "
            "take a larger one, or match=null"
        )
    before = config["model"]["mlp_hidden"]
    if cost(hidden) == cost(before):  # null and the size it stands for would be two runs
        hidden = before
    return {**config, "model": {**config["model"], "mlp_hidden": hidden}, "unmatched_hidden": before}


def told(config: Mapping, vocabulary: int) -> str:
    """What matching has come to, in a line: by how much parameters and FLOPs/token still differ from those matched."""
    before = {**config, "model": {**config["model"], "mlp_hidden": config["unmatched_hidden"]}}
    own, plain = _model(config, vocabulary=vocabulary), _model(before, NoPE, vocabulary)
    length, hidden = config["data"]["length"], config["model"]["mlp_hidden"]
    parameters = own.parameter_count() / plain.parameter_count() - 1
    flops = own.flops_per_token(length) / plain.flops_per_token(length) - 1
    size = "unchanged" if hidden == config["unmatched_hidden"] else hidden
    return (
        f"mlp_hidden {size}: parameters {100 * parameters:+.2f} %, FLOPs/token "
        f"{100 * flops:+.2f} % of the same model without an encoding"
    )


def _cost(model: Transformer, config: Mapping) -> float:
    return model.parameter_count() if config["match"] == "params" else model.flops_per_token(config["data"]["length"])


def _model(config: Mapping, encoding: type | None = None, vocabulary: int = VOCABULARY) -> Transformer:
    with outlined():
        return build(
            config["model"],
            "model",
            vocabulary=vocabulary,
            encoding=encoding or partial(build, config["encoding"], "encoding"),
            seed=0,
        )
