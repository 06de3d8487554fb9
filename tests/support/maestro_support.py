"""What the tests of performances share: music, MIDI files of it, and releases of such files."""

import csv
import io
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pretty_midi
import pytest
from conftest import DATA

from bearings.core.errors import UserError
from bearings.domains import remi
from bearings.domains.maestro import Maestro
from bearings.domains.store import SPLITS

RELEASE = DATA / "maestro-v3.0.0.tar.gz"
needs_release = pytest.mark.data(RELEASE)
STEP = 1 / 48  # seconds: the fine grid
COLUMNS = ("canonical_composer", "canonical_title", "split", "year", "midi_filename", "audio_filename", "duration")
OFFICIAL = ["train"] * 6 + ["validation"] * 3 + ["test"] * 3


def music(seed: int, count: int = 40) -> list[tuple[int, int, int, int]]:
    """Notes (start, length, pitch, velocity), times in grid steps; no key is struck while it is down."""
    random = np.random.default_rng(seed)
    notes, time, free = [], int(random.integers(0, 150)), dict.fromkeys(range(21, 109), 0)
    for _ in range(count):
        time += int(random.choice([0, 0, 1, 5, 40, 200]))
        pitch = int(random.choice([key for key, since in free.items() if since <= time]))
        length = int(random.integers(1, 25))
        free[pitch] = time + length
        notes.append((time, length, pitch, int(random.integers(1, 128))))
    return sorted(notes, key=lambda note: (note[0], note[2]))


def midi_of(notes, step: float = STEP, resolution: int = 480, tempo: float = 120) -> pretty_midi.PrettyMIDI:
    midi = pretty_midi.PrettyMIDI(resolution=resolution, initial_tempo=tempo)
    piano = pretty_midi.Instrument(0)
    piano.notes = [
        pretty_midi.Note(velocity, pitch, start * step, (start + length) * step)
        for start, length, pitch, velocity in notes
    ]
    midi.instruments.append(piano)
    return midi


def content(midi: pretty_midi.PrettyMIDI) -> bytes:
    buffer = io.BytesIO()
    midi.write(buffer)
    return buffer.getvalue()


def same(decoded: pretty_midi.PrettyMIDI, notes) -> bool:
    """Equal starts, ends and pitches; velocities as near as 32 levels allow."""
    (piano,) = decoded.instruments
    found = [
        (round(note.start / STEP, 6), round((note.end - note.start) / STEP, 6), note.pitch) for note in piano.notes
    ]
    close = all(abs(note.velocity - raw[3]) <= 3 for note, raw in zip(piano.notes, notes, strict=True))
    return close and found == [note[:3] for note in notes]


def units(notes) -> dict[str, float]:
    return {"note": len(notes), "second": max(start + length for start, length, _, _ in notes) * STEP}


def rows_of(names, splits=OFFICIAL) -> list[dict]:
    """Metadata of pieces that all have their own composer and title."""
    return [
        dict(
            zip(COLUMNS, (f"Composer {n}", f"Sonata, Op. {n}", split, 2004, f"2004/{name}", "x.wav", 20.5), strict=True)
        )
        for n, (name, split) in enumerate(zip(names, splits, strict=True))
    ]


def write_table(folder: Path, rows) -> Path:
    path = folder / "maestro-v3.0.0.csv"
    with open(path, "w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        writer.writerows(rows)
    return path


def sample(folder: Path) -> SimpleNamespace:
    """Twelve short performances for the laws of every domain (test_domain_laws.py says what the fields are)."""
    raw = {f"2004/piece{n}.midi": music(n) for n in range(12)}
    (folder / "2004").mkdir(parents=True)
    for name, notes in raw.items():
        (folder / name).write_bytes(content(midi_of(notes)))
    write_table(folder, rows_of([Path(name).name for name in raw]))
    return SimpleNamespace(
        options={"path": str(folder)}, raw=raw, same=same, units=units, source=folder / "2004" / "piece3.midi"
    )


def contents(store):
    """The content of a store, which does not depend on the file it came from."""
    return {
        name: (SPLITS[store.splits[i]], store.units[i].tolist(), store.document(i).tolist())
        for i, name in enumerate(store.names)
    }


def refusal(path: Path, root: Path, **options) -> str:
    """The line in which `path` is refused; nothing may be left in `root`."""
    with pytest.raises(UserError) as caught:
        Maestro(str(path), **options).prepare(root)
    assert [found for found in root.rglob("*") if found.is_file() and found.suffix != ".lock"] == []
    line = str(caught.value)
    assert "\n" not in line
    assert str(path) in line
    return line


def as_notes(notes, step: float = STEP) -> remi.Notes:
    start, length, pitch, velocity = np.array(notes).T
    return remi.Notes(start * step, (start + length) * step, pitch, velocity)
