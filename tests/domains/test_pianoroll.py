"""Piano rolls: each voice in its colour, bars or seconds on the time axis, a readable size; as text too."""

import re
from xml.etree import ElementTree

import numpy as np
import pretty_midi
import pytest

from bearings.core.theme import LIGHT
from bearings.domains import pianoroll
from bearings.domains.jsb import JSB
from bearings.domains.maestro import Maestro

SVG = "{http://www.w3.org/2000/svg}"


def music(notes, tempo=120.0, names=("",)):
    """A MIDI object whose instruments all play `notes`: pitch, start and end in seconds."""
    midi = pretty_midi.PrettyMIDI(initial_tempo=tempo)
    for name in names:
        midi.instruments.append(pretty_midi.Instrument(0, name=name))
        midi.instruments[-1].notes = [pretty_midi.Note(80, *note) for note in notes]
    return midi


def drawn(midi, axis):
    return ElementTree.fromstring(pianoroll.as_svg(midi, axis))  # noqa: S314, our own file


def texts(picture):
    return [text.text for text in picture.iter(f"{SVG}text")]


def bars(picture, colour):
    """x, y, width and height of each note in `colour`."""
    paths = [path.get("d") for path in picture.iter(f"{SVG}path") if path.get("fill") == LIGHT[colour]]
    return [tuple(map(float, found)) for path in paths for found in re.findall(r"M(\S+) (\S+?)h(\S+?)v(.+?)h", path)]


def test_each_voice_has_its_colour_and_its_name(tmp_path):
    midi = JSB().decode(JSB().encode(np.array([[72, -1, -1, 48]] * 8 + [[-1, -1, -1, 48]] * 8)))
    score, file = JSB().render(midi, tmp_path / "sample-0.5")
    assert (score.name, file.name) == ("sample-0.5.mid", "sample-0.5.svg")
    assert pretty_midi.PrettyMIDI(str(score)).resolution == 480
    picture = ElementTree.parse(file).getroot()  # noqa: S314, our own file
    assert texts(picture)[:4] == ["Soprano", "Alto", "Tenor", "Bass"]
    ((_, high, half, thick),), ((_, low, whole, thin),) = bars(picture, "blue"), bars(picture, "pink")
    assert low > high
    assert whole == pytest.approx(2 * half, abs=0.2)
    assert thin < thick  # drawn later, so that a unison shows both
    assert bars(picture, "vermilion") == []


def test_unison_and_unusual_names_are_drawn():
    picture = drawn(music([(60, 0, 1)], names=("<b>&\x07", "", "x" * 90)), pianoroll.SECONDS)
    assert texts(picture)[:3] == ["<b>&\\x07", "Instrument 2", "x" * pianoroll.NAME]
    assert [len(bars(picture, colour)) for colour in ("blue", "vermilion", "green")] == [1, 1, 1]


def test_music_of_any_length_makes_a_picture_of_a_readable_size():
    random = np.random.default_rng(0)
    assert "silence" in texts(drawn(JSB().decode([]), pianoroll.QUARTERS))
    for tokens in (3, 41, 2_560, 8_000):
        picture = drawn(JSB().decode(random.integers(2, 60, tokens)), pianoroll.QUARTERS)
        assert 100 < float(picture.get("height")) < 2600
        assert picture.get("width") == "640"


@pytest.mark.parametrize(
    ("domain", "label", "numbers", "start", "length"),
    [(JSB(), "bar (16 sixteenths)", "1 2 3", 8 / 12, 2 / 12), (Maestro(), "seconds", "0 5", 6 / 10, 1.5 / 10)],
)
def test_chorales_are_measured_in_bars_and_performances_in_seconds(domain, label, numbers, start, length):
    picture = drawn(music([(60, 6.0, 7.5)], tempo=80), domain.axis)  # at 80 quarters per minute 8 to 10 of them
    found = texts(picture)
    assert found[-1] == label
    assert [text for text in found if text.isdigit()] == numbers.split()
    ((x, _, width, _),) = bars(picture, "blue")
    full = 640 - pianoroll.LEFT - pianoroll.RIGHT
    assert [(x - pianoroll.LEFT) / full, width / full] == pytest.approx([start, length], abs=0.001)


def test_a_long_performance_fills_systems_of_whole_groups():
    midi = music([(60 + second % 12, second, second + 1) for second in range(400)])
    numbers = [int(text) for text in texts(drawn(midi, pianoroll.SECONDS)) if text.isdigit()]
    assert numbers == list(range(0, 400, 5))


CHORALE = """\
bar 1                2
 C5|S-------------  |                |
 G4|                |A-          A---|
 F4|                |          A-    |
 C3|    TB------    |                |
    S Soprano   A Alto   T Tenor   B Bass"""


def test_preview_of_a_chorale():
    grid = np.full((32, 4), -1)
    grid[:14, 0], grid[16:18, 1], grid[26:28, 1], grid[28:, 1] = 72, 67, 65, 67
    grid[4:12, 2:] = 48
    assert JSB().preview(JSB().decode(JSB().encode(grid))) == CHORALE


def test_preview_fits_the_width_and_a_screen():
    assert Maestro().preview(Maestro().decode([])) == "silence"
    random = np.random.default_rng(0)
    for seconds in (1, 10, 40):
        midi, piano = pretty_midi.PrettyMIDI(), pretty_midi.Instrument(0)
        onsets = random.uniform(3, 3 + seconds, 5 * seconds)
        piano.notes = [pretty_midi.Note(80, int(random.integers(40, 80)), at, at + 0.3) for at in onsets]
        midi.instruments = [piano, pretty_midi.Instrument(0)]
        lines = pianoroll.as_text(midi, pianoroll.SECONDS, width=60).splitlines()
        assert lines[0].startswith("  s ")
        assert lines[-1].strip() == "1 Instrument 1   2 Instrument 2"
        assert max(map(len, lines)) <= 60
        assert 3 <= len(lines) <= 26
        assert "".join(lines).isascii()
