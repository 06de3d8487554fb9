"""A study's runs in two Parquet files: `runs.parquet` has a row per run, `records.parquet` a row per document."""

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ..core.checked_files import DAMAGE, MOST_RECORDS, read_arrays, why
from ..core.errors import UserError
from ..core.packed_paths import Content, PackedPath
from ..core.whole_files import written_whole
from ..domains.records import FIELDS

RUNS, RECORDS = "runs.parquet", "records.parquet"
MOST_CELLS = 1 << 26  # rows times columns per file
PART = r"(?![.])[\w. ,=+-]{1,100}"
RUN = re.compile(rf"{PART}/{PART}/{PART}")  # path below STUDY/runs
SCORED = re.compile(rf"nll/(?P<split>{PART})\.npz|baselines/(?P<of>{PART})/(?P<baseline>{PART})\.npz")
TEXTS = {"config": "config.yaml", "manifest": "manifest.json", "metrics": "metrics.csv"}  # file by column of RUNS
# Field of each document by column of RECORDS; columns "units.NAME", "nats.GROUP" and "tokens.GROUP" follow.
COLUMNS = {"document": "documents", "cluster": "clusters", "tokens": "tokens", "nats": "nats", "correct": "correct"}
NESTED = {
    "units": ("unit_names", "units"),
    "nats": ("group_names", "group_nats"),
    "tokens": ("group_names", "group_tokens"),
}
TEXT_COLUMNS = ("run", "split", "baseline", "store", "document")
TYPES = {"nats": np.float32, "units": np.float64}  # other numbers are int64
RUN_FILES = pa.schema(
    [
        ("run", pa.string()),
        *((column, pa.string()) for column in TEXTS),
        ("files", pa.map_(pa.string(), pa.binary())),  # samples and further measurements
        ("records", pa.map_(pa.string(), pa.string())),  # sha256 of the arrays in each .npz
    ]
)
WRITING = {
    **{"compression": "zstd", "compression_level": 12, "version": "2.6", "write_page_checksum": True},
    **{"store_schema": False, "write_statistics": False},  # nothing reads them
}

Tree = Mapping[str, Mapping[str, Content]]  # files by run and by path below the run's folder


def packed_names(study: Path) -> set[str]:
    """Names of the runs that are packed in the folder `study`, as DOMAIN/ENCODING/RUN.

    Raises:
        UserError: as in `read_packed`.
    """
    try:
        state = (study / RUNS).stat()
    except FileNotFoundError:
        return set()
    return {*_names(study / RUNS, state.st_ino, state.st_size, state.st_mtime_ns)}


@lru_cache(maxsize=64)
def _names(path: Path, *state: int) -> list[str]:
    """The names in a file with this state. Each run of a study asks for them."""
    return _read(path, ["run"])["run"].to_pylist()


def read_packed(study: Path) -> dict[str, PackedPath]:
    """Folders of the runs that are packed in the folder `study`, by name. Their paths are those in `study/runs`.

    Raises:
        UserError: one of the two files is damaged or missing.
    """
    if not (study / RUNS).exists():
        return {}
    table, records = _read(study / RUNS), _RecordTable(study / RECORDS)
    try:
        if table.schema.names != RUN_FILES.names:
            raise ValueError(f"its columns are {', '.join(table.schema.names)[:200]}, not {', '.join(RUN_FILES.names)}")
        found = {}
        for row in table.to_pylist():
            if not (name := row["run"]) or not RUN.fullmatch(name) or name in found:
                raise ValueError(f"it has an invalid or repeated run name {str(name)[:100]}")
            files = {file: row[column].encode() for column, file in TEXTS.items() if row[column] is not None}
            digests = dict(row["records"] or ())
            if foreign := [file for file in digests if not SCORED.fullmatch(file)]:
                raise ValueError(f"it has records with the invalid name {foreign[0][:100]}")
            found[name] = PackedPath(
                study / "runs" / name, _Files(name, files | dict(row["files"] or ()), digests, records)
            )
        return found
    except DAMAGE as error:
        raise _damaged(study / RUNS, error) from error


