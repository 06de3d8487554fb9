"""The code of an exported model: the modules that it uses, as files of one folder."""

import ast
import hashlib
import inspect
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..core.errors import UserError
from ..encodings.contract.catalogue import class_of
from ..lightning_modules.transformer import Transformer
from ..session.identity import portable
from .flat import PROJECT, flattened

FOLDER = f"{PROJECT}.encodings."
NAMES = {"huggingface.modelling": "modeling_bearings", "huggingface.configuration": "configuration_bearings"}
OPTIONS, CATALOGUE = "core.options", "encodings.contract.catalogue"


def code_of(transformer: Transformer, block: Mapping[str, Any]) -> tuple[dict[str, str], dict[str, Any]]:
    """The source files by name, and the settings of config.json that name the encoding.

    Args:
        transformer: the model.
        block: the group `encoding` of its configuration.

    Raises:
        UserError: a class of another package cannot be copied.
    """
    # All encodings of a pattern, even if the model has fewer layers.
    named = [class_of(next(iter(each)) if isinstance(each, Mapping) else each) for each in block.get("layers", ())]
    module, _, name = block["_target_"].rpartition(".")
    target = getattr(sys.modules[module], name)
    found, own = {}, {}
    for kind in (*sorted({*map(type, transformer.encodings), *named}, key=lambda kind: kind.__module__), target):
        file = _file_of(kind)
        found[file] = kind.__name__
        if not kind.__module__.startswith(FOLDER):
            own[f"encodings.{file}"] = _own_source(kind)
    replaced = {
        CATALOGUE: catalogue(found),
        OPTIONS: (Path(__file__).parent / "plain_options.py").read_text(encoding="utf-8"),
        **own,
    }
    options = {key: value for key, value in portable("encoding", block).items() if not key.startswith("_")}
    try:
        code = flattened("huggingface.modelling", NAMES, replaced)
    except ValueError as error:
        raise UserError(
            f"encoding._target_={block['_target_']} cannot be exported for transformers: {error}"
        ) from error
    # Without it, `transformers` would use one class for all models whose configuration has the same source.
    digest = hashlib.sha256("".join(code.values()).encode()).hexdigest()
    code["configuration_bearings.py"] += f'\nCODE = "{digest}"  # sha256 of the files of this model\n'
    return code, {"encoding": _file_of(target), "encoding_options": options}


def _file_of(kind: type) -> str:
    """The name by which an exported model finds an encoding of this project or of another package."""
    return kind.__module__.removeprefix(FOLDER).replace(".", "_")


def _own_source(kind: type) -> str:
    """The source of the module of an encoding from another package.

    Raises:
        UserError: there is no source, or it needs other modules of its package, which are not exported.
    """
    module, target = kind.__module__, f"encoding._target_={kind.__module__}.{kind.__name__}"
    try:
        source = inspect.getsource(sys.modules[module])
    except OSError as error:
        raise UserError(f"{target} cannot be exported for transformers, because its source was not found") from error
    for node in ast.walk(ast.parse(source)):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom):
            names = [module] if node.level else [node.module or ""]
        if any(name.split(".")[0] == module.split(".")[0] for name in names):
            raise UserError(
                f"{target} cannot be exported for transformers, because its file imports from its own package "
                f"(`{ast.unparse(node)}`), and only that file is copied: put what it needs into the file"
            )
    return source


def catalogue(classes: Mapping[str, str]) -> str:
    """The module `encodings.contract.catalogue` with the given classes only, by the name of their file."""
    lines = ['"""Finds the encodings of this model by name."""', "", "", "def class_of(name: str) -> type:"]
    lines += ['    """The encoding of this name. Raises ValueError if the model does not use it."""']
    for file, name in classes.items():
        lines += [f'    if name == "{file}":', f"        from ..{file} import {name}", "", f"        return {name}"]
    allowed = ", ".join(classes)
    return "\n".join([*lines, f'    raise ValueError(f"{{name}}: unknown encoding; allowed: {allowed}")', ""])
