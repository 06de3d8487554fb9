"""MAESTRO: performances of ten years of a piano competition as REMI tokens."""

import hashlib
import os
from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pretty_midi

from ..core.errors import MOST_FAULTS, UserError, several
from ..core.options import as_path
from ..core.words import plural
from . import midi_files, music_metrics, overlaps, pianoroll, remi
from .clocks import Clock
from .fetch import fetch
from .music import Music
from .options import MaestroOptions
from .performances import Performance, Release, fingerprint
from .store import SPLITS, StoreWriter
from .workers import each

FILE = "maestro-v3.0.0-midi.zip"
SHA256 = "70470ee253295c8d2c71e6d9d4a815189e35c89624b76d22fce5a019d5dde12c"
BYTES = 58_416_533
TAR_SHA256 = "90f9e73df1b2d12aa5f0f2c9ebbf0070a804f7a6c18002777e765c40dd06829a"  # the same release as tar.gz
# Test performances of the random split whose composition is not in train: first digits of the SHA-256 of their names.
NEW_COMPOSITIONS = (
    "005048 0057fb 009167 00c952 00f794 025c0d 0284db 0329ad 0346c7 03a780 03bb4d 048af5 04f5ed 056439 057307 05b335 "
    "06c6bf 06dc16 06e47b 0768d9 0813ac 08b60b 0930ea 0951ed 0952bc 09dbb6 0a901c 0b778c 0b83c2 0b95d3 0bafe3"
)
RESOLUTION = 480  # ticks per quarter note of written files; a multiple of both grids
LOST = 0.01  # largest share of note-ons without a note in own files; if one has no end, ends after it are wrong


