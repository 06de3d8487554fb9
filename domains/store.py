"""The token store: memory-mapped tokens, document offsets, units and a manifest, in one directory."""

import hashlib
import json
import os
import shutil
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bearings.errors import UserError

FORMAT = 1
SPLITS = ("train", "valid", "test")


@dataclass(frozen=True)
class Store:
    """Read-only view of a prepared domain.

    Document i holds `tokens[offsets[i]:offsets[i + 1]]`. Its first token is a start token: context, never a target.

    Attributes:
        directory: where the files lie.
        manifest: what was built, from what, with which options and hashes.
        tokens: `[N]` unsigned integers, memory-mapped.
        offsets: `[documents + 1]` int64.
        splits: `[documents]` index into SPLITS.
        clusters: `[documents]` integer label; documents of one cluster are statistically dependent.
        units: `[documents, len(manifest["units"])]` float64, natural units (notes, bases, bytes) in each document.
        names: a name for every document, for records and error messages.
    """

    directory: Path
    manifest: Mapping
    tokens: np.ndarray
    offsets: np.ndarray
    splits: np.ndarray
    clusters: np.ndarray
    units: np.ndarray
    names: list[str]

    @classmethod
    def open(cls, directory: Path) -> "Store":
        """Open a finished store. Raises UserError when a file is missing or has another size than when written."""
        try:
            manifest = json.loads((directory / "manifest.json").read_text())
            for name, size in manifest["bytes"].items():
                if (found := (directory / name).stat().st_size) != size:
                    fault = f"{directory / name} has {found} bytes, not {size}"
                    raise UserError(f"{fault}: delete {directory} to rebuild it")
            tokens = np.memmap(directory / "tokens.bin", dtype=manifest["dtype"], mode="r")
            arrays = {name: np.load(directory / f"{name}.npy") for name in ("offsets", "splits", "clusters", "units")}
            names = json.loads((directory / "names.json").read_text())
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise UserError(f"the token store {directory} cannot be read ({error}): delete it to rebuild it") from error
        return cls(directory, manifest, tokens, **arrays, names=names)

    def documents(self, split: str) -> np.ndarray:
        """Indices of the documents of `split`."""
        return np.flatnonzero(self.splits == SPLITS.index(split))

    def document(self, index: int) -> np.ndarray:
        """Tokens of one document, the start token first."""
        return self.tokens[self.offsets[index] : self.offsets[index + 1]]

    def targets(self, split: str) -> int:
        """Number of scored tokens of `split`: all but each document's start token."""
        chosen = self.documents(split)
        return int((self.offsets[chosen + 1] - self.offsets[chosen] - 1).sum())

    def unit_counts(self, split: str) -> dict[str, float]:
        """Natural units of `split`, by unit."""
        return dict(zip(self.manifest["units"], self.units[self.documents(split)].sum(0).tolist(), strict=True))


class StoreWriter:
    """Writes a store beside its final place and moves it there whole: an interrupted build leaves nothing.

    Use as a context manager; documents are added one at a time, so memory stays flat however large the domain.
    """

    def __init__(self, directory: Path, vocabulary: int, units: tuple[str, ...]):
        self.directory, self.vocabulary, self.unit_names = directory, vocabulary, units
        self.dtype = np.dtype(np.uint8 if vocabulary <= 2**8 else np.uint16 if vocabulary <= 2**16 else np.uint32)
        self.facts: dict = {}
        self._offsets, self._splits, self._clusters, self._units, self._names = [0], [], [], [], []
        self._cluster_ids: dict[str, int] = {}

    def __enter__(self) -> "StoreWriter":
        self.directory.parent.mkdir(parents=True, exist_ok=True)
        # Not tempfile.mkdtemp: its mode 0700 would stay with the finished store and shut out everybody else.
        self._temporary = self.directory.parent / f".{self.directory.name}.{uuid.uuid4().hex[:8]}"
        self._temporary.mkdir()
        self._file = open(self._temporary / "tokens.bin", "wb")
        return self

    def add(self, name: str, split: str, cluster: str, tokens: np.ndarray, units: Mapping[str, float]) -> None:
        """Append one document: a start token, then at least one target. `units` counts its natural units."""
        tokens = np.asarray(tokens)
        if tokens.ndim != 1 or tokens.dtype.kind not in "iu":
            raise ValueError(
                f"document {name}: one row of integers is needed, not {tokens.ndim} dimensions of {tokens.dtype}"
            )
        if len(tokens) < 2 or tokens.min() < 0 or tokens.max() >= self.vocabulary:
            raise ValueError(
                f"document {name}: a start token and one more at least are needed, in [0, {self.vocabulary})"
            )
        self._file.write(np.ascontiguousarray(tokens, self.dtype))
        self._offsets.append(self._offsets[-1] + len(tokens))
        self._splits.append(SPLITS.index(split))
        self._clusters.append(self._cluster_ids.setdefault(cluster, len(self._cluster_ids)))
        self._units.append([units[unit] for unit in self.unit_names])
        self._names.append(name)

    def __exit__(self, kind, value, traceback) -> None:
        try:
            self._file.close()
            if kind is None:
                self._finish()
        finally:
            shutil.rmtree(self._temporary, ignore_errors=True)

    def _finish(self) -> None:
        empty = [split for code, split in enumerate(SPLITS) if code not in self._splits]
        if empty:
            raise UserError(f"no document fell into {', '.join(empty)}: a store needs train, valid and test")
        folder = self._temporary
        np.save(folder / "offsets.npy", np.array(self._offsets, np.int64))
        np.save(folder / "splits.npy", np.array(self._splits, np.uint8))
        np.save(folder / "clusters.npy", np.array(self._clusters, np.int64))
        np.save(folder / "units.npy", np.array(self._units, np.float64))
        (folder / "names.json").write_text(json.dumps(self._names))
        files = sorted(path for path in folder.iterdir())
        manifest = {
            "format": FORMAT,
            "vocabulary": self.vocabulary,
            "dtype": self.dtype.name,
            "units": list(self.unit_names),
            **self.facts,
            "documents": {split: self._splits.count(code) for code, split in enumerate(SPLITS)},
            "bytes": {path.name: path.stat().st_size for path in files},
            "sha256": hash_files(files),
        }
        (folder / "manifest.json").write_text(json.dumps(manifest, indent=2) + "\n")
        for path in folder.iterdir():
            with open(path, "rb") as file:
                os.fsync(file.fileno())
        if self.directory.exists():
            shutil.rmtree(self.directory)
        os.replace(folder, self.directory)


def hash_files(paths: list[Path]) -> str:
    """sha256 over the names and contents of `paths`, in the order given."""
    digest = hashlib.sha256()
    for path in paths:
        digest.update(path.name.encode())
        with open(path, "rb") as file:
            while block := file.read(1 << 20):
                digest.update(block)
    return digest.hexdigest()
