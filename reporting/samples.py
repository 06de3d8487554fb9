"""Samples of a run in a form that a page can show: piano roll and sound, coloured bases, or text."""

import base64
import io
from collections.abc import Sequence
from dataclasses import dataclass

import pretty_midi
import soundfile

from ..core.packed_paths import AnyPath
from ..domains import pianoroll
from ..session.trust import located
from .study import Contestant

RATE = 22050  # Hz
LONGEST = 60  # seconds of sound
BASES = 1200
LETTERS = 4000
FILES = 4  # of one contestant
PICTURES = {".png": "image/png", ".svg": "image/svg+xml"}  # by ending; those next to a MIDI file show the same music
LARGEST = 16 << 20  # bytes of a file


@dataclass(frozen=True)
class Sample:
    """One sample; of `image`, `audio`, `bases` and `text` those that its medium has.

    Attributes:
        image, audio: data URIs.
        bases: lines of 60, each in groups of ten.
        note: what was left out, or why there is nothing to see.
    """

    model: str
    name: str
    image: str | None = None
    audio: str | None = None
    bases: Sequence[Sequence[str]] = ()
    text: str | None = None
    note: str = ""


def samples_of(contestant: Contestant) -> list[Sample]:
    """The first samples of the lowest seed that has any."""
    for seed in sorted(contestant.runs):
        run = contestant.runs[seed]
        files = sorted(path for path in (run.path / "samples").glob("*") if path.is_file())
        drawings = {path.with_suffix("") for path in files if path.suffix == ".mid"}
        files = [path for path in files if path.suffix not in PICTURES or path.with_suffix("") not in drawings]
        if files:
            domain = run.config["domain"]["_target_"]
            return [_sample(f"{contestant.label}, seed {seed}", path, domain) for path in files[:FILES]]
    return []


def data_uri(data: bytes, kind: str) -> str:
    """`data` as an address that holds it."""
    return f"data:{kind};base64,{base64.b64encode(data).decode()}"


def _sample(model: str, path: AnyPath, domain: str) -> Sample:
    try:
        if (size := path.stat().st_size) > LARGEST:
            return Sample(model, path.name, note=f"not shown: it has {size / 2**20:,.0f} MiB")
        if path.suffix == ".mid":
            audio, note = _sound(path)
            roll = pianoroll.as_svg(_midi(path), located(domain, "domain").axis).encode()
            return Sample(model, path.name, image=data_uri(roll, PICTURES[".svg"]), audio=audio, note=note)
        if path.suffix in PICTURES:
            return Sample(model, path.name, image=data_uri(path.read_bytes(), PICTURES[path.suffix]))
        if path.suffix == ".fa":
            letters = "".join(path.read_text(encoding="utf-8").splitlines()[1:])
            lines = [letters[at : at + 60] for at in range(0, min(len(letters), BASES), 60)]
            groups = [[line[at : at + 10] for at in range(0, len(line), 10)] for line in lines]
            return Sample(model, path.name, bases=groups, note=_first(BASES, len(letters), "bases"))
        # What a domain of one's own writes is shown where it is text.
        text = path.read_text(encoding="utf-8", errors="replace" if path.suffix == ".txt" else "strict")
        return Sample(model, path.name, text=text[:LETTERS], note=_first(LETTERS, len(text), "characters"))
    except UnicodeDecodeError:
        return Sample(model, path.name, note=f"no way to show {path.suffix}: see {path}")
    except Exception as error:  # a sample that cannot be read leaves the figures as they are
        return Sample(model, path.name, note=f"cannot be shown ({type(error).__name__}: {error})")


def _sound(path: AnyPath) -> tuple[str | None, str]:
    """MP3 of a MIDI file as pretty_midi's sine waves, or None for silence."""
    midi = _midi(path)
    seconds = midi.get_end_time()
    if seconds > LONGEST:
        midi.adjust_times([0, LONGEST], [0, LONGEST])
    wave = midi.synthesize(fs=RATE)
    if not len(wave):
        return None, "silence"
    file = io.BytesIO()
    soundfile.write(file, 0.9 * wave[: LONGEST * RATE], RATE, format="MP3")
    return data_uri(file.getvalue(), "audio/mpeg"), _first(LONGEST, round(seconds), "seconds")


def _midi(path: AnyPath) -> pretty_midi.PrettyMIDI:
    return pretty_midi.PrettyMIDI(io.BytesIO(path.read_bytes()))


def _first(shown: int, there: int, what: str) -> str:
    return f"the first {shown} of {there} {what}" if there > shown else ""
