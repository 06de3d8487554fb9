"""A piano roll: a colour per voice, bar lines and pitch names, as SVG; a few bars of it as plain text."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple
from xml.sax.saxutils import escape

import numpy as np
import pretty_midi

from ..core.terminal import printable
from ..core.theme import COLOURS, LIGHT, Theme, themed

BLACK_KEYS = {1, 3, 6, 8, 10}
LONGEST = 20_000  # units of time, more than a picture can show; the rest of a piece is left out
SYSTEMS = 8  # in one picture; a longer piece gets longer systems
TEXT_ROWS, TEXT_GROUPS = 24, 4  # pitches and bars of a piano roll as text
LEFT, RIGHT, TOP = 34, 8, 26  # margins, pixels
GAP = 26  # pixels between two systems, which hold the bar numbers
VOICES = [light for light, _ in COLOURS.values()]
NAME = 24  # characters of an instrument's name


class Axis(NamedTuple):
    """How a domain measures time.

    Attributes:
        unit: name of the unit of time.
        label: what the numbers above the systems count.
        group: units between two of those numbers, each marked by a darker line.
        row: units in one system.
        bars: whether groups are numbered as bars, from 1; otherwise the numbers are units, from 0.
    """

    unit: str
    label: str
    group: int
    row: int
    bars: bool


QUARTERS = Axis("quarter notes", "bar (16 sixteenths)", 4, 16, True)
SECONDS = Axis("seconds", "seconds", 5, 10, False)


def as_svg(
    midi: pretty_midi.PrettyMIDI, axis: Axis, theme: Theme = "both", width: int = 640, longest: int = LONGEST
) -> str:
    """Every instrument of `midi`, wrapped into systems like a score; empty music gives an empty grid.

    Args:
        axis: QUARTERS, or SECONDS for performances, which follow no beat.
        width: width in pixels.
        longest: maximum units of time to show.
    """
    voices = [_notes(midi, instrument, axis) for instrument in midi.instruments]
    every = np.concatenate([*voices, np.zeros((0, 3))])
    length = min(max(math.ceil(every[:, 1].max(initial=0) - 1e-6), axis.group), longest)
    systems = min(math.ceil(length / axis.row), SYSTEMS)
    row = axis.group * math.ceil(length / systems / axis.group)
    low, high = (int(every[:, 2].min()) - 2, int(every[:, 2].max()) + 2) if len(every) else (58, 74)

    key = min(max(5.0, 90 / (high - low + 1)), 240 / (high - low + 1))  # pixels of a semitone
    unit, height = (width - LEFT - RIGHT) / row, key * (high - low + 1)
    parts = [_legend(midi, width)]
    for index in range(systems):
        top, start = TOP + GAP + index * (height + GAP), index * row
        parts.append(_paper(start, row, unit, low, high, key, top, axis))
        for place, notes in enumerate(voices):
            seen = notes[(notes[:, 1] > start) & (notes[:, 0] < start + row)]
            # Later voices are drawn thinner and on top, so that a unison shows both colours.
            thickness = key * (1.1 - 0.13 * (place % 4))
            bars = "".join(
                _bar(LEFT + unit * (max(begin, start) - start), unit * (min(end, start + row) - max(begin, start)),
                     top + key * (high - pitch + 0.5), thickness)
                for begin, end, pitch in seen
            )  # fmt: skip
            if bars:
                colour = VOICES[place % len(VOICES)]
                parts.append(f'<path fill="{colour}" stroke="{LIGHT["paper"]}" stroke-width=".5" d="{bars}"/>')
    bottom = TOP + systems * (height + GAP)
    if not len(every):
        parts.append(_text(width / 2, TOP + GAP + height / 2, "silence", "middle"))
    parts.append(_text(LEFT, bottom + 18, axis.label))
    shape = f'width="{width}" height="{bottom + 26:.0f}" viewBox="0 0 {width} {bottom + 26:.0f}"'
    font = "font-family=\"'Segoe UI','Liberation Sans',Arial,sans-serif\" font-size=\"12\""
    paper = f'<rect width="100%" height="100%" fill="{LIGHT["paper"]}"/>'
    return themed(f'<svg xmlns="http://www.w3.org/2000/svg" {shape} {font}>{paper}{"".join(parts)}</svg>\n', theme)


def write(midi: pretty_midi.PrettyMIDI, axis: Axis, stem: Path) -> list[Path]:
    """Write `stem`.mid, for any player or notation program, and `stem`.svg, a piano roll. Returns their paths."""
    score, picture = stem.with_name(stem.name + ".mid"), stem.with_name(stem.name + ".svg")
    midi.write(str(score))
    picture.write_text(as_svg(midi, axis), encoding="utf-8", newline="\n")
    return [score, picture]


def as_text(midi: pretty_midi.PrettyMIDI, axis: Axis, width: int = 72) -> str:
    """The first sounding bars of `midi` as lines of ASCII: a row per pitch, a letter per onset, dashes while it sounds.

    There are at most TEXT_GROUPS bars, or spans of 5 seconds; fewer where more than TEXT_ROWS pitches sound.

    Args:
        axis: QUARTERS, or SECONDS for performances.
        width: maximum characters per line; at least 40.
    """
    voices = [_notes(midi, instrument, axis) for instrument in midi.instruments]
    every = np.concatenate([*voices, np.zeros((0, 3))])
    if not len(every):
        return "silence"
    first = int(every[:, 0].min() // axis.group)
    groups = min(TEXT_GROUPS, math.ceil(every[:, 1].max() / axis.group - 1e-6) - first)
    while groups > 1 and len(_sounding(every, first * axis.group, (first + groups) * axis.group)) > TEXT_ROWS:
        groups -= 1
    cells = (width - 4 - groups) // groups  # columns of one group, after a pitch name and a line per group
    cells = min(cells, 4 * axis.group) if axis.bars else cells
    names = _names(midi)
    letters = _letters(names)

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
    marks = [_mark(start + i * axis.group, axis) for i in range(groups)]
    lines = [f"{'bar' if axis.bars else 's':>3} " + " ".join(mark.ljust(cells) for mark in marks).rstrip()]
    for pitch in sorted(rows, reverse=True):
        parts = ["".join(rows[pitch][at : at + cells]) for at in range(0, groups * cells, cells)]
        lines.append(f"{pretty_midi.note_number_to_name(pitch):>3}|{'|'.join(parts)}|")
    legend = "   ".join(f"{letter} {name}" for letter, name in zip(letters, names, strict=True))
    return "\n".join([*lines, f"    {legend}"[:width]])


def _letters(names: Sequence[str]) -> list[str]:
    """One character per name: its initial, or a number where those are not ASCII letters or not distinct."""
    letters = [name[0].upper() for name in names]
    if len({*letters}) < len(letters) or not all(letter.isascii() and letter.isalpha() for letter in letters):
        letters = [str(place % 10) for place in range(1, len(names) + 1)]
    return letters


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


def _names(midi: pretty_midi.PrettyMIDI) -> list[str]:
    return [printable(each.name)[:NAME] or f"Instrument {i}" for i, each in enumerate(midi.instruments, 1)]


def _mark(time: int, axis: Axis) -> str:
    """The number above the line at `time`."""
    return str(time // axis.group + 1 if axis.bars else time)


def _legend(midi: pretty_midi.PrettyMIDI, width: int) -> str:
    parts, x = [], float(LEFT)
    for place, name in enumerate(_names(midi)):
        parts.append(f'<rect x="{x:g}" y="8" width="12" height="10" fill="{VOICES[place % len(VOICES)]}"/>')
        parts.append(_text(x + 17, 17, name, colour="ink"))
        x += 34 + 6.5 * len(name)
        if x > width - 100:
            break
    return "".join(parts)


def _paper(start: int, row: int, unit: float, low: int, high: int, key: float, top: float, axis: Axis) -> str:
    """The grid of one system: shaded black keys, a line per unit of time and group, names of every C and G."""
    width, bottom = row * unit, top + key * (high - low + 1)
    edge = {pitch: top + key * (high - pitch) for pitch in range(low, high + 1)}  # upper edge of each key
    shades = "".join(f"M{LEFT} {edge[p]:.1f}h{width:g}v{key:.1f}h-{width:g}z" for p in edge if p % 12 in BLACK_KEYS)
    octaves = "".join(f"M{LEFT} {edge[p] + key:.1f}h{width:g}" for p in edge if p % 12 == 0)
    units = "".join(f"M{LEFT + unit * at:.1f} {top:.1f}V{bottom:.1f}" for at in range(row + 1)) if unit >= 6 else ""
    groups = range(0, row + 1, axis.group)
    lines = "".join(f"M{LEFT + unit * at:.1f} {top - 4:.1f}V{bottom:.1f}" for at in groups)
    parts = [
        f'<path fill="{LIGHT["tint"]}" d="{shades}"/>',
        f'<path stroke="{LIGHT["line"]}" stroke-width=".6" d="{octaves}{units}"/>',
        f'<path stroke="{LIGHT["quiet"]}" stroke-width=".9" d="{lines}"/>',
    ]
    step = axis.group * math.ceil(36 / (unit * axis.group))  # numbers at least 36 pixels apart
    parts += [_text(LEFT + unit * at + 3, top - 5, _mark(start + at, axis)) for at in range(0, row, step)]
    named = [p for p in edge if p % 12 in ((0, 7) if key >= 2.5 else (0,)) and low < p < high]
    parts += [_text(LEFT - 5, edge[p] + key / 2 + 4, pretty_midi.note_number_to_name(p), "end") for p in named]
    return "".join(parts)


def _bar(x: float, width: float, middle: float, thickness: float) -> str:
    """A note as a part of a path."""
    return f"M{x:.1f} {middle - thickness / 2:.1f}h{width:.1f}v{thickness:.1f}h-{width:.1f}z"


def _text(x: float, y: float, text: str, anchor: str = "start", colour: str = "quiet") -> str:
    place = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{LIGHT[colour]}"'
    return f"<text {place}>{escape(text)}</text>"
