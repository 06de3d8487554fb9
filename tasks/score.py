"""task=score run=DIRECTORY task.files=[FILE,...]: score files that no split of a run's data holds."""

import csv
import math
import os
from collections.abc import Sequence
from contextlib import suppress
from itertools import chain, islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from filelock import FileLock

from ..core.errors import UserError
from ..domains.base import Domain
from ..domains.records import Records
from ..domains.store import Store, StoreWriter
from ..domains.unit_labels import unit_label
from ..reporting.tables import Row, Table, write_csv
from ..session.run_directory import RunDirectory
from ..session.session import Session
from ..session.task import Task
from .evaluate import score
from .options import ScoreOptions

SPLIT = "files"


class Score(Task):
    """Score files with a run's best checkpoint, in windows of data.length, as a split is scored, and print the figures.

    A token that closes a document of the training data is no part of a file, and so not scored. Whether training has
    seen a file is not checked.

    Args:
        options: fields of `ScoreOptions`.
    """

    needs = "run"

    def __init__(self, **options: Any):
        given = ScoreOptions(**options)
        named = [given.files] if isinstance(given.files, str) else given.files
        if not named:
            raise ValueError("files=[]: name at least one, as in task.files=[a.mid,b.mid]")
        found: dict[str, str] = {}
        for file in named:
            there = os.path.expanduser(file)
            if not os.path.exists(there):
                raise ValueError(f"files={file}: there is no such file")
            found.setdefault(os.path.realpath(there), os.path.abspath(there))
        self.files = [*found.values()]
        self.out = Path(os.path.expanduser(given.out)) if given.out else None
        if self.out and self.out.is_dir():
            raise ValueError(f"out={given.out}: it is a folder: name a file in it, as {self.out / 'scores.csv'}")

    def __call__(self, session: Session) -> None:
        domain, run = session.domain, RunDirectory.open(session.config["run"]).trained()
        if domain.solved is not None:
            raise UserError(
                f"run={run.path}: {domain.name} scores answers, which a file does not mark: task=evaluate scores its "
                f"splits, {', '.join(domain.splits[1:])}"
            )
        columns = columns_of(domain.units)
        if self.out:
            read_scores(self.out, columns)
        _, transformer = session.trained(run)  # files are encoded as its store was
        with TemporaryDirectory() as folder:
            store = store_of(domain, self.files, Path(folder) / "store")
            if self.out:
                self.out.parent.mkdir(parents=True, exist_ok=True)
            records = score(session, transformer, store, SPLIT)
        rows = rows_of(records)
        session.console.print(table_of(records, rows, f"files scored by {run.path}", domain.name).on_console())
        if self.out:
            add_scores(self.out, [{"run": str(run.path.absolute()), **row} for row in rows], columns)
            session.console.print(f"wrote {self.out}", soft_wrap=True)


def columns_of(units: Sequence[str]) -> list[str]:
    """Names of the columns of the CSV, for a domain of these units."""
    return ["run", "file", "tokens", "nats", *units, "nats_per_token", *(f"bits_per_{unit}" for unit in units)]


def read_scores(file: Path, columns: Sequence[str]) -> list[Row]:
    """Rows that are in `file` by now. Raises UserError where it holds anything but scores in the same units."""
    if not file.exists():
        return []
    with open(file, newline="", encoding="utf-8", errors="replace") as there, suppress(csv.Error):
        reader = csv.DictReader(there)
        if list(reader.fieldnames or []) == list(columns):
            rows = list(reader)
            if not any(None in (*row, *row.values()) for row in rows):
                return rows
    raise UserError(f"task.out={file}: it is there and holds no scores in these units: name another file")


def add_scores(file: Path, scored: Sequence[Row], columns: Sequence[str]) -> None:
    """Add rows to those in `file`, in the place of the same runs' of the same files."""
    with FileLock(file.with_name(f".{file.name}.lock")):
        here = {(row["run"], row["file"]) for row in scored}
        others = [row for row in read_scores(file, columns) if (row["run"], row["file"]) not in here]
        write_csv(file, [*others, *scored])


def store_of(domain: Domain, files: Sequence[str], directory: Path) -> Store:
    """A store whose one split holds the documents of the files. Raises UserError for a file that cannot be read."""
    with StoreWriter(directory, domain.vocabulary, domain.units, splits=(SPLIT,)) as writer:
        for file in files:
            documents, counted = domain.encode_documents(Path(file)), 0.0
            several = [*islice(documents, 2)]
            for name, tokens in chain(several, documents):
                document = f"{file}:{name}" if len(several) > 1 else file
                if len(tokens) < 2:
                    raise UserError(f"{document} holds nothing that can be scored")
                units = {unit: float(weights.sum()) for unit, weights in domain.unit_weights(tokens).items()}
                counted += units[domain.units[0]] if domain.units else 1
                writer.add(document, SPLIT, file, tokens, units)
            if not counted:
                unit = domain.units[0]
                raise UserError(f"{file} holds no {unit} that counts, so that no bits of one can be told")
    return Store.open(directory)


def rows_of(records: Records) -> list[Row]:
    """The figures of each document; no bits of a unit that it has none of."""
    rows = []
    for name, nats, tokens, counts in zip(records.documents, records.nats, records.tokens, records.units, strict=True):
        units = dict(zip(records.unit_names, counts.tolist(), strict=True))
        bits = {f"bits_per_{unit}": nats / math.log(2) / count if count else None for unit, count in units.items()}
        rows.append({"file": name, "tokens": tokens, "nats": nats, **units, "nats_per_token": nats / tokens, **bits})
    return rows


def table_of(records: Records, rows: Sequence[Row], title: str, domain: str) -> Table:
    """One row per document and, if there are several, a row for all of them."""
    if len(rows) > 1:
        together = {f"bits_per_{unit}": bits for unit, bits in records.bits_per_unit.items()}
        figures = {"tokens": records.tokens.sum(), "nats_per_token": records.nats_per_token, **together}
        rows = [*rows, {"file": f"all {len(rows)}", **figures}]
    columns = {
        "file": ("file", lambda file: file.removeprefix(f"{Path.cwd()}/")),
        "tokens": ("tokens", "{:,}".format),
        "nats_per_token": ("nats/token", "{:.4f}".format),
        **{f"bits_per_{unit}": (f"bits/{unit_label(domain, unit)}", "{:.3f}".format) for unit in records.unit_names},
    }
    return Table("files", title, columns, rows, [])
