"""Context lengths in reports: the tables, where a model fails, and which contexts are compared."""

import csv
import shutil
from typing import get_args

import pytest
from report_support import lengths, make_run, mechanisms, report_task, rows_of  # noqa: F401

from bearings.kernels.stretching import Form
from bearings.reporting import length_plots, plots
from bearings.reporting.attention import attention_plot
from bearings.reporting.lengths import holding, lengths_of, lengths_table, nats_by_context
from bearings.reporting.reading import read_study


def test_context_lengths_have_a_table_and_a_failure_point(tmp_path, report):
    for seed, worse in ((0, 0.5), (1, 0.005), (2, 0.5)):
        make_run(tmp_path / "runs", "rope", seed)
        lengths(make_run(tmp_path / "runs", "pope", seed), worse=worse, forms=("none", "yarn", "longrope-3fa9c1"))
    (run,) = (tmp_path / "runs").glob("jsb/pope/*-s0")
    (run / "extrapolation" / "books-3fa9c1.csv").write_bytes((run / "extrapolation" / "test.csv").read_bytes())
    folder, _ = report()
    assert "pope,none,1,2.0" in (folder / "tables" / "jsb-books-3fa9c1-lengths.csv").read_text()
    with open(folder / "tables" / "jsb-test-lengths.csv", newline="") as file:
        plain, yarn, longrope = csv.DictReader(file)
    assert longrope["stretch"] == "longrope-3fa9c1"
    assert length_plots.FORMS.keys() == {"none", *get_args(Form)}
    assert (plain["model"], plain["stretch"], plain["seeds"], plain["fails"]) == ("pope", "none", "3", "64, never")
    assert (yarn["stretch"], yarn["fails"]) == ("yarn", "never")
    assert float(plain["at_32"]) == float(yarn["at_32"]) == 2
    assert float(plain["at_128"]) == pytest.approx(2 * (1 + (0.5 + 0.005 + 0.5) / 3))
    text = (folder / "report.md").read_text()
    assert "Trained at 32." in text
    assert "half of the context before them: 100 % at 8, 100 % at 16, 100 % at 32, 100 % at 64, 100 % at 128." in text


def test_contexts_are_compared_on_targets_that_a_longer_one_can_help():
    common = {"stretch": "none", "trained": 16}
    rows = [
        {**common, "context": context, "beyond": beyond, "targets": targets, "nats": targets * level}
        for context in (8, 16, 32)
        for beyond, targets, level in ((False, 100, 4.0), (True, 50, 2.0), (True, 10, 8.0))
    ]
    assert nats_by_context(rows, "none") == dict.fromkeys((8, 16, 32), 3.0)
    rows = [row for row in rows if not row["beyond"]]
    assert nats_by_context(rows, "none") == dict.fromkeys((8, 16, 32), 4.0)


def test_stretch_that_a_seed_lacks_is_left_out_and_named(tmp_path, report):
    for seed, forms in enumerate((("none", "yarn", "ntk"), ("none", "ntk"), ("none", "interpolation", "ntk"))):
        lengths(make_run(tmp_path / "runs", "rope", seed), forms=forms)
    folder, _ = report()
    with open(folder / "tables" / "jsb-test-lengths.csv", newline="") as file:
        assert [row["stretch"] for row in csv.DictReader(file)] == ["none", "ntk"]
    line = "Left out because task=extrapolate has not scored every seed: rope, yarn; rope, interpolation."
    assert line in (folder / "report.md").read_text()


def test_stretch_of_another_version_is_shown(tmp_path, report):
    lengths(make_run(tmp_path / "runs", "rope", 0), forms=("none", "resonance"))
    folder, _ = report()
    assert "rope, resonance" in (folder / "plots" / "jsb-test-lengths.svg").read_text()


