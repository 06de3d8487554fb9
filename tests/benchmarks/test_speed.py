"""The README's speed figure."""

import re

from bearings.benchmarks.speed import ASSETS, speed


def test_committed_figure_shows_the_benchmarks_results():
    def texts(svg):
        return re.findall(r"<text[^>]*>([^<]*)</text>", svg)

    drawn = texts(speed())
    assert {"RoPE", "PaTH-FoX", "nanoGPT", "PoPE-pytorch"} <= {*drawn}
    assert texts((ASSETS / "speed.svg").read_text(encoding="utf-8")) == drawn
    assert texts((ASSETS / "speed-dark.svg").read_text(encoding="utf-8")) == drawn
