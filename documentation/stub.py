"""The stub encodings/__init__.pyi, which shows type checkers the classes that `bearings.encodings` imports lazily."""

from pathlib import Path

from ..session.overrides import choices_of
from ..session.settings import target_of

STUB = Path(__file__).parent.parent / "encodings" / "__init__.pyi"
HEADER = """\
# Written by `python -m bearings.documentation`. The root of the package imports these classes on first use, because
# this folder cannot have an __init__.py.
"""


def stub() -> str:
    """The text of the stub: an import of each class in configs/encoding."""
    targets = {target_of("encoding", name).removeprefix("bearings.encodings") for name in choices_of("encoding")}
    found = sorted(target.rpartition(".") for target in (".base.Encoding", *targets))
    return HEADER + "".join(f"from {module} import {name} as {name}\n" for module, _, name in found)
