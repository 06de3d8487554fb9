"""Groups chorales by melody, and splits them such that groups stay together."""

from collections.abc import Mapping, Sequence
from itertools import combinations

import numpy as np

from .chorales import STEPS
from .store import SPLITS

# Chosen by comparison with the titles of Riemenschneider's edition, which music21 has for 351 pieces: of pairs with the
# same title, 88 % share at least a fifth of the phrases of the shorter melody; of pairs with different titles, 0.2 %
# do, mostly one melody with two texts. A threshold three quarters as high already chains unrelated melodies.
INTERVALS = 8
SHARED = 0.2


def phrases(grid: np.ndarray) -> frozenset[tuple[int, ...]]:
    """All runs of INTERVALS successive intervals in the soprano of `grid` ([time steps, voices], rests below 0).

    Pitches are read at every beat, to ignore passing notes in between. Repeated pitches count once, to ignore lengths
    and metre. Intervals are used to ignore the key.
    """
    pitches = grid[::STEPS, 0]
    pitches = pitches[pitches >= 0]
    moves = np.diff(pitches)
    moves = tuple(moves[moves != 0].tolist())
    width = min(INTERVALS, len(moves))
    return frozenset(moves[i : i + width] for i in range(len(moves) - width + 1)) if width else frozenset()


def clusters(grids: Mapping[str, np.ndarray], titles: Mapping[str, str] | None = None) -> dict[str, str]:
    """Label every piece with the first piece, in the given order, that has the same melody or title.

    Two melodies are the same if they share at least SHARED of the phrases of the shorter one. The relation is
    transitive.
    """
    titles = titles or {}
    names = list(grids)
    label = {name: name for name in names}

    def first(name: str) -> str:
        while label[name] != name:
            name = label[name]
        return name

    rank = {name: place for place, name in enumerate(names)}
    found = {name: phrases(grid) for name, grid in grids.items()}
    for one, other in combinations(names, 2):
        smaller = min(len(found[one]), len(found[other]))
        alike = smaller and len(found[one] & found[other]) >= SHARED * smaller
        if alike or (one in titles and titles[one] == titles.get(other)):
            low, high = sorted((first(one), first(other)), key=rank.__getitem__)
            label[high] = low
    return {name: first(name) for name in names}


def duplicates(grids: Mapping[str, np.ndarray]) -> dict[str, str]:
    """Pieces that equal an earlier one except for key and silence at the ends, mapped to that piece."""
    seen: dict[tuple, str] = {}
    found = {}
    for name, grid in grids.items():
        sounding = np.flatnonzero((grid >= 0).any(1))
        grid = grid[sounding[0] : sounding[-1] + 1] if len(sounding) else grid[:0]
        lowest = grid[grid >= 0].min(initial=127)
        key = (grid.shape, np.where(grid >= 0, grid - lowest, -1).astype(np.int16).tobytes())
        original = seen.setdefault(key, name)
        if original != name:
            found[name] = original
    return found


def split(labels: Mapping[str, str], shares: Sequence[int]) -> dict[str, str]:
    """Assign whole clusters of pieces to splits, such that split sizes are proportional to `shares`.

    Clusters are processed in the order of their first piece. Each goes to the split that is furthest below its share.
    """
    members: dict[str, list[str]] = {}
    for name, label in labels.items():
        members.setdefault(label, []).append(name)
    placed = dict.fromkeys(SPLITS, 0)
    result = {}
    for names in members.values():
        total = sum(placed.values()) + len(names)
        lack = [total * share / sum(shares) - placed[part] for part, share in zip(SPLITS, shares, strict=True)]
        chosen = SPLITS[int(np.argmax(lack))]
        placed[chosen] += len(names)
        result.update(dict.fromkeys(names, chosen))
    return result
