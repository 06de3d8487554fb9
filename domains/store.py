"""The token store: memory-mapped tokens, document offsets, marks, units and a manifest, in one directory."""

import hashlib
import json
import math
import os
import shutil
import uuid
from array import array
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from ..core.checked_files import DAMAGE, read_array, read_json, why
from ..core.errors import UserError
from ..core.words import plural
from .store_checks import (
    ARRAYS,
    FORMAT,
    UNSCORED,
    check_arrays,
    check_content,
    check_manifest,
    dtype_of,
    hash_files,
    remember,
)

SPLITS = ("train", "valid", "test")


@dataclass(frozen=True)
class Store:
    """Read-only view of a prepared domain.

    Document i is `tokens[offsets[i]:offsets[i + 1]]`. Its first token is a start token, which is context and never a
    target. A pickled store contains only its directory and is opened again, for example in a loader process.

    Attributes:
        directory: folder of the files.
        manifest: source, options, contents and hashes.
        tokens: `[N]` unsigned integers, memory-mapped.
        marks: index of each token into `groups`, or UNSCORED, `[N]` uint8, memory-mapped. None if the domain has no
            groups; then every token except the start tokens is a target.
        offsets: `[documents + 1]` int64.
        splits: index into `manifest["splits"]`, `[documents]`.
        scored: number of targets, `[documents]` int64.
        clusters: integer labels, `[documents]`; documents of a cluster are statistically dependent.
        units: natural units (notes, bases, bytes) per document, `[documents, len(manifest["units"])]` float64.
        names: names of the documents, loaded on first use.
    """

    directory: Path
    manifest: Mapping
    tokens: np.ndarray
    marks: np.ndarray | None
    offsets: np.ndarray
    splits: np.ndarray
    scored: np.ndarray
    clusters: np.ndarray
    units: np.ndarray

    @classmethod
    def open(cls, directory: Path, verify: bool = True) -> "Store":
        """Open a finished store.

        File contents are compared with the digest in the manifest once per machine, and again if a file has been
        modified. With `verify=False` this is left to `Store.verify`.

        Raises:
            UserError: a file is missing, damaged or modified.
        """
        try:
            manifest = read_json(directory / "manifest.json")
            check_manifest(manifest)
            for name, size in manifest["bytes"].items():
                if (found := (directory / name).stat().st_size) != size:
                    fault = f"{directory / name} has {found} bytes, not {size}"
                    raise UserError(f"{fault}: delete {directory} to rebuild it")
            arrays = {name: read_array(directory / f"{name}.npy") for name in ARRAYS}
            check_arrays(manifest, arrays)
            tokens = np.memmap(directory / "tokens.bin", dtype=manifest["dtype"], mode="r")
            marks = np.memmap(directory / "marks.bin", dtype=np.uint8, mode="r") if manifest["groups"] else None
        except DAMAGE as error:
            raise _unreadable(directory, error) from error
        store = cls(directory, manifest, tokens, marks, **arrays)
        if verify:
            store.verify()
        return store

    def verify(self) -> None:
        """Compare all bytes with the manifest unless done on this machine. Raises UserError if they differ."""
        try:
            check_content(self.directory, self.manifest, self.marks, {name: getattr(self, name) for name in ARRAYS})
        except DAMAGE as error:
            raise _unreadable(self.directory, error) from error

    def __reduce__(self):
        return Store.open, (self.directory, False)

    @cached_property
    def names(self) -> list[str]:
        try:
            names = read_json(self.directory / "names.json", limit=self.manifest["bytes"]["names.json"])
            right = isinstance(names, list) and all(isinstance(name, str) for name in names)
            if not right or len(names) != len(self.splits):
                raise ValueError("names.json does not have one name per document")
            return names
        except DAMAGE as error:
            raise _unreadable(self.directory, error) from error

    @property
    def groups(self) -> tuple[str, ...]:
        """Kinds of target that are also scored separately; none in most domains."""
        return tuple(self.manifest["groups"])

    def documents(self, split: str) -> np.ndarray:
        """Indices of the documents of `split`."""
        return np.flatnonzero(self.splits == self.manifest["splits"].index(split))

    def document(self, index: int) -> np.ndarray:
        """Tokens of one document, the start token first."""
        return self.tokens[self.offsets[index] : self.offsets[index + 1]]

    def marks_of(self, index: int) -> np.ndarray | None:
        """Marks of the tokens of one document, UNSCORED for the start token; None if there are no groups."""
        return None if self.marks is None else self.marks[self.offsets[index] : self.offsets[index + 1]]

    def targets(self, split: str) -> int:
        """Number of scored tokens of `split`."""
        return int(self.scored[self.documents(split)].sum())

    def unit_counts(self, split: str) -> dict[str, float]:
        """Natural units of `split`, by unit."""
        return dict(zip(self.manifest["units"], self.units[self.documents(split)].sum(0).tolist(), strict=True))


