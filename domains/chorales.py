"""Four-part scores, music21's Bach chorales above all, as four voices on a 16th-note grid."""

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
LOWEST, HIGHEST = 36, 81  # what the chorales use, in both sources
STEPS = 4  # a quarter note
LONGEST = 100_000  # 16ths of a piece; the chorales' longest has 640
MOST_PIECES = 5000  # of a file's split: each is compared with each
MOST_BYTES, MOST_SCORE = 1 << 24, 1 << 22  # of a JSON file, of a score
SUFFIXES = (".mxl", ".xml", ".musicxml")
# Chorales printed with orchestral interludes are silent in all voices for 44 % of their length or more, all others for
# 15 % or less. Their plain versions are in the corpus as well.
SILENCE = 0.25


def scores(folder: Path | None) -> list[Path]:
    """MusicXML files of `folder` (None: of music21's own Bach), in the order of their numbers.

    music21's three **kern files are left out: they are second copies of BWV 277, 281 and 366.

    Raises:
        UserError: there is no such folder, no score in it, or two of one name.
    """
    if folder is None:
        from music21.common.pathTools import getCorpusFilePath

        folder = getCorpusFilePath() / "bach"
        remedy = "install music21 with its corpus (pip install --force-reinstall music21), or set domain.path"
    else:
        remedy = (
            "give a folder of four-part scores, or domain.source=separated16 with a .json of four voices on a 16th grid"
        )
    if not folder.is_dir():
        raise UserError(f"{folder} is not a folder: {remedy}")
    found = [path for path in folder.iterdir() if path.suffix.lower() in SUFFIXES and path.is_file()]
    if not found:
        raise UserError(f"{folder} holds no score ({', '.join(SUFFIXES)}): {remedy}")
    found.sort(key=lambda path: number(path.stem))
    for path, following in pairwise(found):
        if path.stem == following.stem:
            raise UserError(
                f"{path} and {following.name} bear one name, which shall name a piece: rename or remove one"
            )
    return found


def read_separated(path: Path, splits: Sequence[str]) -> dict[str, np.ndarray]:
    """Pieces of a JSON file of four voices on a 16th grid, `[time steps, 4]` MIDI pitches, by split and number.

    Raises:
        UserError: it has another form; names the piece.
    """
    wanted = 'four voices on a 16th grid are needed, {"train": [[[72, 67, 64, 48], ...], ...], ...}, a rest being -1'
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
            raise UserError(f"{path} has no list of pieces called {split}: {wanted}")
        if len(pieces[split]) > MOST_PIECES:
            raise UserError(f"{path}: {split} has {len(pieces[split]):,} pieces, more than {MOST_PIECES:,}: split it")
        for number, piece in enumerate(pieces[split]):
            try:
                grid = np.array(piece)
            except (ValueError, TypeError, OverflowError):  # steps of different numbers of pitches
                grid = np.zeros((0, 0))
            if grid.dtype.kind != "i" or grid.ndim != 2 or grid.shape[1] != len(VOICES):
                raise UserError(f"{path}: {split} piece {number} is in another form: {wanted}")
            if len(grid) > LONGEST:
                raise UserError(f"{path}: {split} piece {number} lasts {_too_long(len(grid))}: cut it")
            if strange := np.setdiff1d(grid, [REST, *range(LOWEST, HIGHEST + 1)]).tolist():
                raise UserError(f"{path}: {split} piece {number} has pitch {strange[0]}: {LOWEST}..{HIGHEST} are known")
            found[f"{split}/{number:03d}"] = grid
    return found


def _too_long(length: int) -> str:
    return f"{length:,} 16ths, more than {LONGEST:,}"


def number(name: str) -> list[tuple[int, int, str]]:
    """Sort key: digits in `name` count as numbers, so that bwv9.7 comes before bwv10.7."""
    return [(1, int(part), "") if part.isdigit() else (0, 0, part) for part in re.findall(r"\d+|\D+", name)]


def titles() -> dict[str, str]:
    """Titles of Bach's chorales by name of music21's file (`bwv269`), as far as Riemenschneider's edition has them."""
    from music21.corpus.chorales import ChoraleListRKBWV

    return {f"bwv{number}": entry["title"] for number, entry in ChoraleListRKBWV().byBWV.items()}


def read(path: Path) -> np.ndarray | str:
    """Read one score: `[time steps, 4]` int16 MIDI pitches, soprano first, REST for silence, or why it was turned down.

    The four voices are the parts whose names begin with Soprano, Alto, Tenor and Bass; instruments beside them are left
    out. A cell is the pitch that sounds at that 16th: ties are held, grace notes and notes that begin and end between
    two grid points vanish, repeats are not played twice, silence at the end is cut. Of two notes at once in a voice the
    higher counts.

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
        notes = [list(parts[0].flatten().notes) for parts in voices.values()]
        ends = [(note.offset + note.quarterLength) * STEPS for voice in notes for note in voice]
        length = math.ceil(max(ends, default=0))
        if length > LONGEST:
            raise ValueError(f"it lasts {_too_long(length)}")
    except Exception as error:  # music21 raises whatever its depths raise
        reason = one_line(error)
        raise UserError(f"{path} cannot be read as a MusicXML score ({reason}): replace or remove it") from error
    grid = np.full((length, len(VOICES)), REST, np.int16)
    for column, voice in enumerate(notes):
        for note in voice:
            cells = grid[math.ceil(note.offset * STEPS) : math.ceil((note.offset + note.quarterLength) * STEPS), column]
            if note.pitches:  # percussion has none; grace notes have no length, so no cells
                np.maximum(cells, max(pitch.midi for pitch in note.pitches), out=cells)
    pitches = grid[grid != REST]
    if not len(pitches):
        return "no notes"
    if (grid == REST).all(1).mean() > SILENCE:
        return f"all voices rest for over {SILENCE:.0%} of it (interludes)"
    if pitches.min() < LOWEST or pitches.max() > HIGHEST:
        return f"pitches {pitches.min()}..{pitches.max()} leave {LOWEST}..{HIGHEST}"
    return grid


def read_all(paths: Sequence[Path]) -> list[np.ndarray | str]:
    """`read` every path, in order, in as many processes as the machine has cores for.

    Raises:
        UserError: a file cannot be read, or a reading process was killed.
    """
    return [found for _, found in each(read, ((path, path) for path in paths), len(paths))]
