"""Splits the bases of a record, given as a stream of arrays, into documents."""

from collections.abc import Iterable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ..core.errors import UserError
from .regions import Region
from .sequences import N, Record


class Part(NamedTuple):
    """Contiguous bases of a region, starting at `begin` of the record."""

    region: Region
    begin: int
    codes: np.ndarray


def within(record: Record, blocks: Iterable[np.ndarray], regions: list[Region], bed: Path | None) -> Iterator[Part]:
    """The parts of consecutive `blocks` in `regions`, which are sorted and do not overlap.

    Raises:
        UserError: a region of the BED file ends after the end of the record.
    """
    at, begun = 0, 0
    for codes in blocks:
        end = at + len(codes)
        while begun < len(regions) and regions[begun].end <= at:
            begun += 1
        for region in regions[begun:]:
            if region.begin >= end:
                break
            first, last = max(region.begin, at), int(min(region.end, end))
            yield Part(region, first, codes[first - at : last - at])
        at = end
    if regions and at < regions[-1].end < np.inf:
        last = regions[-1]
        fault = f"end {last.end} is beyond the end of {record.name} ({at} bases)"
        raise UserError(f"{bed}, line {last.line}: {fault}: correct the line")


def without_n(parts: Iterable[Part]) -> Iterator[Part]:
    """Split `parts` at runs of N, which are dropped."""
    for region, begin, codes in parts:
        known = codes != N
        edges = [0, *(np.flatnonzero(known[1:] != known[:-1]) + 1).tolist(), len(codes)]
        for first, last in pairwise(edges):
            if first < last and known[first]:
                yield Part(region, begin + first, codes[first:last])


def chunks(parts: Iterable[Part], size: int | None) -> Iterator[Part]:
    """Join consecutive parts of a region, and cut the result every `size` bases."""
    held: list[np.ndarray] = []
    region, begin, end = Region(0, 0, ""), 0, 0
    for part in parts:
        if held and (part.region is not region or part.begin != end):
            yield Part(region, begin, _joined(held))
        if not held:
            region, begin, end = part.region, part.begin, part.begin
        held.append(part.codes)
        end += len(part.codes)
        if size is not None and end - begin >= size:
            codes = _joined(held)
            for first in range(0, len(codes) - size + 1, size):
                yield Part(region, begin + first, codes[first : first + size])
            begin = end - len(codes) % size
            if begin < end:
                held.append(codes[-(end - begin) :])
    if held:
        yield Part(region, begin, _joined(held))


def _joined(held: list[np.ndarray]) -> np.ndarray:
    """Concatenate the arrays of `held` and empty it, so that memory for them is freed."""
    codes = held[0] if len(held) == 1 else np.concatenate(held)
    held.clear()
    return codes
