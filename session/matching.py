"""match=params|flops: resize the MLP so that the model costs as much as the same model without an encoding."""

from collections.abc import Mapping

from ..core.errors import UserError
from ..core.words import signed
from ..lightning_modules.outline import outlined
from ..lightning_modules.transformer import Transformer
from .models import build_transformer
from .trust import KINDS

MULTIPLE = 8  # the MLP size is a multiple of this: matrices of other sizes are slow on a GPU
NOPE = f"{KINDS['encoding'][0]}.nope.NoPE"
VOCABULARY = 2  # any size works: encodings do not change the embedding


def matched(config: Mapping) -> dict:
    """`config` with the `model.mlp_hidden` that its `match` requires; `unmatched_hidden` keeps the original value.

    Raises:
        UserError: no MLP is small enough to compensate for the encoding.
    """
    if config.get("match") is None or "unmatched_hidden" in config:
        return dict(config)
    target = _cost(_model(_plain(config)), config)

    def cost(hidden: int | None) -> float:
        return _cost(_model({**config, "model": {**config["model"], "mlp_hidden": hidden}}), config)

    # Parameters and FLOPs are both linear in the size of the MLP.
    least = cost(MULTIPLE)
    slope = (cost(2 * MULTIPLE) - least) / MULTIPLE
    hidden = MULTIPLE * round((MULTIPLE + (target - least) / slope) / MULTIPLE)
    if hidden < MULTIPLE:
        raise UserError(
            f"match={config['match']}: the encoding costs more than the whole MLP of model {config['names']['model']}: "
            "choose a larger model, or match=null"
        )
    before = config["model"]["mlp_hidden"]
    # Keep a size that is as near, which need not be such a multiple; null and the size it means are then one run.
    if abs(cost(before) - target) <= abs(least + slope * (hidden - MULTIPLE) - target):
        hidden = before
    return {**config, "model": {**config["model"], "mlp_hidden": hidden}, "unmatched_hidden": before}


def unmatched(config: Mapping) -> dict:
    """`config` as it was before `matched`."""
    found = {key: value for key, value in config.items() if key != "unmatched_hidden"}
    if "unmatched_hidden" in config:
        found["model"] = {**config["model"], "mlp_hidden": config["unmatched_hidden"]}
    return found


def match_summary(config: Mapping, vocabulary: int) -> str:
    """One line: the MLP size that matching chose, and the remaining differences in parameters and FLOPs per token."""
    own, plain = _model(config, vocabulary), _model(_plain(unmatched(config)), vocabulary)
    length, hidden = config["data"]["length"], config["model"]["mlp_hidden"]
    parameters = own.parameter_count() / plain.parameter_count() - 1
    flops = own.flops_per_token(length) / plain.flops_per_token(length) - 1
    size = "unchanged" if hidden == config["unmatched_hidden"] else hidden
    return (
        f"mlp_hidden {size}: parameters {signed(100 * parameters, 2)} %, FLOPs/token {signed(100 * flops, 2)} % "
        "compared with the same model without an encoding"
    )


def _cost(model: Transformer, config: Mapping) -> float:
    return model.parameter_count() if config["match"] == "params" else model.flops_per_token(config["data"]["length"])


def _plain(config: Mapping) -> dict:
    """`config` without an encoding."""
    return {**config, "encoding": {"_target_": NOPE}}


def _model(config: Mapping, vocabulary: int = VOCABULARY) -> Transformer:
    with outlined():
        return build_transformer(config, vocabulary)
