"""The source of a model as files of one folder, because `transformers` loads code from a flat folder only.

A module and everything it imports from this project are copied, each to one file, with these changes:

- Imports from this project name the new files: `from ..kernels.choice import Plan` and
  `from bearings.kernels.choice import Plan` become `from .bearings_kernels_choice import Plan`. Imports from a package
  name the module that defines the object.
- `Annotated[float, Field(gt=0)]` becomes `float`, and imports of pydantic are removed.
- Imports of Triton are in `try` blocks, as `transformers` requires all packages that are imported elsewhere.
- Names of PyTorch's custom operators contain the name of their module, so that two models in one process do not define
  the same operator.

Everything else, comments included, stays as it is.
"""

import ast
from collections.abc import Mapping
from functools import cache
from itertools import accumulate
from pathlib import Path
from typing import cast

ROOT, PROJECT = Path(__file__).parent.parent, __name__.split(".", maxsplit=1)[0]
# Instead of `"bearings::` in names of operators. The name of a module contains that of the folder.
UNIQUE = "f\"{''.join(c if c.isascii() and c.isalnum() else '_' for c in __name__)}::"
OPTIONAL = "  # without it, this file is not used"


def flattened(root: str, names: Mapping[str, str], replaced: Mapping[str, str]) -> dict[str, str]:
    """The source of the module `root` and of all modules that it imports, by file name.

    Args:
        root: a module of this project, such as `lightning_modules.transformer`.
        names: names of files, without `.py`, by module. Default: `bearings_` and the module's name with underscores.
        replaced: source by module, instead of that in this project or in addition to it.

    Raises:
        ValueError: an import cannot be written for a flat folder, or two modules would have the same file.
    """
    files: dict[str, str] = {}
    waiting, seen, copied = [root], {root}, {root}
    while waiting:
        module = waiting.pop()
        if module not in replaced and not _path_of(module).exists():
            raise ValueError(f"{PROJECT}.{module} is not a module: import names from the module that defines them")
        source = replaced[module] if module in replaced else _path_of(module).read_text(encoding="utf-8")
        flat = _flattened(module, source, tuple(names.items()))
        if (file := f"{_flat(module, names)}.py") in files:
            raise ValueError(f"{module}: another module is exported as {file} too")
        files[file] = flat.text
        copied |= flat.named
        waiting += sorted((flat.named | flat.whole) - seen)
        seen |= flat.named | flat.whole
    if missing := seen - copied:
        raise ValueError(f"{min(missing)}: `transformers` copies only modules of which some file imports names")
    return dict(sorted(files.items()))


@cache
def _flattened(module: str, source: str, names: tuple[tuple[str, str], ...]) -> "Flattened":
    return Flattened(module, source, dict(names))


class Flattened:
    """A module's source for a flat folder.

    Args:
        module: its name.
        source: its source.
        names: see `flattened`.

    Attributes:
        text: the new source.
        named: the modules of which it imports names.
        whole: the modules that it imports themselves, as in `from . import cache`.
    """

    def __init__(self, module: str, source: str, names: Mapping[str, str]):
        self.module, self.names = module, names
        self.named: set[str] = set()
        self.whole: set[str] = set()
        old = source.encode()
        starts = [0, *accumulate(len(line) for line in old.splitlines(keepends=True))]
        edits = []
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.expr | ast.stmt):
                begin = starts[node.lineno - 1] + node.col_offset
                end = starts[(node.end_lineno or 0) - 1] + (node.end_col_offset or 0)
                if (new := self._replacement(node, source)) is not None:
                    edits.append((begin, end, new.encode()))
        for begin, end, new in sorted(edits, reverse=True):
            old = old[:begin] + new + old[end:]
        self.text = old.decode()

    def _replacement(self, node: ast.expr | ast.stmt, source: str) -> str | None:
        """The new text of a node; None if it stays."""
        if isinstance(node, ast.ImportFrom) and (node.level or _of_project(node.module)):
            return ("\n" + " " * node.col_offset).join(self._imports(node))
        if isinstance(node, ast.Import) and any(_of_project(alias.name) for alias in node.names):
            raise ValueError(f"`{ast.unparse(node)}` cannot be rewritten: use `from {PROJECT}.MODULE import NAME`")
        if isinstance(node, ast.Import | ast.ImportFrom):
            package = (node.module or "" if isinstance(node, ast.ImportFrom) else node.names[0].name).split(".")[0]
            if package == "pydantic":
                return "# Values were checked when the model was exported."
            if package in ("triton", "flash_attn"):
                indent = " " * node.col_offset
                return (
                    f"try:{OPTIONAL}\n{indent}    {ast.unparse(node)}\n{indent}except ImportError:\n{indent}    raise"
                )
        if isinstance(node, ast.Subscript) and ast.unparse(node.value) == "Annotated":
            return ast.get_source_segment(source, cast("ast.Tuple", node.slice).elts[0])
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.startswith("bearings::"):
            return f'{UNIQUE}{node.value.removeprefix("bearings::")}"'
        return None

    def _imports(self, node: ast.ImportFrom) -> list[str]:
        """An import from this project as imports from files of the same folder."""
        parts = [PROJECT, *self.module.split(".")]
        if node.level >= len(parts):
            raise ValueError(f"{self.module}: `{ast.unparse(node)}` leads out of this project")
        package = parts[: len(parts) - node.level] if node.level else []
        origin = ".".join([*package, *([node.module] if node.module else [])]).removeprefix(PROJECT).lstrip(".")
        names: dict[str, list[str]] = {}
        lines = []
        for alias in node.names:
            given = alias.name if alias.asname is None else f"{alias.name} as {alias.asname}"
            if not _is_package(origin):
                names.setdefault(origin, []).append(given)
            elif (owner := _exports(origin).get(alias.name)) is not None:
                names.setdefault(owner, []).append(given)
            else:
                whole = f"{origin}.{alias.name}".lstrip(".")
                lines.append(f"from . import {_flat(whole, self.names)} as {alias.asname or alias.name}")
                self.whole.add(whole)
        self.named |= names.keys()
        return [
            *lines,
            *(f"from .{_flat(each, self.names)} import {', '.join(given)}" for each, given in names.items()),
        ]


@cache
def _exports(package: str) -> dict[str, str]:
    """The names that the `__init__.py` of a package imports from its modules, and these modules."""
    file = ROOT / package.replace(".", "/") / "__init__.py"
    tree = ast.parse(file.read_text(encoding="utf-8") if file.exists() else "")
    imports = [node for node in tree.body if isinstance(node, ast.ImportFrom) and node.level == 1]
    return {alias.name: f"{package}.{node.module}" for node in imports for alias in node.names}


def _of_project(module: str | None) -> bool:
    return module is not None and module.split(".")[0] == PROJECT


def _is_package(module: str) -> bool:
    return (ROOT / module.replace(".", "/")).is_dir()


def _path_of(module: str) -> Path:
    return ROOT / f"{module.replace('.', '/')}.py"


def _flat(module: str, names: Mapping[str, str]) -> str:
    return names.get(module) or f"bearings_{module.replace('.', '_')}"
