"""Piano rolls: each voice in its colour, at a sane size."""

import matplotlib.figure
import numpy as np
import pretty_midi
import pytest
from matplotlib.image import imread

from bearings.domains import pianoroll
from bearings.domains.jsb import JSB
from bearings.domains.maestro import Maestro


def render(folder, ids):
    score, picture = JSB().render(JSB().decode(ids), folder / "sample-0.5")
    assert (score.name, picture.name) == ("sample-0.5.mid", "sample-0.5.png")
    assert pretty_midi.PrettyMIDI(str(score)).resolution == 480
    return imread(picture)


def near(picture, colour):
    """Number of pixels of `colour` below the legend."""
    return (np.abs(picture[50:, :, :3] - np.array(colour) / 255).max(-1) < 0.02).sum()


SOPRANO, BASS = (213, 94, 0), (204, 121, 167)


def test_a_picture_shows_each_voice_in_its_colour(tmp_path):
    picture = render(tmp_path, JSB().encode(np.array([[72, -1, -1, 48]] * 8 + [[-1, -1, -1, 48]] * 8)))
    soprano, bass = near(picture, SOPRANO), near(picture, BASS)
    assert soprano > 1000
    assert bass > soprano  # twice as long, though drawn thinner
    assert near(picture, (0, 114, 178)) == 0


def test_music_of_any_length_makes_a_picture_of_a_sane_size(tmp_path):
    random = np.random.default_rng(0)
    assert near(render(tmp_path, []), SOPRANO) == 0
    for tokens in (3, 41, 2_560, 8_000):
        height, width, _ = render(tmp_path, random.integers(2, 60, tokens)).shape
        assert 200 < height < 5000
        assert 500 < width < 1500


@pytest.fixture
def figures(monkeypatch):
    """Figures as they are written."""
    written, save = [], matplotlib.figure.Figure.savefig

    def savefig(figure, *arguments, **named):
        written.append(figure)
        save(figure, *arguments, **named)

    monkeypatch.setattr(matplotlib.figure.Figure, "savefig", savefig)
    return written


@pytest.mark.parametrize(
    ("domain", "unit", "every", "bar"),
    [(JSB(), "quarter notes", 4, [8, 10]), (Maestro(), "seconds", 5, [6, 7.5])],
)
def test_chorales_are_told_in_quarters_and_performances_in_seconds(tmp_path, figures, domain, unit, every, bar):
    midi = pretty_midi.PrettyMIDI(initial_tempo=80)
    piano = pretty_midi.Instrument(0)
    piano.notes = [pretty_midi.Note(80, 60, 6.0, 7.5)]  # at 80 quarters a minute 8 to 10 of them
    midi.instruments = [piano]
    domain.render(midi, tmp_path / "one")
    (panel,) = figures[0].axes
    assert panel.get_xlabel() == unit
    assert np.diff(panel.get_xticks()).tolist() == [every] * (len(panel.get_xticks()) - 1)
    (bars,) = panel.collections[-1:]
    times = bars.get_paths()[0].vertices[:, 0]
    assert [times.min(), times.max()] == pytest.approx(bar)


def test_a_long_performance_fills_systems_of_whole_groups(tmp_path, figures):
    midi = pretty_midi.PrettyMIDI()
    piano = pretty_midi.Instrument(0)
    piano.notes = [pretty_midi.Note(80, 60 + second % 12, second, second + 1) for second in range(400)]
    midi.instruments = [piano]
    pianoroll.draw(midi, tmp_path / "long.png", pianoroll.SECONDS)
    ends = [panel.get_xlim() for panel in figures[0].axes]
    assert ends == [(50 * place, 50 * place + 50) for place in range(8)]


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
