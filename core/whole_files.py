"""Writes files and folders completely or not at all, also with several processes at a time."""

import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from .errors import FULL


@contextmanager
def written_whole(path: Path, binary: bool = False) -> Iterator[IO]:
    """Open a temporary file that replaces `path` when the context ends without an error.

    Text is UTF-8 unless `binary`; characters that UTF-8 cannot encode are written as escapes.
    """
    making = _unique(path)
    try:
        # Exclusive creation never writes to another process's file or through a link.
        with (
            full_disk_named(path),
            open(making, "xb")
            if binary
            else open(making, "x", newline="", encoding="utf-8", errors="backslashreplace") as file,
        ):
            yield file
        making.replace(path)
    finally:
        making.unlink(missing_ok=True)


@contextmanager
def full_disk_named(path: Path) -> Iterator[None]:
    """Name `path` in errors of a full disk that name no file, as those of writing and closing do."""
    try:
        yield
    except OSError as error:
        if error.errno in FULL and error.filename is None:
            error.filename = str(path)
        raise


def write_text(path: Path, text: str) -> None:
    """Write a text file completely or not at all."""
    with written_whole(path) as file:
        file.write(text)


@contextmanager
def made_whole(path: Path) -> Iterator[Path]:
    """Create a temporary folder that replaces the folder at `path` when the context ends without an error."""
    making = _unique(path)
    making.mkdir(parents=True)
    try:
        with full_disk_named(path):
            yield making
        if path.exists():
            remove_whole(path)
        making.replace(path)
    finally:
        shutil.rmtree(making, ignore_errors=True)


def remove_whole(path: Path) -> None:
    """Remove a folder. If the process is killed, `path` has all of the folder or none of it."""
    removing = _unique(path)
    path.replace(removing)
    shutil.rmtree(removing, ignore_errors=True)


def _unique(path: Path) -> Path:
    """An unused hidden name next to `path`."""
    return path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}.tmp")
