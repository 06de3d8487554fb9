"""Reads UCSC's .2bit format, version 0. All counts and positions in a file are checked before use."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np

from ..core.errors import UserError, shortened

SIGNATURE = 0x1A412743
LOWER = 0x20  # the bit that distinguishes lower case from upper case
# Four letters per byte, the first in the highest bits.
UNPACKED = np.frombuffer(b"TCAG", np.uint8)[np.arange(256)[:, None] >> np.array([6, 4, 2, 0]) & 3]


@dataclass(frozen=True)
class Entry:
    """A record: its name, and the positions of its length, runs and bases in the file."""

    name: str
    begin: int
    bases: int
    packed: int


def read(path: Path, block: int) -> Iterator[tuple[str, Iterator[bytes]]]:
    """Yield the name and letters of each record, `block` letters at a time, masked ones in lower case.

    Raises:
        UserError: the file is truncated or damaged. The message names the position.
    """
    with open(path, "rb") as file:
        reader = _Reader(path, file)
        for entry in _entries(reader):
            yield entry.name, _letters(reader, entry, block)


class _Reader:
    """Reads numbers and bytes of a .2bit file, checking its size first."""

    def __init__(self, path: Path, file: BinaryIO):
        self.path, self.file = path, file
        self.size = file.seek(0, 2)
        little = self.bytes(0, 4) == SIGNATURE.to_bytes(4, "little")
        self.type = np.dtype("<u4" if little else ">u4")

    def bytes(self, at: int, count: int) -> bytes:
        if not 0 <= at <= at + count <= self.size:
            raise UserError(f"{self.path} is truncated or damaged at byte {self.size:,}: download it again")
        self.file.seek(at)
        return self.file.read(count)

    def words(self, at: int, count: int) -> np.ndarray:
        return np.frombuffer(self.bytes(at, 4 * count), self.type).astype(np.int64)

    def word(self, at: int) -> int:
        return int(self.words(at, 1)[0])

    def damaged(self, why: str) -> UserError:
        return UserError(f"{self.path} cannot be read as .2bit ({why}): download it again")


def _entries(reader: _Reader) -> list[Entry]:
    """The records in the order of the index. They must not overlap, so that small files cannot expand to large data."""
    version, count, reserved = reader.words(4, 3).tolist()
    if version or reserved:
        raise reader.damaged(f"version {version}, reserved {reserved}; both must be 0")
    found: dict[str, Entry] = {}
    at = 16
    for _ in range(count):
        length = reader.bytes(at, 1)[0]
        name = reader.bytes(at + 1, length)
        if not (name.isascii() and name.decode("latin1").isprintable()) or not name:
            raise reader.damaged(f"record {len(found) + 1} has the name {shortened(name)}")
        begin, at = reader.word(at + 1 + length), at + 5 + length
        bases, runs = reader.words(begin, 2).tolist()
        masks = reader.word(begin + 8 + 8 * runs)
        packed = begin + 16 + 8 * runs + 8 * masks
        reader.bytes(packed - 4, 4)
        entry = Entry(name.decode(), begin, bases, packed)
        if packed + -(-bases // 4) > reader.size:
            raise UserError(f"{reader.path} is truncated: record {entry.name} has {bases:,} bases: download it again")
        if entry.name in found:
            raise UserError(f"{reader.path} has two records named {entry.name}: give each record a different name")
        found[entry.name] = entry
    end = at
    for entry in sorted(found.values(), key=lambda entry: entry.begin):
        if entry.begin < end:
            raise reader.damaged(f"record {entry.name} begins at byte {entry.begin:,}, within another")
        end = entry.packed + -(-entry.bases // 4)
    return list(found.values())


def _letters(reader: _Reader, entry: Entry, block: int) -> Iterator[bytes]:
    unknown, at = _runs(reader, entry, entry.begin + 4)
    masked, _ = _runs(reader, entry, at)
    for begin in range(0, entry.bases, block):
        end = min(begin + block, entry.bases)
        packed = reader.bytes(entry.packed + begin // 4, -(-end // 4) - begin // 4)
        letters = UNPACKED[np.frombuffer(packed, np.uint8)].reshape(-1)[begin % 4 :][: end - begin]
        letters[_within(unknown, begin, end)] = ord("N")
        letters[_within(masked, begin, end)] |= LOWER
        yield letters.tobytes()


def _runs(reader: _Reader, entry: Entry, at: int) -> tuple[np.ndarray, int]:
    """Begins and ends of runs of N or of masked bases, `[2, runs]`, and the position after them."""
    count = reader.word(at)
    begins, sizes = reader.words(at + 4, 2 * count).reshape(2, count)
    edges = np.stack([begins, begins + sizes])[:, sizes > 0]
    order = edges.T.reshape(-1)
    if len(order) and ((np.diff(order) < 0).any() or order[-1] > entry.bases):
        raise reader.damaged(f"the runs of record {entry.name} overlap or exceed its {entry.bases:,} bases")
    return edges, at + 4 + 8 * count


def _within(runs: np.ndarray, begin: int, end: int) -> np.ndarray:
    """Mask of the bases from `begin` to `end` that are in one of the runs, `[end - begin]`."""
    first, last = np.searchsorted(runs[1], begin, "right"), np.searchsorted(runs[0], end, "left")
    begins, ends = np.clip(runs[:, first:last], begin, end) - begin
    change = np.zeros(end - begin + 1, np.int8)
    change[begins] += 1
    change[ends] -= 1
    return np.cumsum(change[:-1], dtype=np.int8).astype(bool)
