"""Reading JSON, CSV, arrays and archives that others may have written: sizes are checked before memory is taken."""

import csv
import hashlib
import io
import json
import math
import re
import stat
import sys
import warnings
import zipfile
import zlib
from collections.abc import Collection
from itertools import islice
from pathlib import Path
from typing import IO, Any

import numpy as np

# What reading or interpreting a damaged file raises.
DAMAGE = (
    *(OSError, ValueError, TypeError, AttributeError, LookupError, ArithmeticError, EOFError, RuntimeError),
    *(SyntaxError, MemoryError, zlib.error, zipfile.BadZipFile, csv.Error),
)
MOST_TEXT = 64 << 20  # bytes of a JSON or CSV file
MOST_RECORDS = 512 << 20  # bytes of all arrays of an .npz together: 1 MB of zeros may be declared as 1 GB
MOST_ROWS = 500_000  # of a CSV file
NAME = re.compile(r"\w[\w. +-]{0,79}")  # of a column, a split or a domain: it may become a title or part of a path
DIGITS = re.compile(r"[0-9]{1,15}")
KINDS = "biufU"  # numbers and texts; objects would be unpickled


def why(error: BaseException) -> str:
    """The error in one line, as `KeyError: 'units'`; a ValueError's text says it all."""
    text = " ".join(str(error).split())[:300]
    return text if type(error) is ValueError and text else f"{type(error).__name__}: {text}"


def read_text(path: Path, limit: int = MOST_TEXT) -> str:
    """The text of a UTF-8 file. Raises ValueError where it is longer than `limit` bytes, or not a regular file."""
    with _opened(path, limit) as file:
        return file.read().decode()


def read_json(path: Path, limit: int = MOST_TEXT) -> Any:
    """The value in a JSON file. Raises ValueError also for NaN, infinity and values nested too deeply."""
    try:
        return json.loads(read_text(path, limit), parse_constant=_refuse_number, parse_float=figure)
    except RecursionError as error:
        raise ValueError("its values are nested too deeply") from error


def read_csv(path: Path, columns: Collection[str] = (), growing: bool = False) -> list[dict[str, str]]:
    """Rows of a CSV file; of one that is `growing`, without a last line that is being written.

    Raises:
        ValueError: it has more than MOST_ROWS rows, lacks one of `columns`, its first line holds anything but different
            names, or a row has more or fewer cells than that.
    """
    text = read_text(path)
    if growing:
        text = text[: text.rfind("\n") + 1]
    reader = csv.DictReader(io.StringIO(text, newline=""), strict=True)
    names = list(reader.fieldnames or [])
    if lacking := [name for name in columns if name not in names]:
        raise ValueError(f"it lacks the column {lacking[0]}")
    if len({*names}) < len(names) or not all(map(NAME.fullmatch, names)):
        raise ValueError(f"its first line is {','.join(names)[:60]}, not different names")
    rows = list(islice(reader, MOST_ROWS + 1))
    if len(rows) > MOST_ROWS:
        raise ValueError(f"it has more than {MOST_ROWS:,} rows")
    for row in rows:
        if None in row or None in row.values():
            raise ValueError(f"the row {','.join(str(each) for each in row.values() if each is not None)} is cut")
    return rows


def whole(text: str) -> int:
    """A count in a text file. Raises ValueError for anything but digits of a number below 2^48."""
    if not DIGITS.fullmatch(text) or int(text) >= 2**48:
        raise ValueError(f"{text[:40]} is not a count")
    return int(text)


def figure(text: str) -> float:
    """A finite number in a text file. Raises ValueError for anything else."""
    if not math.isfinite(value := float(text)):
        raise ValueError(f"{text} is not finite")
    return value


def read_array(path: Path) -> np.ndarray:
    """The array in an .npy file. Raises ValueError where the file is not exactly as long as the array it declares."""
    size = path.stat().st_size
    with _opened(path, size) as file:
        return _array(file, size)


def read_arrays(path: Path) -> dict[str, np.ndarray]:
    """The arrays in an .npz file, read-only, by name.

    Raises:
        ValueError, zipfile.BadZipFile: a member is no array, is not as long as the array it declares or differs from
            its checksum, or all together take more than MOST_RECORDS bytes.
    """
    with _opened(path, MOST_RECORDS) as file, zipfile.ZipFile(file) as archive:
        members = archive.infolist()
        if (total := sum(member.file_size for member in members)) > MOST_RECORDS:
            raise ValueError(f"its arrays take {total:,} bytes; {MOST_RECORDS:,} are allowed")
        arrays = {}
        for member in members:
            with archive.open(member) as inside:
                arrays[member.filename.removesuffix(".npy")] = _array(inside, member.file_size)
        return arrays


def check_archive(path: Path) -> None:
    """Compare every member of an uncompressed zip archive, as `torch.save` writes, with its checksum.

    Raises:
        ValueError, zipfile.BadZipFile: a member differs, is compressed, or they declare more bytes than the file has.
    """
    size = path.stat().st_size
    with _opened(path, size) as file, zipfile.ZipFile(file) as archive:
        members = archive.infolist()
        if any(member.compress_type != zipfile.ZIP_STORED for member in members):
            raise ValueError("it holds compressed members")
        if sum(member.file_size for member in members) > size:
            raise ValueError("its members are declared longer than the file")
        for member in members:
            with archive.open(member) as inside:
                while inside.read(1 << 20):  # raises at the end where the checksum differs
                    pass


def digest_of(path: Path, kind: str = "sha256") -> str:
    """sha256 of a file, or its digest of another kind. Raises ValueError where it is not a regular file."""
    with _opened(path, limit=path.stat().st_size) as file:
        return hashlib.file_digest(file, kind).hexdigest()


def is_count(value: Any) -> bool:
    """Whether a value out of a file is an integer that fits 64 bits and is not negative."""
    return type(value) is int and 0 <= value < 2**63


def _opened(path: Path, limit: int) -> io.BufferedReader:
    state = path.stat()
    if not stat.S_ISREG(state.st_mode):
        raise ValueError("it is not a regular file")
    if state.st_size > limit:
        raise ValueError(f"it has {state.st_size:,} bytes; {limit:,} are allowed")
    return path.open("rb")


def _array(file: IO[bytes], size: int) -> np.ndarray:
    """The array that the `size` bytes of `file` hold."""
    header = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # of a header in an older version's form
        magic = np.lib.format.read_magic(file)
        if magic not in header:
            raise ValueError(f"its .npy format {magic} is not 1.0 or 2.0")
        try:
            shape, by_columns, dtype = header[magic](file)
        except Exception as error:  # NumPy parses it as Python
            raise ValueError("its .npy header cannot be read") from error
    if dtype.kind not in KINDS or dtype.shape:
        raise ValueError(f"it holds an array of {dtype}; numbers or texts are needed")
    count, there = math.prod(shape), size - file.tell()
    if min(shape, default=1) < 0 or count * dtype.itemsize != there:
        raise ValueError(
            f"it declares an array of shape {shape} and dtype {dtype}, and holds {there:,} bytes of values"
        )
    data = file.read()
    if len(data) != there:
        raise ValueError(f"it holds {len(data):,} of {there:,} bytes of values")
    values = np.frombuffer(data, dtype, count) if data else np.empty(count, dtype)
    if dtype.kind == "U" and data and values.view(dtype.byteorder.replace("=", "") + "u4").max() > sys.maxunicode:
        raise ValueError("it holds characters that do not exist")
    return values.reshape(shape, order="F" if by_columns else "C")


def _refuse_number(name: str) -> None:
    raise ValueError(f"{name} is not a number in JSON")
