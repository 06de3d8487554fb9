"""What the tests of genomes share: sequences to draw, files of them, and what a store keeps of them."""

import os
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import strategies as st

from bearings.domains.base import Domain

REPOSITORY = Path(__file__).parents[2]
DATA = Path(os.environ.get("BEARINGS_DATA", REPOSITORY.parent / "shared" / "data")) / "human-genome"
CHR1, CHR2 = DATA / "hg38_chr1_1-1000000.fa.gz", DATA / "hg38_chr2_1-2333275.fa.gz"
WINDOWS = DATA / "hg38ml_windows_131072.fa.gz"
needs_data = pytest.mark.data(WINDOWS)
both = pytest.mark.parametrize("tokenizer", ["kmer6", "base"])
letters = st.text("ACGT", max_size=80)
with_n = st.lists(letters | st.text("N", max_size=9), max_size=6).map("".join)
SMALL = {"train": ["a"], "valid": ["b"], "test": ["c"]}


def draw(random: np.random.Generator, size: int, alphabet: str = "ACGT") -> str:
    return "".join(random.choice(list(alphabet), size))


def fasta(records: dict[str, str], width: int = 60, end: str = "\n") -> str:
    """FASTA of `records`, by header."""
    lines = []
    for header, sequence in records.items():
        lines += [f">{header}", *(sequence[at : at + width] for at in range(0, len(sequence), width))]
    return end.join(lines) + end


def two_bit(records: dict[str, str]) -> bytes:
    """A .2bit file as UCSC's format description has it; lower case is the mask."""

    def words(*values):
        return np.array(values, "<u4").tobytes()

    def runs(flags):
        places = [(m.start(), m.end() - m.start()) for m in re.finditer("1+", "".join("01"[bool(f)] for f in flags))]
        return words(len(places), *(begin for begin, _ in places), *(size for _, size in places))

    index, bodies = b"", b""
    at = 16 + sum(1 + len(name) + 4 for name in records)
    for name, sequence in records.items():
        body = words(len(sequence)) + runs([letter in "Nn" for letter in sequence])
        body += runs([letter.islower() for letter in sequence]) + words(0)
        codes = ["TCAG".find(letter) % 4 for letter in sequence.upper()] + [0] * (-len(sequence) % 4)
        body += bytes(64 * a + 16 * b + 4 * c + d for a, b, c, d in np.array(codes).reshape(-1, 4).tolist())
        index += bytes([len(name)]) + name.encode() + words(at + len(bodies))
        bodies += body
    return words(0x1A412743, 0, len(records), 0) + index + bodies


def plain(sequence: str) -> str:
    """What is left of case and ambiguity codes in a store."""
    return re.sub("[^ACGT]", "N", sequence.upper())


def cut(sequence: str, size: int, name: str) -> dict[str, str]:
    """Documents of `size` bases, by name."""
    pieces = {at: sequence[at : at + size] for at in range(0, len(sequence), size)}
    return {f"{name}:{at}-{at + len(piece)}": piece for at, piece in pieces.items()}


def documents(domain: Domain, folder: Path) -> dict[str, str]:
    """Letters of every document of `domain`'s store, by name."""
    store = domain.prepare(folder)
    return {name: domain.decode(store.document(i)) for i, name in enumerate(store.names)}


def writer(folder: Path) -> Callable[..., str]:
    """A function that writes three records, or others, as `name` in `folder`/source, and returns the path."""
    random = np.random.default_rng(0)
    three = {name: draw(random, 150) for name in "abc"}

    def write(records=three, name="genome.fa", **style) -> str:
        path = folder / "source" / name
        path.parent.mkdir(exist_ok=True)
        if isinstance(records, bytes):
            path.write_bytes(records)
        else:
            path.write_bytes(two_bit(records) if name.endswith(".2bit") else fasta(records, **style).encode())
        return str(path)

    write.three = three
    return write


BASES = {"a": "ACGT" * 30, "b": "ACGT", "c": "ACGT"}
