"""Reads documents from .txt, .tokens, .jsonl, .csv and .tsv, also compressed as .gz or .zst, and from .parquet."""

import codecs
import csv
import gzip
import hashlib
import io
import json
import re
import zlib
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import chain, pairwise
from pathlib import Path
from typing import Any, BinaryIO

from ..core.checked_files import not_utf8
from ..core.errors import UserError, one_line
from ..core.hidden import files_below
from ..core.words import plural
from . import parquet
from .store import SPLITS
from .unpacking import Bounded, DamagedFileError, refuse_padding

FORMATS = (".txt", ".tokens", ".jsonl", ".csv", ".tsv", ".parquet")
TABLES = (".jsonl", ".csv", ".tsv", ".parquet")  # with fields
PACKED = (".gz", ".zst")  # for all formats except .parquet, which compresses its pages
ALLOWED = ".txt, .tokens, .jsonl, .csv or .tsv, each also .gz or .zst, or .parquet"
CALLED = {**{split: split for split in SPLITS}, "training": "train", "validation": "valid", "val": "valid"}
LIMIT = 1 << 30  # maximum bytes of a .txt or .tokens document, which is held in memory
RECORD = 1 << 25  # maximum bytes of a .jsonl line or a .parquet value
ENDS = {"line": b"\n", "paragraph": b"\n\n"}  # of most documents of this kind
BLOCKS, FEWEST, BLOCK = 400, 20, 1024  # blocks of a single document: maximum, minimum, otherwise one per BLOCK bytes
# ` = Title = ` in WikiText. Section headings have two or more `=`.
HEADING = re.compile(rb" = (?!= ).*(?<! =) = \r?\n")


@dataclass(frozen=True)
class Document:
    """One document.

    Attributes:
        name: name of the document.
        text: its text.
        raw: its text as UTF-8.
        read: number of bytes read from its file so far.
        split: train, valid or test, if a field says so; otherwise empty.
        group: group of dependent documents, if a field names it; otherwise empty.
    """

    name: str
    text: str
    raw: bytes
    read: int
    split: str = ""
    group: str = ""


@dataclass(frozen=True)
class Fields:
    """Fields of .jsonl objects, or columns of .csv, .tsv and .parquet files.

    Attributes:
        text: the field that holds the text.
        split: the field that names the split; None for no such field.
        group: the field that names a group of dependent documents; None for no such field.
    """

    text: str
    split: str | None = None
    group: str | None = None

    @property
    def named(self) -> dict[str, str]:
        """The option that names each field."""
        options = {self.group: "domain.group_field", self.split: "domain.split_field", self.text: "domain.field"}
        return {name: option for name, option in options.items() if name is not None}


def find(path: Path) -> dict[str, Path]:
    """Text files at or below `path`, sorted by relative name. Hidden files are skipped.

    Raises:
        UserError: there are no such files, or two differ only in their compression.
    """
    if path.is_file():
        if _format(path) is None:
            raise UserError(f"{path} has an unknown extension: give {ALLOWED}")
        return {path.name: path}
    if not path.is_dir():
        what = "is not a regular file" if path.exists() else "does not exist"
        raise UserError(f"{path} {what}: give a file or folder of {ALLOWED}")
    found = dict(sorted((file.relative_to(path).as_posix(), file) for file in files_below(path, _format)))
    if not found:
        raise UserError(f"{path} contains no text files: give a folder of {ALLOWED}")
    unpacked: dict[str, str] = {}
    for name in found:
        other = unpacked.setdefault(_unpacked_name(name), name)
        if other != name:
            raise UserError(f"{path} contains both {other} and {name}, which have the same name: rename or remove one")
    return found


def read(name: str, path: Path, fields: Fields, cut: str) -> Iterator[Document]:
    """Yield the documents of the file at `path`, named after `name` and their position in the file.

    Args:
        name: name of the file.
        path: the file.
        fields: fields of .jsonl, .csv, .tsv and .parquet files.
        cut: where to split a .txt or .tokens file: nowhere ("file"), before every "line", before every "paragraph"
            (after blank lines), or before every "article" (a ` = Title = ` between blank lines, as in WikiText). All
            bytes are kept: blank lines belong to the preceding document.

    Raises:
        UserError: the file is empty, damaged or of a different kind. The message names the file and the line or row.
    """
    form = _format(path)
    if form in TABLES:
        found = {".parquet": _parquet, ".jsonl": _jsonl}.get(form, _delimited)(name, path, fields)
    elif fields.split or fields.group:
        raise UserError(f"{path} has no fields, but domain.split_field or domain.group_field is set: leave them out")
    else:
        found = _text(name, path, cut)
    document = None
    for document in found:
        yield document
    if document is None:
        what = "has no rows" if form in TABLES and path.stat().st_size else "is empty"
        raise UserError(f"{path} {what}: leave it out")


