"""J. S. Bach's four-part chorales: one token per voice and 16th note, ordered by time, then from soprano to bass."""

import math
from collections.abc import Iterable, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pretty_midi
import symusic

from ..core.checked_files import digest_of
from ..core.errors import UserError, one_line
from ..core.options import as_path
from ..core.words import plural
from . import chorales, melodies, midi_files, music_metrics, overlaps, pianoroll
from .clocks import Clock
from .fetch import fetch, verify
from .music import Music
from .options import TRANSPOSE, JSBOptions
from .store import SPLITS, StoreWriter, hash_files

START, SILENT, FIRST = 0, 1, 2  # ids of the start token, of a rest, and of the lowest pitch
BASE = chorales.LOWEST - TRANSPOSE  # MIDI pitch of token FIRST
VOICES = len(chorales.VOICES)
TEMPO, ORGAN = 80, 19  # quarter notes per minute; General MIDI church organ, which sustains notes like a choir

FILE = "Jsb16thSeparated.json"
SHA256 = "79294cc374f9252e95ef4b703161524c1c53dc1f712c236f00f1c1f5d54af5a7"
BYTES = 1_666_444
PUBLISHED = (229, 76, 77)  # pieces per split of the published file; the same proportions are used for music21

# Test pieces of the published file whose melody is not in the training split, as found by `melodies.clusters`.
NEW_MELODIES = frozenset(
    f"test/{number:03}"
    for number in (
        *(4, 5, 10, 12, 13, 14, 15, 17, 18, 20, 23, 24, 26, 27, 30, 31, 32, 33, 39, 47, 52, 57, 59, 62, 66, 74),
    )
)


