"""Reads nucleotide sequences as streams of small arrays, from FASTA (plain, gzip, BGZF) and UCSC's .2bit."""

import gzip
import re
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path

import numpy as np

from ..core.errors import UserError
from ..core.hidden import files_below
from . import two_bit
from .documents import without_mark
from .unpacking import Bounded, refuse_padding

LETTERS = "ACGTN"
N = LETTERS.index("N")
AMBIGUOUS, CODE, SOFT, INVALID = 5, 7, 8, 255  # IUPAC codes except N; mask of the code; bit of soft-masked bases
ENDINGS = (".2bit", *(name + packed for name in (".fa", ".fasta", ".fna") for packed in ("", ".gz", ".bgz")))
BLOCK = 1 << 22
LONGEST_HEADER = 1 << 20

TWO_BIT = (b"\x1a\x41\x27\x43", b"\x43\x27\x41\x1a")
GZIP, BGZF = b"\x1f\x8b", re.compile(rb"\x1f\x8b\x08\x04.{6}..BC\x02\x00", re.DOTALL)
BGZF_END = bytes.fromhex("1f8b08040000000000ff0600424302001b0003000000000000000000")


def _table() -> bytes:
    table = bytearray([INVALID] * 256)
    for letters, first in ((LETTERS, 0), ("RYSWKMBDHV", None)):
        for i, letter in enumerate(letters):
            code = AMBIGUOUS if first is None else first + i
            table[ord(letter)], table[ord(letter.lower())] = code, code | SOFT
    return bytes(table)


TABLE = _table()


@dataclass(frozen=True, eq=False)
class Record:
    """One sequence of a file, with the first word of its header and the whole header. Records compare by identity."""

    file: Path
    name: str
    header: str


@dataclass
class Tally:
    """Counts of bases in lower case, and of IUPAC codes that were read as N."""

    soft_masked: int = 0
    ambiguous: int = 0

    def counted(self, codes: np.ndarray, soft_mask: bool) -> np.ndarray:
        """Codes of A C G T N from those of TABLE; with `soft_mask`, A C G T in lower case have SOFT set."""
        soft = codes & SOFT
        self.soft_masked += int(np.count_nonzero(soft))
        codes = codes & CODE
        if len(codes) and codes.max() == AMBIGUOUS:
            self.ambiguous += int(np.count_nonzero(codes == AMBIGUOUS))
            codes = np.minimum(codes, N)
        if soft_mask:
            codes |= soft * (codes < N)
        return codes


def files(path: Path) -> list[Path]:
    """`path` itself, or the sequence files of a folder and its subfolders, sorted by name; hidden files are skipped.

    Raises:
        UserError: there are no such files.
    """
    if path.is_dir():
        found = sorted(files_below(path, lambda file: file.name.lower().endswith(ENDINGS)))
        if not found:
            raise UserError(f"{path} contains no sequence files: give a folder of {', '.join(ENDINGS)}")
        return found
    if not path.is_file():
        raise UserError(
            f"{path} is {'not a file' if path.exists() else 'missing'}: give a FASTA file (.fa, .fa.gz) or a .2bit file"
        )
    return [path]


def read(paths: Iterable[Path], tally: Tally, soft_mask: bool = False) -> Iterator[tuple[Record, np.ndarray]]:
    """Yield records with codes of their bases (0 to 4 for A C G T N), some millions at a time.

    Each record comes with at least one array, which may be empty; the arrays of a record are consecutive. Case is
    counted and dropped; with `soft_mask`, codes of A C G T in lower case have SOFT set.

    Raises:
        UserError: a file is missing, empty, truncated, damaged or not a sequence file; a record name is repeated; or a
            record is empty or contains other characters. The message names the file and the position.
    """
    seen: dict[str, Path] = {}
    for path in paths:
        last, length = None, 0
        for record, codes in _blocks(path):
            if record is not last:
                if last is not None and not length:
                    raise UserError(f"{path}: record {last.name} has no sequence: remove the record")
                if record.name in seen:
                    where = f"also in {seen[record.name]}" if seen[record.name] != path else "in the file twice"
                    raise UserError(f"{path}: record {record.name} is {where}: give each record a different name")
                seen[record.name] = path
                last, length = record, 0
            length += len(codes)
            yield record, tally.counted(codes, soft_mask)
        if last is None:
            raise UserError(f"{path} contains no sequence: give a file with at least one record")
        if not length:
            raise UserError(f"{path}: record {last.name} has no sequence; is the file truncated?")


