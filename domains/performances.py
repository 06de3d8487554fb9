"""Reads a release of MAESTRO from its zip, an unpacked folder, or a tar, in order."""

import csv
import hashlib
import io
import json
import math
import os
import posixpath
import re
import stat
import tarfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path, PurePosixPath
from typing import Any

from ..core.checked_files import digest_of
from ..core.errors import UserError, one_line
from ..core.hidden import files_below, hidden
from . import midi_files
from .unpacking import opened

COLUMNS = ("canonical_composer", "canonical_title", "split", "midi_filename", "duration")
OFFICIAL = {"train": "train", "validation": "valid", "test": "test"}
ENDINGS = (".mid", ".midi")
READ = (*ENDINGS, ".csv", ".json")
METADATA = ("maestro-*.csv", "maestro-*.json")  # a release has the same table in both formats
MOST_MEMBERS = 100_000  # in an archive
MOST_TABLE = 1 << 23  # maximum bytes of the metadata; twenty times MAESTRO's


@dataclass(frozen=True)
class Performance:
    """A row of the metadata.

    Attributes:
        file: path of the MIDI file, relative to the metadata.
        composition: composer and title, reduced to lower-case letters and digits; the same for all performances of a
            piece.
        split: published split: train, valid or test.
        seconds: published length; None without metadata.
    """

    file: str
    composition: str
    split: str
    seconds: float | None


