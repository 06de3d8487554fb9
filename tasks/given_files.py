"""Files that a user gives to score: their paths, and a store of their documents."""

import os
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice
from pathlib import Path

import numpy as np

from ..core.errors import UserError
from ..domains.base import Domain
from ..domains.store import Store, StoreWriter

SPLIT = "files"  # of the store


def paths_of(given: str | Sequence[str], key: str = "files", folders: bool = False) -> list[Path]:
    """Absolute paths of the option `key`, each once.

    Raises:
        ValueError: one does not exist, or is a folder unless `folders` are allowed.
    """
    found: dict[str, Path] = {}
    for file in [given] if isinstance(given, str) else given:
        there = os.path.expanduser(file)
        if not os.path.exists(there):
            raise ValueError(f"{key}={file}: the file does not exist")
        if os.path.isdir(there) and not folders:
            raise ValueError(f"{key}={file}: it is a folder: name its files, in brackets if there are several")
        found.setdefault(os.path.realpath(there), Path(os.path.abspath(there)))
    return [*found.values()]


def refuse_questions(domain: Domain, place: str = "") -> None:
    """Raise UserError, with a message that begins with `place`, if only some targets of the domain are scored."""
    if domain.solved is not None:
        raise UserError(
            f"{place}domain {domain.name} scores answers, which files do not mark: use task=evaluate to score its "
            f"splits, {', '.join(domain.splits[1:])}"
        )


def store_of(domain: Domain, files: Iterable[tuple[str, Iterator[tuple[str, np.ndarray]]]], directory: Path) -> Store:
    """A store with one split that contains the documents of files, given by file as in `Domain.encode_documents`.

    Raises:
        UserError: a file is unreadable, or there is nothing to score in it.
    """
    with StoreWriter(directory, domain.vocabulary, domain.units, splits=(SPLIT,)) as writer:
        for file, documents in files:
            counted = 0.0
            several = [*islice(documents, 2)]
            for name, tokens in chain(several, documents):
                document = f"{file}:{name}" if len(several) > 1 else file
                if len(tokens) < 2:
                    raise UserError(f"{document} contains nothing that can be scored")
                units = {unit: float(weights.sum()) for unit, weights in domain.unit_weights(tokens).items()}
                counted += units[domain.units[0]]
                writer.add(document, SPLIT, file, tokens, units)
            if not counted:
                unit = domain.units[0]
                raise UserError(f"{file} contains no {unit}, so bits per {unit} are undefined: leave it out")
    return Store.open(directory)
