"""Samples of runs in a form that a page can show: piano roll and sound, coloured bases, or text."""

import base64
import io
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, zip_longest

import pretty_midi
import soundfile

from ..core.packed_paths import AnyPath
from ..domains import pianoroll
from ..session.trust import located
from .contestant import Contestant

RATE = 12000  # Hz: enough for sine waves of the highest notes of a piano
LONGEST = 20  # seconds of sound
BASES = 1200
LETTERS = 4000
FILES = 4  # of one model
TOGETHER = 8  # of the models of a comparison, each of which has at least one
LARGEST = 16 << 20  # bytes per file
PICTURES = {".png": "image/png", ".svg": "image/svg+xml"}  # next to a MIDI file, they show the same music
PROMPT = "prompt"  # NAME-prompt holds the prompt that NAME-0, NAME-1, ... continue


@dataclass(frozen=True)
class Sample:
    """One sample; of `image`, `audio`, `bases` and `text`, those that suit its format are set.

    Attributes:
        model: label and seed of the run.
        name: file name.
        image, audio: data URIs.
        bases: lines of 60 bases, each in groups of ten.
        pieces: `text` in pieces, each with its kind: "" for plain text, "prompt" or "wrong".
        prompted: number of bases that belong to the prompt.
        note: what was left out, or why nothing is shown.
        same: other samples with the same content.
    """

    model: str
    name: str
    image: str | None = None
    audio: str | None = None
    bases: Sequence[Sequence[str]] = ()
    text: str | None = None
    pieces: Sequence[tuple[str, str]] = ()
    prompted: int = 0
    note: str = ""
    same: Sequence[str] = ()

    @property
    def title(self) -> str:
        return f"{self.name} ({self.model})"

    @property
    def marked(self) -> str:
        """What the marks in `bases` and `pieces` mean; empty if there are none."""
        kinds = {kind for kind, _ in self.pieces}
        if self.prompted or "prompt" in kinds:
            return "Shaded: the prompt. The model wrote the rest."
        return "Underlined: wrong answers." if "wrong" in kinds else ""


def samples_of(contestant: Contestant, most: int = FILES) -> list[Sample]:
    """The first samples, at most `most`, of the lowest seed that has any."""
    for seed in sorted(contestant.runs):
        run = contestant.runs[seed]
        files = sorted(path for path in (run.path / "samples").glob("*") if path.is_file())
        with_midi = {path.with_suffix("") for path in files if path.suffix == ".mid"}
        files = [path for path in files if path.suffix not in PICTURES or path.with_suffix("") not in with_midi]
        files = [path for path in files if not path.stem.endswith(f"-{PROMPT}")]
        if files:
            domain = run.config["domain"]["_target_"]
            return [_sample(f"{contestant.label}, seed {seed}", path, domain) for path in files[:most]]
    return []


def distinct(samples: Iterable[Sample]) -> list[Sample]:
    """The samples, of those with the same content only the first, which names the others."""
    first: dict[tuple, Sample] = {}
    for each in samples:
        content = (each.image, each.audio, repr(each.bases), each.text, each.note)
        if content in first:
            first[content] = replace(first[content], same=[*first[content].same, each.title])
        else:
            first[content] = each
    return [*first.values()]


def data_uri(data: bytes, kind: str) -> str:
    """`data` as a URI that contains it."""
    return f"data:{kind};base64,{base64.b64encode(data).decode()}"


