"""Piano music as REMI tokens (Huang and Yang, arXiv 2002.00212), from MIDI bytes to tokens and back, with MidiTok."""

import gc
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import symusic

from ..core.errors import one_line
from . import midi_files
from .clocks import KEPT, Clock

LOWEST, HIGHEST = 21, 108  # the piano's 88 keys
START, END = 1, 2  # ids of BOS and EOS; PAD is 0
BEATS_A_SECOND = 2  # performances have no beat; the grid uses 120 quarters per minute and bars of four quarters
LONGEST = 24 * 3600  # seconds; longer files are considered damaged

COMMON = {
    "pitch_range": (LOWEST, HIGHEST),
    "num_velocities": 32,
    "special_tokens": ["PAD", "BOS", "EOS", "MASK"],
    "use_time_signatures": False,
}
# Arguments of MidiTok. `beat_res` maps ranges of beats to steps per beat, for onsets (the finest) and durations.
SETTINGS: dict[str, dict[str, Any]] = {
    "fine": COMMON | {"beat_res": {(0, 1): 24, (1, 4): 12, (4, 12): 4}, "use_pitchdrum_tokens": False},
    "pope": COMMON
    | {
        "beat_res": {(0, 4): 8, (4, 12): 4},
        "use_chords": True,
        "use_tempos": True,
        "num_tempos": 32,
        "tempo_range": (40, 250),
        "drums_pitch_range": (27, 87),
    },
}
BAR, POSITION, PITCH, VELOCITY, DURATION = KINDS = ("Bar", "Position", "Pitch", "Velocity", "Duration")


@dataclass(frozen=True)
class Notes:
    """Notes in any order: `start` and `end` in seconds, MIDI `pitch` and `velocity`, each `[notes]`."""

    start: np.ndarray
    end: np.ndarray
    pitch: np.ndarray
    velocity: np.ndarray


class Remi:
    """The tokenizer of one of SETTINGS.

    Attributes:
        vocabulary: number of ids.
        step: seconds between grid points.
        kind: type of each token, `[vocabulary]`; "" for tokens that are neither time nor note.
        value: pitch, velocity, or steps of a position or duration, `[vocabulary]`; 0 for other tokens.
        pitch_ids: ids of the pitches from LOWEST up, `[88]`.
    """

    def __init__(self, name: str):
        from miditok import REMI, TokenizerConfig  # imported here because it loads PyTorch

        self.miditok: Any = REMI(TokenizerConfig(**SETTINGS[name]))
        resolution = self.miditok.config.max_num_pos_per_beat
        self.vocabulary = len(self.miditok)
        self.bar = 4 * resolution
        self.step = 1 / (BEATS_A_SECOND * resolution)
        self.kind = np.full(self.vocabulary, "", dtype="<U8")
        self.value = np.zeros(self.vocabulary, np.int64)
        for token, number in self.miditok.vocab.items():
            kind, value = token.split("_")
            if kind in KINDS:
                self.kind[number] = kind
                beats, part, parts = map(int, value.split(".")) if kind == DURATION else (0, 0, 1)
                steps = (beats * parts + part) * resolution // parts
                self.value[number] = steps if kind == DURATION else 0 if kind == BAR else int(value)
        self.pitch_ids = np.flatnonzero(self.kind == PITCH)

    def encode(self, notes: Notes) -> np.ndarray:
        """Ids from BOS to the last note, without EOS. Notes are rounded to the grid; none is dropped."""
        time = np.floor(notes.start / self.step + 0.5).astype(np.int32)
        duration = np.floor(notes.end / self.step + 0.5).astype(np.int32) - time  # MidiTok changes 0 to one step
        order = np.lexsort((notes.velocity, duration, notes.pitch, time))
        columns = (time, duration, notes.pitch.astype(np.int8), notes.velocity.astype(np.int8))
        score: Any = symusic.Score(self.miditok.config.max_num_pos_per_beat)
        score.tracks.append(symusic.Track(program=0))
        score.tracks[0].notes = symusic.Note.from_numpy(*(column[order] for column in columns), ttype="tick")
        collecting = gc.isenabled()
        gc.disable()  # MidiTok creates many objects but no cycles, and garbage collection takes a quarter of its time
        try:
            ids = self.miditok(score)[0].ids if len(time) else []
        finally:
            if collecting:
                gc.enable()
        return np.array([START, *ids], np.int64)

    def decode(self, ids: Iterable[int]) -> Notes:
        """Notes of any ids up to the first EOS, sorted by onset and pitch.

        Chords, tempi, drums and incomplete notes are skipped.
        """
        kept = []
        for number in map(int, ids):
            if number == END:
                break
            if 0 <= number < self.vocabulary and self.kind[number]:
                kept.append(number)
        found = self.miditok.decode([kept]).tracks if kept else []
        columns = found[0].notes.numpy() if found else dict.fromkeys(("time", "duration", "pitch", "velocity"), ())
        time, duration, pitch, velocity = (
            np.asarray(columns[name], np.int64) for name in ("time", "duration", "pitch", "velocity")
        )
        order = np.lexsort((velocity, duration, pitch, time))
        start, end = time * self.step, (time + duration) * self.step
        return Notes(start[order], end[order], pitch[order], velocity[order])

    def clock(self) -> Clock:
        """Time in grid points: Bar advances by a bar, and Position sets the place in it."""
        bar = self.kind == BAR
        places = np.where(bar | (self.kind == POSITION), self.value, KEPT)
        return Clock(np.where(bar, self.bar, 0), places)

    def advance(self, tokens: np.ndarray) -> np.ndarray:
        """Seconds by which each token of a document advances.

        Bar and Position advance to their grid point, EOS to the end of the last note.
        """
        kind, value = self.kind[tokens], self.value[tokens]
        bars = np.cumsum(kind == BAR)
        places = np.where(np.isin(kind, (BAR, POSITION)), np.arange(len(tokens)), -1)
        last = np.maximum.accumulate(places)
        position = np.where((last >= 0) & (kind[last] == POSITION), value[last], 0)
        tick = np.maximum(bars - 1, 0) * self.bar + position
        reached = np.maximum.accumulate(tick)
        moved = np.diff(reached, prepend=reached[:1])
        for end in np.flatnonzero(tokens == END)[:1]:
            whole = (kind[: end - 2] == PITCH) & (kind[1 : end - 1] == VELOCITY) & (kind[2:end] == DURATION)
            released = (tick[: end - 2] + value[2:end])[whole].max(initial=0) if end > 2 else 0
            moved[end] += max(released - reached[end], 0)
        return moved * self.step


