"""Files and folders that are written whole or not at all, by several processes at a time."""

import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO


@contextmanager
def written_whole(path: Path, binary: bool = False) -> Iterator[IO]:
    """A file, text in UTF-8 unless `binary`, that takes the place of `path` once everything has been written to it.

    What UTF-8 cannot hold, as of a file name, is written as an escape.
    """
    making = _unique(path)
    try:
        # Exclusively: neither another process's file nor a link that someone has put there is written to.
        with (
            open(making, "xb")
            if binary
            else open(making, "x", newline="", encoding="utf-8", errors="backslashreplace") as file
        ):
            yield file
        making.replace(path)
    finally:
        making.unlink(missing_ok=True)


@contextmanager
def made_whole(path: Path) -> Iterator[Path]:
    """A new folder that takes the place of the folder at `path`, which is deleted, once everything is in it."""
    making = _unique(path)
    making.mkdir(parents=True)
    try:
        yield making
        shutil.rmtree(path, ignore_errors=True)
        making.replace(path)
    finally:
        shutil.rmtree(making, ignore_errors=True)


def _unique(path: Path) -> Path:
    """A hidden name next to `path` that nothing has."""
    return path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}.tmp")
