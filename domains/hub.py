"""Streams a data set from the Hugging Face Hub, or from a local folder, with the package `datasets`."""

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from functools import cached_property
from importlib import import_module
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Any

from ..core.checked_files import digest_of
from ..core.errors import UserError, one_line
from ..core.hidden import files_below
from ..core.options import as_path
from .documents import CALLED, Document, Fields, document_of
from .parquet import listed
from .store import SPLITS

INSTALL = 'pip install -e ".[datasets]"'
COMMIT = re.compile(r"[0-9a-f]{40}")


class HubDataset:
    """Rows of a data set, in their order. No code of the data set is run: `datasets` 4 and later cannot do that.

    Args:
        name: `ORG/NAME` on the Hub, or a folder that begins with `/`, `.` or `~`.
        config: name of a configuration of the data set; None for its only or default one.
        revision: branch, tag or commit on the Hub; None for the newest commit.
        rows: number of rows to read of each split; None for all.
    """

    def __init__(self, name: str, config: str | None, revision: str | None, rows: int | None):
        self.name, self.config, self.revision, self.rows = name, config, revision, rows
        self.local = name.startswith(("/", ".", "~"))

    def identity(self) -> Mapping[str, Any]:
        """What determines the rows: name and commit on the Hub, or the contents of the files in a folder."""
        place = {"files": self._folder_digest} if self.local else {"name": self.name, "commit": self.commit}
        return {"dataset": place, "config": self.config, "rows": self.rows}

    def read_again(self) -> None:
        """Forget the contents of the folder, which may have changed."""
        vars(self).pop("_folder_digest", None)

    @cached_property
    def commit(self) -> str:
        """The commit of the revision. Raises UserError if the Hub does not answer."""
        if self.revision and COMMIT.fullmatch(self.revision):
            return self.revision
        self._refuse_absent_package()
        from huggingface_hub import HfApi

        try:
            found = HfApi().dataset_info(self.name, revision=self.revision, timeout=30).sha
        except Exception as error:  # of huggingface_hub, of its HTTP client, or of the network
            raise UserError(
                f"domain.dataset={self.name}: the Hugging Face Hub gives no commit for revision "
                f"{self.revision or 'main'} ({one_line(error)}): check name and network; offline, set "
                "domain.dataset_revision=COMMIT to use prepared data, or domain.path=FOLDER to read files"
            ) from error
        if found is None:
            raise UserError(f"domain.dataset={self.name}: the Hub names no commit: set domain.dataset_revision=COMMIT")
        return found

    @cached_property
    def splits(self) -> list[str]:
        """Names of the splits."""
        try:
            return self._datasets().get_dataset_split_names(*self._source(), **self._revision())
        except Exception as error:
            raise self._unreadable(error) from error

    def wanted(self, split: str | None) -> list[str]:
        """The names of the splits to read: `split`, or train, validation and test by the data set's own names.

        Raises:
            UserError: the data set lacks one.
        """
        found = [split] if split else [name for name in self.splits if name in CALLED]
        lacking = {split} - {*self.splits} if split else {*SPLITS} - {CALLED[name] for name in found}
        if lacking:
            raise UserError(
                f"domain.dataset={self.name} has no split {min(map(str, lacking))}, only {', '.join(self.splits)}: use "
                "domain.split=hash and domain.dataset_split, from which validation and test documents are drawn"
            )
        return found

    def read(self, split: str, fields: Fields) -> Iterator[Document]:
        """Yield the rows of a split as documents, named after the split and their number.

        Raises:
            UserError: a column is missing or contains no text, or the data cannot be read.
        """
        columns, size = list(fields.named), 0
        try:
            rows = self._datasets().load_dataset(*self._source(), split=split, streaming=True, **self._revision())
            if rows.column_names is not None:
                if missing := [name for name in columns if name not in rows.column_names]:
                    given = f"{self.name}: {split} has no column {missing[0]!r}"
                    raise UserError(f"{given}: set {fields.named[missing[0]]} to one of {listed(rows.column_names)}")
                rows = rows.select_columns(columns)
            for number, row in enumerate(islice(rows, self.rows), 1):
                document = document_of(f"{split}:{number}", row, f"{self.name}, {split}, row {number}", fields, size)
                size += len(document.raw)
                yield document
        except UserError:
            raise
        except Exception as error:  # of pyarrow, fsspec, the network and others
            raise self._unreadable(error) from error

    def _datasets(self) -> Any:
        self._refuse_absent_package()
        datasets: Any = import_module("datasets")
        datasets.disable_progress_bars()
        return datasets

    def _refuse_absent_package(self) -> None:
        if find_spec("datasets") is None:
            raise UserError(f"domain.dataset={self.name}: the package `datasets` is not installed: {INSTALL}")

    def _source(self) -> tuple[str, str | None]:
        return str(self._folder) if self.local else self.name, self.config

    def _revision(self) -> dict[str, str]:
        return {} if self.local else {"revision": self.commit}

    @property
    def _folder(self) -> Path:
        folder = as_path(self.name)
        if not folder.is_dir():
            raise UserError(f"domain.dataset={self.name} is not a folder: give a folder, or ORG/NAME on the Hub")
        return folder

    @cached_property
    def _folder_digest(self) -> str:
        folder = self._folder
        digests = {path.relative_to(folder).as_posix(): digest_of(path) for path in sorted(files_below(folder))}
        return hashlib.sha256(json.dumps(digests).encode()).hexdigest()

    def _unreadable(self, error: Exception) -> UserError:
        if isinstance(error, UserError):
            return error
        reason = f"{type(error).__name__}: {one_line(error)}"
        remedy = "check its name, domain.dataset_config and the network"
        return UserError(f"domain.dataset={self.name} cannot be read ({reason}): {remedy}")