def _sample(model: str, path: AnyPath, domain: str) -> Sample:
    try:
        if (size := path.stat().st_size) > LARGEST:
            return Sample(model, path.name, note=f"not shown: {size / 2**20:,.0f} MiB is too large")
        if path.suffix == ".mid":
            audio, note = _sound(path)
            roll = pianoroll.as_svg(_midi(path), located(domain, "domain").axis).encode()
            return Sample(model, path.name, image=data_uri(roll, PICTURES[".svg"]), audio=audio, note=note)
        if path.suffix in PICTURES:
            return Sample(model, path.name, image=data_uri(path.read_bytes(), PICTURES[path.suffix]))
        if path.suffix == ".fa":
            letters, prompt = _letters(path), _neighbour(path, rf"\1-{PROMPT}")
            lines = [letters[at : at + 60] for at in range(0, min(len(letters), BASES), 60)]
            groups = [[line[at : at + 10] for at in range(0, len(line), 10)] for line in lines]
            prompted = len(_letters(prompt)) if prompt else 0
            return Sample(model, path.name, bases=groups, prompted=prompted, note=_first(BASES, len(letters), "bases"))
        # Files of a user's own domain are shown if they are text.
        text = path.read_text(encoding="utf-8", errors="replace" if path.suffix == ".txt" else "strict")
        note, text = _first(LETTERS, len(text), "characters"), text[:LETTERS]
        return Sample(model, path.name, text=text, pieces=_pieces(path, text), note=note)
    except UnicodeDecodeError:
        return Sample(model, path.name, note=f"{path.suffix} files cannot be shown: see {path}")
    except Exception as error:  # an unreadable sample must not end the report
        return Sample(model, path.name, note=f"cannot be shown ({type(error).__name__}: {error})")


def _neighbour(path: AnyPath, name: str) -> AnyPath | None:
    """The file that `name`, a replacement for the stem NAME-NUMBER, refers to; None if there is none."""
    other = path.parent / (re.sub(r"(.*)-(\d+)", name, path.stem) + path.suffix)
    return other if other.name != path.name and other.exists() else None


def _letters(path: AnyPath) -> str:
    return "".join(path.read_text(encoding="utf-8").splitlines()[1:])


def _pieces(path: AnyPath, text: str) -> list[tuple[str, str]]:
    """`text` with its prompt marked, or the answers that differ from those of the example that it answers."""
    if prompt := _neighbour(path, rf"\1-{PROMPT}"):
        begin = prompt.read_text(encoding="utf-8").removesuffix("\n")[:LETTERS]
        if begin and text.startswith(begin):
            return [("prompt", begin), ("", text[len(begin) :])]
    if path.stem.startswith("answered-") and (example := _neighbour(path, r"example-\2")):
        right = example.read_text(encoding="utf-8")[:LETTERS]
        pairs = zip_longest(text, right[: len(text)], fillvalue="")
        return [
            (kind, "".join(letter for letter, _ in pieces))
            for kind, pieces in groupby(pairs, key=lambda pair: "" if pair[0] == pair[1] else "wrong")
        ]
    return [("", text)]


def _sound(path: AnyPath) -> tuple[str | None, str]:
    """A MIDI file as FLAC of sine waves, or None for silence; and a note."""
    midi = _midi(path)
    seconds = midi.get_end_time()
    prompt = _neighbour(path, rf"\1-{PROMPT}")
    notes = [f"The prompt ends at {_midi(prompt).get_end_time():.1f} s."] if prompt else []
    if seconds > LONGEST:
        midi.adjust_times([0, LONGEST], [0, LONGEST])
    wave = midi.synthesize(fs=RATE)
    if not len(wave):
        return None, "silence"
    file = io.BytesIO()
    # MP3 is half as large, but takes ten times as long.
    soundfile.write(file, 0.9 * wave[: LONGEST * RATE], RATE, format="FLAC", compression_level=1.0)
    notes.append(_first(LONGEST, round(seconds), "seconds"))
    return data_uri(file.getvalue(), "audio/flac"), " ".join(filter(None, notes))


def _midi(path: AnyPath) -> pretty_midi.PrettyMIDI:
    return pretty_midi.PrettyMIDI(io.BytesIO(path.read_bytes()))


def _first(shown: int, available: int, what: str) -> str:
    return f"the first {shown} of {available} {what}" if available > shown else ""