@cache
def remi(name: str) -> Remi:
    """The tokenizer `name` of SETTINGS, cached per process."""
    return Remi(name)


def read(data: bytes) -> tuple[Notes, int]:
    """Notes of all pitched tracks of a MIDI file, merged, in seconds; and the number of its note-ons.

    A note that is never released counts as a note-on but is not returned.

    Raises:
        ValueError: the file cannot be used. The message is a short reason.
    """
    count = midi_files.note_ons(data)
    try:
        score: Any = symusic.Score.from_midi(data)
    except Exception as error:  # the parser raises many kinds of exceptions
        raise ValueError(one_line(error)) from error
    columns = [track.notes.numpy() for track in score.tracks if not track.is_drum and len(track.notes)]
    if not columns:
        raise ValueError("only drum notes" if any(len(track.notes) for track in score.tracks) else "no notes")
    time, duration, pitch, velocity = (
        np.concatenate([column[name] for column in columns]) for name in ("time", "duration", "pitch", "velocity")
    )
    if pitch.min() < LOWEST or pitch.max() > HIGHEST:
        raise ValueError(f"pitches {pitch.min()}..{pitch.max()} are outside a piano's {LOWEST}..{HIGHEST}")
    changes = np.array([0, *(tempo.time for tempo in score.tempos)], np.int64)
    microseconds = np.array([500_000, *(tempo.mspq for tempo in score.tempos)], np.int64)
    before = np.concatenate([[0], np.cumsum(np.diff(changes) * microseconds[:-1])])

    def seconds(ticks: np.ndarray) -> np.ndarray:
        at = np.searchsorted(changes, ticks, side="right") - 1
        return (before[at] + (ticks - changes[at]) * microseconds[at]) / (1e6 * score.ticks_per_quarter)

    start, end = seconds(time.astype(np.int64)), seconds(time.astype(np.int64) + duration)
    if end.max() > LONGEST:
        raise ValueError(f"it lasts {end.max() / 3600:,.0f} hours, more than {LONGEST // 3600}")
    return Notes(start, end, pitch, velocity), count
