"""What `model.pretrained` determines: sizes of the model, base of the encoding, tokenizer. Imports no PyTorch."""

from collections.abc import Collection
from typing import Any

from ..core.errors import UserError
from .trust import KINDS

ROPE = f"{KINDS['encoding'][0]}.rope.RoPE"


def start_from_pretrained(plain: dict[str, Any], explicit: Collection[str]) -> dict[str, Any] | None:
    """Fill in what follows from the checkpoint, in place; settings of the command line must not contradict it.

    The encoding gets the checkpoint's rotary base, and RoPE also its scaling. A setting of the command replaces the
    checkpoint's of the same key; `encoding.scaling` also replaces the factor and length, which belong to it. A domain
    of text gets the checkpoint's tokenizer, unless the command names another.

    Args:
        plain: a configuration.
        explicit: keys that the command sets.

    Returns:
        What identifies the checkpoint; None without `model.pretrained`.

    Raises:
        UserError: the checkpoint cannot be used, or contradicts the command.
    """
    model, encoding, domain = plain["model"], plain["encoding"], plain["domain"]
    given = model.get("pretrained")
    if not isinstance(given, str):
        return None
    from ..pretrained.checkpoint import SCALING_KEYS  # late: most commands have no checkpoint
    from ..pretrained.formats import opened

    checkpoint = opened(given)
    if "model" in explicit:
        raise UserError(f"model.pretrained={given}: the sizes follow from the checkpoint: leave out model=")
    for key, value in checkpoint.sizes.items():
        if f"model.{key}" in explicit and model[key] != value:
            raise UserError(
                f"model.{key}={model[key]}: the checkpoint {given} has {key}={value}: leave out this setting, or "
                "model.pretrained"
            )
    model |= checkpoint.sizes
    taken = checkpoint.rope if encoding.get("_target_") == ROPE else {"base": checkpoint.rope["base"]}
    replaced = {key for key in taken if f"encoding.{key}" in explicit}
    if "scaling" in replaced:
        replaced |= {*SCALING_KEYS}
    encoding |= {key: value for key, value in taken.items() if key in encoding and key not in replaced}
    if "tokenizer_path" in domain:
        if "domain.tokenizer" not in explicit:
            domain["tokenizer"] = "pretrained"
        if domain["tokenizer"] == "pretrained" and domain["tokenizer_path"] is None:
            domain["tokenizer_path"] = given
    return {"name": checkpoint.name, "sha256": checkpoint.digest(), "vocabulary": checkpoint.vocabulary}