class Maestro(Music):
    """Piano performances (Hawthorne et al., arXiv 1810.12247). A document is one performance, from BOS to EOS.

    A note consists of three tokens, Pitch, Velocity and Duration, which follow the Bar and Position of its onset.
    Performances have no beat, and the files have a constant tempo of 120 quarter notes per minute. So a bar of four
    quarters lasts 2 s, and the grid divides time, not beats. As usual for REMI, pedals are ignored: a note ends when
    its key is released.

    Tokenizers:
        fine: 24 positions per quarter (20.8 ms), so onsets are off by at most 10.4 ms. Durations have steps of 20.8 ms
            up to 0.5 s, 41.7 ms up to 2 s and 125 ms up to 6 s, the maximum. The vocabulary of 313 has only tokens that
            a piano at one tempo uses: 4 specials, Bar, 88 Pitch, 32 Velocity, 92 Duration, 96 Position.
        pope: the example configuration of MidiTok's documentation with 8 positions per quarter (62.5 ms; onsets are off
            by at most 31 ms) and chord, tempo and drum tokens; drums never occur. With 88 keys and 61 drums the
            vocabulary is 328, as stated in the PoPE paper; the configuration is inferred only from this number.

    Units are computed from tokens. Each Pitch is a "note". Bar and Position count the "second"s by which they advance,
    and EOS those up to the end of the last note. For each split, the manifest also holds counts from the MIDI files
    (`midi`: note-ons, published seconds) and losses (`lost`). A note without an end takes that of the next note of its
    pitch, and the last of them is lost. MAESTRO loses one of its 7,040,164 note-ons, in train, after 29 wrong ends. Of
    files without metadata, those that lose more than 1 % of their notes cannot be used.

    Splits: `official` is the publisher's split by piece. Five titles occur in two of its splits; according to their
    lengths they are different movements, so they form separate clusters. `random` is a fixed 90/5/5 split by
    performance as in the PoPE paper. There splits share clusters, which improves scores. Of files with the same tokens,
    only those in the split of the first are used; the others are `copies_left_out` in the manifest. In both cases,
    `composition_also_in_train` in the manifest is the number of affected performances. Reports of the published release
    with the random split score them and the others separately.

    Args:
        options: fields of `MaestroOptions`, in order.

    Raises:
        ValueError: see `MaestroOptions`.
    """

    name = "maestro"
    margin = 0.004  # the published difference between RoPE and PoPE is 0.015
    axis = pianoroll.SECONDS
    units = ("note", "second")
    start = remi.START
    measures = music_metrics.PIANO
    top_p = 0.9

    def __init__(self, *options: Any, **named: Any):
        given = MaestroOptions(*options, **named)
        self.path = as_path(given.path) if given.path else None
        self.urls, self.split, self.tokenizer = list(given.urls), given.split, given.tokenizer
        self.transpose, self.skip_unreadable = given.transpose, given.skip_unreadable

    @property
    def searched(self) -> Sequence[Path]:
        return () if self.path is None else (self.path,)

    @property
    def codec(self) -> remi.Remi:
        return remi.remi(self.tokenizer)

    @property
    def vocabulary(self) -> int:
        return self.codec.vocabulary

    def options(self) -> Mapping[str, Any]:
        settings = dict(remi.SETTINGS[self.tokenizer])
        settings["beat_res"] = [[*beats, steps] for beats, steps in settings["beat_res"].items()]
        return {
            "sha256": SHA256 if self.path is None else fingerprint(self.path),
            "split": self.split,
            "tokenizer": self.tokenizer,
            "settings": settings,
            "miditok": version("miditok"),
            "symusic": version("symusic"),
            "skip_unreadable": self.skip_unreadable,
        }

    @classmethod
    def subset(cls, content: Mapping[str, Any], document: str) -> str | None:
        if content.get("split") != "random" or content.get("sha256") not in (SHA256, TAR_SHA256):
            return None
        new = _place(document)[:6] in NEW_COMPOSITIONS.split()
        return "new composition" if new else "composition also in training"

    def build(self, writer: StoreWriter) -> None:
        place = self.path or self._download(writer.directory.parent / "downloads" / FILE)
        release = Release(place, unsplit=self.split == "random")
        skipped = dict.fromkeys(release.absent, "listed but missing")
        if skipped and not self.skip_unreadable:
            self._refuse(skipped, release)
        splits = self._splits(release.performances)
        titles = {row.file: row.composition for row in release.performances}
        clusters = self._clusters(titles, splits)
        midi: dict[str, dict[str, float]] = {part: dict.fromkeys(self.units, 0) for part in SPLITS}
        kept: dict[str, dict[str, float]] = {part: dict.fromkeys(self.units, 0) for part in SPLITS}
        copies: dict[str, str] = {}
        first_with: dict[bytes, str] = {}  # the first file with these tokens, by their hash
        lost = 1.0 if release.published else LOST
        for row, found in each(document, release.read(), len(release.performances), self.tokenizer, lost):
            if isinstance(found, str):
                skipped[row.file] = found
                if len(skipped) > MOST_FAULTS and not self.skip_unreadable:
                    break
                continue
            if skipped and not self.skip_unreadable:
                continue
            tokens, note_ons = found
            part, original = splits[row.file], row.file
            if self.split == "random":
                original = first_with.setdefault(hashlib.sha256(tokens.tobytes()).digest(), row.file)
            if splits[original] != part:
                copies[row.file] = original
                continue
            units = {unit: float(weights.sum()) for unit, weights in self.unit_weights(tokens).items()}
            writer.add(row.file, part, clusters[original], tokens, units)
            seconds = units["second"] if row.seconds is None else row.seconds
            for unit, raw in (("note", note_ons), ("second", seconds)):
                midi[part][unit] += raw
                kept[part][unit] += units[unit]
        if skipped and not self.skip_unreadable:
            self._refuse(skipped, release)
        read = {file: title for file, title in titles.items() if file not in {**skipped, **copies}}
        if empty := [part for part in SPLITS if part not in {splits[file] for file in read}]:
            self._refuse_empty(empty[0], place, splits, skipped, copies, len(first_with))
        writer.facts.update(
            grid_ms=round(1000 * self.codec.step, 3),
            midi=midi,
            lost={part: {unit: midi[part][unit] - kept[part][unit] for unit in self.units} for part in SPLITS},
            compositions=len(set(read.values())),
            composition_also_in_train=overlaps.shared(read, splits),
            skipped=skipped,
            copies_left_out=copies,
            unlisted=release.unlisted,
        )

    def _download(self, target: Path) -> Path:
        hint = f"get {FILE} from magenta.tensorflow.org/datasets/maestro and set domain.path=/where/you/put/{FILE}"
        return fetch(self.urls, SHA256, target, hint, size=BYTES)

    def _refuse(self, unusable: Mapping[str, str], release: Release) -> None:
        faults = several([f"{release.place_of(file)} cannot be used ({why})" for file, why in unusable.items()])
        it = "it" if len(unusable) == 1 else "them"
        raise UserError(f"{faults}: replace {it}, or skip such files with domain.skip_unreadable=true")

    def _refuse_empty(
        self,
        empty: str,
        place: Path,
        splits: Mapping[str, str],
        skipped: Mapping[str, str],
        copies: Mapping[str, str],
        different: int,
    ) -> None:
        """Raise UserError if the split `empty` has no files because they were skipped or are copies."""
        if self.split == "random" and different < len(SPLITS):
            example = next((f" ({file} cannot be used: {why})" for file, why in skipped.items()), "")
            raise UserError(
                f"{place} has {plural(len(splits), 'file')}, but only {different} with different notes{example}, and "
                f"{', '.join(SPLITS)} need one each: give more files"
            )
        for file, original in copies.items():
            if splits[file] == empty:
                raise UserError(
                    f"{place}: no file is left in {empty}, because {file} has the same notes as {original}, which is "
                    f"in {splits[original]}: remove one of them"
                )
        for file, why in skipped.items():
            if splits.get(file) == empty:
                remedy = "replace it" if self.split == "official" else "replace or remove it"
                raise UserError(f"{place}: no file is left in {empty}, because {file} is skipped ({why}): {remedy}")

    def _splits(self, performances: Sequence[Performance]) -> dict[str, str]:
        if self.split == "official":
            return {row.file: row.split for row in performances}
        drawn = sorted((row.file for row in performances), key=_place)
        few = max(1, round(0.05 * len(drawn)))
        parts = ["test"] * few + ["valid"] * few
        return {file: parts[place] if place < len(parts) else "train" for place, file in enumerate(drawn)}

    def _clusters(self, titles: Mapping[str, str], splits: Mapping[str, str]) -> dict[str, str]:
        """Composer and title, followed by the split if a title occurs in several official splits."""
        if self.split == "random":
            return dict(titles)
        spread: dict[str, set[str]] = {}
        for file, title in titles.items():
            spread.setdefault(title, set()).add(splits[file])
        return {
            file: title if len(spread[title]) == 1 else f"{title} [{splits[file]}]" for file, title in titles.items()
        }

    def encode_file(self, path: Path) -> np.ndarray:
        """Tokens of a MIDI file without EOS. All pitched tracks are merged into one piano."""
        try:
            notes, begun = remi.read(midi_files.content(path))
            midi_files.refuse_lost(begun, len(notes.pitch))
        except FileNotFoundError as error:
            raise UserError(f"{path} does not exist: give a .mid file of piano music") from error
        except (OSError, ValueError) as error:
            raise UserError(f"{path} cannot be read as piano music ({error}): give another .mid file") from error
        return self.codec.encode(notes)

    def unit_weights(self, tokens: np.ndarray) -> dict[str, np.ndarray]:
        tokens = np.asarray(tokens, np.int64)
        return {"note": (self.codec.kind[tokens] == remi.PITCH).astype(float), "second": self.codec.advance(tokens)}

    def clock(self) -> Clock:
        """Grid points of the onsets. The tokens of all notes with the same onset share a position."""
        return self.codec.clock()

    def augment(self, tokens: np.ndarray, random: np.random.Generator) -> np.ndarray:
        """Transpose all Pitch tokens by one uniform draw. Other tokens do not change."""
        tokens = np.asarray(tokens)
        sounding = self.codec.kind[tokens] == remi.PITCH
        if not self.transpose or not sounding.any():
            return tokens
        pitches = self.codec.value[tokens[sounding]]
        down = min(self.transpose, int(pitches.min()) - remi.LOWEST)
        up = min(self.transpose, remi.HIGHEST - int(pitches.max()))
        moved = tokens.copy()
        moved[sounding] = self.codec.pitch_ids[pitches - remi.LOWEST + random.integers(-down, up + 1)]
        return moved

    def decode(self, ids: Iterable[int]) -> pretty_midi.PrettyMIDI:
        """One piano from any ids, up to the first EOS. Incomplete notes are skipped."""
        notes = self.codec.decode(ids)
        midi = pretty_midi.PrettyMIDI(resolution=RESOLUTION, initial_tempo=60 * remi.BEATS_A_SECOND)
        piano = pretty_midi.Instrument(0, name="Piano")
        columns = (notes.velocity.tolist(), notes.pitch.tolist(), notes.start.tolist(), notes.end.tolist())
        piano.notes = [pretty_midi.Note(*note) for note in zip(*columns, strict=True)]
        midi.instruments.append(piano)
        return midi

    def measure(self, ids: Iterable[int]) -> np.ndarray:
        known = [value for value in map(int, ids) if 0 <= value < self.vocabulary]
        known = np.array(known[: known.index(remi.END)] if remi.END in known else known, np.int64)
        codec, notes = self.codec, self.codec.decode(known)
        start, end = (np.rint(each / codec.step).astype(np.int64) for each in (notes.start, notes.end))
        length = round(codec.advance(known).sum() / codec.step)
        return music_metrics.of_performance(start, end, notes.pitch, length, round(1 / codec.step))


def _place(file: str) -> str:
    """Its SHA-256: what the random split is sorted by."""
    return hashlib.sha256(os.fsencode(file)).hexdigest()


def document(data: bytes, tokenizer: str, lost: float) -> tuple[np.ndarray, int] | str:
    """Tokens of a MIDI file, BOS to EOS, and its note-ons; or why it cannot be used. Runs in a worker process.

    Args:
        data: contents of the file.
        tokenizer: see `MaestroOptions`.
        lost: largest share of note-ons without a note.
    """
    try:
        notes, note_ons = remi.read(data)
        midi_files.refuse_lost(note_ons, len(notes.pitch), lost)
    except ValueError as error:
        return str(error)
    return np.append(remi.remi(tokenizer).encode(notes), remi.END).astype(np.uint16), note_ons
