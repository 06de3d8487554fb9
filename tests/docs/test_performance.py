"""The page of performance: every file of results that it reads has the columns that it reads."""

import csv
import io
from contextlib import contextmanager

import matplotlib.pyplot as plt
import pytest

pytest.importorskip(
    "latex2mathml", reason="the packages of the documentation are not installed: pip install -e '.[docs]'"
)

from bearings.documentation import performance


@pytest.fixture
def opened():
    @contextmanager
    def open_page(path, mode):
        with io.BytesIO() if "b" in mode else io.StringIO() as file:
            yield file
            written[path] = file.getvalue()

    written = {}
    open_page.written = written
    return open_page


def test_page_is_built_from_the_committed_results(opened):
    performance.write_performance(opened)
    assert "<!-- training -->" not in opened.written["performance.md"]
    assert "MFU, nanoGPT's count" in opened.written["performance.md"]


def test_every_label_is_inside_the_plot(opened, monkeypatch):
    def plot(_, path, alternative, draw):
        figure = draw("#000000")
        figure.canvas.draw()
        extents = [label.get_window_extent() for label in figure.axes[0].get_yticklabels()]
        lefts.append(min(extent.x0 for extent in extents))
        plt.close(figure)
        return ""

    lefts = []
    monkeypatch.setattr(performance, "plot", plot)
    performance.training(opened)
    assert lefts[0] >= 0


def results(folder, name, rows):
    with open(folder / name, "w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


MADE_BY = {"device": "GPU", "torch": "2", "commit": "abcdefgh"}


@pytest.mark.parametrize("peer", [True, False])
def test_sizes_are_relative_to_rope_and_nanogpt_in_the_fastest_mode(opened, tmp_path, monkeypatch, peer):
    monkeypatch.setattr(performance, "RESULTS", tmp_path)
    shape = {"size": "1.3B", "batch": 8, "length": 1024, "mfu": 0.5, "mfu_nanogpt": 0.55, **MADE_BY}
    rows = [
        {"contender": "nanogpt", "steps": "graph", "tokens_per_s": 50000, "peak_mib": "", **shape},
        {"contender": "rope", "steps": "launched", "tokens_per_s": 55000, "peak_mib": 40000, **shape},
        {"contender": "rope", "steps": "graph", "tokens_per_s": 60000, "peak_mib": "", **shape},
    ]
    results(tmp_path, "training_sizes_h100.csv", rows if peer else rows[1:])
    shown = [line for line in performance.sizes(opened).splitlines() if line.startswith("| 1.3B")]
    rope, nanogpt = ("1.00 | 1.20", "0.83 | 1.00") if peer else ("1.00", None)
    expected = [f"| 1.3B | `rope` | graph | 60,000 | {rope} | 50.0 % | 55.0 % | 40,000 | 8 x 1,024 |"]
    if peer:
        expected.append(f"| 1.3B | nanogpt | graph | 50,000 | {nanogpt} | 50.0 % | 55.0 % |  | 8 x 1,024 |")
    assert shown == expected


def test_layers_show_missing_passes_as_empty_cells(opened, tmp_path, monkeypatch):
    monkeypatch.setattr(performance, "RESULTS", tmp_path)
    assert performance.layers(opened) == ""
    times = {"forward_ratio": 0.9, "training_ratio": "", "peak_mib": "", "error_gradients": "", **MADE_BY}
    results(tmp_path, "layers_h200.csv", [{"part": "chain", "size": "124M", "name": "quack", **times}])
    assert performance.layers(opened).splitlines()[2] == "| chain | 124M | quack | 0.90 |  |  |  |"
