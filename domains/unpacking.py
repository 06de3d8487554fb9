"""Reads compressed files with a limit on the decompressed size, as protection against decompression bombs."""

import bz2
import gzip
import io
import lzma
from pathlib import Path
from typing import BinaryIO

from ..core.errors import UserError

RATIO, SPARE = 50, 1 << 26  # maximum decompressed size: RATIO times the size of the file, plus SPARE bytes
MOST = 1 << 24  # maximum bytes read at once
PADDING = 64  # bytes; no format ends with this many zeros
GZIP = b"\x1f\x8b"
MAGIC = {GZIP: gzip.open, b"BZh": bz2.open, b"\xfd7zXZ\x00": lzma.open}


class DamagedFileError(UserError):
    """A file is invalid; downloading it again may help."""


class Bounded(io.RawIOBase):
    """The decompressed contents of a file of `size` bytes. Raises OSError beyond the limit."""

    def __init__(self, unpacked: io.BufferedIOBase, size: int):
        self._unpacked, self._place, self._bound = unpacked, 0, SPARE + RATIO * size

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:
        count = self._unpacked.readinto(buffer)
        self._move(self._place + count)
        return count

    def read(self, size: int = -1) -> bytes:
        if not 0 <= size <= MOST:
            raise OSError(f"a part of more than {MOST:,} bytes")
        return super().read(size)

    def seek(self, place: int, whence: int = io.SEEK_SET) -> int:
        if whence != io.SEEK_SET:
            raise io.UnsupportedOperation("seek is only supported relative to the beginning")
        self._move(place)
        return self._unpacked.seek(place)

    def tell(self) -> int:
        return self._place

    def close(self) -> None:
        self._unpacked.close()
        super().close()

    def _move(self, place: int) -> None:
        if place > self._bound:
            raise OSError(f"it decompresses to more than {self._bound:,} bytes, {RATIO} times its size")
        self._place = place


def refuse_padding(file: BinaryIO) -> None:
    """Raise OSError if a file ends in zeros, which gzip skips byte by byte. Seeks to the beginning of the file."""
    size = file.seek(0, 2)
    file.seek(max(0, size - PADDING))
    end = file.read()
    file.seek(0)
    if len(end) == PADDING and not any(end):
        raise OSError("it ends in zeros")


def opened(path: Path) -> Bounded:
    """Open the file at `path`, decompressing gzip, bzip2 and xz according to its first bytes."""
    with open(path, "rb") as file:
        head = file.read(6)
        if head.startswith(GZIP):
            refuse_padding(file)
    open_ = next((open_ for magic, open_ in MAGIC.items() if head.startswith(magic)), open)
    return Bounded(open_(path, "rb"), path.stat().st_size)


def contents(path: Path, limit: int) -> bytes:
    """The contents of the file at `path`, decompressed as by `opened`.

    Raises:
        OSError, EOFError, ValueError: it is damaged, or has more than `limit` bytes.
    """
    found = io.BytesIO()
    with opened(path) as file:
        while part := file.read(MOST):
            found.write(part)
            if found.tell() > limit:
                raise ValueError(f"it has more than {limit:,} bytes")
    return found.getvalue()
