"""Paths of files in memory, with the methods of `pathlib.Path` that reading a run needs."""

import fnmatch
import io
import stat
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path, PurePosixPath
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np

if TYPE_CHECKING:

    class _Path(Path):
        """The base class for type checkers: code that reads runs uses only methods that PackedPath has."""

        def __new__(cls, *args: Any) -> Any: ...
else:
    _Path = object


Content = bytes | dict[str, np.ndarray]  # of a file; the arrays of an .npz file by name


class PackedPath(_Path):
    """A file or folder in memory, with methods as in `pathlib.Path`.

    It is not an `os.PathLike`, so that no file on disk can be opened by mistake.

    Args:
        place: path of the root in messages, as if the files were on disk.
        files: contents by path below the root, with `/`.
        below: path of the file or folder below the root.
    """

    def __init__(self, place: Path, files: Mapping[str, Content], below: PurePosixPath | None = None):
        self._place, self.files, self._below = place, files, below or PurePosixPath()

    def _at(self, below: PurePosixPath) -> "PackedPath":
        return PackedPath(self._place, self.files, below)

    def __truediv__(self, part: str) -> "PackedPath":
        return self._at(self._below / part)

    def __str__(self) -> str:
        return str(self._place / self._below)

    def __lt__(self, other: "PackedPath") -> bool:
        return self.parts < other.parts

    @property
    def parts(self) -> tuple[str, ...]:
        return (self._place / self._below).parts

    @property
    def name(self) -> str:
        return Path(str(self)).name

    @property
    def stem(self) -> str:
        return self._below.stem

    @property
    def suffix(self) -> str:
        return self._below.suffix

    @property
    def parent(self) -> "PackedPath":
        return self._at(self._below.parent)

    def with_suffix(self, suffix: str) -> "PackedPath":
        return self._at(self._below.with_suffix(suffix))

    def relative_to(self, other: Any) -> PurePosixPath:
        return self._below.relative_to(other._below)

    def resolve(self) -> Path:
        return Path(str(self)).resolve()

    def exists(self) -> bool:
        return self.is_file() or self.is_dir()

    def is_file(self) -> bool:
        return str(self._below) in self.files

    def is_dir(self) -> bool:
        return any(self._below in PurePosixPath(name).parents for name in self.files)

    def glob(self, pattern: str) -> Iterator["PackedPath"]:
        """Matching files; `**` is not supported."""
        wanted = (self._below / pattern).parts
        for name in self.files:
            parts = name.split("/")
            if len(parts) == len(wanted) and all(map(fnmatch.fnmatchcase, parts, wanted)):
                yield self._at(PurePosixPath(name))

    @cached_property
    def content(self) -> Content:
        """The content as it is in memory. Raises FileNotFoundError if there is no such file."""
        try:
            return self.files[str(self._below)]
        except KeyError:
            raise FileNotFoundError(2, "No such file or directory", str(self)) from None

    def read_bytes(self) -> bytes:
        if isinstance(self.content, bytes):
            return self.content
        file, arrays = io.BytesIO(), dict[str, Any](self.content)
        np.savez(file, **arrays)
        return file.getvalue()

    def stat(self) -> SimpleNamespace:
        """`st_mode` and `st_size`."""
        return SimpleNamespace(st_mode=stat.S_IFREG | 0o444, st_size=len(self.read_bytes()))

    def open(self, mode: str = "rb") -> BinaryIO:
        if mode != "rb":
            raise ValueError(f"mode={mode}: files of a packed study can only be opened with mode=rb")
        return io.BytesIO(self.read_bytes())

    def read_text(self, encoding: str = "utf-8", errors: str = "strict") -> str:
        return self.read_bytes().decode(encoding, errors)


AnyPath = Path | PackedPath
