"""task=score run=DIRECTORY task.files=[FILE,...]: score files that are not part of a run's data."""

import csv
import math
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory, TemporaryFile
from typing import Any

from filelock import FileLock

from ..core.errors import UserError
from ..core.options import as_path
from ..domains.records import Records
from ..domains.unit_labels import unit_label
from ..reporting.tables import Row, Table, write_csv
from ..session.run_directory import RunDirectory
from ..session.session import Session
from ..session.task import Task
from .evaluate import score
from .given_files import SPLIT, paths_of, refuse_questions, store_of
from .options import ScoreOptions


class Score(Task):
    """Score files with a run's best checkpoint, in windows of data.length, in the same way as a split.

    The end-of-document token of training data is not part of a file and is not scored. The task does not check whether
    a file was part of the training data.

    Args:
        options: fields of `ScoreOptions`.
    """

    needs = "run"

    def __init__(self, **options: Any):
        given = ScoreOptions(**options)
        self.files = [*map(str, paths_of(given.files))]
        if not self.files:
            raise ValueError("files=[]: give at least one file, such as task.files=[a.mid,b.mid]")
        self.out = as_path(given.out) if given.out else None
        if self.out and self.out.is_dir():
            raise ValueError(f"out={given.out} is a folder: give a file, such as {self.out / 'scores.csv'}")
        if self.out and self.out.exists() and not self.out.is_file():  # reading it may never end
            raise ValueError(f"out={given.out} is a device or a pipe: give a regular file, such as scores.csv")

    def __call__(self, session: Session) -> None:
        domain, run = session.domain, RunDirectory.open(session.config["run"]).trained()
        refuse_questions(domain, f"run={run.path}: ")
        columns = columns_of(domain.units)
        if self.out:
            read_scores(self.out, columns)
        _, transformer = session.trained(run)  # files are encoded in the same way as the store
        with TemporaryDirectory() as folder:
            named = [(file, domain.encode_documents(Path(file))) for file in self.files]
            store = store_of(domain, named, Path(folder) / "store")
            if self.out:
                make_folder(self.out)
            records = score(session, transformer, store, SPLIT)
        rows = rows_of(records)
        session.console.print(table_of(records, rows, f"files scored by {run.path}", domain.name).on_console())
        if self.out:
            add_scores(self.out, [{"run": str(run.path.absolute()), **row} for row in rows], columns)
            session.console.print(f"wrote {self.out}")


def make_folder(file: Path) -> None:
    """Create the folder of `file`. Raises UserError if it takes no files: a lock there would wait forever."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        TemporaryFile(dir=file.parent).close()
    except OSError as error:
        raise UserError(
            f"task.out={file}: no file can be created in {file.parent} ({error.strerror}): choose another folder"
        ) from error


def columns_of(units: Sequence[str]) -> list[str]:
    """The columns of the CSV file, for a domain with these units."""
    return ["run", "file", "tokens", "nats", *units, "nats_per_token", *(f"bits_per_{unit}" for unit in units)]


def read_scores(file: Path, columns: Sequence[str]) -> list[Row]:
    """The rows of `file`. Raises UserError if it contains anything but scores in the same units."""
    if not file.exists():
        return []
    with open(file, newline="", encoding="utf-8", errors="replace") as there, suppress(csv.Error):
        reader = csv.DictReader(there)
        if list(reader.fieldnames or []) == list(columns):
            rows = list(reader)
            if not any(None in (*row, *row.values()) for row in rows):
                return rows
    raise UserError(f"task.out={file} exists and contains no scores in these units: give another file")


def add_scores(file: Path, scored: Sequence[Row], columns: Sequence[str]) -> None:
    """Add rows to `file`, replacing rows of the same runs and files."""
    with FileLock(file.with_name(f".{file.name}.lock")):
        here = {(row["run"], row["file"]) for row in scored}
        others = [row for row in read_scores(file, columns) if (row["run"], row["file"]) not in here]
        write_csv(file, [*others, *scored])


def rows_of(records: Records) -> list[Row]:
    """The scores of each document; bits per unit are None if it contains no such unit."""
    rows = []
    for name, nats, tokens, counts in zip(records.documents, records.nats, records.tokens, records.units, strict=True):
        units = dict(zip(records.unit_names, counts.tolist(), strict=True))
        bits = {f"bits_per_{unit}": nats / math.log(2) / count if count else None for unit, count in units.items()}
        rows.append({"file": name, "tokens": tokens, "nats": nats, **units, "nats_per_token": nats / tokens, **bits})
    return rows


def table_of(records: Records, rows: Sequence[Row], title: str, domain: str) -> Table:
    """One row per document and, if there are several, a row for all of them."""
    if len(rows) > 1:
        known = {unit: bits for unit, bits in records.bits_per_unit.items() if not math.isnan(bits)}
        together = {f"bits_per_{unit}": bits for unit, bits in known.items()}
        figures = {"tokens": records.tokens.sum(), "nats_per_token": records.nats_per_token, **together}
        rows = [*rows, {"file": f"all {len(rows)}", **figures}]
    columns = {
        "file": ("file", lambda file: file.removeprefix(f"{Path.cwd()}/")),
        "tokens": ("tokens", "{:,}".format),
        "nats_per_token": ("nats/token", "{:.4f}".format),
        **{f"bits_per_{unit}": (f"bits/{unit_label(domain, unit)}", "{:.3f}".format) for unit in records.unit_names},
    }
    return Table("files", title, columns, rows, [])