class Release:
    """The metadata of a release and the files it lists.

    Args:
        path: the folder or archive.
        unsplit: whether metadata may be missing; then every MIDI file is a different piece without a split.

    Attributes:
        path: the folder or archive.
        performances: existing files listed in the metadata, in the order of `read`.
        absent: names of listed files that are missing.
        published: whether it has metadata.
        unlisted: number of MIDI files that are not in the metadata; hidden files are ignored.

    Raises:
        UserError: `path` is not a folder or archive, is unreadable, has no valid metadata, or lists files outside it.
    """

    def __init__(self, path: Path, unsplit: bool = False):
        self.path = path
        if path.exists() and not (path.is_file() or path.is_dir()):
            raise UserError(
                f"{path} is neither a file nor a folder: give MAESTRO's zip, its unpacked folder, or a tar of it"
            )
        if path.suffix.lower() in ENDINGS and path.is_file():
            raise UserError(f"{path} is a single MIDI file: give a folder of at least {len(OFFICIAL)} MIDI files")
        names = self._names()
        known = set(names)
        if len(known) < len(names):
            twice = next(name for place, name in enumerate(names) if name in names[:place])
            raise UserError(f"{path} contains {twice} twice: download it again")
        found = [name for pattern in METADATA for name in names if fnmatch(PurePosixPath(name).name, pattern)]
        # macOS adds hidden files to archives, such as `__MACOSX/._a.mid` for `a.mid`.
        music = [name for name in names if name.lower().endswith(ENDINGS) and not hidden(PurePosixPath(name))]
        self.published = bool(found)
        if found:
            metadata = min(found, key=lambda name: name.count("/"))  # the csv if both are equally deep
            ((_, table),) = self._contents({metadata})
            self._parent = PurePosixPath(metadata).parent
            folder = metadata[: metadata.rfind("/") + 1]  # members of `tar -c .` begin with "./", also in names
            listed = {f"{folder}{PurePosixPath(row.file)}": row for row in parse(table, self.place(metadata))}
        elif unsplit and len(music) >= len(OFFICIAL):
            self._parent = PurePosixPath(posixpath.commonpath([str(PurePosixPath(name).parent) for name in music]))
            inner = {name: PurePosixPath(name).relative_to(self._parent).as_posix() for name in music}
            listed = {name: Performance(inner[name], inner[name], "", None) for name in music}
        else:
            raise UserError(
                f"{path} contains no metadata ({' or '.join(METADATA)}) and {len(music)} MIDI files: give a release of "
                f"MAESTRO, or at least {len(OFFICIAL)} of your own MIDI files ({' or '.join(ENDINGS)}) with "
                "domain.split=random"
            )
        self.performances = [listed[name] for name in names if name in listed]
        self.absent = [row.file for name, row in listed.items() if name not in known]
        self.unlisted = sum(name not in listed for name in music)
        self._listed = listed

    def place(self, name: str) -> str:
        """The full name of a member, for messages."""
        return str(self.path / name) if self.path.is_dir() else f"{self.path}: {name}"

    def place_of(self, file: str) -> str:
        """The full name of the MIDI file of a performance, for messages."""
        return self.place(str(self._parent / file))

    def read(self) -> Iterator[tuple[Performance, bytes]]:
        """Yield every performance with the contents of its MIDI file."""
        for name, data in self._contents(set(self._listed)):
            yield self._listed[name], data

    def _names(self) -> list[str]:
        if self.path.is_dir():
            return sorted(_files(self.path))
        with self._errors():
            if zipfile.is_zipfile(self.path):
                with zipfile.ZipFile(self.path) as archive:
                    members = [
                        (member.filename, stat.S_IFMT(member.external_attr >> 16) in (0, stat.S_IFREG))
                        for member in archive.infolist()
                        if not member.is_dir()
                    ]
                return sorted(self._checked(members))
            with opened(self.path) as file, _tar(file) as archive:
                members = []
                for member in archive:  # a tar is read from front to back
                    if not member.isdir():
                        members.append((member.name, member.isreg() and not member.issparse()))
                    if len(members) > MOST_MEMBERS:
                        break
                while len(members) <= MOST_MEMBERS and file.read(1 << 20):
                    pass  # a damaged header looks like the end; the checksum detects it
            return self._checked(members)

    def _checked(self, members: list[tuple[str, bool]]) -> list[str]:
        """Names of the members of an archive. `members` has each with whether it is a regular file."""
        if len(members) > MOST_MEMBERS:
            raise UserError(f"{self.path} contains more than {MOST_MEMBERS:,} files: give a release of MAESTRO")
        for name, ordinary in members:
            if not _inside(name):
                raise UserError(
                    f"{self.path} contains {name[:200]!r}, which is outside its folder or not printable: download it "
                    "again"
                )
            if not ordinary:
                raise UserError(f"{self.path} contains {name[:200]!r}, a link or a device: remove it")
        return [name for name, _ in members]

    def _contents(self, wanted: set[str]) -> Iterator[tuple[str, bytes]]:
        """Yield names and bytes of the members in `wanted`, in the order of `_names`."""
        if self.path.is_dir():
            for name in sorted(wanted):
                if (self.path / name).is_file():
                    with self._errors(name), open(self.path / name, "rb") as file:
                        data = _bounded(file, name)
                    yield name, data
        elif zipfile.is_zipfile(self.path):
            with self._errors(), zipfile.ZipFile(self.path) as archive:
                for name in sorted(wanted.intersection(archive.namelist())):
                    with self._errors(name), archive.open(name) as file:
                        data = _bounded(file, name)
                    yield name, data
        else:
            with self._errors(), opened(self.path) as packed, _tar(packed) as archive:
                for member in archive:
                    if member.name in wanted:
                        with self._errors(member.name):
                            file = archive.extractfile(member)
                            if file is None:
                                raise ValueError("not a regular file")
                            with file:
                                data = _bounded(file, member.name)
                        yield member.name, data

    @contextmanager
    def _errors(self, name: str | None = None) -> Iterator[None]:
        """Convert exceptions while reading the archive, or one of its files, to UserError."""
        try:
            yield
        except UserError:
            raise
        except Exception as error:  # zipfile, tarfile and decompressors raise many kinds
            place = self.place(name) if name else self.path
            raise UserError(f"{place} cannot be read ({one_line(error).rstrip(': ')}): download it again") from error


def _tar(file) -> tarfile.TarFile:
    try:
        return tarfile.open(fileobj=file, mode="r:")
    except tarfile.ReadError as error:
        raise ValueError("neither a zip nor a tar") from error


def _bounded(file, name: str) -> bytes:
    """The bytes of a file of a release, with a limit on the size that does not depend on archive headers."""
    if name.lower().endswith(ENDINGS):
        return file.read(midi_files.MOST + 1)  # too long for `midi_files.note_ons`, which raises the error
    if len(data := file.read(MOST_TABLE + 1)) > MOST_TABLE:
        raise ValueError(f"more than {MOST_TABLE:,} bytes")
    return data


