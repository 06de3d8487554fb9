"""Searches folders for files. Hidden ones are skipped."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path, PurePath

from .errors import UserError


def hidden(path: PurePath) -> bool:
    """Whether a file or one of its folders is hidden. `path` is relative to the folder that is searched."""
    return any(part.startswith(".") for part in path.parts)


def files_below(folder: Path, wanted: Callable[[Path], object] = lambda file: True) -> Iterator[Path]:
    """The `wanted` regular files in `folder` and its subfolders, without hidden ones. Linked folders are not entered.

    Raises:
        UserError: a folder cannot be read, or a wanted file is a link to a missing one.
    """
    for place, folders, names in os.walk(folder, onerror=_refuse):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(names):
            if name.startswith(".") or not wanted(file := Path(place, name)):
                continue
            if file.is_symlink() and not file.exists():
                raise UserError(f"{file} is a link to a missing file: fetch the file, or remove the link")
            if file.is_file():
                yield file


def _refuse(error: OSError) -> None:
    raise UserError(f"{error.filename} cannot be read ({(error.strerror or 'error').lower()}): change its permissions")
