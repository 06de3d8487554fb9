"""task=convert: train a run that starts from a pretrained RoPE model and ends with another encoding."""

from ..core.errors import UserError
from ..lightning_modules.outline import outlined
from ..session.conversion import starts_exactly
from ..session.models import build_transformer
from ..session.pretrained import ROPE
from .train import Train

EXACT, STAGED = {"anneal_steps": 1 / 2}, {"match_steps": 1 / 4, "distil_steps": 1 / 4}  # shares of the steps


class Convert(Train):
    """Convert a pretrained RoPE model to another encoding, and continue its training: a run like any other.

    An encoding that can start exactly replaces the rotation over the first half of the steps. Other encodings first
    match the outputs of attention, then the predictions, for a quarter of the steps each.
    """

    def configured(self, config: dict) -> dict:
        if "pretrained" not in config:
            raise UserError("model.pretrained=null: task=convert needs the model to convert")
        if config["encoding"]["_target_"] == ROPE:
            raise UserError("encoding=rope: the pretrained model has it already: use task=train, or another encoding")
        trainer = config["trainer"]
        with outlined():
            exact = starts_exactly(build_transformer(config, vocabulary=2))
        chosen = {key: round(share * trainer["steps"]) for key, share in (EXACT if exact else STAGED).items()}
        keys = {"anneal_steps": 0, "match_steps": 0, "distil_steps": 0, **chosen}
        given = {key: default if trainer.get(key) is None else trainer[key] for key, default in keys.items()}
        if not any(given.values()) and not exact:
            raise UserError("trainer.match_steps=0, trainer.distil_steps=0: nothing would be converted: use task=train")
        return {**config, "trainer": {**trainer, **given}}
