"""A piano roll to look at: one colour an instrument, wrapped into systems like a score."""

import math
from pathlib import Path
from typing import BinaryIO, NamedTuple, TypeVar

import numpy as np
import pretty_midi

# Okabe & Ito's colour-blind-safe set, ordered so that neighbouring voices differ most.
COLOURS = ("#D55E00", "#0072B2", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#F0E442")
BLACK_KEYS = {1, 3, 6, 8, 10}
LONGEST = 20_000  # units of time, more than a picture can show; the rest of a piece is left out
TEXT_ROWS = 24  # pitches of a piano roll as text
ROWS = 8  # systems in one picture; a longer piece gets longer systems

Place = TypeVar("Place", Path, BinaryIO)


class Axis(NamedTuple):
    """Units of time in one system, and in each group of them that a darker line begins."""

    unit: str
    row: int
    group: int


QUARTERS = Axis("quarter notes", 32, 4)
SECONDS = Axis("seconds", 20, 5)


def draw(midi: pretty_midi.PrettyMIDI, path: Place, axis: Axis) -> Place:
    """Draw every instrument of `midi` into the image `path`, a place or an open file; empty music gives an empty grid.

    Args:
        axis: QUARTERS, or SECONDS for performances, which keep to no beat.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # late: matplotlib takes half a second
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    voices = [_notes(midi, instrument, axis) for instrument in midi.instruments]
    every = np.concatenate([*voices, np.zeros((0, 3))])
    length = min(max(math.ceil(every[:, 1].max(initial=0) - 1e-6), axis.group), LONGEST)
    rows = min(math.ceil(length / axis.row), ROWS)
    row = axis.group * math.ceil(length / rows / axis.group)
    low, high = (every[:, 2].min() - 2, every[:, 2].max() + 2) if len(every) else (58, 74)

    height = min(max((high - low) * 0.068, 1.2), 3.6)
    width = 11 if rows > 1 else max(11 * row / axis.row, 5)
    figure = Figure(figsize=(width, rows * (height + 0.35) + 0.75), dpi=130, layout="constrained", facecolor="white")
    FigureCanvasAgg(figure)
    panels = figure.subplots(rows, 1, squeeze=False)[:, 0]
    for index, panel in enumerate(panels):
        _paper(panel, index * row, row, low, high, axis.group)
        for place, notes in enumerate(voices):
            seen = notes[(notes[:, 1] > index * row) & (notes[:, 0] < (index + 1) * row)]
            _bars(panel, seen, COLOURS[place % len(COLOURS)], 1.2 - 0.16 * (place % 4), place)
    if not len(every):
        panels[0].text(0.5, 0.5, "silence", transform=panels[0].transAxes, ha="center", va="center", color="#8a8a8a")
    panels[-1].set_xlabel(axis.unit, color="#4a4a4a", fontsize=9)
    names = [instrument.name or f"instrument {place + 1}" for place, instrument in enumerate(midi.instruments)]
    shown = [name.replace("$", r"\$") for name in names]  # dollar signs would begin a formula
    handles = [Patch(color=COLOURS[place % len(COLOURS)], label=name) for place, name in enumerate(shown)]
    if handles:
        figure.legend(
            handles=handles, loc="outside upper center", ncols=min(len(handles), 6), frameon=False,
            fontsize=9, handlelength=1.1, handleheight=0.9, columnspacing=1.6,
        )  # fmt: skip
    figure.savefig(path)
    return path


def as_text(midi: pretty_midi.PrettyMIDI, axis: Axis, groups: int = 4, width: int = 72) -> str:
    """The first sounding bars of `midi` as lines of ASCII: a row per pitch, a letter per onset, dashes while it sounds.

    Args:
        axis: QUARTERS, or SECONDS for performances.
        groups: number of bars, or of spans of 5 seconds; fewer are shown where more than 24 pitches sound.
        width: of the longest line, in characters; at least 40.
    """
    voices = [_notes(midi, instrument, axis) for instrument in midi.instruments]
    every = np.concatenate([*voices, np.zeros((0, 3))])
    if not len(every):
        return "silence"
    first = int(every[:, 0].min() // axis.group)
    groups = min(groups, math.ceil(every[:, 1].max() / axis.group - 1e-6) - first)
    while groups > 1 and len(_sounding(every, first * axis.group, (first + groups) * axis.group)) > TEXT_ROWS:
        groups -= 1
    cells = (width - 4 - groups) // groups  # columns of one group, after a pitch name and a line per group
    cells = min(cells, 4 * axis.group) if axis is QUARTERS else cells
    names = [instrument.name or f"Instrument {place + 1}" for place, instrument in enumerate(midi.instruments)]
    letters = [name[0].upper() if name.isascii() else "?" for name in names]
    if len({*letters}) < len(letters):
        letters = [str((place + 1) % 10) for place in range(len(names))]

    start, end = first * axis.group, (first + groups) * axis.group
    rows = {pitch: [" "] * (groups * cells) for pitch in _sounding(every, start, end)}
    for letter, notes in zip(letters, voices, strict=True):
        for begin, stop, pitch in notes[(notes[:, 1] > start) & (notes[:, 0] < end)]:
            row = rows[int(pitch)]
            at, upto = (round((time - start) * cells / axis.group) for time in (max(begin, start), min(stop, end)))
            at = min(at, len(row) - 1)
            row[at:upto] = [cell if cell.isalnum() else "-" for cell in row[at:upto]]
            # A unison shows both letters, one after the other.
            row[next((i for i in range(at, upto) if row[i] == "-"), at)] = letter
    marks = [f"{start // axis.group + 1 + i if axis is QUARTERS else start + i * axis.group}" for i in range(groups)]
    lines = [f"{'bar' if axis is QUARTERS else 's':>3} " + " ".join(mark.ljust(cells) for mark in marks).rstrip()]
    for pitch in sorted(rows, reverse=True):
        parts = ["".join(rows[pitch][at : at + cells]) for at in range(0, groups * cells, cells)]
        lines.append(f"{pretty_midi.note_number_to_name(pitch):>3}|{'|'.join(parts)}|")
    legend = "   ".join(f"{letter} {name}" for letter, name in zip(letters, names, strict=True))
    return "\n".join([*lines, f"    {legend}"[:width]])


def _sounding(notes: np.ndarray, start: float, end: float) -> list[int]:
    """Pitches of the notes that sound between two times."""
    return sorted({int(pitch) for begin, stop, pitch in notes if stop > start and begin < end})


def _notes(midi: pretty_midi.PrettyMIDI, instrument: pretty_midi.Instrument, axis: Axis) -> np.ndarray:
    """`[notes, 3]`: start and end in the axis's units, and pitch."""
    notes = np.array([(note.start, note.end, note.pitch) for note in instrument.notes], float).reshape(-1, 3)
    if axis is SECONDS:
        return notes
    changes, tempi = midi.get_tempo_changes()
    before = np.concatenate([[0.0], np.cumsum(np.diff(changes) * tempi[:-1] / 60)])
    times = notes[:, :2]
    at = np.searchsorted(changes, times, side="right") - 1
    notes[:, :2] = before[at] + (times - changes[at]) * tempi[at] / 60
    return notes


def _bars(panel, notes: np.ndarray, colour: str, thickness: float, layer: int) -> None:
    """Later instruments are drawn thinner and on top, so that a unison shows both colours."""
    from matplotlib.collections import PolyCollection

    half = thickness / 2
    corners = [
        [(begin, pitch - half), (begin, pitch + half), (end, pitch + half), (end, pitch - half)]
        for begin, end, pitch in notes
    ]
    panel.add_collection(
        PolyCollection(corners, facecolors=colour, edgecolors="white", linewidths=0.5, zorder=3 + layer),
        autolim=False,
    )


def _paper(panel, start: int, width: int, low: float, high: float, group: int) -> None:
    """The grid behind the notes: darker rows for black keys, a line every unit of time, a name at every C and G."""
    pitches = range(math.floor(low), math.ceil(high) + 1)
    for pitch in pitches:
        if pitch % 12 in BLACK_KEYS:
            panel.axhspan(pitch - 0.5, pitch + 0.5, color="#f3f3f1", linewidth=0, zorder=0)
        if pitch % 12 == 0:
            panel.axhline(pitch - 0.5, color="#bdbdbd", linewidth=0.8, zorder=1)
    panel.vlines(range(start, start + width + 1), low, high, color="#e9e9e7", linewidth=0.6, zorder=1)
    panel.vlines(range(start, start + width + 1, group), low, high, color="#cfcfcc", linewidth=0.9, zorder=1)
    panel.set_xlim(start, start + width)
    panel.set_ylim(low, high)
    panel.set_xticks(range(start, start + width + 1, group * math.ceil(width / group / 12)))
    named = [pitch for pitch in pitches if pitch % 12 in (0, 7) and low < pitch < high]
    panel.set_yticks(named, [pretty_midi.note_number_to_name(pitch) for pitch in named])
    for label, pitch in zip(panel.get_yticklabels(), named, strict=True):
        label.set_fontweight("bold" if pitch % 12 == 0 else "normal")
    panel.tick_params(length=0, labelsize=8, labelcolor="#4a4a4a")
    for spine in panel.spines.values():
        spine.set_visible(False)