def test_failure_point_uses_contexts_of_every_seed_and_names_the_others(tmp_path, report):
    for seed, contexts in enumerate(((8, 16, 32, 48, 128), (8, 32, 64, 128), (8, 16, 32, 64, 128))):
        lengths(make_run(tmp_path / "runs", "rope", seed), contexts=contexts)
    folder, _ = report()
    with open(folder / "tables" / "jsb-test-lengths.csv", newline="") as file:
        plain, yarn = csv.DictReader(file)
    assert [key for key in plain if key.startswith("at_")] == ["at_8", "at_32", "at_128"]
    assert (plain["fails"], yarn["fails"]) == ("128", "never")
    line = "not scored every seed: rope, none in contexts of 16, 48, 64; rope, yarn in contexts of 48, 64."
    assert line in (folder / "report.md").read_text()


def test_changes_of_few_models_have_their_intervals_over_seeds(tmp_path):
    for seed in range(3):
        lengths(make_run(tmp_path / "runs", "rope", seed), worse=0.1 * seed, forms=("none",))
    found = lengths_of(read_study([tmp_path / "runs"]).comparisons[0], "test")
    assert holding(lengths_table(found, "")).endswith(" Change at 128 tokens: rope +10.0 % (-14.8 to +34.8).")


def test_a_model_that_fails_far_beyond_the_others_leaves_only_its_own_panel(tmp_path):
    rows = [{"stretch": "none", "mean": value, "least": value, "most": value} for value in (1.0, 1.1, 9.0)]
    low, high = length_plots._limits(rows)
    assert low < 1.0
    assert 2.75 < high < 3.0
    assert length_plots._limits(rows[:1]) == pytest.approx((0.99, 1.01))
    assert length_plots._limits([{**row, "stretch": "yarn"} for row in rows]) == (low, high)


@pytest.mark.parametrize(("worse", "forms"), [(0.1, ("none",)), (9.0, ("none",)), (0.1, ("none", "yarn"))])
def test_caption_says_only_what_is_drawn(tmp_path, worse, forms):
    for encoding, each in (("rope", worse), ("pope", 0.0), ("path", 0.0)):
        lengths(make_run(tmp_path / "runs", encoding, 0), worse=each, forms=forms)
    found = lengths_of(read_study([tmp_path / "runs"]).comparisons[0], "test")
    (styles,) = plots.styles_of([found.keys()])
    caption = length_plots.lengths_plot(found, styles, tmp_path / "lengths", "lengths").caption
    assert ("Curves that leave" in caption) == (worse > 1)
    assert ("Hollow markers" in caption) == ("yarn" in forms)
    assert "left out" not in caption


def test_a_report_reads_the_files_of_a_run_only_once(tmp_path):
    path = make_run(tmp_path / "runs", "rope", 0)
    lengths(path)
    mechanisms(path, "attention", ("low", "high", "mass"), [(0, 1, 0.5)])
    (comparison,) = read_study([tmp_path / "runs"]).comparisons
    shutil.rmtree(path)
    assert list(lengths_of(comparison, "test")) == ["rope"]
    assert attention_plot(comparison, plots.styles_of([comparison.labels])[0], tmp_path) is not None


def test_extensions_are_left_out_of_a_plot_with_too_many_curves(tmp_path):
    for encoding in ("rope", "pope", "path"):
        lengths(make_run(tmp_path / "runs", encoding, 0), forms=tuple(length_plots.FORMS))
    found = lengths_of(read_study([tmp_path / "runs"]).comparisons[0], "test")
    plot = length_plots.lengths_plot(found, {}, tmp_path / "lengths", "lengths")
    assert {row["stretch"] for row in csv.DictReader((tmp_path / "lengths.csv").open())} == {"none"}
    assert "Extensions (task.stretches) are left out." in plot.caption
    assert "Shown:" not in plot.caption