def _files(folder: Path) -> Iterator[str]:
    """Names of the music and metadata below a folder. Raises UserError for those linked from outside."""
    for file in files_below(folder, lambda file: file.suffix.lower() in READ):
        if file.is_symlink() and not file.resolve().is_relative_to(folder.resolve()):
            raise UserError(f"{file} is a link to outside of {folder}: replace it by the file")
        yield file.relative_to(folder).as_posix()


def _inside(name: str) -> bool:
    """Whether a relative name stays below its folder on any operating system, and is printable."""
    parts = re.split(r"[/\\]", name)
    return name.isprintable() and parts[0] != "" and not re.match("[A-Za-z]:", name) and ".." not in parts


def fingerprint(path: Path) -> str:
    """sha256 of an archive, or of names and contents of the metadata and MIDI files in a folder."""
    if not path.exists():
        raise UserError(
            f"domain.path={path} does not exist: give MAESTRO's zip, its unpacked folder, a tar of it, or MIDI files"
        )
    if path.is_file():
        return digest_of(path)
    digest = hashlib.sha256()
    for name in sorted(map(PurePosixPath, _files(path))):
        try:
            with open(path / name, "rb") as file:
                digest.update(os.fsencode(f"{name}\0{os.fstat(file.fileno()).st_size}\0"))
                while block := file.read(1 << 20):
                    digest.update(block)
        except PermissionError as error:
            raise UserError(f"{path / name} cannot be read (permission denied): change its permissions") from error
    return digest.hexdigest()


def parse(table: bytes, place: str) -> list[Performance]:
    """Rows of the metadata of a release, csv or json.

    Raises:
        UserError: it is damaged, lacks a column, or lists a file twice or outside its folder. The message names the
            file and the row.
    """
    remedy = "download the release again"
    try:
        text = table.decode("utf-8-sig")
        rows = _json_rows(text) if place.endswith(".json") else list(csv.DictReader(io.StringIO(text, newline="")))
    except (ValueError, csv.Error, AttributeError, TypeError, RecursionError) as error:
        reason = one_line(error)
        raise UserError(f"{place} cannot be read as a table ({reason}): {remedy}") from error
    if not rows:
        raise UserError(f"{place} lists no performances: {remedy}")
    found: dict[str, Performance] = {}
    for number, row in enumerate(rows, 1):
        missing = [
            column for column in COLUMNS if not isinstance(row.get(column), str | int | float) or row[column] == ""
        ]
        if missing:
            raise UserError(f"{place}, performance {number}: no {', '.join(missing)}: {remedy}")
        composer, title, split, file, duration = (str(row[column]) for column in COLUMNS)
        if split not in OFFICIAL:
            raise UserError(f"{place}, performance {number}: split {split[:40]!r}, not {', '.join(OFFICIAL)}: {remedy}")
        if not _is_number(duration):
            raise UserError(
                f"{place}, performance {number}: duration {duration[:40]!r} is not a number of seconds: {remedy}"
            )
        if not _inside(file):
            raise UserError(
                f"{place}, performance {number}: {file[:200]!r} is outside the folder of the release or not printable: "
                f"{remedy}"
            )
        if file in found:
            raise UserError(f"{place}, performance {number}: {file} is listed twice: remove one of the rows")
        composition = f"{_plain(composer)}: {_plain(title)}"
        found[file] = Performance(file, composition, OFFICIAL[split], float(duration))
    return list(found.values())


def _json_rows(text: str) -> list[dict[str, Any]]:
    """Rows of MAESTRO's json, which maps each column to a mapping from row to value."""
    columns = json.loads(text)
    rows = columns.get("midi_filename", {})
    return [{name: columns[name].get(row) for name in COLUMNS if name in columns} for row in rows]


def _is_number(text: str) -> bool:
    try:
        return math.isfinite(float(text)) and float(text) > 0
    except ValueError:
        return False


def _plain(text: str) -> str:
    return " ".join("".join(letter if letter.isalnum() else " " for letter in text.casefold()).split())
