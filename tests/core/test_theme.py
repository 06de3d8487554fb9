"""Colours of pictures: readable on their background, distinct for colour-blind readers; light and dark forms."""

from itertools import combinations

import numpy as np
import pytest

from bearings.core.theme import COLOURS, DARK, LIGHT, themed

# Machado, Oliveira & Fernandes (2009), severity 1, on linear RGB.
VISION = {
    "full": np.eye(3),
    "protan": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deutan": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
    "tritan": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]],
}
XYZ = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])


def linear(colour):
    values = np.array([int(colour[at : at + 2], 16) for at in (1, 3, 5)]) / 255
    return np.where(values <= 0.04045, values / 12.92, ((values + 0.055) / 1.055) ** 2.4)


def lab(colour, vision):
    """CIE L*a*b* of a colour as somebody with this vision sees it."""
    xyz = XYZ @ np.clip(np.array(vision) @ linear(colour), 0, 1) / XYZ.sum(1)
    x, y, z = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


def contrast(one, other):
    """WCAG's ratio of two colours."""
    low, high = sorted(float(XYZ[1] @ linear(colour)) + 0.05 for colour in (one, other))
    return high / low


@pytest.mark.parametrize("theme", [LIGHT, DARK], ids=["light", "dark"])
def test_colours_contrast_with_the_paper(theme):
    assert min(contrast(theme[name], theme["paper"]) for name in COLOURS) >= 3  # graphics
    assert min(contrast(theme[name], theme["paper"]) for name in ("ink", "quiet", *"ACGT")) >= 4.5  # text


@pytest.mark.parametrize("theme", [LIGHT, DARK], ids=["light", "dark"])
@pytest.mark.parametrize("vision", VISION)
def test_colours_are_distinct_for_colour_blind_readers(theme, vision):
    for names in (COLOURS, "ACGT"):
        seen = [lab(theme[name], VISION[vision]) for name in names]
        assert min(np.linalg.norm(one - other) for one, other in combinations(seen, 2)) > 11.9


def test_themes_of_a_picture():
    svg = f'<svg width="9"><path fill="{LIGHT["blue"]}" style="stroke: {LIGHT["ink"]}; stroke-width: 2"/></svg>'
    assert themed(svg, "light") == svg
    dark = themed(svg, "dark")
    assert LIGHT["blue"] not in dark
    assert f'fill="{DARK["blue"]}"' in dark
    both = themed(svg)
    assert svg.removeprefix('<svg width="9">') in both  # programs without media queries draw the light form
    assert both.count("!important") == 2
    assert f"fill:{DARK['blue']}!important" in both
    assert f"stroke:{DARK['ink']}!important" in both