def test_a_model_that_was_not_scored_in_long_contexts_is_not_said_to_hold_there(tmp_path):
    for encoding, contexts in (("rope", (16, 32)), ("pope", (16, 32, 64, 128)), ("nope", (16, 32, 64))):
        lengths(make_run(tmp_path / "runs", encoding, 0), contexts=contexts, worse=0, forms=("none",))
    found = lengths_of(read_study([tmp_path / "runs"]).comparisons[0], "test")
    table = lengths_table(found, "")
    assert {row["model"]: row["fails"] for row in table.rows} == {
        **{"rope": "not up to 32", "nope": "not up to 64", "pope": "never"}
    }
    assert [row["model"] for row in table.rows if "change" in row] == ["pope"]
    held = (
        "Models whose loss never rises by more than 1 % beyond the trained length, without extensions (1 of 3): pope."
    )
    assert holding(table) == f"{held} Change at 128 tokens: pope 0.0 %."
    assert "Never: not up to 128 tokens, the longest context in this table." in table.notes
    alone = lengths_table({"rope": found["rope"]}, "")
    assert not any(note.startswith("Never") for note in alone.notes)
    assert alone.rows[0]["fails"] == "not up to 32"
    assert holding(alone) == "No context beyond the trained length was scored without extensions."


def test_positions_of_all_models_are_drawn_in_one_context(tmp_path, report):
    for encoding, contexts in (("rope", (32, 64, 128, 256)), ("pope", (32, 64, 128))):
        lengths(make_run(tmp_path / "runs", encoding, 0), contexts=contexts, forms=("none",))
    folder, _ = report()
    with open(folder / "plots" / "jsb-test-lengths.csv", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["quantity"] == "tokens before"]
    assert {(row["model"], row["context"]) for row in rows} == {("rope", "128"), ("pope", "128")}
    assert "context of 128" in (folder / "plots" / "jsb-test-lengths.svg").read_text()


def test_models_of_other_lengths_are_measured_from_their_own(tmp_path, report):
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "study.yaml").write_text("compare: [data.length]\nruns: [encoding=rope]\n")
    for trained, contexts in ((32, (16, 32, 64, 256)), (64, (64, 128, 256))):
        for seed in (0, 1, 2):
            path = make_run(tmp_path / "runs", "rope", seed, f"data.length={trained}")
            lengths(path, trained, contexts, forms=("none",))
            columns = ("low", "high", "elements", "plain", "unrotated", "removed")
            mechanisms(path, "bands", columns, [(1, 4, 8, 2.0, 2.1, 2.2), (16, 64, 8, 2.0, 2.1, 2.2)])
    folder, _ = report()
    rows = rows_of(folder / "tables" / "jsb-test-lengths.csv")
    assert {name: row["fails"] for name, row in rows.items()} == {"rope, length=32": "64", "rope, length=64": "128"}
    for key in ("change", "change_interval_low", "change_interval_high"):
        assert [float(row[key]) for row in rows.values()] == pytest.approx([50.0, 50.0])
    notes = (folder / "tables" / "jsb-test-lengths.md").read_text()
    assert "more than 32 or 64 tokens before them, the model's trained length." in notes
    assert "Trained at 32 or 64." in notes
    for plot in ("jsb-test-lengths", "jsb-bands"):
        drawn = (folder / "plots" / f"{plot}.svg").read_text()
        assert "trained: 32" in drawn
        assert "trained: 64" in drawn


def test_a_model_holds_only_if_no_seed_fails_without_an_extension(tmp_path):
    """One seed of pope does not fail; path fails except with yarn."""
    for encoding, levels in (("rope", (0.0, 0.0)), ("pope", (0.0, 0.5)), ("path", (0.5, 0.5))):
        for seed, worse in enumerate(levels):
            lengths(make_run(tmp_path / "runs", encoding, seed), worse=worse)
    found = lengths_of(read_study([tmp_path / "runs"]).comparisons[0], "test")
    held, _, changes = holding(lengths_table(found, "")).partition(" Change")
    assert held.endswith(", without extensions (1 of 3): rope.")
    assert "pope +25.0 %" in changes
    assert "(" not in changes  # two seeds are too few for intervals
