"""Plots of a report and their CSV files, contexts of other lengths, piano rolls."""

import base64
import csv
import json
import math
import re
from dataclasses import replace
from typing import get_args

import numpy as np
import pretty_midi
import pytest
import report_support
from matplotlib.figure import Figure
from report_support import (  # noqa: F401
    BETTER,
    DELTA,
    lengths,
    make_run,
    mechanisms,
    report_task,
    sample_metrics,
    write_rows,
)

from bearings.core import cores
from bearings.core.legends import Elements, Legend
from bearings.domains.records import Records
from bearings.lightning_modules.conversion import Stage
from bearings.reporting import forest, plots, remarks
from bearings.reporting.forest import edge_of, lowest
from bearings.reporting.mechanism_files import LARGEST
from bearings.reporting.reading import read_study
from bearings.reporting.samples import samples_of
from bearings.reporting.scores import scores, study_scores

QUANTILES = ("layer", "head", "q05", "q25", "q50", "q75", "q95")


def test_every_plot_has_svg_and_csv(tmp_path, report):
    delta = np.linspace(-2 * math.pi - 1, 0.5, 32)
    for encoding in ("rope", "pope"):
        for seed in (0, 1, 2):
            path = make_run(tmp_path / "runs", encoding, seed)
            lengths(path)
            places = [(layer, head, *place) for layer in (0, 1) for head in (0, 1) for place in ((0, 0), (1, 2))]
            shares = [(*place, 0.5 + (0.1 if place[2] == 0 else -0.1) * seed) for place in places]
            mechanisms(path, "attention", ("layer", "head", "low", "high", "mass"), shares)
            ranges, at = ("low", "high"), ("layer", "head", "low", "high")
            mechanisms(path, "positions", (*at, "mass", "uniform"), [(*each, 0.1) for each in shares])
            mechanisms(path, "rollout", (*ranges, "mass", "uniform"), [(0, 0, 0.4, 0.2), (1, 1, 0.6, 0.8)])
            mechanisms(path, "locality", (*at, "share"), [(0, 0, 1, 1, 0.5), (0, 1, 1, 1, 0.75)])
            mechanisms(path, "consistency", (*at, "share"), [(0, 0, 1, 1, 0.25), (0, 0, 4, 4, 1)])
            loss = (2.5, 2.5 + 0.1 * seed, 2.75)
            mechanisms(path, "bands", (*ranges, "elements", "plain", "unrotated", "removed"), [(4, 16, 3, *loss)])
            mechanisms(path, "beta", QUANTILES, [(0, 0, 0, 0.5, 1, 1.5, 1.9)], Legend("beta of each token"))
            if encoding == "pope":
                values = [(layer, i // 16, i % 16, value) for layer in (0, 1) for i, value in enumerate(delta)]
                legend = replace(DELTA, elements=replace(DELTA.elements, facts={"theta": [*map(float, range(16))]}))
                mechanisms(path, "delta", ("layer", "head", "element", "delta"), values, legend)
    folder, _ = report()
    stems = {path.stem for path in (folder / "plots").iterdir()}
    measured = {"jsb-loss", "jsb-test-forest", "jsb-test-cost", "across-forest", "jsb-diagnostics", "jsb-test-lengths"}
    measured |= {"jsb-positions", "jsb-distinction", "jsb-bands"}
    assert stems == measured | {"jsb-attention", "jsb-delta-pope", "jsb-beta-heads"}
    for stem in stems:
        assert {path.suffix for path in (folder / "plots").glob(f"{stem}.*")} == {".svg", ".csv"}
    with open(folder / "plots" / "jsb-loss.csv", newline="") as file:
        (row,) = (
            row
            for row in csv.DictReader(file)
            if (row["quantity"], row["model"], row["step"]) == ("valid_nll", "pope", "10")
        )
    assert [float(row[key]) for key in ("least", "mean", "most")] == pytest.approx([3.6, 3.62, 3.64])
    with open(folder / "plots" / "jsb-delta-pope.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 64
    outside = (delta > 0) | (delta < -2 * math.pi)
    assert sum(row["frozen"] == "True" for row in rows) == 2 * int(outside.sum())
    assert [*rows[1]] == ["layer", "head", "element", "theta", "delta", "frozen"]
    assert rows[17]["theta"] == "1.0"
    share = 100 * outside.mean()
    assert (
        "The learnt phase offset of seed 0; -2π and 0 are the same phase. Crosses: outside the clamp, "
        f"{share:.1f} % of all." in (folder / "report.md").read_text()
    )
    with open(folder / "plots" / "jsb-attention.csv", newline="") as file:
        near = next(row for row in csv.DictReader(file) if (row["model"], row["low"]) == ("pope", "0"))
    assert [float(near[key]) for key in ("least", "mean", "most")] == pytest.approx([0.5, 0.6, 0.7])
    expected = {
        ("jsb-positions", "rollout"): (0.4, 0.4, 0.4),
        ("jsb-distinction", "locality"): (0.625, 0.625, 0.625),
        ("jsb-bands", "unrotated"): (0, 0.1, 0.2),
    }
    for (stem, quantity), numbers in expected.items():
        with open(folder / "plots" / f"{stem}.csv", newline="") as file:
            row = next(row for row in csv.DictReader(file) if (row["quantity"], row["model"]) == (quantity, "rope"))
        assert [float(row[key]) for key in ("least", "mean", "most")] == pytest.approx(numbers)
    with open(folder / "tables" / "jsb-sinks.csv", newline="") as file:
        row = next(csv.DictReader(file))
    assert [float(row[key]) for key in ("first", "sinks", "strongest")] == pytest.approx([0.6, 1, 0.7])
    with open(folder / "plots" / "jsb-test-forest.csv", newline="") as file:
        (row,) = csv.DictReader(file)
    assert float(row["difference"]) == pytest.approx(BETTER["pope"], abs=0.01)


def test_labels_of_a_short_axis_of_wavelengths_are_plain_numbers(tmp_path, report):
    path = make_run(tmp_path / "runs", "rope", 0)
    columns = ("low", "high", "elements", "plain", "unrotated", "removed")
    mechanisms(path, "bands", columns, [(4, 16, 3, 2.5, 2.5, 2.75), (16, 64, 3, 2.5, 2.6, 2.7)])
    folder, _ = report()
    drawn = (folder / "plots" / "jsb-bands.svg").read_text()
    assert all(f">{label}</text>" in drawn for label in (8, 16, 32))
    assert "tspan" not in drawn  # a formula, such as 2 x 4^2


def test_samples_of_a_user_s_domain_are_shown_if_they_are_text(tmp_path):
    path = make_run(tmp_path / "runs", "rope", 0)
    (path / "samples" / "a.fasta").write_text(">a\nMKV")
    (path / "samples" / "b.bin").write_bytes(b"\xff\xfe\x00")
    (comparison,) = read_study([tmp_path / "runs"]).comparisons
    text, other = samples_of(*comparison.contestants)
    assert text.text == ">a\nMKV"
    assert other.note.startswith(".bin files cannot be shown: see ")


def test_portraits_of_a_user_s_encoding_are_drawn(tmp_path, report):
    path = make_run(tmp_path / "runs", "rope", 0)
    legend = Legend("slope of each token, nats per step", "How scores fall")
    mechanisms(path, "slope", QUANTILES, [(0, 0, 0, 0.1, 0.2, 0.3, 0.4)], legend)
    angles = Elements("element", {"0": 0.0, "one turn": 1.0}, period=1.0)
    values = [(0, head, element, element - 0.75) for head in (0, 1) for element in range(3)]
    mechanisms(path, "angle", ("layer", "head", "element", "angle"), values, Legend("angle, turns", elements=angles))
    mechanisms(path, "notes", ("layer", "text"), [(0, "mine")])
    folder, _ = report()
    for stem in ("slope-heads", "angle-rope"):
        assert {path.name for path in folder.glob(f"plots/*{stem[:5]}*")} == {
            f"jsb-{stem}.{kind}" for kind in ("csv", "svg")
        }
    text = (folder / "report.md").read_text()
    assert "slope of rope. How scores fall of seed 0, in a few documents" in text
    assert "angle of rope. Seed 0." in text
    assert "slope of each token, nats per step" in (folder / "plots" / "jsb-slope-heads.svg").read_text()
    with open(folder / "plots" / "jsb-angle-rope.csv", newline="") as file:
        assert [float(row["angle"]) for row in csv.DictReader(file)] == [-0.75, 0.25, 1.25] * 2
    assert not list(folder.glob("plots/*notes*"))


def test_models_that_log_the_same_quantity_share_a_plot(tmp_path, report):
    legend = Legend("beta of each token", "How keys change")
    for encoding, heads in (("path", 2), ("path_fox", 1)):
        make_run(tmp_path / "runs", encoding, 0)
        path = make_run(tmp_path / "runs", encoding, heads)
        rows = [(0, head, 0, 0.1, 0.2, 0.3, 0.1 * heads + 0.3) for head in range(heads)]
        mechanisms(path, "beta", QUANTILES, rows, legend)
    folder, _ = report()
    with open(folder / "plots" / "jsb-beta-heads.csv", newline="") as file:
        rows = [(row["model"], row["seed"], row["head"], row["q95"]) for row in csv.DictReader(file)]
    assert rows == [("path", "2", "0", "0.5"), ("path", "2", "1", "0.5"), ("path_fox", "1", "0", "0.4")]
    text = (folder / "report.md").read_text()
    assert "beta of path, path_fox. How keys change of seed 2 of path and seed 1 of path_fox, in a few" in text


def test_a_band_is_shaded_only_if_there_are_several_seeds(tmp_path, report):
    for seed in (0, 1):
        make_run(tmp_path / "runs", "rope", seed)
        folder, _ = report()
        assert ("FillBetween" in (folder / "plots" / "jsb-loss.svg").read_text()) == bool(seed)


def test_a_learned_bias_may_have_any_size(tmp_path, report):
    path = make_run(tmp_path / "runs", "rope", 0)
    elements = Elements("distance, tokens", {"0": 0.0, "1": 1.0})
    values = [(0, 0, 0, 0.5), (0, 0, 1, -3e7)]
    mechanisms(path, "bias", ("layer", "head", "element", "bias"), values, Legend("bias", elements=elements))
    folder, said = report()
    assert "unreadable" not in said
    with open(folder / "plots" / "jsb-bias-rope.csv", newline="") as file:
        assert [float(row["bias"]) for row in csv.DictReader(file)] == [0.5, -LARGEST]


def test_forest_plot_keeps_its_scale_next_to_an_outlier(tmp_path):
    rows = [
        {"difference": 0.02, "margin": 0.01, "both": (0.0, 0.04), "seeds": None, "clusters": None},
        {"difference": -0.05, "margin": 0.01, "both": (-0.08, -0.02), "seeds": (-0.09, -0.01), "clusters": None},
        {"difference": 1.5, "margin": 0.01, "both": (1.2, 1.8), "seeds": None, "clusters": None},
    ]
    assert edge_of(rows) == 0.09
    assert edge_of(rows[1:]) == 0.09
    assert edge_of(rows[2:]) == 1.8
    lower = rows[1] | {"difference": -1.5, "both": (-1.8, -1.2), "seeds": None}
    assert edge_of([*rows, lower]) == 1.8
    undecided = lower | {"both": (-1.8, 0.1)}
    assert edge_of([*rows, undecided]) == 0.09


@pytest.mark.parametrize("worse", [0.5, 1000.0])
def test_caption_of_the_forest_plot_says_only_what_is_drawn(tmp_path, monkeypatch, worse):
    monkeypatch.setattr(report_support, "BETTER", {"nope": worse, "path": 0.5, "pope": 1.0})
    for encoding in ("rope", "nope", "path", "pope"):
        for seed in (0, 1, 2):
            make_run(tmp_path, encoding, seed)
    (comparison,) = read_study([tmp_path]).comparisons
    found = scores(comparison, "test", "rope", 0.005)
    plot = forest.forest_plot(found, tmp_path / "forest", "differences")
    assert ("Arrows: " in plot.caption) == ("→" in (tmp_path / "forest.svg").read_text()) == (worse > 1)
    lacking = [replace(each, difference=each.difference and replace(each.difference, clusters=None)) for each in found]
    captions = [forest.forest_plot(each, tmp_path / "forest", "").caption for each in (found, lacking)]
    assert ["one that is missing" in caption for caption in captions] == [False, True]


def test_of_many_differences_the_lowest_are_drawn_in_the_same_order():
    rows = [{"difference": each} for each in (0.3, -0.1, 0.2, -0.4)]
    assert lowest(rows, 3) == [rows[1], rows[2], rows[3]]
    assert lowest(rows, 4) == rows


def test_loss_plot_keeps_its_scale_next_to_a_spike(tmp_path, report, monkeypatch):
    monkeypatch.setattr(cores, "cores", lambda: 1)  # other processes would have lists of their own
    limits = []
    inner = plots.write_plot

    def write_plot(figure, stem, *rest):
        if stem.name == "jsb-loss":
            limits.append(figure.axes[0].get_ylim())
        return inner(figure, stem, *rest)

    monkeypatch.setattr(plots, "write_plot", write_plot)
    for encoding in ("rope", "pope"):
        path = make_run(tmp_path / "runs", encoding, 0)
    folder, _ = report()
    assert "The highest values leave the frame" not in (folder / "report.md").read_text()
    with open(path / "metrics.csv", "a", newline="") as file:
        file.writelines(f"{step},3.0,,,\n" for step in range(21, 400))
        file.write("400,90.0,,,\n")
    folder, _ = report()
    assert "The highest values leave the frame" in (folder / "report.md").read_text()
    assert limits[0][1] > 3.8
    assert 3.8 < limits[1][1] < 4.2
    path.joinpath("metrics.csv").write_text(
        "step,train_nll\n1,90.0\n" + "".join(f"{step},3.0\n" for step in range(2, 99))
    )
    report()
    assert limits[2][1] < 10, "the first loss of a training curve must not flatten the rest"
    with open(folder / "plots" / "jsb-loss.csv", newline="") as file:
        assert max(float(row["most"]) for row in csv.DictReader(file)) == 90


def test_losses_of_a_conversion_are_not_diagnostics_of_the_encoding(tmp_path, report):
    path = make_run(tmp_path / "runs", "path", 0)
    columns = ["step", *(f"{stage}_loss" for stage in get_args(Stage) if stage != "train"), "delta_frozen_share"]
    write_rows(path / "metrics.csv", columns, [(5, 0.3, 2.0, 0.1), (10, 0.2, 1.0, 0.1)])
    folder, _ = report()
    with open(folder / "plots" / "jsb-diagnostics.csv", newline="") as file:
        assert {row["quantity"] for row in csv.DictReader(file)} == {"delta_frozen_share"}


def test_samples_are_compared_with_the_test_split(tmp_path, report):
    sample_metrics(make_run(tmp_path / "runs", "rope", 0), 2.0)
    for seed in (0, 1, 2):
        sample_metrics(make_run(tmp_path / "runs", "pope", seed), 1.0 + seed / 10)
    folder, _ = report()
    with open(folder / "tables" / "jsb-samples-seed0.csv", newline="") as file:
        test, pope, rope, *crossing = csv.DictReader(file)
    assert [row["model"] for row in (test, pope, rope)] == ["test split", "pope", "rope"]
    assert (rope["pieces"], pope["pieces"], test["difference"]) == ("12", "36", "")
    assert float(rope["difference"]) == pytest.approx(1)
    reach = [float(rope["interval_high"]) - float(rope["value"]), float(test["value"]) - float(test["interval_low"])]
    assert float(rope["difference_interval_high"]) == pytest.approx(1 + np.hypot(*reach))
    assert float(pope["interval_high"]) == pytest.approx(float(pope["value"]) + 4.302653 * 0.1 / 3**0.5)  # over seeds
    assert [float(row["value"]) for row in crossing] == [0.5] * 3
    assert [row["interval_low"] for row in crossing] == ["", "0.5", ""]  # of samples that agree, there is none
    with open(folder / "plots" / "jsb-samples-seed0.csv", newline="") as file:
        drift = {(row["metric"], row["model"], row["position"]): float(row["mean"]) for row in csv.DictReader(file)}
    assert drift["polyphony", "rope", "6.0"] == pytest.approx(drift["polyphony", "rope", "2.0"] + 1)  # bars of jsb
    assert ("voice_crossing", "rope", "6.0") not in drift
    page = (folder / "index.html").read_text()
    assert page.index("jsb: loss") < page.index("jsb: samples against the test split (seed0)</h3>")


def test_numbers_outside_the_axis_overlap_nothing(tmp_path, report, monkeypatch):
    for encoding in ("rope", "path", "nope"):
        for seed in (0, 1, 2):
            make_run(tmp_path / "runs", encoding, seed)
    monkeypatch.setattr(cores, "cores", lambda: 1)  # other processes would have figures of their own
    drawn, write = {}, forest.write_plot
    monkeypatch.setattr(
        forest,
        "write_plot",
        lambda figure, stem, *rest: drawn.update({stem.name: figure}) or write(figure, stem, *rest),
    )
    report()
    for name in ("jsb-test-forest", "across-forest"):
        drawn[name].draw_without_rendering()  # at its own resolution, not that of the file
        (axes,) = drawn[name].axes
        (text,) = axes.texts
        assert text.get_text().startswith("→ +")
        place, inside, whole = text.get_window_extent(), axes.get_window_extent(), drawn[name].bbox
        assert inside.x1 < place.x0 < place.x1 <= whole.x1
        assert inside.y0 < place.y0 < place.y1 < inside.y1


def test_report_is_deterministic(tmp_path, report):
    for encoding in ("rope", "pope"):
        for seed in (0, 1, 2):
            make_run(tmp_path / "runs", encoding, seed)

    def files(folder):
        return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}

    before = files(report()[0])
    assert files(report()[0]) == before


@pytest.mark.parametrize(("domain", "label"), [("jsb", "bar (16 sixteenths)"), ("maestro", "seconds")])
def test_piano_roll_of_a_kept_sample_has_the_axis_of_its_domain(tmp_path, domain, label):
    path = make_run(tmp_path / "runs", "rope", 0, domain=domain)
    pretty_midi.PrettyMIDI().write(str(path / "samples" / "sample-0.mid"))
    (path / "samples" / "sample-0.png").write_bytes(b"an older picture of it")
    (comparison,) = read_study([tmp_path / "runs"]).comparisons
    (sample,) = samples_of(*comparison.contestants)
    assert label in base64.b64decode(sample.image.partition(",")[2]).decode()


def test_samples_are_described_by_what_they_are(tmp_path, report):
    path = make_run(tmp_path / "runs", "rope", 0)
    pretty_midi.PrettyMIDI().write(str(path / "samples" / "sample-0.mid"))
    (path / "samples" / "sample-1.png").write_bytes(b"a picture")
    page = (report()[0] / "index.html").read_text()
    described = re.findall(r'alt="(.*) of (sample-.*) \(', page)
    assert described == [("Piano roll", "sample-0.mid"), ("Picture", "sample-1.png")]


def test_running_median_of_a_short_and_a_long_curve():
    assert plots.running_median([3, 1, 2]).tolist() == [3, 1, 2]
    curve = [2.0] * 100
    curve[50] = 90
    assert plots.running_median(curve).tolist() == [2.0] * 100
    assert plots.running_median(np.arange(80.0))[[0, 40, 79]].tolist() == [1, 40, 78]


def test_pareto_front_has_the_models_that_no_cheaper_model_matches():
    costs = {"a": (10, 3.0), "b": (20, 3.1), "c": (30, 2.0), "d": (30, 2.5), "e": (40, 2.0)}
    rows = [{"model": m, "mflops_per_token": at, "mean": mean, "interval": None} for m, (at, mean) in costs.items()]
    axes = Figure().add_subplot()
    plots.draw_cost(axes, rows, {})
    front = next(line for line in axes.lines if line.get_drawstyle() == "steps-post")
    assert list(zip(*front.get_data(), strict=True)) == [costs["a"], costs["c"]]


@pytest.mark.parametrize(
    ("others", "expected"),
    [
        (("nope",), "No other model is cheaper or better than rope."),
        (("nope", "pope"), "Steps: the Pareto front, through the models that no cheaper model matches."),
    ],
)
def test_caption_of_the_cost_plot_says_only_what_is_drawn(tmp_path, others, expected):
    for encoding in ("rope", *others):
        make_run(tmp_path, encoding, 0)
    (comparison,) = read_study([tmp_path]).comparisons
    plot = plots.cost_plot(scores(comparison, "test", "rope", 0.005), {}, tmp_path / "cost", "cost")
    assert plot.caption.startswith(f"Towards the lower left: better and cheaper. {expected}")


def test_captions_have_the_means_over_seeds_lowest_first(tmp_path):
    models, flops = ("nope", "path", "pope"), {}  # the first by name is the worst
    means = {split: dict.fromkeys(models, 0.0) for split in ("valid", "test")}
    for encoding in models:
        for seed in (0, 1, 2):
            path = make_run(tmp_path, encoding, seed)
            flops[encoding] = json.loads((path / "manifest.json").read_text())["model"]["flops_per_token"]
            for split, mean in means.items():
                mean[encoding] += Records.load(path / "nll" / f"{split}.npz").nats_per_token / 3
    study = read_study([tmp_path])
    valid, test = (sorted((mean, encoding) for encoding, mean in means[split].items()) for split in means)
    shown = ", ".join(f"{encoding} {mean:.4f}" for mean, encoding in valid)
    assert remarks.validation_losses(study.comparisons[0]) == f"Validation nats/token of the best checkpoints: {shown}."
    shown = "; ".join(f"{encoding} {mean:.4f} at {flops[encoding] / 1e6:.2f}" for mean, encoding in test)
    assert remarks.costs(study_scores(study, "nope")) == f"Nats/token at MFLOP/token: {shown}."
