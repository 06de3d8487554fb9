"""A release of MAESTRO wherever it lies: the zip, a folder unpacked from it, or a tar; read in order, in parallel."""

import csv
import hashlib
import io
import json
import math
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path, PurePosixPath
from typing import Any

from bearings.errors import UserError

COLUMNS = ("canonical_composer", "canonical_title", "split", "midi_filename", "duration")
OFFICIAL = {"train": "train", "validation": "valid", "test": "test"}
ENDINGS = (".mid", ".midi")
METADATA = ("maestro-*.csv", "maestro-*.json")  # of one release both hold the same table
# RuntimeError is also zipfile's for a compression that it does not know.
DAMAGED = (OSError, EOFError, RuntimeError, zlib.error, zipfile.BadZipFile, tarfile.TarError)


@dataclass(frozen=True)
class Performance:
    """A row of the metadata.

    Attributes:
        file: path of the MIDI file, beside the metadata.
        composition: composer and title, small letters and digits only; performances of one piece share it.
        split: train, valid or test, as published.
        seconds: length as published; None without metadata.
    """

    file: str
    composition: str
    split: str
    seconds: float | None


class Release:
    """The metadata of a release and the files it lists.

    Args:
        unsplit: metadata may be lacking; every MIDI file is then a performance of a piece of its own, in no split.

    Attributes:
        path: the folder or archive.
        performances: what the metadata lists and is there, in the order in which `read` gives it.
        absent: names of listed files that are not there.
        unlisted: number of MIDI files that the metadata does not know.

    Raises:
        UserError: `path` is neither, cannot be read, or has no usable metadata.
    """

    def __init__(self, path: Path, unsplit: bool = False):
        self.path = path
        if path.suffix.lower() in ENDINGS and path.is_file():
            raise UserError(f"{path} is a single MIDI file: give its folder, of {len(OFFICIAL)} such files or more")
        names = self._names()
        known = set(names)
        if len(known) < len(names):
            twice = next(name for place, name in enumerate(names) if name in names[:place])
            raise UserError(f"{path} holds {twice} twice: get it anew")
        found = [name for pattern in METADATA for name in names if fnmatch(PurePosixPath(name).name, pattern)]
        music = [name for name in names if name.lower().endswith(ENDINGS)]
        if found:
            metadata = min(found, key=lambda name: name.count("/"))  # of equals the csv, as it is listed first
            ((_, table),) = self._contents({metadata})
            self._parent = PurePosixPath(metadata).parent
            listed = {str(self._parent / row.file): row for row in parse(table, self.place(metadata))}
        elif unsplit and len(music) >= len(OFFICIAL):
            self._parent = PurePosixPath()
            listed = {name: Performance(name, name, "", None) for name in music}
        else:
            raise UserError(
                f"{path} holds no metadata ({' or '.join(METADATA)}) and {len(music)} MIDI files: give a release of "
                f"MAESTRO; or {len(OFFICIAL)} MIDI files or more ({' or '.join(ENDINGS)}) of your own, with "
                "domain.split=random"
            )
        self.performances = [listed[name] for name in names if name in listed]
        self.absent = [row.file for name, row in listed.items() if name not in known]
        self.unlisted = sum(name not in listed for name in music)
        self._listed = listed

    def place(self, name: str) -> str:
        """How to name a member to a person."""
        return str(self.path / name) if self.path.is_dir() else f"{self.path}: {name}"

    def place_of(self, file: str) -> str:
        """How to name the MIDI file of a performance to a person."""
        return self.place(str(self._parent / file))

    def read(self) -> Iterator[tuple[Performance, bytes]]:
        """Every performance with its MIDI file."""
        for name, data in self._contents(set(self._listed)):
            yield self._listed[name], data

    def _names(self) -> list[str]:
        if self.path.is_dir():
            return sorted(file.relative_to(self.path).as_posix() for file in self.path.rglob("*") if file.is_file())
        try:
            if zipfile.is_zipfile(self.path):
                with zipfile.ZipFile(self.path) as archive:
                    return sorted(member.filename for member in archive.infolist() if not member.is_dir())
            with tarfile.open(self.path) as archive:
                names = [member.name for member in archive if member.isfile()]  # a tar is read from front to back
                while archive.fileobj.read(1 << 20):  # a damaged header looks like the end; the checksum behind tells
                    pass
                return names
        except DAMAGED as error:
            raise UserError(self._damaged(error)) from error

    def _contents(self, wanted: set[str]) -> Iterator[tuple[str, bytes]]:
        """Names and bytes of the members in `wanted`, in the order of `_names`."""
        name = None
        try:
            if self.path.is_dir():
                for name in sorted(wanted):
                    if (self.path / name).is_file():
                        yield name, (self.path / name).read_bytes()
            elif zipfile.is_zipfile(self.path):
                with zipfile.ZipFile(self.path) as archive:
                    for name in sorted(wanted.intersection(archive.namelist())):
                        yield name, archive.read(name)
            else:
                with tarfile.open(self.path) as archive:
                    for member in archive:
                        name = member.name
                        if member.isfile() and name in wanted:
                            yield name, archive.extractfile(member).read()
        except DAMAGED as error:
            raise UserError(self._damaged(error, name)) from error

    def _damaged(self, error: Exception, name: str | None = None) -> str:
        reason = (str(error).splitlines() or [type(error).__name__])[0].rstrip(": ")
        return f"{self.place(name) if name else self.path} cannot be read ({reason}): get it anew"


