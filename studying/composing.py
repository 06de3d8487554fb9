"""The configurations of a study's runs, composed once for runs that differ only in their encodings."""

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, cast

from hydra import compose
from hydra.core.config_store import ConfigStore
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf, open_dict

from ..core.errors import UserError
from ..session.configuration import asked
from ..session.explaining import explain
from ..session.overrides import as_setting, choices_of, key_of, with_new_keys
from ..session.settings import file_of


class Composer:
    """Composes the settings of one command after another, while Hydra is initialised.

    Hydra takes a fifth of a second, and studies of all encodings have hundreds of runs.

    Args:
        own_files: the folder of --config-dir; None without one.
    """

    def __init__(self, own_files: str | None = None):
        self._own_files = own_files
        self._places = [] if own_files is None else [as_setting("hydra.searchpath", [f"file://{own_files}"])]
        self._composed: dict[tuple[str, ...], tuple[DictConfig, Mapping[str, str]]] = {}  # by the other settings

    def asked(self, given: Sequence[str]) -> tuple[dict, Any]:
        """The configuration and the task that settings `given` to main.py ask for. Raises UserError as `asked`."""
        config, choices = self.composed(given)
        return asked(config, given, choices, self._own_files)

    def composed(self, given: Sequence[str]) -> tuple[DictConfig, Mapping[str, str]]:
        """What Hydra makes of settings, until the next call, and the file that it chooses for each group."""
        names = [each.partition("=")[2] for each in given if each.startswith("encoding=")]
        others = tuple(each for each in given if not each.startswith("encoding="))
        alone = len(names) == 1 and not any(key_of(each).startswith("encoding") for each in others)
        block = _block(names[0]) if alone else None
        if block is not None and others in self._composed:
            config, choices = self._composed[others]
            config.encoding = block
            return config, {**choices, "encoding": names[0]}
        config, choices = _composed([*given, *self._places])
        if block is not None and OmegaConf.to_container(config.encoding) == block:  # no experiment changes it
            self._composed[others] = config, choices
        return config, choices


@cache
def _block(encoding: str) -> Mapping[str, Any] | None:
    """What Hydra composes from the file of an encoding, if nothing else sets its keys; None if that is not known."""
    if encoding not in choices_of("encoding") or "defaults" in (file := file_of("encoding", encoding)):
        return None
    options = cast("Any", ConfigStore.instance().repo)["options"]["encoding"].get(f"{encoding}.yaml")
    if options is None or "_target_" not in file:
        return None
    return cast("Mapping[str, Any]", OmegaConf.to_container(OmegaConf.merge(options.node, file)))


def _composed(given: Sequence[str]) -> tuple[DictConfig, Mapping[str, str]]:
    """What Hydra makes of settings, and the files that it chooses for each group."""
    try:
        config = compose("config", overrides=with_new_keys(given), return_hydra_config=True)
    except HydraException as error:
        raise UserError(explain(error, given)) from error
    choices = config.hydra.runtime.choices
    with open_dict(config):
        del config["hydra"]
    return config, choices
