"""The README's speed figure."""

import csv
import re

from bearings.benchmarks.speed import ASSETS, RESULTS, speed


def test_committed_figure_shows_the_benchmarks_results():
    def texts(svg):
        return re.findall(r"<text[^>]*>([^<]*)</text>", svg)

    drawn = texts(speed())
    assert {"RoPE", "PaTH-FoX", "nanoGPT", "PoPE-pytorch"} <= {*drawn}
    with open(RESULTS / "training_h200.csv", newline="") as file:
        speeds = [float(row["tokens_per_s"]) for row in csv.DictReader(file) if row["contender"] == "nanogpt"]
    assert f"{max(speeds) / 1000:.0f}" in drawn, "each implementation is shown at its fastest"
    assert texts((ASSETS / "speed.svg").read_text(encoding="utf-8")) == drawn
    assert texts((ASSETS / "speed-dark.svg").read_text(encoding="utf-8")) == drawn
