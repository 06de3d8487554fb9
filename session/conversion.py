"""Starts a run from `model.pretrained`: its weights, and its conversion to another encoding."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError

from ..core.checked_files import DAMAGE, why
from ..core.errors import UserError
from ..encodings.rope import RoPE
from ..lightning_modules.conversion import Conversion, frozen
from ..lightning_modules.pretrained import load_pretrained
from ..lightning_modules.trainer import TrainerSettings
from ..lightning_modules.transformer import Transformer
from ..pretrained.checkpoint import Checkpoint
from ..pretrained.formats import opened
from .models import build_transformer
from .pretrained import ROPE

if TYPE_CHECKING:
    from .session import Session


def check_start(config: Mapping, settings: TrainerSettings, transformer: Transformer) -> None:
    """Raise UserError if the run has nothing to start from, or cannot be converted as the settings say."""
    steps = {name: getattr(settings, name) for name in ("anneal_steps", "match_steps", "distil_steps")}
    if "pretrained" not in config:
        if not settings.steps:
            raise UserError("trainer.steps=0: nothing would be trained: use 1 or more, or set model.pretrained")
        if asked := [name for name, number in steps.items() if number]:
            raise UserError(f"trainer.{asked[0]}={steps[asked[0]]}: it needs model.pretrained, the model to convert")
        return
    if config.get("match") is not None:
        raise UserError(
            f"match={config['match']}: it would resize the MLP, whose weights are those of model.pretrained: leave out "
            "one of the two"
        )
    if steps["anneal_steps"] and not starts_exactly(transformer):
        raise UserError(
            f"trainer.anneal_steps={steps['anneal_steps']}: encoding={config['names']['encoding']} has an effect from "
            "the start, so a rotation cannot be annealed: use 0, with trainer.match_steps and trainer.distil_steps"
        )
    staged = [name for name in ("match_steps", "distil_steps") if steps[name]]
    if staged and settings.strategy == "fsdp" and settings.ranks > 1:
        raise UserError(f"trainer.{staged[0]}={steps[staged[0]]}: it needs trainer.strategy=ddp")


def check_vocabulary(config: Mapping, tokens: int) -> None:
    """Raise UserError if the data have another number of `tokens` than the checkpoint."""
    if "pretrained" in config and (rows := config["pretrained"]["vocabulary"]) != tokens:
        raise UserError(
            f"model.pretrained={config['model']['pretrained']}: it has {rows:,} tokens, but "
            f"domain={config['names']['domain']} has {tokens:,}: use domain=text with domain.tokenizer=pretrained"
        )


def starts_exactly(transformer: Transformer) -> bool:
    """Whether a RoPE model can be converted to the encoding of each layer without a change at the first step."""
    return transformer.inputs is None and all(encoding.starts_exactly for encoding in transformer.encodings)


def start_from(session: "Session", transformer: Transformer) -> None:
    """Copy the pretrained weights into `transformer`."""
    _filled(transformer, _checkpoint(session))


def conversion_of(session: "Session", vocabulary: int) -> Conversion | None:
    """The conversion that the settings ask for; None if there is none."""
    settings, staged = session.settings, session.settings.match_steps + session.settings.distil_steps
    if not settings.anneal_steps and not staged:
        return None
    checkpoint = _checkpoint(session)
    config = {**session.config, "encoding": {"_target_": ROPE, **checkpoint.rope}}
    sizes = checkpoint.sizes
    origin = RoPE(*(sizes[key] for key in ("width", "heads", "kv_heads", "head_dim")), **checkpoint.rope)
    teacher = None
    if staged:
        original = build_transformer(config, vocabulary)
        _filled(original, checkpoint)
        teacher = frozen(original.to(settings.device))
    return Conversion(origin, teacher, settings.anneal_steps, settings.match_steps, settings.distil_steps)


def _checkpoint(session: "Session") -> Checkpoint:
    """The checkpoint of the run. Raises UserError if the file is another one."""
    given: Any = session.config["model"]["pretrained"]
    checkpoint = opened(given)
    if checkpoint.digest() != session.config["pretrained"]["sha256"]:
        raise UserError(f"model.pretrained={given}: it has changed during this command: rerun it")
    return checkpoint


def _filled(transformer: Transformer, checkpoint: Checkpoint) -> None:
    try:
        load_pretrained(transformer, checkpoint)
    except (*DAMAGE, SafetensorError) as error:
        raise UserError(f"model.pretrained={checkpoint.path}: its weights cannot be read ({why(error)})") from error