class _Files(Mapping[str, Content]):
    """Files of a run. Records are the arrays of their files, which are looked up when they are read."""

    def __init__(self, run: str, files: Mapping[str, bytes], digests: Mapping[str, str], records: "_RecordTable"):
        self._run, self._files, self._digests, self._records = run, files, digests, records

    def __getitem__(self, name: str) -> Content:
        if name not in self._digests:
            return self._files[name]
        arrays = self._records.arrays(self._run, name)
        if digest(arrays) != self._digests[name]:
            raise ValueError(f"its rows of {self._records.path} have changed since they were written")
        return arrays

    def __iter__(self) -> Iterator[str]:
        yield from self._files
        yield from self._digests

    def __contains__(self, name: object) -> bool:
        return name in self._files or name in self._digests

    def __len__(self) -> int:
        return len(self._files) + len(self._digests)


class _RecordTable:
    """Records of all packed runs."""

    def __init__(self, path: Path):
        self.path, self._table = path, _read(path, texts=TEXT_COLUMNS).unify_dictionaries().combine_chunks()
        self._texts: dict[str, np.ndarray] = {}  # different values of a text column, in the order of its dictionary
        try:
            self._rows = self._found()
        except DAMAGE as error:
            raise _damaged(path, error) from error

    def _found(self) -> dict[tuple[str, str], slice]:
        """The rows of each file of each run."""
        keys = self._table.select(["run", "split", "baseline"])
        codes = np.stack([each.combine_chunks().indices.fill_null(-1) for each in keys.columns])
        changes = np.flatnonzero((codes[:, 1:] != codes[:, :-1]).any(0)) + 1
        found = {}
        for begin, end in pairwise(sorted({0, *changes.tolist(), keys.num_rows})):
            run, split, baseline = (each[begin].as_py() for each in keys.columns)
            name = f"nll/{split}.npz" if baseline is None else f"baselines/{split}/{baseline}.npz"
            if (run, name) in found:
                raise ValueError(f"the rows of {run}, {name} are not contiguous")
            found[run, name] = slice(begin, end)
        return found

    def arrays(self, run: str, name: str) -> dict[str, np.ndarray]:
        """The arrays of the .npz file, read-only.

        Raises:
            ValueError: its rows are missing or damaged.
        """
        try:
            here = self._rows[run, name]
            rows = self._table.slice(here.start, here.stop - here.start)
            found = {field: self._values(rows, column) for column, field in COLUMNS.items()}
            found["store"] = np.array(rows["store"][0].as_py())
            for prefix, (names, field) in NESTED.items():
                columns = [
                    each for each in rows.column_names if each.startswith(f"{prefix}.") and rows[each][0].is_valid
                ]
                found[names] = np.array([each.removeprefix(f"{prefix}.") for each in columns], str)
                empty = np.zeros((rows.num_rows, 0), TYPES.get(prefix, np.int64))
                found[field] = np.stack([self._values(rows, each) for each in columns], 1) if columns else empty
            for array in found.values():
                array.setflags(write=False)
            return found
        except DAMAGE as error:
            raise ValueError(f"its rows of {self.path} cannot be read ({why(error)})") from error

    def _values(self, rows: pa.Table, column: str) -> np.ndarray:
        values = rows[column]
        if values.null_count:
            raise ValueError(f"{column} has missing values")
        if not pa.types.is_dictionary(values.type):
            return values.to_numpy()
        array = values.combine_chunks()
        if column not in self._texts:
            self._texts[column] = np.array(array.dictionary.to_pylist(), str)
        texts = self._texts[column]
        if texts.itemsize * len(array) > MOST_RECORDS:
            raise ValueError(f"the text of {column} takes more than {MOST_RECORDS:,} bytes")
        return texts[array.indices]


