"""Reads nucleotide sequences from a column of a .csv, .tsv, .jsonl or .parquet file."""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ..core.errors import UserError
from . import documents, sequences
from .documents import Fields

SHARE = 0.05  # of the groups, or of the sequences, for valid and for test each


class Row(NamedTuple):
    """A sequence: its name, its codes as `sequences.read` gives them, its split, and its cluster."""

    name: str
    codes: np.ndarray
    split: str
    cluster: str


def read(path: Path, fields: Fields, tally: sequences.Tally, soft_mask: bool) -> Iterator[Row]:
    """Yield the rows of a table. Without a field for the split, a hash of the group or sequence determines it.

    Raises:
        UserError: the file is damaged, a field is missing, or a sequence is empty or contains other characters.
    """
    for document in documents.read(path.name, path, fields, "file"):
        place, raw = f"{path}, {document.name.rpartition(':')[2]}", document.raw.strip()
        codes = np.frombuffer(raw.translate(sequences.TABLE), np.uint8)
        if not len(codes) or codes.max() == sequences.INVALID:
            wrong = f"character {int(codes.argmax()) + 1:,} is not a nucleotide" if len(codes) else "it is empty"
            raise UserError(f"{place}: {fields.text!r}: {wrong}: give A C G T N or IUPAC codes")
        cluster, drawn = documents.drawn(document.group.encode() or raw.upper(), SHARE, SHARE)
        yield Row(document.name, tally.counted(codes, soft_mask), document.split or drawn, cluster)
