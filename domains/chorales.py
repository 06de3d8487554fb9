"""Four-part scores, such as music21's Bach chorales, as four voices on a 16th-note grid."""

import json
import math
import re
import zipfile
from collections.abc import Sequence
from contextlib import nullcontext
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from ..core.errors import UserError, one_line
from .workers import each

VOICES = ("Soprano", "Alto", "Tenor", "Bass")
REST = -1
LOWEST, HIGHEST = 36, 81  # the range of the chorales in both sources
STEPS = 4  # per quarter note
LONGEST = 100_000  # 16ths per piece; the longest chorale has 640
MOST_PIECES = 5000  # per split of a file: pieces are compared in pairs
MOST_BYTES, MOST_SCORE = 1 << 24, 1 << 22  # of a JSON file; of a score
SUFFIXES = (".mxl", ".xml", ".musicxml")
# Chorales with orchestral interludes are silent in all voices for at least 44 % of their length, all others for at most
# 15 %. The corpus also contains versions without interludes.
SILENCE = 0.25


def scores(folder: Path | None) -> list[Path]:
    """MusicXML files of `folder` (None: the Bach chorales of music21), in the order of their numbers.

    The three **kern files of music21 are skipped because they duplicate BWV 277, 281 and 366.

    Raises:
        UserError: the folder does not exist, contains no scores, or contains two with the same name.
    """
    if folder is None:
        from music21.common.pathTools import getCorpusFilePath

        folder = getCorpusFilePath() / "bach"
        remedy = "install music21 with its corpus (pip install --force-reinstall music21), or set domain.path"
    else:
        remedy = "give a folder of four-part scores, or domain.source=separated16 with a .json file of four voices"
    if not folder.is_dir():
        raise UserError(f"{folder} is not a folder: {remedy}")
    found = [path for path in folder.iterdir() if path.suffix.lower() in SUFFIXES and path.is_file()]
    if not found:
        raise UserError(f"{folder} contains no scores ({', '.join(SUFFIXES)}): {remedy}")
    found.sort(key=lambda path: (number(path.stem), path.name))  # bwv1 and bwv01 have the same number
    for path, following in pairwise(found):
        if path.stem == following.stem:
            raise UserError(f"{path} and {following.name} have the same name without extension: rename or remove one")
    return found


def read_separated(path: Path, splits: Sequence[str]) -> dict[str, np.ndarray]:
    """Pieces of a JSON file of four voices on a 16th grid, `[time steps, 4]` MIDI pitches, by split and number.

    Raises:
        UserError: the file has a different format. The message names the piece.
    """
    wanted = 'expected four voices on a 16th grid, {"train": [[[72, 67, 64, 48], ...], ...], ...}, with -1 for rests'
    try:
        with open(path, "rb") as file:
            data = file.read(MOST_BYTES + 1)
        if len(data) > MOST_BYTES:
            raise UserError(f"{path} has more than {MOST_BYTES:,} bytes: {wanted}")
        pieces = json.loads(data)
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror}): {wanted}") from error
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} is not JSON ({one_line(error)}): {wanted}") from error
    found = {}
    for split in splits:
        if not isinstance(pieces, dict) or not isinstance(pieces.get(split), list):
            raise UserError(f"{path} has no list of pieces named {split}: {wanted}")
        if len(pieces[split]) > MOST_PIECES:
            raise UserError(f"{path}: {split} has {len(pieces[split]):,} pieces, more than {MOST_PIECES:,}: split it")
        for number, piece in enumerate(pieces[split]):
            try:
                grid = np.array(piece)
            except (ValueError, TypeError, OverflowError):  # steps of different numbers of pitches
                grid = np.zeros((0, 0))
            if grid.dtype.kind != "i" or grid.ndim != 2 or grid.shape[1] != len(VOICES):
                raise UserError(f"{path}: {split} piece {number} has a different format: {wanted}")
            if len(grid) > LONGEST:
                raise UserError(f"{path}: {split} piece {number} lasts {_too_long(len(grid))}: cut it")
            if strange := np.setdiff1d(grid, [REST, *range(LOWEST, HIGHEST + 1)]).tolist():
                fault = f"pitch {strange[0]}, outside {LOWEST}..{HIGHEST}"
                raise UserError(f"{path}: {split} piece {number} has {fault}: transpose it")
            found[f"{split}/{number:03d}"] = grid
    return found


