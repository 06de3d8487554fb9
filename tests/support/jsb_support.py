"""What the tests of chorales share: grids of four voices, as heard, as counted, and as scores."""

import numpy as np
import pretty_midi


def roll(midi: pretty_midi.PrettyMIDI, steps: int) -> np.ndarray:
    """`[steps, 4]` pitches as heard at the middle of each 16th at 80 quarters a minute; -1 where a voice is silent."""
    grid = np.full((steps, 4), -1)
    moments = (np.arange(steps) + 0.5) * 60 / 80 / 4
    for voice, name in enumerate(("Soprano", "Alto", "Tenor", "Bass")):
        (instrument,) = [instrument for instrument in midi.instruments if instrument.name == name]
        for note in instrument.notes:
            grid[(note.start <= moments) & (moments < note.end), voice] = note.pitch
    return grid


def count(grid: np.ndarray) -> dict[str, float]:
    """Notes and steps of a grid, one cell at a time."""
    notes = 0
    for voice in range(4):
        sounding = -1
        for pitch in grid[:, voice]:
            notes += pitch not in (-1, sounding)
            sounding = pitch
    return {"note": notes, "step": len(grid)}


def musicxml(voices: dict[str, list]) -> str:
    """A one-measure score. Voices are lists of (pitch or chord or None, 16ths[, "start"/"stop" of a tie | "grace"])."""

    def note(pitch, length, mark=None):
        found = []
        for place, one in enumerate(pitch if isinstance(pitch, tuple) else (pitch,)):
            step = "CCDDEFFGGAAB"[one % 12] if one is not None else ""
            sound = (
                "<rest/>"
                if one is None
                else f"<pitch><step>{step}</step><alter>{one % 12 in (1, 3, 6, 8, 10):d}</alter>"
                f"<octave>{one // 12 - 1}</octave></pitch>"
            )
            duration = "" if mark == "grace" else f"<duration>{round(length * 4)}</duration>"
            tie = f'<tie type="{mark}"/>' if mark in ("start", "stop") else ""
            head = ("<grace/>" if mark == "grace" else "") + ("<chord/>" if place else "")
            found.append(f"<note>{head}{sound}{duration}{tie}</note>")
        return "".join(found)

    names = "".join(
        f'<score-part id="P{i}"><part-name>{name}</part-name></score-part>' for i, name in enumerate(voices)
    )
    parts = "".join(
        f'<part id="P{i}"><measure number="1"><attributes><divisions>16</divisions></attributes>'
        f"{''.join(note(*entry) for entry in voice)}</measure></part>"
        for i, voice in enumerate(voices.values())
    )
    return f'<score-partwise version="3.0"><part-list>{names}</part-list>{parts}</score-partwise>'


def runs(column: np.ndarray) -> list[tuple]:
    """A voice of a grid as notes of at most 4 sixteenths; what is longer is repeated, and every other time tied."""
    found = []
    for pitch in column.tolist():
        if found and found[-1][0] == pitch and found[-1][1] < 4:
            found[-1][1] += 1
        else:
            found.append([pitch, 1])
    notes = [(None if pitch < 0 else pitch, length) for pitch, length in found]
    for place in range(0, len(notes) - 1, 2):
        if notes[place][0] is not None and notes[place][0] == notes[place + 1][0]:
            notes[place], notes[place + 1] = (*notes[place], "start"), (*notes[place + 1], "stop")
    return notes


def random_grid(random: np.random.Generator, steps: int) -> np.ndarray:
    """Four voices of held notes and an occasional rest; the last step sounds, so that the length shows."""
    grid = np.full((steps, 4), -1)
    for voice, (low, high) in enumerate([(60, 81), (53, 74), (48, 69), (36, 64)]):
        step = 0
        while step < steps:
            length = int(random.integers(1, 9))
            grid[step : step + length, voice] = -1 if random.random() < 0.1 else random.integers(low, high + 1)
            step += length
        grid[-1, voice] = low
    return grid