class JSB(Music):
    """Chorales as in the PoPE paper: a document is a piece, from soprano to bass at each 16th.

    Token 0 starts a document, 1 is a rest, 2..59 are MIDI pitches 30..87: the range of the chorales, 36..81, plus
    TRANSPOSE in both directions. Repeated notes are not distinguished from held ones: the published file does not
    contain this information, and music21's scores are read in the same way so that results are comparable. A "note" is
    therefore a pitch that differs from the previous step of the same voice.

    Args:
        options: fields of `JSBOptions`, in order.

    Raises:
        ValueError: see `JSBOptions`.
    """

    name = "jsb"
    axis = pianoroll.QUARTERS
    units = ("note", "step")
    margin = 0.005  # the published difference between RoPE and PoPE is 0.019
    start = START
    period = VOICES
    lookback = VOICES  # a note is a pitch that differs from the previous step of its voice
    measures = music_metrics.VOICES
    top_p = 0.9  # without it, one unlikely note makes the voices diverge for the rest of the piece

    def __init__(self, *options: Any, **named: Any):
        given = JSBOptions(*options, **named)
        self.source, self.urls, self.transpose = given.source, list(given.urls), given.transpose
        self.path = as_path(given.path) if given.path else None

    @property
    def vocabulary(self) -> int:
        return FIRST + chorales.HIGHEST + TRANSPOSE - BASE + 1

    def options(self) -> Mapping[str, Any]:
        if self.source == "separated16":
            return {
                "source": self.source,
                "sha256": SHA256 if self.path is None else digest_of(verify(self.path, None)),
            }
        read = {"source": self.source, "music21": version("music21")}
        return read if self.path is None else {**read, "scores": hash_files(chorales.scores(self.path))}

    @classmethod
    def subset(cls, content: Mapping[str, Any], document: str) -> str | None:
        if content.get("sha256") != SHA256 or not document.startswith("test/"):
            return None
        return "new melody" if document in NEW_MELODIES else "melody also in training"

    def build(self, writer: StoreWriter) -> None:
        build = self._build_separated16 if self.source == "separated16" else self._build_music21
        grids, splits, labels = build(writer)
        writer.facts.update(melodies=len(set(labels.values())), melody_also_in_train=overlaps.shared(labels, splits))
        for name, grid in grids.items():
            tokens = self.encode(grid)
            units = {unit: float(weights.sum()) for unit, weights in self.unit_weights(tokens).items()}
            writer.add(name, splits[name], labels[name], tokens, units)

    def _build_separated16(self, writer: StoreWriter):
        file = self.path
        if file is None:
            hint = f"get {FILE} from github.com/czhuang/JSB-Chorales-dataset and set domain.path=/where/you/put/{FILE}"
            file = fetch(self.urls, SHA256, writer.directory.parent / "downloads" / FILE, hint, size=BYTES)
        grids = chorales.read_separated(file, SPLITS)
        if digest_of(file) != SHA256:
            writer.facts.update(splits_by=f"{file.name}, which is not the published {FILE}")
        writer.facts.update(duplicates_kept=melodies.duplicates(grids))
        return grids, {name: name.split("/")[0] for name in grids}, melodies.clusters(grids)

    def _build_music21(self, writer: StoreWriter):
        paths = chorales.scores(self.path)
        found = dict(zip((path.stem for path in paths), chorales.read_all(paths), strict=True))
        rejected = {name: reason for name, reason in found.items() if isinstance(reason, str)}
        grids = {name: grid for name, grid in found.items() if not isinstance(grid, str)}
        repeated = melodies.duplicates(grids)
        grids = {name: grid for name, grid in grids.items() if name not in repeated}
        writer.facts.update(rejected=rejected, duplicates_removed=repeated)
        if not grids:
            example = "; ".join(f"{name}: {reason}" for name, reason in list(rejected.items())[:3])
            raise UserError(f"none of {len(paths)} scores in {paths[0].parent} can be used ({example})")
        labels = melodies.clusters(grids, chorales.titles())
        return grids, melodies.split(labels, PUBLISHED), labels

    def encode(self, grid: np.ndarray) -> np.ndarray:
        """Tokens, start token first, of MIDI pitches `[time steps, 4]` with -1 for rests."""
        pitches = np.asarray(grid, np.int64).reshape(-1)
        return np.concatenate([[START], np.where(pitches == chorales.REST, SILENT, pitches - BASE + FIRST)])

    def encode_file(self, path: Path) -> np.ndarray:
        """Tokens of a MIDI file with four voices, identified by name, or from soprano to bass by track and channel.

        Each voice is sampled in the middle of each 16th. Drums are ignored.
        """
        try:
            data = midi_files.content(path)
            begun = midi_files.note_ons(data)  # first, because other readers take minutes for some damaged files
            # pretty_midi would order the channels of a track by the ends of their first notes.
            score: Any = symusic.Score.from_midi(data)
            tracks = [track for track in score.tracks if not track.is_drum and len(track.notes)]
            sixteenth = score.ticks_per_quarter / chorales.STEPS
            found = [
                (place, note.start / sixteenth, note.end / sixteenth, note.pitch)
                for place, track in enumerate(tracks)
                for note in track.notes
                if note.duration
            ]
            midi_files.refuse_lost(begun, len(found))
            length = math.ceil(max((end for _, _, end, _ in found), default=0) - 0.5)
        except FileNotFoundError as error:
            raise UserError(f"{path} does not exist: give a .mid file of four voices") from error
        except Exception as error:  # the parser raises many kinds of exceptions
            reason = one_line(error)
            raise UserError(f"{path} cannot be read as MIDI ({reason}): give a .mid file of four voices") from error
        if length > chorales.LONGEST:
            raise UserError(f"{path} lasts {length:,} 16ths, more than {chorales.LONGEST:,}: give a shorter piece")
        # Silent voices have no track here, so names are more reliable than positions.
        names = [track.name.strip().capitalize() for track in tracks]
        named = set(names) <= set(chorales.VOICES)
        if named and len(set(names)) < len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise UserError(f"{path} has several instruments named {twice}: give each voice a different name")
        if not named and len(tracks) != VOICES:
            wanted = f"give four, or instruments named {', '.join(chorales.VOICES)}"
            raise UserError(f"{path} has {plural(len(tracks), 'instrument')}: {wanted}")
        voices = [chorales.VOICES.index(name) if named else place for place, name in enumerate(names)]
        grid = np.full((length, VOICES), chorales.REST)
        for place, start, end, pitch in sorted(found):
            if not BASE <= pitch < BASE + self.vocabulary - FIRST:
                known = f"{BASE}..{BASE + self.vocabulary - FIRST - 1}"
                raise UserError(f"{path} has pitch {pitch}, outside {known}: transpose it")
            grid[math.ceil(start - 0.5) : math.ceil(end - 0.5), voices[place]] = pitch
        if (grid == chorales.REST).all():
            fault = "has no notes of pitched instruments, or only notes that are too short for a grid of 16ths"
            raise UserError(f"{path} {fault}: give another .mid file")
        return self.encode(grid)

    def unit_weights(self, tokens: np.ndarray) -> dict[str, np.ndarray]:
        tokens = np.asarray(tokens, np.int64)
        body = tokens[1:]
        before = np.concatenate([np.full(VOICES, SILENT), body])[: len(body)]
        onset = (body >= FIRST) & (body != before)
        step = np.full(len(body), 1 / VOICES)
        return {"note": np.concatenate([[0.0], onset]), "step": np.concatenate([[0.0], step])}

    def clock(self) -> Clock:
        """Time steps and voices. The four voices of a time step share the first axis."""
        return Clock(np.ones(self.vocabulary, np.int64), columns=VOICES)

    def augment(self, tokens: np.ndarray, random: np.random.Generator) -> np.ndarray:
        """Transpose all pitches by a uniform draw from -transpose..transpose. Start token and rests do not change."""
        if not self.transpose:
            return tokens
        tokens = np.asarray(tokens)
        semitones = int(random.integers(-self.transpose, self.transpose + 1))
        return np.where(tokens >= FIRST, tokens.astype(np.int64) + semitones, tokens).astype(tokens.dtype)

    def decode(self, ids: Iterable[int]) -> pretty_midi.PrettyMIDI:
        """Four instruments, Soprano to Bass, from any ids. Start tokens are skipped; ids out of range are rests.

        Consecutive equal pitches of a voice are one held note. Missing voices of the last time step are rests.
        """
        ids = [value for value in map(int, ids) if value != START]
        midi = pretty_midi.PrettyMIDI(resolution=480, initial_tempo=TEMPO)
        seconds = 60 / TEMPO / chorales.STEPS
        for voice, name in enumerate(chorales.VOICES):
            instrument = pretty_midi.Instrument(ORGAN, name=name)
            begun, previous = 0, SILENT
            for step, value in enumerate([*ids[voice::VOICES], SILENT]):
                value = value if FIRST <= value < self.vocabulary else SILENT
                if value == previous:
                    continue
                if previous != SILENT:
                    pitch = previous - FIRST + BASE
                    instrument.notes.append(pretty_midi.Note(90, pitch, begun * seconds, step * seconds))
                begun, previous = step, value
            midi.instruments.append(instrument)
        return midi

    def measure(self, ids: Iterable[int]) -> np.ndarray:
        body = np.array([value for value in map(int, ids) if value != START], np.int64)
        body = body[: len(body) // VOICES * VOICES]
        pitched = (body >= FIRST) & (body < self.vocabulary)
        grid = np.where(pitched, body - FIRST + BASE, chorales.REST).reshape(-1, VOICES)
        return music_metrics.of_voices(grid, 4 * chorales.STEPS, chorales.STEPS)