def _too_long(length: int) -> str:
    return f"{length:,} 16ths, more than {LONGEST:,}"


def number(name: str) -> list[tuple[int, int, str]]:
    """Sort key in which digits count as numbers, so that bwv9.7 comes before bwv10.7."""
    return [(1, int(part), "") if part.isdecimal() else (0, 0, part) for part in re.findall(r"\d+|\D+", name)]


def titles() -> dict[str, str]:
    """Titles of Bach's chorales by name of music21's file (`bwv269`), for chorales in Riemenschneider's edition."""
    from music21.corpus.chorales import ChoraleListRKBWV

    return {f"bwv{number}": entry["title"] for number, entry in ChoraleListRKBWV().byBWV.items()}


def read(path: Path) -> np.ndarray | str:
    """Read one score: `[time steps, 4]` int16 MIDI pitches, soprano first, REST for silence, or why it is rejected.

    The four voices are the parts whose names begin with Soprano, Alto, Tenor and Bass; other instruments are ignored. A
    cell is the pitch that sounds at that 16th. Ties are held; grace notes and notes between two grid points are
    dropped; repeats are not expanded; silence at the end is removed. If a voice has two notes at once, the higher one
    is used.

    Raises:
        UserError: the file is not a readable MusicXML score.
    """
    from music21 import converter

    try:
        packed = path.suffix.lower() == ".mxl" and zipfile.is_zipfile(path)
        with zipfile.ZipFile(path) if packed else nullcontext() as archive:
            size = sum(member.file_size for member in archive.infolist()) if archive else path.stat().st_size
        if size > MOST_SCORE:
            raise ValueError(f"more than {MOST_SCORE:,} bytes")
        score: Any = converter.parse(path, forceSource=True, storePickle=False)
        voices: dict[str, list] = {name: [] for name in VOICES}
        for part in score.parts:
            voices.get("".join((part.partName or "").split()[:1]), []).append(part)
        if [len(parts) for parts in voices.values()] != [1, 1, 1, 1]:
            return "not one part each of Soprano, Alto, Tenor, Bass"
        for (part,) in voices.values():
            if part.atSoundingPitch is False:  # transposed, such as a tenor an octave above its pitch
                part.toSoundingPitch(inPlace=True)
        notes = [list(part.flatten().notes) for (part,) in voices.values()]
        ends = [(note.offset + note.quarterLength) * STEPS for voice in notes for note in voice]
        length = math.ceil(max(ends, default=0))
        if length > LONGEST:
            raise ValueError(f"it lasts {_too_long(length)}")
    except Exception as error:  # music21 raises many kinds of exceptions
        reason = one_line(error)
        raise UserError(f"{path} cannot be read as a MusicXML score ({reason}): replace or remove it") from error
    grid = np.full((length, len(VOICES)), REST, np.int16)
    for column, voice in enumerate(notes):
        for note in voice:
            cells = grid[math.ceil(note.offset * STEPS) : math.ceil((note.offset + note.quarterLength) * STEPS), column]
            if note.pitches:  # percussion has no pitches, grace notes have no length
                np.maximum(cells, max(pitch.midi for pitch in note.pitches), out=cells)
    pitches = grid[grid != REST]
    if not len(pitches):
        return "no notes"
    if (grid == REST).all(1).mean() > SILENCE:
        return f"all voices rest for over {SILENCE:.0%} of it (interludes)"
    if pitches.min() < LOWEST or pitches.max() > HIGHEST:
        return f"pitches {pitches.min()}..{pitches.max()} are outside {LOWEST}..{HIGHEST}"
    return grid


def read_all(paths: Sequence[Path]) -> list[np.ndarray | str]:
    """`read` all paths, in order, with one process per core.

    Raises:
        UserError: a file cannot be read, or a worker process was killed.
    """
    return [found for _, found in each(read, ((path, path) for path in paths), len(paths))]
