"""Reads a column of a .parquet file, checking page sizes before decompression."""

import mmap
from collections.abc import Iterable, Iterator
from pathlib import Path

from ..core.errors import UserError, one_line
from .unpacking import RATIO, SPARE, DamagedFileError

ROWS = 256  # maximum rows read at once
AT_ONCE = 1 << 27  # maximum bytes read at once; a value is at most as long as its page
PAGE = 1 << 29  # maximum bytes of a page, which is decompressed in memory
STRINGS = ("string", "large_string", "null")
INTEGERS = tuple(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64))


def values(path: Path, field: str, option: str = "domain.field") -> Iterator[tuple[int, object, int]]:
    """Number, value and position in the file of every row of the column `field`, which `option` names.

    Columns other than the text may also hold integers, such as numbers of groups.

    Raises:
        UserError: the column does not exist or contains something else.
        DamagedFileError: the file is invalid, or its rows do not match its footer. The message names the row.
    """
    import pyarrow.parquet

    row, total, size = 0, 0, path.stat().st_size
    try:
        with pyarrow.parquet.ParquetFile(path, page_checksum_verification=True) as file:
            if field not in (columns := file.schema_arrow.names):
                raise UserError(f"{path} has no column {field!r}: set {option} to one of {listed(columns)}")
            kind = file.schema_arrow.field(columns.index(field)).type
            allowed = STRINGS if option == "domain.field" else (*STRINGS, *INTEGERS)
            if str(getattr(kind, "value_type", kind)) not in allowed:
                raise UserError(f"{path}: {field!r} has type {str(kind)[:80]}, not string: set {option} to another")
            count = file.metadata.num_rows
            largest = max(_page_sizes(path, file.metadata, field), default=1)
            if largest > PAGE:
                raise ValueError(f"a page of {largest:,} bytes, more than {PAGE:,}")
            for batch in file.iter_batches(max(1, min(ROWS, AT_ONCE // max(largest, 1))), columns=[field]):
                for value in batch.column(0):
                    row += 1
                    found = value.as_py()
                    total += len(found) if isinstance(found, str) else 0
                    if total > SPARE + RATIO * size:
                        raise ValueError(f"it decompresses to more than {RATIO} times its size; real data do not")
                    yield row, found, size * row // max(count, row)
            if row != count:
                raise ValueError(f"it ends there, but its footer announces {count:,} rows")
    except UserError:
        raise
    except Exception as error:  # pyarrow raises its own and many built-in exceptions
        reason = one_line(error)
        place = f"{path} row {max(row, 1)}"
        raise DamagedFileError(f"{place} cannot be read as Parquet ({reason}): download the file again") from error


def listed(names: Iterable[str]) -> str:
    """The first names, for an error message."""
    names = list(names)
    return ", ".join(map(repr, names[:10])) + (", ..." if len(names) > 10 else "")


def _page_sizes(path: Path, metadata, field: str) -> Iterator[int]:
    """Decompressed size of each page of a column, from page headers (parquet.thrift of Apache Parquet)."""
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        for group in range(metadata.num_row_groups):
            for index in range(metadata.num_columns):
                column = metadata.row_group(group).column(index)
                if column.path_in_schema.partition(".")[0] != field:
                    continue
                offsets = column.data_page_offset, column.dictionary_page_offset
                at = min((offset for offset in offsets if offset), default=0)
                end = at + column.total_compressed_size
                if not 0 < at <= end <= len(data):
                    raise ValueError(f"a column at bytes {at:,} to {end:,} of {len(data):,}")
                while at < end:
                    sizes, at = _header(data, at)
                    if len(sizes) < 2 or sizes[0] < 0 or not 0 <= sizes[1] <= end - at:
                        raise ValueError(f"no page at byte {at:,}")
                    yield sizes[0]
                    at += sizes[1]


def _header(data: mmap.mmap, at: int) -> tuple[list[int], int]:
    """Decompressed and compressed size in the page header at `at`, and the position after the header."""
    sizes: list[int] = []

    def skip(at: int, kind: int, depth: int, in_list: bool = False) -> int:
        """The position after a value in Thrift's compact protocol."""
        if depth > 8:
            raise ValueError("a page header nested too deeply")
        if kind in (1, 2):  # a boolean, whose value is part of the field type
            return at + in_list
        if kind == 3:
            return at + 1
        if kind in (4, 5, 6):
            return _varint(data, at)[1]
        if kind == 7:
            return at + 8
        if kind == 8:
            length, at = _varint(data, at)
            return at + length
        if kind in (9, 10):
            count, inner, at = data[at] >> 4, data[at] & 15, at + 1
            if count == 15:
                count, at = _varint(data, at)
            for _ in range(count):
                at = skip(at, inner, depth + 1, True)
            return at
        if kind == 12:
            return struct(at, depth + 1)
        raise ValueError(f"an unknown type in a page header at byte {at:,}")

    def struct(at: int, depth: int) -> int:
        number = 0
        while head := data[at]:
            at += 1
            if head >> 4:
                number += head >> 4
            else:
                value, at = _varint(data, at)
                number = (value >> 1) ^ -(value & 1)
            if depth == 0 and number in (2, 3) and head & 15 == 5:
                value, at = _varint(data, at)
                sizes.append((value >> 1) ^ -(value & 1))
            else:
                at = skip(at, head & 15, depth)
        return at + 1

    return sizes, struct(at, 0)


def _varint(data: mmap.mmap, at: int) -> tuple[int, int]:
    value = 0
    for place in range(10):
        byte = data[at + place]
        value |= (byte & 127) << 7 * place
        if byte < 128:
            return value, at + place + 1
    raise ValueError(f"a number without end in a page header at byte {at:,}")
