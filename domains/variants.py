"""Reads tables of labelled single-base variants, and the sequence around each of them."""

import csv
import hashlib
import io
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np

from ..core.checked_files import DAMAGE
from ..core.errors import UserError, nearest, one_line
from . import sequences
from .nucleotides import reverse_complement
from .sequences import LETTERS
from .unpacking import contents

MOST_BYTES = 1 << 28  # of an unpacked table
MOST_VARIANTS = 1_000_000
BASES = LETTERS[:4]
POSITION = ("pos", "pos_grch38")  # columns that may hold the position
GROUP = ("group", "consequence")  # columns that may hold the group
OTHERS = ("cadd", "phylop")  # columns with scores of other methods
DAMAGING = "LOF"  # in the column `class`
ALL = "all variants"
PLACE = re.compile(r"(?P<record>[^:|\s]+):(?P<first>[0-9][0-9,]*)-(?P<last>[0-9][0-9,]*)")
# Gene regions of GRCh38 in Ensembl, whose headers name no positions: record, first and last base, strand.
REGIONS = {
    "BRCA1|GRCh38|chr17": ("chr17", 43_043_692, 43_171_245, -1),
    "BRCA2|GRCh38|chr13": ("chr13", 32_314_086, 32_400_868, 1),
    "PALB2|GRCh38|chr16": ("chr16", 23_602_560, 23_642_321, -1),
    "TP53|GRCh38|chr17": ("chr17", 7_661_179, 7_688_546, -1),
}


@dataclass(frozen=True)
class Variants:
    """Labelled single-base variants.

    Attributes:
        name: name of the table.
        records: name of each variant's chromosome, `[variants]`.
        positions: position from 0, `[variants]`.
        references, alternatives: letters of the two alleles, `[variants]`.
        labels: whether the variant is damaging, `[variants]` bool.
        groups: group of each variant, such as its consequence; ALL if the table has none, `[variants]`.
        others: scores of other methods by name, higher for damaging, `[variants]` each.
    """

    name: str
    records: np.ndarray
    positions: np.ndarray
    references: np.ndarray
    alternatives: np.ndarray
    labels: np.ndarray
    groups: np.ndarray
    others: Mapping[str, np.ndarray]

    @property
    def names(self) -> list[str]:
        """`chromosome:position:reference>alternative` of each variant, with positions from 1."""
        columns = (self.records, self.positions + 1, self.references, self.alternatives)
        return [f"{record}:{at}:{old}>{new}" for record, at, old, new in zip(*columns, strict=True)]

    @property
    def source(self) -> str:
        """sha256 of variants, labels and groups."""
        rows = zip(self.names, self.labels.tolist(), self.groups.tolist(), strict=True)
        return hashlib.sha256("\n".join(f"{name} {label} {group}" for name, label, group in rows).encode()).hexdigest()


def read_table(path: Path) -> Variants:
    """Read a .tsv or .tsv.gz table, with a header and a row for each variant.

    Columns: `chrom`; `pos` (or `pos_grch38`), from 1; `ref` and `alt`, one base each; `label`, 1 for damaging and 0 for
    others, or `class`, whose value LOF is damaging; optionally `group` or `consequence`. A table with `class` is one
    group. The columns `cadd` and `phylop` are scores of other methods.

    Raises:
        UserError: the file is missing, damaged, or another kind of table. The message names the row.
    """
    wanted = "give a table, separated by tabs, with the columns chrom, pos, ref, alt, and label or class"
    try:
        text = contents(path, MOST_BYTES).decode("utf-8-sig")
        rows = list(csv.DictReader(io.StringIO(text, newline=""), delimiter="\t", strict=True))
    except FileNotFoundError as error:
        raise UserError(f"{path} does not exist: {wanted}") from error
    except DAMAGE as error:
        raise UserError(f"{path} cannot be read ({one_line(error)}): {wanted}") from error
    if not rows:
        raise UserError(f"{path} contains no variants: {wanted}")
    if len(rows) > MOST_VARIANTS:
        raise UserError(f"{path} has {len(rows):,} variants, more than {MOST_VARIANTS:,}: split it")
    position = next((name for name in POSITION if name in rows[0]), POSITION[0])
    label = next((name for name in ("label", "class") if name in rows[0]), "label")
    group = None if label == "class" else next((name for name in GROUP if name in rows[0]), None)
    for name in ("chrom", position, "ref", "alt", label):
        if name not in rows[0]:
            raise UserError(f"{path} has no column {name}: {wanted}")
    names = ("records", "positions", "references", "alternatives", "labels")
    found: dict[str, list[Any]] = {name: [] for name in names}
    for number, row in enumerate(rows, 1):
        if None in row or None in row.values():
            raise UserError(f"{path}, row {number}: it has more or fewer cells than the header: {wanted}")
        values = _variant(row, position, label, f"{path}, row {number}")
        for column, value in zip(found.values(), values, strict=True):
            column.append(value)
    groups = [(row[group].strip(". ") or "none given") if group else ALL for row in rows]
    others = {name: values for name in OTHERS if name in rows[0] and (values := _numbers(rows, name)) is not None}
    name = path.name.partition(".")[0]
    columns = {column: np.array(values) for column, values in found.items()}
    variants = Variants(name, **columns, groups=np.array(groups), others=others)
    if repeated := [name for name, count in Counter(variants.names).items() if count > 1]:
        raise UserError(f"{path} contains {repeated[0]} twice: remove one of the rows")
    return variants