def is_plain(path: Path) -> bool:
    """Whether the file at `path` is .txt or .tokens, which may be a single document."""
    return _format(path) in (".txt", ".tokens")


def is_table(path: Path) -> bool:
    """Whether the file at `path` has fields."""
    return _format(path) in TABLES


def blocks(document: Document) -> list[Document]:
    """Cut a document into contiguous blocks of similar size, at line ends if possible. Short documents are not cut."""
    raw, count = document.raw, min(max(len(document.raw) // BLOCK, FEWEST), BLOCKS)
    if len(raw) < 50 * FEWEST:
        return [document]
    places = [0]
    for number in range(1, count):
        place, following = (len(raw) * part // count for part in (number, number + 1))
        end = raw.find(b"\n", place, following) + 1 or raw.find(b" ", place, following) + 1 or place
        while end < len(raw) and raw[end] & 0xC0 == 0x80:  # within a character
            end += 1
        places.append(end)
    cut = [raw[begin:end] for begin, end in pairwise([*places, len(raw)]) if begin < end]
    names = (f"{document.name}:{number}" for number in range(1, len(cut) + 1))
    return [Document(name, part.decode(), part, document.read) for name, part in zip(names, cut, strict=True)]


def compared(document: Document, path: Path, cut: str) -> bytes:
    """The bytes that are equal for copies of a document of the file at `path`.

    White space after a line or paragraph depends on what follows it, so it does not count.
    """
    raw = document.raw
    return raw.rstrip() + ENDS[cut] if cut in ENDS and is_plain(path) else raw


def without_mark(raw: bytes) -> bytes:
    """The bytes of a file without the byte order mark with which some programs begin a text."""
    return raw.removeprefix(codecs.BOM_UTF8)


def decoded(raw: bytes, path: Path, line: int) -> str:
    """Decode `raw`, which begins at `line` of `path`. Raises UserError if it is not UTF-8."""
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        raise UserError(f"{path} {not_utf8(error, line)}: convert or remove the file") from error


def _unpacked_name(name: str) -> str:
    return name[: name.rindex(".")] if name.lower().endswith(PACKED) else name


@cache  # called for each document, and parsing paths takes long
def _format(path: Path) -> str | None:
    ending = Path(_unpacked_name(path.name)).suffix.lower()
    known = ending in FORMATS and not (ending == ".parquet" and path.name.lower().endswith(PACKED))
    return ending if known else None


def _unpacked(raw: BinaryIO, path: Path) -> BinaryIO:
    if path.suffix.lower() == ".gz":
        refuse_padding(raw)
        unpacked = gzip.GzipFile(fileobj=raw)
    elif path.suffix.lower() == ".zst":
        import pyarrow

        # Unlike zstandard's reader, this detects truncated files.
        unpacked = pyarrow.CompressedInputStream(raw, "zstd")
    else:
        return raw
    return io.BufferedReader(Bounded(unpacked, path.stat().st_size), 1 << 17)


def _lines(path: Path, limit: int) -> Iterator[tuple[int, bytes, int]]:
    """Number, bytes including the line end, and position in the file on disk of each line. Only "\\n" ends a line.

    A byte order mark is left out.
    """
    number = 0
    try:
        with open(path, "rb") as raw, _unpacked(raw, path) as file:
            while line := file.readline(limit + 1):
                number += 1
                if len(line) > limit:
                    raise UserError(f"{path} line {number} is longer than {limit:,} bytes: split it")
                yield number, without_mark(line) if number == 1 else line, raw.tell()
    except (OSError, EOFError, ValueError, zlib.error) as error:
        reason = one_line(error)
        raise DamagedFileError(f"{path} cannot be read after line {number} ({reason}): download it again") from error


def _text(name: str, path: Path, cut: str) -> Iterator[Document]:
    block: list[bytes] = []
    first, size, previous, blank, at = 1, 0, b"", True, 0

    def document() -> Document:
        raw = b"".join(block)
        block.clear()  # otherwise the lines stay in memory while the document is encoded
        text = decoded(raw, path, first)
        if "\0" in text:
            line = first + raw.count(b"\n", 0, raw.index(b"\0"))
            raise UserError(f"{path} line {line} contains a zero byte, so it is not text: remove the file")
        return Document(name if cut == "file" else f"{name}:{first}", text, raw, at)

    for (number, line, end), (_, following, _) in pairwise(chain(_lines(path, LIMIT), [(0, b"", 0)])):
        if not blank and _starts(cut, previous, line, following):
            yield document()
            first, size = number, 0
        block.append(line)
        size += len(line)
        if size > LIMIT:
            advice = "set domain.documents to line, paragraph or article, or split the file"
            raise UserError(f"{path} line {number}: a document of more than {LIMIT:,} bytes: {advice}")
        previous, blank, at = line, blank and not line.strip(), end
    if size:
        yield document()


def _starts(cut: str, previous: bytes, line: bytes, following: bytes) -> bool:
    """Whether `line` begins a document."""
    if cut == "file" or not line.strip():
        return False
    if cut == "line":
        return True
    if previous.strip():
        return False
    return cut == "paragraph" or (HEADING.fullmatch(line) is not None and not following.strip())


def _jsonl(name: str, path: Path, fields: Fields) -> Iterator[Document]:
    for number, raw, at in _lines(path, RECORD):
        line = decoded(raw, path, number)
        if not line.strip():
            continue
        place = f"{path} line {number}"
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:
            reason = one_line(error)
            raise UserError(f"{place} is not JSON ({reason}): each line of a .jsonl file is one object") from error
        if not isinstance(record, dict):
            raise UserError(f"{place} is a JSON {type(record).__name__}: each line of a .jsonl file is one object")
        _refuse_missing(record, place, "field", fields)
        yield document_of(f"{name}:{number}", record, place, fields, at)


def _delimited(name: str, path: Path, fields: Fields) -> Iterator[Document]:
    """Rows of a .csv file, with quotes as in RFC 4180, or of a .tsv file, in which quotes are text."""
    tabs, done = _format(path) == ".tsv", 0

    def lines() -> Iterator[str]:
        nonlocal done
        for number, line, at in _lines(path, RECORD):
            done = at
            yield decoded(line, path, number)

    before = csv.field_size_limit(RECORD)
    quoting: Any = {"delimiter": "\t", "quoting": csv.QUOTE_NONE} if tabs else {"strict": True}
    reader = csv.reader(lines(), **quoting)
    try:
        header = next(reader, [])
        _refuse_missing(header, str(path), "column", fields)
        if twice := [field for field in fields.named if header.count(field) > 1]:
            raise UserError(f"{path} has several columns {twice[0]!r}: rename or remove all but one")
        for row in reader:
            place = f"{path} line {reader.line_num}"
            if len(row) not in (0, len(header)):
                columns = plural(len(row), "column")
                raise UserError(f"{place} has {columns}, but the header has {len(header)}: correct the line")
            if row:
                record = dict(zip(header, row, strict=True))
                yield document_of(f"{name}:{reader.line_num}", record, place, fields, done)
    except csv.Error as error:
        place = f"{path} line {reader.line_num}"
        raise UserError(f"{place} is not {'TSV' if tabs else 'CSV'} ({error}): correct the line") from error
    finally:
        csv.field_size_limit(before)


def _parquet(name: str, path: Path, fields: Fields) -> Iterator[Document]:
    columns = [parquet.values(path, column, option) for column, option in fields.named.items()]
    for values in zip(*columns, strict=True):
        row, at = values[0][0], values[0][2]
        record = dict(zip(fields.named, (value for _, value, _ in values), strict=True))
        yield document_of(f"{name}:{row}", record, f"{path} row {row}", fields, at)


def _refuse_missing(record: Collection[str], place: str, kind: str, fields: Fields) -> None:
    for field, option in fields.named.items():
        if field not in record:
            raise UserError(f"{place} has no {kind} {field!r}: set {option} to one of {parquet.listed(record)}")


def document_of(name: str, record: Mapping[str, object], place: str, fields: Fields, at: int) -> Document:
    """The document in a record of named values.

    Raises:
        UserError: a value is not text, is too long, or names no split. The message begins with `place`.
    """
    for field, option in fields.named.items():
        value = record[field]
        if not isinstance(value, str) and (option == "domain.field" or not isinstance(value, int)):
            raise UserError(f"{place}: {field!r} has type {type(value).__name__}, not string: correct or remove it")
    text = str(record[fields.text])
    try:
        raw = text.encode()
    except UnicodeEncodeError as error:
        fault = f"{fields.text!r} contains an unpaired surrogate, invalid in UTF-8"
        raise UserError(f"{place}: {fault}: remove it") from error
    if len(raw) > RECORD:
        raise UserError(f"{place}: a document of more than {RECORD:,} bytes: split it")
    split = str(record[fields.split]).strip().lower() if fields.split else ""
    if fields.split and split not in CALLED:
        raise UserError(f"{place}: {fields.split!r} is {split[:40]!r}, not a split: allowed: {', '.join(CALLED)}")
    group = str(record[fields.group]) if fields.group else ""
    return Document(name, text, raw, at, CALLED.get(split, ""), group)


def drawn(text: bytes, valid: float, test: float) -> tuple[str, str]:
    """Cluster and split of the documents with this text, or of this group, by its hash; `valid`, `test`: shares."""
    digest = hashlib.blake2b(text, digest_size=8).digest()
    place = int.from_bytes(digest, "big") / 2**64
    return digest.hex(), "valid" if place < valid else "test" if place < valid + test else "train"
