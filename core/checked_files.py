"""Reads untrusted JSON, CSV, arrays and archives: sizes are checked before memory is allocated."""

import csv
import hashlib
import io
import json
import lzma
import math
import re
import stat
import sys
import warnings
import zipfile
import zlib
from collections.abc import Collection, Sequence
from itertools import islice
from pathlib import Path
from typing import IO, Any

import numpy as np

from .packed_paths import PackedPath

# Exceptions raised when reading or parsing a damaged file.
DAMAGE = (
    *(OSError, ValueError, TypeError, AttributeError, LookupError, ArithmeticError, EOFError, RuntimeError),
    *(SyntaxError, MemoryError, zlib.error, lzma.LZMAError, zipfile.BadZipFile, csv.Error),
)
MOST_TEXT = 64 << 20  # maximum size of a JSON or CSV file, in bytes
MOST_RECORDS = 512 << 20  # maximum size of all arrays of an .npz, in bytes: 1 MB can expand to 1 GB of zeros
MOST_ROWS = 500_000  # maximum number of rows of a CSV file
NAME = re.compile(r"\w[\w. +-]{0,79}")  # of a column, split or domain, which may become a title or part of a path
DIGITS = re.compile(r"[0-9]{1,15}")
SHA256 = re.compile("[0-9a-f]{64}")
KINDS = "biufU"  # numbers and text, not V, which nested arrays have; loading objects would run pickle


def why(error: BaseException) -> str:
    """The error in one line, such as `KeyError: 'units'`; for a ValueError only its message."""
    text = " ".join(str(error).split())[:300]
    return text if type(error) is ValueError and text else f"{type(error).__name__}: {text}"


def read_text(path: Path, limit: int = MOST_TEXT) -> str:
    """The text of a UTF-8 file. Raises ValueError if it is not UTF-8, not a regular file, or over the limit."""
    with _opened(path, limit) as file:
        raw = file.read()
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        raise ValueError(not_utf8(error)) from error


def not_utf8(error: UnicodeDecodeError, line: int = 1) -> str:
    """Where bytes that begin at `line` of a file are not UTF-8, and why."""
    raw = error.object
    place = line + raw.count(b"\n", 0, error.start)
    return f"line {place} is not UTF-8 text (byte 0x{raw[error.start]:02x}, {error.reason})"


def read_json(path: Path, limit: int = MOST_TEXT) -> Any:
    """The value in a JSON file. Raises ValueError for invalid JSON, NaN, infinity, and too deep nesting."""
    try:
        return json.loads(read_text(path, limit), parse_constant=_refuse_number, parse_float=figure)
    except RecursionError as error:
        raise ValueError("its values are nested too deeply") from error


def read_csv(path: Path, columns: Collection[str] = ()) -> list[dict[str, str]]:
    """The rows of a CSV file.

    Args:
        columns: names of required columns.

    Raises:
        ValueError: the file has more than MOST_ROWS rows or lacks one of `columns`, its header is not a list of
            distinct names, or a row has more or fewer cells than the header.
    """
    names, rows = read_cells(path, columns)
    return [dict(zip(names, row, strict=True)) for row in rows]


def read_columns(path: Path, columns: Collection[str] = ()) -> dict[str, Sequence[str]]:
    """The columns of a CSV file by name, which take a tenth of the time of its rows. See `read_csv`."""
    names, rows = read_cells(path, columns)
    return dict(zip(names, zip(*rows, strict=True) if rows else [()] * len(names), strict=True))


def read_cells(path: Path, columns: Collection[str], growing: bool = False) -> tuple[list[str], list[list[str]]]:
    """The names of the columns and the cells of each row of a CSV file. See `read_csv`.

    Args:
        growing: another process may be appending to the file, so ignore an incomplete last line.
    """
    text = read_text(path)
    if growing:
        text = text[: text.rfind("\n") + 1]
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    names = next(reader, [])
    if lacking := [name for name in columns if name not in names]:
        raise ValueError(f"the column {lacking[0]} is missing")
    if len({*names}) < len(names) or not all(map(NAME.fullmatch, names)):
        raise ValueError(f"its header {','.join(names)[:60]} is not a list of distinct names")
    rows = list(islice(filter(None, reader), MOST_ROWS + 1))  # without empty lines
    if len(rows) > MOST_ROWS:
        raise ValueError(f"it has more than {MOST_ROWS:,} rows")
    for row in rows:
        if len(row) != len(names):
            raise ValueError(f"the row {','.join(row)} is cut")
    return names, rows


def whole(text: str) -> int:
    """A count in a text file. Raises ValueError unless `text` is an integer from 0 to 2^48 - 1."""
    if not DIGITS.fullmatch(text) or (value := int(text)) >= 2**48:
        raise ValueError(f"{text[:40]} is not a count")
    return value


