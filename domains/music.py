"""Base of the domains whose items are MIDI."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pretty_midi

from . import pianoroll
from .base import Domain


class Music(Domain):
    """Base of the domains whose items are MIDI. The option `transpose` limits the semitones of `augment`.

    Class attributes that a subclass sets:
        axis: how it measures time.
    """

    axis: pianoroll.Axis

    @classmethod
    def augmented_with(cls, options: Mapping[str, Any]) -> str | None:
        semitones = options.get("transpose")
        return f"In training, windows are transposed by up to {semitones} semitones." if semitones else None

    def render(self, item: pretty_midi.PrettyMIDI, stem: Path) -> list[Path]:
        return pianoroll.write(item, self.axis, stem)

    def preview(self, item: pretty_midi.PrettyMIDI) -> str:
        return pianoroll.as_text(item, self.axis)
