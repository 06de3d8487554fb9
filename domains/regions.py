"""Assigns bases of records to splits: by names of records, a BED file, or FASTA headers."""

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ..core.errors import UserError, nearest, suggestions
from .documents import CALLED
from .sequences import Record
from .store import SPLITS

# Without named splits: about WINDOWS windows, of which one in PATTERN is for valid and one for test.
WINDOWS, PATTERN = 400, 20
# For chr21: bases per block; one in EVERY blocks is for valid and one for test, with GAP unused bases on each side.
# Tandem copies and the composition of the sequence are similar over tens of thousands of bases.
BLOCK, EVERY, GAP = 250_000, 10, 50_000
PLACE, LONGEST_LINE = re.compile("[0-9]{1,15}"), 1 << 16  # of a BED file


class Region(NamedTuple):
    """Bases `begin` to `end` - 1 of a record belong to `split`, according to `line` of the BED file."""

    begin: int
    end: float
    split: str
    line: int = 0


def in_windows(lengths: Mapping[str, int], multiple: int) -> tuple[dict[str, list[Region]], int]:
    """Cut records into about 400 windows. Of every 20, the 10th is for valid, the 20th for test, others for train.

    Args:
        lengths: bases of each record.
        multiple: window lengths are multiples of this, if records are long enough for 20 such windows.

    Returns:
        Regions of each record, with neighbours of the same split joined, and the number of bases per window.
    """
    total = sum(lengths.values())
    size = max(1, min(-(-total // (WINDOWS * multiple)) * multiple, total // PATTERN))
    found: dict[str, list[Region]] = {}
    number = 0
    for name, length in lengths.items():
        regions = found[name] = []
        for begin in range(0, length, size):
            place, end = number % PATTERN, min(begin + size, length)
            split = {PATTERN // 2 - 1: "valid", PATTERN - 1: "test"}.get(place, "train")
            if regions and regions[-1].split == split:
                regions[-1] = regions[-1]._replace(end=end)
            else:
                regions.append(Region(begin, end, split))
            number += 1
    return found, size


def in_blocks(
    known: Mapping[str, np.ndarray], lengths: Mapping[str, int], size: int, gap: int
) -> dict[str, list[Region]]:
    """Cut records into blocks. Of every EVERY, one in the middle is for valid, the last for test, others for train.

    Args:
        known: number of bases other than N in each block of each record. Blocks without any are in no split.
        lengths: bases of each record.
        size: bases per block.
        gap: bases between train and the blocks for valid and test that are in no split.

    Returns:
        Regions of each record, with neighbouring blocks for train joined.
    """
    found: dict[str, list[Region]] = {}
    number = 0
    for name, counts in known.items():
        splits: list[str | None] = []
        for count in counts:
            splits.append({EVERY // 2 - 1: "valid", EVERY - 1: "test"}.get(number % EVERY, "train") if count else None)
            number += bool(count)
        regions = found[name] = []
        for place, split in enumerate(splits):
            begin, end = place * size, min((place + 1) * size, lengths[name])
            if split == "train":
                begin += gap * (place > 0 and splits[place - 1] in ("valid", "test"))
                end -= gap * (place + 1 < len(splits) and splits[place + 1] in ("valid", "test"))
            if regions and regions[-1].split == split == "train" and regions[-1].end == begin:
                regions[-1] = regions[-1]._replace(end=end)
            elif split is not None and begin < end:
                regions.append(Region(begin, end, split))
    return found


class Assignment:
    """Assigns regions of records to splits, and tracks which records were assigned.

    Args:
        split: "chromosome" (by `named`), "bed" (by the file `bed`) or "header" (by `split=train` etc. in headers).
        named: names of the records of each split; None for all that are in no other split.
        bed: for "bed", a BED file whose 4th column names the split.
        windows: for "chromosome", regions of every record to use instead of `named`.

    Attributes:
        used: names of the assigned records so far, by split.
        left_out: names of records in no split.

    Raises:
        UserError: the BED file cannot be read or has an invalid line. The message names the line.
    """

    def __init__(
        self,
        split: str,
        named: Mapping[str, Sequence[str] | None],
        bed: Path | None,
        windows: Mapping[str, list[Region]] | None = None,
    ):
        self.split, self.named, self.bed, self.windows = split, named, bed, windows
        self.used: dict[str, list[str]] = {split: [] for split in SPLITS}
        self.left_out: list[str] = []
        self._listed = {} if bed is None else _read_bed(bed)

    def regions(self, record: Record) -> list[Region]:
        """The regions of `record` in any split, in order and without overlap.

        Raises:
            UserError: the header names no split or an unknown one.
        """
        found = self._regions(record)
        if not found:
            self.left_out.append(record.name)
        for split in {region.split for region in found}:
            self.used[split].append(record.name)
        return found

    def _regions(self, record: Record) -> list[Region]:
        if self.windows is not None:
            return self.windows[record.name]
        if self.split == "bed":
            return self._listed.get(record.name, [])
        if self.split == "header":
            said = re.search(r"(?:^|\s)split=(\S+)", record.header)
            if not said:
                raise UserError(f"{record.file}: the header of {record.name} has no split=, which split=header needs")
            return [Region(0, np.inf, _split(said[1], f"{record.file}, header of {record.name}"))]
        splits = [split for split, names in self.named.items() if names is not None and record.name in names]
        if not splits and self.named["train"] is None:
            splits = ["train"]
        return [Region(0, np.inf, split) for split in splits]

    def refuse_absent(self, files: Sequence[Path]) -> None:
        """Check, after all records of `files`, that every named record was found and that no split is empty.

        Raises:
            UserError: a record is missing or a split is empty. The message names it.
        """
        present = dict.fromkeys([*(name for names in self.used.values() for name in names), *self.left_out])
        source = str(files[0]) if len(files) == 1 else f"{files[0].parent} ({len(files)} files)"
        holds = f"{source} has {_first(list(present), 5)}"
        for name, regions in self._listed.items():
            if name not in present:
                raise UserError(
                    f"{self.bed}, line {regions[0].line}: {name} is absent; {nearest(name, present)}{holds}"
                )
        if self.split == "chromosome" and self.windows is None:
            absent = {split: [n for n in names or () if n not in present] for split, names in self.named.items()}
            if given := [f"{_first(names, 3)} (domain.{split})" for split, names in absent.items() if names]:
                rest = ", or domain.train=null for all other records" if absent["train"] else ""
                raise UserError(f"missing records: {', '.join(given)}; {holds}: name existing records{rest}")
        for split, names in self.used.items():
            if not names:
                raise UserError(f"split={self.split} assigns no record to {split}: {holds}: change the assignment")


def _first(names: Sequence[str], most: int) -> str:
    return ", ".join(names[:most]) + (" ..." if len(names) > most else "")


def _read_bed(path: Path) -> dict[str, list[Region]]:
    """Regions of each record, in order."""
    found: dict[str, list[Region]] = {}
    for number, text in _lines(path):
        place, fields = f"{path}, line {number}", text.split()
        if not fields or text.startswith("#") or fields[0] in ("track", "browser"):
            continue
        if len(fields) < 4 or not (PLACE.fullmatch(fields[1]) and PLACE.fullmatch(fields[2])):
            raise UserError(f"{place}: {text.strip()[:80]!r} is not a BED line with record, start, end and split")
        if not (begin := int(fields[1])) < (end := int(fields[2])):
            raise UserError(f"{place}: start {begin} is not below end {end}: correct the line")
        found.setdefault(fields[0], []).append(Region(begin, end, _split(fields[3], place), number))
    for name, regions in found.items():
        regions.sort()
        for one, other in pairwise(regions):
            if other.begin < one.end:
                raise UserError(f"{path}: lines {one.line} and {other.line} overlap on {name}")
    return found


def _split(word: str, place: str) -> str:
    if word.lower() not in CALLED:
        raise UserError(f"{place}: {word[:40]!r} is not a split; {suggestions(word[:40], CALLED)}")
    return CALLED[word.lower()]


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    number = 0
    try:
        with open(path, encoding="utf-8-sig") as file:
            while text := file.readline(LONGEST_LINE + 1):
                number += 1
                if len(text) > LONGEST_LINE:
                    raise UserError(f"{path}, line {number} is longer than {LONGEST_LINE:,} characters: it is not BED")
                yield number, text
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not text"
        raise UserError(f"{path} cannot be read ({reason}): give a BED file") from error