def fingerprint(path: Path) -> str:
    """sha256 of an archive; of a folder, over names and contents of its metadata and MIDI files."""
    if not path.exists():
        raise UserError(f"{path} is missing: give MAESTRO's zip, a folder of it, a tar of that, or MIDI files")
    if path.is_file():
        with open(path, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    digest = hashlib.sha256()
    for file in sorted(path.rglob("*")):
        if file.suffix.lower() in (*ENDINGS, ".csv", ".json") and file.is_file():
            data = file.read_bytes()
            digest.update(f"{file.relative_to(path).as_posix()}\0{len(data)}\0".encode() + data)
    return digest.hexdigest()


def parse(table: bytes, place: str) -> list[Performance]:
    """Rows of a release's metadata, csv or json.

    Raises:
        UserError: it is damaged, lacks a column, or lists a file twice; names the place and the row.
    """
    remedy = "get the release anew"
    try:
        text = table.decode("utf-8-sig")
        rows = _json_rows(text) if place.endswith(".json") else list(csv.DictReader(io.StringIO(text, newline="")))
    except (ValueError, csv.Error, AttributeError, TypeError) as error:
        raise UserError(f"{place} cannot be read as a table ({error}): {remedy}") from error
    if not rows:
        raise UserError(f"{place} lists no performances: {remedy}")
    found: dict[str, Performance] = {}
    for number, row in enumerate(rows, 1):
        missing = [column for column in COLUMNS if row.get(column) in (None, "")]
        if missing:
            raise UserError(f"{place}, performance {number}: no {', '.join(missing)}: {remedy}")
        composer, title, split, file, duration = (str(row[column]) for column in COLUMNS)
        if split not in OFFICIAL:
            raise UserError(f"{place}, performance {number}: split {split!r}, not {', '.join(OFFICIAL)}: {remedy}")
        if not _is_number(duration):
            raise UserError(f"{place}, performance {number}: duration {duration!r} is no number of seconds: {remedy}")
        if file in found:
            raise UserError(f"{place}, performance {number}: {file} is listed twice: remove one of the rows")
        composition = f"{_plain(composer)}: {_plain(title)}"
        found[file] = Performance(file, composition, OFFICIAL[split], float(duration))
    return list(found.values())


def _json_rows(text: str) -> list[dict[str, Any]]:
    """MAESTRO's json is a table by columns, each a mapping from row to value."""
    columns = json.loads(text)
    rows = columns.get("midi_filename", {})
    return [{name: column.get(row) for name, column in columns.items()} for row in rows]


def _is_number(text: str) -> bool:
    try:
        return math.isfinite(float(text)) and float(text) > 0
    except ValueError:
        return False


def _plain(text: str) -> str:
    return " ".join("".join(letter if letter.isalnum() else " " for letter in text.casefold()).split())
