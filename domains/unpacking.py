"""Compressed files read with a bound on what they unpack to, so that a small file cannot fill memory or time."""

import bz2
import gzip
import io
import lzma
from pathlib import Path
from typing import BinaryIO

from ..core.errors import UserError

RATIO, SPARE = 50, 1 << 26  # a file unpacks to RATIO times its size at most, and SPARE bytes
MOST = 1 << 24  # bytes read at once
PADDING = 64  # bytes, more than any format ends with zeros
GZIP = b"\x1f\x8b"
MAGIC = {GZIP: gzip.open, b"BZh": bz2.open, b"\xfd7zXZ\x00": lzma.open}


class DamagedFileError(UserError):
    """A file breaks its format, so that another copy of it may serve."""


class Bounded(io.RawIOBase):
    """What a file of `size` bytes on disk unpacks to, which raises OSError beyond the bound."""

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
            raise io.UnsupportedOperation("seeking from elsewhere than the beginning")
        self._move(place)
        return self._unpacked.seek(place)

    def tell(self) -> int:
        return self._place

    def close(self) -> None:
        self._unpacked.close()
        super().close()

    def _move(self, place: int) -> None:
        if place > self._bound:
            raise OSError(f"it unpacks to more than {self._bound:,} bytes, {RATIO} times its size: no real data do")
        self._place = place


def refuse_padding(file: BinaryIO) -> None:
    """Raise OSError where a file ends in zeros, which gzip skips byte by byte. Goes to the file's beginning."""
    size = file.seek(0, 2)
    file.seek(max(0, size - PADDING))
    end = file.read()
    file.seek(0)
    if len(end) == PADDING and not any(end):
        raise OSError("it ends in zeros")


def opened(path: Path) -> Bounded:
    """The file at `path`, unpacked where it begins as gzip, bzip2 or xz files do."""
    with open(path, "rb") as file:
        head = file.read(6)
        if head.startswith(GZIP):
            refuse_padding(file)
    open_ = next((open_ for magic, open_ in MAGIC.items() if head.startswith(magic)), open)
    return Bounded(open_(path, "rb"), path.stat().st_size)
