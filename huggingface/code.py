"""The code of an exported model: the modules that it uses, as files of one folder."""

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..core.errors import UserError
from ..encodings.contract.catalogue import class_of
from ..lightning_modules.transformer import Transformer
from ..session.identity import decisive
from .flat import flattened

PROJECT = __name__.split(".", maxsplit=1)[0]
FOLDER = f"{PROJECT}.encodings."
NAMES = {"huggingface.modelling": "modeling_bearings", "huggingface.configuration": "configuration_bearings"}
OPTIONS, CATALOGUE = "core.options", "encodings.contract.catalogue"


def code_of(transformer: Transformer, block: Mapping[str, Any]) -> tuple[dict[str, str], dict[str, Any]]:
    """The source files by name, and the settings of config.json that name the encoding.

    Args:
        transformer: the model.
        block: the group `encoding` of its configuration.

    Raises:
        UserError: a class is not from this project.
    """
    # All encodings of a pattern, even if the model has fewer layers.
    named = [class_of(next(iter(each)) if isinstance(each, Mapping) else each) for each in block.get("layers", ())]
    kinds = {*map(type, transformer.encodings), *named}
    found = {}
    for target in sorted({block["_target_"], *(f"{kind.__module__}.{kind.__qualname__}" for kind in kinds)}):
        module, _, name = target.rpartition(".")
        if not module.startswith(FOLDER) or "." in (file := module.removeprefix(FOLDER)):
            raise UserError(
                f"encoding._target_={target}: only encodings of this project can be exported for transformers: "
                "move its file to encodings/"
            )
        found[file] = name
    replaced = {
        CATALOGUE: catalogue(found),
        OPTIONS: (Path(__file__).parent / "plain_options.py").read_text(encoding="utf-8"),
    }
    options = {key: value for key, value in decisive("encoding", block).items() if not key.startswith("_")}
    name = block["_target_"].removeprefix(FOLDER).partition(".")[0]
    code = flattened("huggingface.modelling", NAMES, replaced)
    # Without it, `transformers` would use one class for all models whose configuration has the same source.
    digest = hashlib.sha256("".join(code.values()).encode()).hexdigest()
    code["configuration_bearings.py"] += f'\nCODE = "{digest}"  # sha256 of the files of this model\n'
    return code, {"encoding": name, "encoding_options": options}


def catalogue(classes: Mapping[str, str]) -> str:
    """The module `encodings.contract.catalogue` with the given classes only, by the name of their file."""
    lines = ['"""Finds the encodings of this model by name."""', "", "", "def class_of(name: str) -> type:"]
    lines += ['    """The encoding of this name. Raises ValueError if the model does not use it."""']
    for file, name in classes.items():
        lines += [f'    if name == "{file}":', f"        from ..{file} import {name}", "", f"        return {name}"]
    allowed = ", ".join(classes)
    return "\n".join([*lines, f'    raise ValueError(f"{{name}}: unknown encoding; allowed: {allowed}")', ""])