def write_packed(study: Path, tree: Tree) -> None:
    """Write both files of `study`. The same tree and version of pyarrow give the same bytes.

    Records are written first, because rows that no run refers to are harmless.

    Raises:
        ValueError: a file cannot be read.
    """
    tables, rows = [], []
    for run in sorted(tree):
        files, digests = tree[run], {}
        root = PackedPath(study, files)
        for name in sorted(filter(SCORED.fullmatch, files), key=_place_of):
            try:
                arrays = read_arrays(root / name)
                digests[name] = digest(arrays)
                tables.append(_table_of(run, name, arrays))
            except DAMAGE as error:
                raise ValueError(f"{run}/{name} cannot be read ({why(error)})") from error
        texts = {
            column: (root / file).read_text(encoding="utf-8") if file in files else None
            for column, file in TEXTS.items()
        }
        others = sorted((name, files[name]) for name in files.keys() - digests.keys() - {*TEXTS.values()})
        rows.append({"run": run, **texts, "files": others, "records": sorted(digests.items())})
    if not tables:  # all runs diverged
        tables = [pa.table({name: pa.array([], pa.string()) for name in TEXT_COLUMNS})]
    records = pa.concat_tables(tables, promote_options="default")
    texts: Any = [each.name for each in records.schema if pa.types.is_string(each.type)]
    encodings = {
        each.name: "BYTE_STREAM_SPLIT" if pa.types.is_floating(each.type) else "DELTA_BINARY_PACKED"
        for each in records.schema
        if each.name not in texts
    }
    with written_whole(study / RECORDS, binary=True) as file:
        pq.write_table(records, file, use_dictionary=texts, column_encoding=encodings, **WRITING)
    with written_whole(study / RUNS, binary=True) as file:
        pq.write_table(pa.Table.from_pylist(rows, RUN_FILES), file, use_dictionary=False, **WRITING)


def _place_of(name: str) -> tuple[str, str]:
    """Split and baseline, the sort key of a run's records: its own scores come before those of baselines."""
    found = SCORED.fullmatch(name)
    if found is None:
        raise ValueError(f"{name} is not a name of records")
    return found["split"] or found["of"], found["baseline"] or ""


def _table_of(run: str, name: str, arrays: Mapping[str, np.ndarray]) -> pa.Table:
    split, baseline = _place_of(name)
    count = len(arrays["documents"])
    columns = {
        "run": pa.array([run] * count),
        "split": pa.array([split] * count),
        "baseline": pa.array([baseline or None] * count, pa.string()),
        "store": pa.array([str(arrays["store"])] * count),
        **{column: _column(column, arrays[field]) for column, field in COLUMNS.items()},
    }
    for prefix, (names, field) in NESTED.items():
        for index, name in enumerate(arrays[names].tolist()):
            columns[f"{prefix}.{name}"] = _column(prefix, arrays[field][:, index])
    return pa.table(columns)


def _column(name: str, values: np.ndarray) -> pa.Array:
    """Values in the column's type, which is the same in all files."""
    return pa.array(values if values.dtype.kind == "U" else np.ascontiguousarray(values, TYPES.get(name, np.int64)))


def digest(arrays: Mapping[str, np.ndarray]) -> str:
    """sha256 of the names, types, shapes and values of the arrays in a file of records."""
    found = hashlib.sha256()
    for field in sorted(FIELDS):
        array = arrays[field]
        if array.dtype.kind == "U":
            found.update(_texts_as_json(field, array.tobytes(), array.dtype.str, array.shape))
        else:
            found.update(json.dumps([field, array.dtype.str, array.shape]).encode() + array.tobytes())
    return found.hexdigest()


@lru_cache(maxsize=32)
def _texts_as_json(field: str, data: bytes, dtype: str, shape: tuple[int, ...]) -> bytes:
    """An array of texts as JSON. Those of a study's runs are equal."""
    return json.dumps([field, np.frombuffer(data, dtype).reshape(shape).tolist()]).encode()


def _read(path: Path, columns: list[str] | None = None, texts: Sequence[str] = ()) -> pa.Table:
    """The table in a Parquet file; the columns `texts` are dictionary-encoded.

    Raises:
        UserError: it is damaged, or would need too much memory.
    """
    try:
        with pq.ParquetFile(path, page_checksum_verification=True, read_dictionary=list(texts)) as file:
            facts = file.metadata
            if (cells := facts.num_rows * facts.num_columns) > MOST_CELLS:
                raise ValueError(f"it declares {cells:,} values; at most {MOST_CELLS:,} are allowed")
            size = sum(facts.row_group(index).total_byte_size for index in range(facts.num_row_groups))
            if size > MOST_RECORDS:
                raise ValueError(f"it declares {size:,} bytes; at most {MOST_RECORDS:,} are allowed")
            return file.read(columns)
    except DAMAGE as error:
        raise _damaged(path, error) from error


def _damaged(path: Path, error: BaseException) -> UserError:
    if isinstance(error, FileNotFoundError):
        return UserError(f"{path} is missing: {RUNS} and {RECORDS} belong together, so copy or restore it")
    return UserError(f"{path} is damaged ({why(error)}): restore the file, for instance from git")