def _blocks(path: Path) -> Iterator[tuple[Record, np.ndarray]]:
    """`read` without checks between files, for one file; codes include SOFT and AMBIGUOUS."""
    try:
        with open(path, "rb") as file:
            head = file.read(18)
            if not head:
                raise UserError(f"{path} is empty (0 bytes): give a FASTA file or a .2bit file")
            if head[:4] in TWO_BIT:
                yield from _two_bit(path)
                return
            if BGZF.match(head):
                file.seek(-min(len(BGZF_END), file.seek(0, 2)), 2)
                if file.read() != BGZF_END:
                    raise UserError(f"{path} is truncated (no BGZF end marker): download it again")
            file.seek(0)
            if head.startswith(GZIP):
                refuse_padding(file)
                with Bounded(gzip.open(file), path.stat().st_size) as unpacked:
                    yield from _fasta(path, unpacked)
            else:
                yield from _fasta(path, file)
    except EOFError as error:
        raise UserError(f"{path} is truncated (its compressed data end early): download it again") from error
    except (gzip.BadGzipFile, zlib.error) as error:
        raise UserError(f"{path} is damaged ({error}): download it again") from error
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror or error}") from error


def _fasta(path: Path, file) -> Iterator[tuple[Record, np.ndarray]]:
    """Records of an open FASTA file with lines of any length."""
    record, line, length, rest, new_line = None, 1, 0, b"", True
    blocks = iter(partial(file.read, BLOCK), b"")
    for block in chain([without_mark(next(blocks, b""))], blocks):
        data, at, rest = rest + block, 0, b""
        while at < len(data):
            if new_line and data[at : at + 1] == b">":
                end = data.find(b"\n", at)
                if end < 0:
                    rest = data[at:]
                    if len(rest) > LONGEST_HEADER:
                        _refuse_returns(path, line, rest)
                        raise UserError(f"{path}, line {line}: a header of over {LONGEST_HEADER:,} bytes is not FASTA")
                    break
                record, length = _record(path, line, data[at + 1 : end]), 0
                yield record, np.zeros(0, np.uint8)
                line, at = line + 1, end + 1
                continue
            if record is None and (start := data[at:].lstrip(b"\r\n")) != data[at:]:
                line, at = line + data.count(b"\n", at, len(data) - len(start)), len(data) - len(start)
                continue
            if record is None:
                wanted = "give a FASTA file, which begins with '>', or a .2bit file"
                raise UserError(f"{path}, line {line}: it begins with {_shown(data[at])}: {wanted}")
            end = data.find(b"\n>", at) + 1 or len(data)
            part = data[at:end]
            codes = np.frombuffer(part.translate(TABLE, b"\r\n"), np.uint8)
            if len(codes) and codes.max() == INVALID:
                raise UserError(_invalid(record, part, line, length))
            yield record, codes
            new_line = part.endswith(b"\n")
            line, length, at = line + part.count(b"\n"), length + len(codes), end
    if rest:
        _refuse_returns(path, line, rest)
        raise UserError(f"{path}, line {line}: the file ends in a header; is it truncated?")


def _refuse_returns(path: Path, line: int, header: bytes) -> None:
    if b"\r" in header.strip():
        raise UserError(
            f"{path}, line {line}: lines end in CR without LF: convert them, such as with tr '\\r' '\\n' < FILE > NEW"
        )


def _record(path: Path, line: int, header: bytes) -> Record:
    _refuse_returns(path, line, header)
    try:
        text = header.decode().strip()
    except UnicodeDecodeError as error:
        raise UserError(f"{path}, line {line}: the header is not UTF-8 text") from error
    if not text:
        raise UserError(f"{path}, line {line}: the header has no name")
    return Record(path, text.split()[0], text)


def _invalid(record: Record, part: bytes, line: int, length: int) -> str:
    """Message about the first byte of `part` that is not a nucleotide, after `length` bases of the record."""
    values = np.frombuffer(part, np.uint8)
    known = np.frombuffer(part.translate(TABLE), np.uint8) != INVALID
    line_end = (values == ord("\n")) | (values == ord("\r"))
    place = int(np.argmin(known | line_end))
    line += part.count(b"\n", 0, place)
    base = length + int(known[:place].sum()) + 1
    byte = part[place]
    kind = "; a protein?" if chr(byte).upper() in "EFILPQZX*" else "; RNA? Write T for U" if byte in b"Uu" else ""
    where = f"{record.file}, line {line}, record {record.name}, base {base:,}"
    return f"{where}: {_shown(byte)} is not a nucleotide (A C G T N or an IUPAC code){kind}"


def _shown(byte: int) -> str:
    return repr(chr(byte)) if 32 <= byte < 127 else f"the byte 0x{byte:02x}"


def _two_bit(path: Path) -> Iterator[tuple[Record, np.ndarray]]:
    """Records of a .2bit file."""
    for name, blocks in two_bit.read(path, BLOCK):
        record = Record(path, name, name)
        yield record, np.zeros(0, np.uint8)
        for letters in blocks:
            yield record, np.frombuffer(letters.translate(TABLE), np.uint8)