def _variant(row: Mapping[str, str], position: str, label: str, place: str) -> tuple[str, int, str, str, bool]:
    """Record, position from 0, alleles and label of a row. Raises UserError, beginning with `place`, if it is invalid.

    Args:
        position, label: names of these columns.
    """
    alleles = row["ref"].upper(), row["alt"].upper()
    if not row["chrom"] or not re.fullmatch("[0-9]{1,10}", row[position]) or int(row[position]) < 1:
        raise UserError(f"{place}: {row['chrom'][:40]}:{row[position][:40]} is not a position")
    if alleles[0] == alleles[1] or any(len(each) != 1 or each not in BASES for each in alleles):
        raise UserError(f"{place}: {row['ref'][:20]}>{row['alt'][:20]} is not a change of one base: remove the row")
    if label == "label" and row[label] not in ("0", "1"):
        raise UserError(f"{place}: label {row[label][:40]!r} is not 0 or 1")
    return row["chrom"], int(row[position]) - 1, *alleles, row[label] == (DAMAGING if label == "class" else "1")


def _numbers(rows: Sequence[Mapping[str, str]], name: str) -> np.ndarray | None:
    """A column of numbers; None if a value is not a finite number, because methods are compared on all variants."""
    try:
        values = np.array([float(row[name]) for row in rows])
    except ValueError:
        return None
    return values if np.isfinite(values).all() else None


class Reference:
    """The parts of a reference genome around variants, in memory.

    Args:
        paths: FASTA or .2bit files with whole chromosomes, or with regions named `chr17:43043692-43171245` (from 1, as
            by samtools) or in REGIONS.
        variants: the variants of all tables.
        reach: number of bases needed on each side of a variant.

    Raises:
        UserError: a file is unreadable, a variant is in none of them, or its reference allele differs.
    """

    def __init__(self, paths: Sequence[Path], variants: Sequence[Variants], reach: int):
        spans: dict[str, tuple[int, int]] = {}
        for each in variants:
            for record in set(each.records.tolist()):
                here = each.positions[each.records == record]
                low, high = spans.get(record, (int(here.min()), int(here.max())))
                spans[record] = min(low, int(here.min())), max(high, int(here.max()))
        wanted = {record: (max(0, low - reach), high + reach + 1) for record, (low, high) in spans.items()}
        self._parts: list[tuple[str, int, np.ndarray]] = []
        files = [file for path in paths for file in sequences.files(path)]
        for path in files:
            self._read(path, wanted)
        for each in variants:
            self._check(each, files)

    def _read(self, path: Path, wanted: Mapping[str, tuple[int, int]]) -> None:
        for record, blocks in groupby(sequences.read([path], sequences.Tally()), itemgetter(0)):
            name, first, strand = _place(record.name)
            low, high = wanted.get(name, (0, 0))
            at, kept, begin = first, [], max(low, first)
            for _, codes in blocks:  # read to the end even if not wanted, because blocks are consecutive
                if name in wanted and (strand < 0 or (at < high and at + len(codes) > low)):
                    kept.append(codes if strand < 0 else codes[max(0, low - at) : max(0, high - at)])
                at += len(codes)
            if sum(map(len, kept)):
                codes = np.concatenate(kept)
                self._parts.append((name, first, reverse_complement(codes)) if strand < 0 else (name, begin, codes))

    def _check(self, variants: Variants, files: Sequence[Path]) -> None:
        where = f"{', '.join(map(str, files[:3]))}{', ...' * (len(files) > 3)}"
        columns = variants.records.tolist(), variants.positions.tolist(), variants.references.tolist(), variants.names
        for record, at, expected, name in zip(*columns, strict=True):
            part = self._part(record, at)
            if part is None:
                there = {name for name, _, _ in self._parts}
                near = "" if record in there else nearest(record, there)
                raise UserError(f"{where}: {name} is in none of its sequences: {near}give its chromosome")
            if (letter := LETTERS[part[1][at - part[0]]]) != expected:
                raise UserError(
                    f"{where}: the base at {record}:{at + 1} is {letter}, but {variants.name} has {name}: give the "
                    "assembly of the table"
                )

    def _part(self, record: str, at: int) -> tuple[int, np.ndarray] | None:
        found = ((begin, codes) for name, begin, codes in self._parts if name == record)
        return next(((begin, codes) for begin, codes in found if begin <= at < begin + len(codes)), None)

    def window(self, record: str, at: int, size: int) -> tuple[np.ndarray, int]:
        """Codes of the `size` bases around a position, fewer at the end of a sequence, and its place among them."""
        part = self._part(record, at)
        if part is None:
            raise ValueError(f"{record}:{at + 1} is not in the reference")
        begin, codes = part
        first = max(0, at - begin - size // 2)
        return codes[first : at - begin - size // 2 + size], at - begin - first


def _place(name: str) -> tuple[str, int, int]:
    """Chromosome, position of the first base (from 0) and strand of a record."""
    if name in REGIONS:
        record, first, _, strand = REGIONS[name]
        return record, first - 1, strand
    if found := PLACE.fullmatch(name):
        return found["record"], max(0, int(found["first"].replace(",", "")) - 1), 1
    return name, 0, 1
