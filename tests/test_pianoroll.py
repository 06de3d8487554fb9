"""Piano rolls: each voice in its colour, at a sane size."""

import numpy as np
import pretty_midi
from matplotlib.image import imread

from bearings.domains.jsb import JSB


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