class StoreWriter:
    """Writes a store to a temporary folder and moves it to its final path, so an interrupted build leaves nothing.

    Use as a context manager. Documents are added one at a time; each takes only 25 bytes of memory plus 8 per unit.

    Args:
        directory: final path of the store. If it is a link, the store is written where it leads.
        vocabulary: number of token ids.
        units: names of the natural units.
        groups: kinds of target that are scored separately; if there are any, every document needs marks.
        splits: train, valid, test, and additional splits that are scored too.
    """

    def __init__(
        self,
        directory: Path,
        vocabulary: int,
        units: tuple[str, ...],
        groups: tuple[str, ...] = (),
        splits: tuple[str, ...] = SPLITS,
    ):
        if isinstance(units, str):
            raise ValueError(f"units={units!r}: it must be a tuple of names, such as ({units!r},)")
        self.directory, self.vocabulary, self.unit_names = directory, vocabulary, units
        self.groups, self.split_names = groups, splits
        self.dtype = dtype_of(vocabulary)
        self.facts: dict = {}
        self._offsets, self._splits, self._scored = array("q", [0]), array("B"), array("q")
        self._clusters, self._units = array("Q"), array("d")

    def __enter__(self) -> "StoreWriter":
        self._place = self.directory.resolve()
        self._place.parent.mkdir(parents=True, exist_ok=True)
        # Not tempfile.mkdtemp: the store would keep its mode 0700 and be unreadable for other users.
        self._temporary = self._place.parent / f".{self._place.name}.{uuid.uuid4().hex[:8]}"
        self._temporary.mkdir()
        with ExitStack() as folder:
            folder.callback(shutil.rmtree, self._temporary, ignore_errors=True)
            with ExitStack() as files:
                self._file = files.enter_context(open(self._temporary / "tokens.bin", "wb"))
                self._marks = files.enter_context(open(self._temporary / "marks.bin", "wb")) if self.groups else None
                self._names = files.enter_context(open(self._temporary / "names.json", "w", encoding="ascii"))
                self._files = files.pop_all()
            self._folder = folder.pop_all()
        return self

    def add(
        self,
        name: str,
        split: str,
        cluster: str,
        tokens: np.ndarray,
        units: Mapping[str, float],
        marks: np.ndarray | None = None,
    ) -> None:
        """Append one document.

        Args:
            name: name of the document.
            split: one of the splits.
            cluster: label shared by statistically dependent documents.
            tokens: a start token, then at least one target.
            units: number of natural units, by name: finite and at least 0.
            marks: required if there are groups: for each token an index into them, or UNSCORED. The mark of the start
                token is ignored.

        Raises:
            ValueError: an argument is out of range or inconsistent with the store.
        """
        if split not in self.split_names:
            raise ValueError(f"document {name}: split={split!r}: it must be one of {', '.join(self.split_names)}")
        if lacking := [unit for unit in self.unit_names if unit not in units]:
            raise ValueError(f"document {name}: units has no {', '.join(lacking)}: count every unit of the domain")
        counts = [units[unit] for unit in self.unit_names]
        if not all(math.isfinite(count) and count >= 0 for count in counts):
            raise ValueError(f"document {name}: units={dict(units)}: counts must be finite and at least 0")
        tokens = self._checked_tokens(name, tokens)
        scored = len(tokens) - 1
        if (marks is None) == bool(self.groups):
            raise ValueError(f"document {name}: marks must be given if and only if there are groups, not {self.groups}")
        if marks is not None and self._marks is not None:
            marks = self._checked_marks(name, marks, len(tokens))
            scored = int((marks != UNSCORED).sum())
            self._marks.write(marks.data)
        self._file.write(np.ascontiguousarray(tokens, self.dtype).data)
        self._offsets.append(self._offsets[-1] + len(tokens))
        self._splits.append(self.split_names.index(split))
        self._scored.append(scored)
        # Among ten million clusters, two have the same hash with a probability of 3 in a million; they would be merged.
        self._clusters.append(
            int.from_bytes(hashlib.blake2b(cluster.encode(errors="surrogatepass"), digest_size=8).digest())
        )
        self._units.extend(counts)
        self._names.write(("[" if len(self._splits) == 1 else ", ") + json.dumps(name))

    def _checked_tokens(self, name: str, tokens: np.ndarray) -> np.ndarray:
        tokens = np.asarray(tokens)
        if tokens.ndim != 1 or tokens.dtype.kind not in "iu":
            raise ValueError(
                f"document {name}: tokens must be one-dimensional integers, not {tokens.ndim} dimensions of "
                f"{tokens.dtype}"
            )
        if len(tokens) < 2 or tokens.min() < 0 or tokens.max() >= self.vocabulary:
            raise ValueError(
                f"document {name}: tokens must be a start token and at least one target, in [0, {self.vocabulary})"
            )
        return tokens

    def _checked_marks(self, name: str, marks: np.ndarray, count: int) -> np.ndarray:
        """`marks` of `count` tokens, as they are stored."""
        given = np.asarray(marks)
        marks = given.astype(np.uint8)  # a copy
        wrapped = (marks != given)[1:].any()  # such as 256, which became 0
        marks[:1] = UNSCORED
        targets = marks[marks != UNSCORED]
        if len(marks) != count or wrapped or not len(targets) or targets.max() >= len(self.groups):
            raise ValueError(
                f"document {name}: marks must be one per token, UNSCORED or below {len(self.groups)}, with at "
                "least one target"
            )
        return marks

    def __exit__(self, kind, value, traceback) -> None:
        with self._folder:
            with self._files:
                if kind is None:
                    self._names.write("]")
            if kind is None:
                self._finish()

    def _finish(self) -> None:
        empty = [split for code, split in enumerate(self.split_names) if code not in self._splits]
        if empty:
            raise UserError(
                f"of {plural(len(self._splits), 'document')}, none is in {', '.join(empty)}, but "
                f"{', '.join(self.split_names)} must each have some: give more data, or split it differently"
            )
        if self.unit_names:
            splits, counts = (np.frombuffer(each, kind) for each, kind in ((self._splits, "B"), (self._units, "d")))
            totals = np.bincount(splits, counts[:: len(self.unit_names)], len(self.split_names))
            if bare := [split for split, total in zip(self.split_names, totals, strict=True) if not total]:
                raise UserError(
                    f"the documents of {', '.join(bare)} contain no {self.unit_names[0]}, so bits per "
                    f"{self.unit_names[0]} are undefined: give other data, or split it differently"
                )
        folder = self._temporary
        np.save(folder / "offsets.npy", np.frombuffer(self._offsets, np.int64))
        np.save(folder / "splits.npy", np.frombuffer(self._splits, np.uint8))
        np.save(folder / "scored.npy", np.frombuffer(self._scored, np.int64))
        np.save(folder / "clusters.npy", _numbered(np.frombuffer(self._clusters, np.uint64)))
        np.save(folder / "units.npy", np.array(self._units).reshape(len(self._splits), len(self.unit_names)))
        files = sorted(path for path in folder.iterdir())
        manifest = {
            "format": FORMAT,
            "vocabulary": self.vocabulary,
            "dtype": self.dtype.name,
            "units": list(self.unit_names),
            "groups": list(self.groups),
            "splits": list(self.split_names),
            **self.facts,
            "documents": {split: self._splits.count(code) for code, split in enumerate(self.split_names)},
            "bytes": {path.name: path.stat().st_size for path in files},
            "sha256": hash_files(files),
        }
        (folder / "manifest.json").write_text(json.dumps(manifest, indent=2) + "\n")
        for path in folder.iterdir():
            with open(path, "rb") as file:
                os.fsync(file.fileno())
        if self._place.exists():
            shutil.rmtree(self._place)
        os.replace(folder, self._place)
        remember(self.directory, manifest)


def _unreadable(directory: Path, error: Exception) -> UserError:
    return UserError(f"the token store {directory} cannot be read ({why(error)}): delete it to rebuild it")


def _numbered(values: np.ndarray) -> np.ndarray:
    """`values` replaced by 0, 1, 2, ... in order of first occurrence."""
    _, first, place = np.unique(values, return_index=True, return_inverse=True)
    number = np.empty(len(first), np.int64)
    number[np.argsort(first)] = np.arange(len(first))
    return number[place]