def figure(text: str) -> float:
    """A finite number in a text file. Raises ValueError otherwise."""
    if not math.isfinite(value := float(text)):
        raise ValueError(f"{text} is not finite")
    return value


def wholes(texts: Sequence[str]) -> np.ndarray:
    """`whole` of each of `texts`, few of which differ."""
    values = {text: whole(text) for text in dict.fromkeys(texts)}
    return np.array([values[text] for text in texts], np.int64)


def figures(texts: Sequence[str]) -> np.ndarray:
    """`figure` of each of `texts`."""
    return np.array([*map(figure, texts)])


def read_array(path: Path) -> np.ndarray:
    """The array in an .npy file. Raises ValueError if the file's size differs from the declared array."""
    size = path.stat().st_size
    with _opened(path, size) as file:
        return _array(file, size)


def read_arrays(path: Path) -> dict[str, np.ndarray]:
    """The arrays in an .npz file, read-only, by name. Those of a packed file are returned as they are in memory.

    Raises:
        ValueError, zipfile.BadZipFile: a member is not an array, has another size than it declares, does not match its
            checksum, or all arrays need more than MOST_RECORDS bytes.
    """
    if isinstance(path, PackedPath) and isinstance(path.content, dict):
        return path.content
    with _opened(path, MOST_RECORDS) as file, zipfile.ZipFile(file) as archive:
        members = archive.infolist()
        if (total := sum(member.file_size for member in members)) > MOST_RECORDS:
            raise ValueError(f"its arrays need {total:,} bytes; at most {MOST_RECORDS:,} are allowed")
        arrays = {}
        for member in members:
            with archive.open(member) as inside:
                arrays[member.filename.removesuffix(".npy")] = _array(inside, member.file_size)
        return arrays


def check_archive(path: Path) -> None:
    """Verify the checksum of every member of an uncompressed zip archive, the format of `torch.save`.

    Raises:
        ValueError, zipfile.BadZipFile: a member does not match or is compressed, or the members exceed the file.
    """
    size = path.stat().st_size
    with _opened(path, size) as file, zipfile.ZipFile(file) as archive:
        members = archive.infolist()
        if any(member.compress_type != zipfile.ZIP_STORED for member in members):
            raise ValueError("it contains compressed members")
        if sum(member.file_size for member in members) > size:
            raise ValueError("its members are longer than the file")
        for member in members:
            with archive.open(member) as inside:
                while inside.read(1 << 20):  # raises at the end if the checksum differs
                    pass


def digest_of(path: Path, kind: str = "sha256") -> str:
    """The digest of a file, sha256 by default. Raises ValueError if it is not a regular file."""
    with _opened(path, limit=path.stat().st_size) as file:
        return hashlib.file_digest(file, kind).hexdigest()


def is_count(value: Any) -> bool:
    """Whether a value from a file is a non-negative 64-bit integer."""
    return type(value) is int and 0 <= value < 2**63


def _opened(path: Path, limit: int) -> io.BufferedReader:
    state = path.stat()
    if not stat.S_ISREG(state.st_mode):
        raise ValueError("it is not a regular file")
    if state.st_size > limit:
        raise ValueError(f"it has {state.st_size:,} bytes; at most {limit:,} are allowed")
    return path.open("rb")


def _array(file: IO[bytes], size: int) -> np.ndarray:
    """The array in `file`, which has `size` bytes."""
    header = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # headers of older formats cause warnings
        magic = np.lib.format.read_magic(file)
        if magic not in header:
            raise ValueError(f"its .npy format {magic} is not 1.0 or 2.0")
        try:
            shape, by_columns, dtype = header[magic](file)
        except Exception as error:  # NumPy parses the header as Python
            raise ValueError("its .npy header cannot be read") from error
    if dtype.kind not in KINDS:
        raise ValueError(f"it contains an array of {dtype}, not of numbers or text")
    count, there = math.prod(shape), size - file.tell()
    if min(shape, default=1) < 0 or count * dtype.itemsize != there:
        raise ValueError(
            f"it declares an array of shape {shape} and dtype {dtype}, but contains {there:,} bytes of values"
        )
    data = file.read()
    if len(data) != there:
        raise ValueError(f"it contains {len(data):,} of {there:,} bytes of values")
    values = np.frombuffer(data, dtype, count) if data else np.empty(count, dtype)
    if dtype.kind == "U" and data and values.view(dtype.byteorder.replace("=", "") + "u4").max() > sys.maxunicode:
        raise ValueError("it contains invalid characters")
    return values.reshape(shape, order="F" if by_columns else "C")


def _refuse_number(name: str) -> None:
    raise ValueError(f"{name} is not a number in JSON")
