"""A record's bases, which come as a stream of arrays, cut into the pieces that are documents."""

from collections.abc import Iterable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ..core.errors import UserError
from .regions import Region
from .sequences import N, Record


class Part(NamedTuple):
    """Bases of a region in one piece, from `begin` of the record on."""

    region: Region
    begin: int
    codes: np.ndarray


def within(record: Record, blocks: Iterable[np.ndarray], regions: list[Region], bed: Path | None) -> Iterator[Part]:
    """What of `blocks`, which follow each other, lies in `regions`, which are sorted and do not overlap.

    Raises:
        UserError: a region of the BED file lies beyond the record.
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
        raise UserError(f"{bed}, line {last.line}: end {last.end} lies beyond {record.name}, which has {at} bases")


def without_n(parts: Iterable[Part]) -> Iterator[Part]:
    """What is left of `parts` between runs of N."""
    for region, begin, codes in parts:
        known = codes != N
        edges = [0, *(np.flatnonzero(known[1:] != known[:-1]) + 1).tolist(), len(codes)]
        for first, last in pairwise(edges):
            if first < last and known[first]:
                yield Part(region, begin + first, codes[first:last])


def chunks(parts: Iterable[Part], size: int | None) -> Iterator[Part]:
    """Join parts that follow each other in a region, and cut what results every `size` bases."""
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
    """The arrays of `held` as one; empties it, so that they are not in memory twice for longer than that."""
    codes = held[0] if len(held) == 1 else np.concatenate(held)
    held.clear()
    return codes
