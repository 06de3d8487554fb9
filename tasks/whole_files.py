"""Files that are written whole or not at all."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO


@contextmanager
def written_whole(path: Path) -> Iterator[TextIO]:
    """A text file in UTF-8 that takes the place of `path` once everything has been written to it."""
    making = path.with_name(path.name + ".tmp")
    with open(making, "w", newline="", encoding="utf-8") as file:
        yield file
    making.replace(path)
