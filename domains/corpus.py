"""Documents of text from files or the Hugging Face Hub, and their splits."""

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from ..core.checked_files import digest_of
from ..core.errors import MOST_FAULTS, UserError, several
from ..core.options import as_path
from ..core.progress import shown
from . import documents, wikitext
from .base import Domain
from .documents import CALLED, Document, Fields
from .hub import HubDataset
from .options import CorpusOptions, TextOptions


class Corpus(Domain):
    """Finds and reads documents of text, each with its split and cluster. Subclasses encode them.

    Args:
        options: fields of `declared`, in order.

    Raises:
        ValueError: see `declared`.
    """

    declared: type[CorpusOptions] = TextOptions
    held_out_files: int | None = None  # number of files for validation and test documents with "hash"; None: all

    def __init__(self, *options: Any, **named: Any):
        self.given = given = self.declared(*options, **named)
        self.path = as_path(given.path) if given.path else None
        self.fields = Fields(given.field, given.split_field, given.group_field)
        self.documents, self.split, self.source, self.hub = given.documents, given.split, None, None
        if isinstance(given, TextOptions):
            self.source, self.urls = given.source, list(given.urls)
            if self.source == "wikitext2":
                self.split, self.documents = "files", "article" if given.documents == "file" else given.documents
            if given.dataset is not None:
                place = given.dataset, given.dataset_config, given.dataset_revision
                self.hub, self.hub_split = HubDataset(*place, given.dataset_rows), given.dataset_split
        self.fractions = {"valid": float(given.valid_fraction), "test": float(given.test_fraction)}
        self._folder: Path | None = None  # of stores, once it is known
        self._hashed: tuple[list, str] | None = None

    @property
    def searched(self) -> Sequence[Path]:
        return () if self.path is None else (self.path,)

    def _source(self) -> Mapping[str, Any]:
        """Identification of the source for `options`: a hash of names and contents of the files in `path`."""
        if self.hub is not None:
            return {**self.hub.identity(), "split_read": self.hub_split if self.split == "hash" else None}
        if self.path is None:
            return {"files": wikitext.digest() if self.source == "wikitext2" else None}
        files = self._files()
        state = [(name, (stat := path.stat()).st_size, stat.st_mtime_ns) for name, path in files.items()]
        if self._hashed is None or self._hashed[0] != state:
            with ThreadPoolExecutor() as pool:
                digests = dict(zip(files, pool.map(digest_of, files.values()), strict=True))
            self._hashed = state, hashlib.sha256(json.dumps(digests).encode()).hexdigest()
        return {"files": self._hashed[1]}

    def _files(self) -> dict[str, Path]:
        """Files to read, in order, by the names used for documents."""
        if self.hub is not None:
            return {split: Path(split) for split in self.hub.wanted(self.hub_split if self.split == "hash" else None)}
        if self.path is not None:
            return documents.find(self.path)
        if self.source != "wikitext2":
            raise UserError(
                f"domain.path is not set: give a file or folder of {documents.ALLOWED}, domain.dataset=ORG/NAME for a "
                "data set on the Hugging Face Hub, or, for a first try, domain.source=wikitext2 (4 MB)"
            )
        if self._folder is None:
            raise UserError(f"WikiText-2 is missing, because the store is not prepared yet: {wikitext.HINT}")
        return wikitext.files(self._folder / "downloads" / "wikitext-2", self.urls)

    def _documents(self, title: str) -> Iterator[tuple[Document, str, str]]:
        """Yield every document with its split and its cluster, which is a hash of its text. Shows progress."""
        files, hub = self._files(), self.hub
        of_file = {name: _split_of(name, files[name]) for name in files} if self.split == "files" else {}
        held_out: set[str] = set()
        faults: list[str] = []
        sizes, done = {name: 0 if hub else path.stat().st_size for name, path in files.items()}, 0
        with shown(title, sum(sizes.values()) or None, in_bytes=True) as report:
            for number, (name, path) in enumerate(files.items()):
                later = self.held_out_files is not None and number >= self.held_out_files
                for document in self._sound_documents(name, path, faults):
                    report(done + document.read)
                    if faults:
                        continue
                    if self._one_document(files):
                        yield from self._blocks(document)
                        continue
                    # Documents of a group share a cluster and, unless a field names it, the split.
                    same = document.group.encode() or documents.compared(document, path, self.documents)
                    cluster, drawn = documents.drawn(same, **self.fractions)
                    split = document.split or of_file.get(name) or ("train" if later else drawn)
                    if later and not of_file and not document.split and cluster in held_out:
                        continue  # a copy of a held-out document
                    if not later and split != "train" and self.held_out_files is not None:
                        held_out.add(cluster)
                    yield document, split, cluster
                done += sizes[name]
                if len(faults) > MOST_FAULTS:
                    break
        if faults:
            raise UserError(several(faults))

    def _sound_documents(self, name: str, path: Path, faults: list[str]) -> Iterator[Document]:
        """Yield the documents of a file up to the first error, which is added to `faults`."""
        try:
            yield from self._read(name, path)
        except UserError as error:
            faults.append(str(error))

    def _read(self, name: str, path: Path) -> Iterator[Document]:
        """The documents of a file, or of a split of the data set on the Hub."""
        if self.hub is not None:
            return self.hub.read(name, self.fields)
        return documents.read(name, path, self.fields, self.documents)

    def _one_document(self, files: Mapping[str, Path]) -> bool:
        """Whether `files` contain only one document, which is then cut into blocks for the splits."""
        uncut = self.split == "hash" and self.documents == "file"
        return uncut and len(files) == 1 and all(map(documents.is_plain, files.values()))

    def _blocks(self, document: Document) -> Iterator[tuple[Document, str, str]]:
        """Blocks of the only document: train, then valid, then test. Copies of a block in another split are skipped."""
        cut, of = documents.blocks(document), {}
        valid, test = (max(1, round(self.fractions[split] * len(cut))) for split in ("valid", "test"))
        train = max(1, len(cut) - valid - test)
        valid = min(valid, len(cut) - train - 1)  # each split gets a block, also with large fractions
        splits = ["train"] * train + ["valid"] * valid + ["test"] * test
        for block, split in zip(cut, splits, strict=False):
            cluster = hashlib.blake2b(block.raw, digest_size=8).hexdigest()
            if of.setdefault(cluster, split) == split:
                yield block, split, cluster


def _split_of(name: str, path: Path) -> str:
    """The split named by a word in the name of a file or of its folders."""
    found = {CALLED[word] for word in re.findall(r"[a-z]+", name.lower()) if word in CALLED}
    if len(found) != 1:
        named = f"names {' and '.join(sorted(found))}" if found else "names no split"
        raise UserError(f"{path} {named}: for domain.split=files, its name needs exactly one of train, valid, test")
    return found.pop()
