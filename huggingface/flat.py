"""The source of a model as files of one folder, because `transformers` loads code from a flat folder only.

A module and everything it imports from this project are copied, each to one file, with these changes:

- Relative imports name the new files: `from ..kernels.choice import Plan` becomes
  `from .bearings_kernels_choice import Plan`. Imports from a package name the module that defines the object.
- `Annotated[float, Field(gt=0)]` becomes `float`, and imports of pydantic are removed.
- Names of PyTorch's custom operators contain the name of their module, so that two models in one process do not define
  the same operator.

Everything else, comments included, stays as it is.
"""

import ast
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parent.parent
UNIQUE = 'f"{__name__.replace(\'.\', \'_\')}::'  # instead of `"bearings::` in names of operators


def flattened(root: str, names: Mapping[str, str], replaced: Mapping[str, str]) -> dict[str, str]:
    """The source of the module `root` and of all modules that it imports, by file name.

    Args:
        root: a module of this project, such as `lightning_modules.transformer`.
        names: names of files, without `.py`, by module. Default: `bearings_` and the module's name with underscores.
        replaced: source by module, instead of that in this project.

    Raises:
        ValueError: an import cannot be written for a flat folder, or two modules would have the same file.
    """
    files: dict[str, str] = {}
    waiting, seen = [root], {root}
    while waiting:
        module = waiting.pop()
        source = replaced[module] if module in replaced else _path_of(module).read_text(encoding="utf-8")
        flat, needed = _rewritten(module, source, names)
        if (file := f"{_flat(module, names)}.py") in files:
            raise ValueError(f"{module}: another module is exported as {file} too")
        files[file] = flat
        waiting += sorted(needed - seen)
        seen |= needed
    return dict(sorted(files.items()))


def _rewritten(module: str, source: str, names: Mapping[str, str]) -> tuple[str, set[str]]:
    """The source for a flat folder, and the modules that it imports."""
    text, needed = source.encode(), set()
    starts = [0]
    for line in text.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))

    def place(node: ast.AST) -> slice:
        here: ast.expr = node  # type: ignore[assignment]
        return slice(starts[here.lineno - 1] + here.col_offset, starts[here.end_lineno - 1] + here.end_col_offset)

    edits: list[tuple[slice, bytes]] = []
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.level:
            groups = _by_module(module, node)
            needed |= groups.keys()
            lines = [f"from .{_flat(each, names)} import {', '.join(given)}" for each, given in groups.items()]
            edits.append((place(node), ("\n" + " " * node.col_offset).join(lines).encode()))
        elif isinstance(node, ast.ImportFrom) and node.module == "pydantic":
            edits.append((place(node), b"# Values have been checked when the model was exported."))
        elif isinstance(node, ast.Subscript) and ast.unparse(node.value) == "Annotated":
            kind = node.slice.elts[0]
            edits.append((place(node), text[place(kind)]))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.startswith("bearings::"):
            edits.append((place(node), f'{UNIQUE}{node.value.removeprefix("bearings::")}"'.encode()))
    for here, new in sorted(edits, key=lambda edit: edit[0].start, reverse=True):
        text = text[: here.start] + new + text[here.stop :]
    return text.decode(), needed


def _by_module(module: str, node: ast.ImportFrom) -> dict[str, list[str]]:
    """The names that a relative import takes from each module, as in its source: `a` or `a as b`."""
    parts = module.split(".")
    if node.level > len(parts) or not node.module:
        raise ValueError(f"{module}: `{ast.unparse(node)}` cannot be exported: import names from modules")
    origin = ".".join([*parts[: len(parts) - node.level], node.module])
    found: dict[str, list[str]] = {}
    for alias in node.names:
        owner = _exports(origin).get(alias.name) if _is_package(origin) else origin
        if owner is None:
            raise ValueError(f"{module}: `{ast.unparse(node)}` cannot be exported: {origin} does not define it")
        found.setdefault(owner, []).append(alias.name if alias.asname is None else f"{alias.name} as {alias.asname}")
    return found


@cache
def _exports(package: str) -> dict[str, str]:
    """The names that the `__init__.py` of a package imports from its modules, and these modules."""
    tree = ast.parse((ROOT / package.replace(".", "/") / "__init__.py").read_text(encoding="utf-8"))
    imports = [node for node in tree.body if isinstance(node, ast.ImportFrom) and node.level == 1]
    return {alias.name: f"{package}.{node.module}" for node in imports for alias in node.names}


def _is_package(module: str) -> bool:
    return (ROOT / module.replace(".", "/")).is_dir()


def _path_of(module: str) -> Path:
    return ROOT / f"{module.replace('.', '/')}.py"


def _flat(module: str, names: Mapping[str, str]) -> str:
    return names.get(module) or f"bearings_{module.replace('.', '_')}"


def imported_files(source: str) -> Iterator[str]:
    """The files of its folder that a flat source imports."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and node.level == 1:
            yield f"{node.module}.py"
