"""The plot of wrong answers against the setting that makes a task harder."""

import csv

from report_support import make_run

from bearings.reporting.errors import errors_plot
from bearings.reporting.reading import read_study

TASK = {"domain": "flip_flop", "units": ("answer",)}


def plotted(folder, plots):
    plots.mkdir()
    return errors_plot(read_study([folder]).comparisons, plots)


def test_each_seed_has_a_marker_at_its_value_of_the_setting(tmp_path):
    for layers, right in ((10, 1.0), (2, 0.5), (1, 0.25)):
        for seed in (0, 1):
            make_run(tmp_path / "runs", "rope", seed, f"model.layers={layers}", correct=right, **TASK)
    make_run(tmp_path / "runs", "path", 0, "model.layers=2", correct=1.0, **TASK)
    plot = plotted(tmp_path / "runs", tmp_path / "plots")
    with open(tmp_path / "plots" / "errors.csv") as file:
        rows = [
            (row["model"], row["layers"], row["seed"], round(float(row["wrong_percent"])))
            for row in csv.DictReader(file)
        ]
    assert rows == [
        ("path", "2", "0", 0),
        *(("rope", layers, seed, wrong) for layers, wrong in (("1", 75), ("2", 50), ("10", 0)) for seed in "01"),
    ]
    svg = (tmp_path / "plots" / "errors.svg").read_text()
    assert svg.index(">1<") < svg.index(">2<") < svg.index(">10<")
    assert plot.title == "flip_flop: wrong answers by layers"
    assert "solved with at most 0.1 % wrong" in plot.caption


def test_nothing_is_drawn_without_one_setting_that_differs(tmp_path):
    make_run(tmp_path / "one" / "runs", "rope", 0, correct=1.0, **TASK)
    assert plotted(tmp_path / "one" / "runs", tmp_path / "a") is None
    make_run(tmp_path / "two" / "runs", "rope", 0, "model.layers=1", "model.width=16", correct=1.0, **TASK)
    make_run(tmp_path / "two" / "runs", "rope", 0, "model.layers=2", "model.width=32", correct=1.0, **TASK)
    assert plotted(tmp_path / "two" / "runs", tmp_path / "b") is None
    for layers in (1, 2):
        make_run(tmp_path / "music" / "runs", "rope", 0, f"model.layers={layers}")
    assert plotted(tmp_path / "music" / "runs", tmp_path / "c") is None
