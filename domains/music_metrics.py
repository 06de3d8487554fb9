"""Metrics of music by segment, for comparing samples with a test split; most are defined as in MuSPy."""

import math
from itertools import combinations

import numpy as np

from .base import Measures

MAJOR = np.array([1, 0, 1, 0, 1, 1, 0, 1, 0, 1, 0, 1])  # natural minor scales have the same pitches
SCALES = np.stack([np.roll(MAJOR, root) for root in range(12)])
SOURCE = "MuSPy (Dong et al., ISMIR 2020)"
PIANO = Measures(
    {
        "pitch_class_entropy": "pitch-class entropy, bits",
        "scale_consistency": "scale consistency",
        "polyphony": "polyphony, pitches",
        "note_density": "note density, notes/second",
    },
    "10 seconds",
    "position, seconds",
    10.0,
    f"Pitch-class entropy, scale consistency and polyphony are defined as in {SOURCE}. Performances have no bars and "
    "no voices, so groove consistency and voice crossing are undefined.",
)
VOICES = Measures(
    {
        **PIANO.headings,
        "note_density": "note density, notes/quarter",
        "groove_consistency": "groove consistency",
        "voice_crossing": "voice crossing, share of steps",
    },
    "4 bars of 16 sixteenths",
    "position, bars of 16 sixteenths",
    4.0,
    f"Pitch-class entropy, scale consistency, polyphony and groove consistency are defined as in {SOURCE}. Voice "
    "crossing: of the steps at which two or more voices sound, the share at which a voice is below a lower one.",
)


def of_performance(start: np.ndarray, end: np.ndarray, pitch: np.ndarray, length: int, second: int) -> np.ndarray:
    """The metrics of PIANO, `[segments, 4]`, NaN where undefined. An incomplete last segment is left out.

    Args:
        start, end: onset and release of each note in steps, `[notes]`.
        pitch: MIDI pitches, `[notes]`.
        length: steps of the piece.
        second: steps per second.
    """
    segment = round(PIANO.extent * second)
    return np.array(
        [_of_notes(start, end, pitch, at, segment, second) for at in range(0, length - segment + 1, segment)]
    ).reshape(-1, len(PIANO.headings))


def of_voices(grid: np.ndarray, bar: int, quarter: int) -> np.ndarray:
    """The metrics of VOICES, `[segments, 6]`, NaN where undefined. An incomplete last segment is left out.

    Args:
        grid: MIDI pitches, the highest voice first, rests below 0, `[steps, voices]`. Equal pitches are one held note.
        bar, quarter: steps per bar and per quarter note.
    """
    start, end, pitch = held_notes(grid)
    segment, found = round(VOICES.extent * bar), []
    for at in range(0, len(grid) - segment + 1, segment):
        onsets = start[(start >= at) & (start < at + segment)] - at
        groove = groove_consistency(onsets, segment // bar, bar)
        crossing = voice_crossing(grid[at : at + segment])
        found.append([*_of_notes(start, end, pitch, at, segment, quarter), groove, crossing])
    return np.array(found).reshape(-1, len(VOICES.headings))


def held_notes(grid: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Onset and release in steps, and pitch, of the notes of `grid`, as in `of_voices`."""
    found = []
    for voice in grid.T:
        edges = np.concatenate([[0], np.flatnonzero(np.diff(voice)) + 1, [len(voice)]])
        begins, ends = edges[:-1], edges[1:]
        sounding = voice[begins] >= 0 if len(voice) else np.zeros(1, bool)
        found.append(np.stack([begins[sounding], ends[sounding], voice[begins[sounding]]]))
    start, end, pitch = np.concatenate(found, 1)
    return start, end, pitch


def _of_notes(
    start: np.ndarray, end: np.ndarray, pitch: np.ndarray, at: int, segment: int, unit: int
) -> tuple[float, float, float, float]:
    """The metrics of PIANO of the steps from `at` to `at + segment`. A note belongs to the segment of its onset."""
    begun = pitch[(start >= at) & (start < at + segment)]
    sounding = (start < at + segment) & (end > at)
    clipped = np.maximum(start[sounding] - at, 0), np.minimum(end[sounding] - at, segment)
    return (
        pitch_class_entropy(begun),
        scale_consistency(begun),
        polyphony(*clipped, pitch[sounding], segment),
        len(begun) * unit / segment,
    )


def pitch_class_entropy(pitch: np.ndarray) -> float:
    """Shannon entropy in bits of the pitch classes of notes `[notes]`, from 0 to log2(12); NaN without notes."""
    if not len(pitch):
        return math.nan
    share = np.bincount(pitch % 12, minlength=12) / len(pitch)
    return float(-(share[share > 0] * np.log2(share[share > 0])).sum() + 0.0)


def scale_consistency(pitch: np.ndarray) -> float:
    """The largest share of notes `[notes]` in any one major or natural minor scale; NaN without notes."""
    return float((SCALES @ np.bincount(pitch % 12, minlength=12)).max() / len(pitch)) if len(pitch) else math.nan


def polyphony(start: np.ndarray, end: np.ndarray, pitch: np.ndarray, length: int) -> float:
    """Mean number of different pitches that sound at once, over the steps at which any sounds; NaN for silence."""
    roll = np.zeros((length, 128), bool)
    for first, last, key in zip(start.tolist(), end.tolist(), pitch.tolist(), strict=True):
        roll[first:last, key] = True
    sounding = np.count_nonzero(roll.any(1))
    return float(roll.sum() / sounding) if sounding else math.nan


def groove_consistency(start: np.ndarray, bars: int, bar: int) -> float:
    """1 minus the mean distance of adjacent bars, from 0 to 1; NaN for fewer than two bars.

    The distance of two bars is the share of their steps at which only one of them has an onset.

    Args:
        start: onsets in steps, below `bars * bar`.
        bars: number of bars.
        bar: steps per bar.
    """
    if bars < 2:
        return math.nan
    onsets = np.zeros((bars, bar), bool)
    onsets.reshape(-1)[start] = True
    return float(1 - (onsets[1:] != onsets[:-1]).mean())


def voice_crossing(grid: np.ndarray) -> float:
    """Of the steps at which two voices sound, the share at which a voice is below a lower one; NaN if there are none.

    `grid` is as in `of_voices`.
    """
    several = (grid >= 0).sum(1) > 1
    crossed = np.zeros(len(grid), bool)
    for upper, lower in combinations(grid.T, 2):
        crossed |= (upper >= 0) & (upper < lower)
    return float(crossed.sum() / several.sum()) if several.any() else math.nan
