"""Comparisons with more models than there are line styles: plots show the reference and the best, tables all."""

from dataclasses import replace
from pathlib import Path

import pytest
import report_support
from report_support import lengths, make_run, report_task, undrawn  # noqa: F401

from bearings.reporting import length_plots, plots, sections
from bearings.reporting.legible import MOST, legible, legible_lengths
from bearings.reporting.lengths import MOST_CHANGES, holding, lengths_of, lengths_table
from bearings.reporting.reading import read_study
from bearings.reporting.samples import FILES
from bearings.reporting.scores import study_scores

pytestmark = pytest.mark.usefixtures("undrawn")

OTHERS = ("pope", "path", "nope", "fox", "alibi", "t5", "kerple_log", "xpos", "p_rope")
ENCODINGS = ("rope", *OTHERS)


@pytest.fixture
def crowd(tmp_path, monkeypatch):
    """A folder with ten encodings, of which rope is the worst and each other is better than the next."""
    better = {name: 0.05 * place for place, name in enumerate(OTHERS)}
    monkeypatch.setattr(report_support, "BETTER", {**better, "rope": 1.0})
    for name in ENCODINGS:
        for seed in range(2):
            path = make_run(tmp_path / "runs", name, seed)
            lengths(path, worse=1.0 - better.get(name, 0.9))
    return tmp_path / "runs"


def test_plots_show_the_reference_and_the_lowest_losses(crowd):
    study = read_study([crowd])
    (comparison,) = study.comparisons
    found = study_scores(study, "rope")
    shown = legible(comparison, found)
    assert {each.label for each in shown.contestants} == {"rope", *OTHERS[: MOST - 1]}
    assert legible(shown, found) is shown


def test_plots_of_lengths_show_those_that_hold_best_without_extensions(crowd):
    (comparison,) = read_study([crowd]).comparisons
    measured = lengths_of(comparison, "test")
    shown = legible_lengths(measured, ["pope"])
    assert list(shown) == ["pope", "rope", *reversed(OTHERS)][:MOST]
    assert {row["stretch"] for seeds in shown.values() for rows in seeds for row in rows} == {"none"}
    assert legible_lengths(shown, []) is shown


def test_caption_of_lengths_names_what_is_shown(crowd):
    (comparison,) = read_study([crowd]).comparisons
    measured = lengths_of(comparison, "test")
    for claimed, kept in (([], "the reference"), (["pope"], "the reference, the models in claims")):
        caption = length_plots.lengths_plot(measured, {}, crowd / "lengths", "lengths", ["rope"], claimed).caption
        assert caption.endswith(f" Shown: {kept} and the lowest losses, {MOST} of {len(ENCODINGS)} models.")


def test_sentence_about_models_that_never_fail(crowd):
    (comparison,) = read_study([crowd]).comparisons
    measured = {**lengths_of(comparison, "test")}
    count = len(ENCODINGS)
    sentence = "Models whose loss never rises by more than 1 % beyond the trained length, without extensions"
    assert holding(lengths_table(measured, "")).startswith(f"{sentence} (0 of {count}): none. Change at ")
    lengths(Path(comparison.contestants[0].runs[0].path), worse=0.0)
    lengths(Path(comparison.contestants[0].runs[1].path), worse=0.0)
    (comparison,) = read_study([crowd]).comparisons
    name = comparison.contestants[0].label
    again = lengths_table(lengths_of(comparison, "test"), "")
    assert holding(again).startswith(f"{sentence} (1 of {count}): {name}. Change at ")
    assert f": {name} 0.0 %, " in holding(again)
    many = replace(again, rows=[*again.rows, *again.rows])
    length = max(int(key.removeprefix("at_")) for row in again.rows for key in row if key.startswith("at_"))
    changes = f"Change at {length:,} tokens: {name} 0.0 %, {name} 0.0 %, the others from rope +10.0 % to pope +100.0 %."
    assert holding(many) == f"{sentence} (2 of {2 * count}): {name}, {name}. {changes}"
    crowded = replace(again, rows=[row for row in again.rows if row["model"] == name] * (MOST_CHANGES + 1))
    failing = [row | {"fails": "128"} for row in many.rows]
    assert " (0 of " in holding(replace(many, rows=failing))
    assert f"none. Change at {length:,} tokens: from {name} 0.0 % to pope " in holding(replace(many, rows=failing))
    assert holding(crowded).endswith(f" Change at {length:,} tokens: from {name} 0.0 % to {name} 0.0 %.")
    settings = replace(again, rows=[row | {"model": f"{row['model']}, base=2, clamp=periodic"} for row in again.rows])
    assert f"{sentence} (1 of {count}): {name} (base=2, clamp=periodic)." in holding(settings)


def test_report_has_all_models_in_tables_and_says_what_plots_leave_out(crowd, report):
    out, _ = report()
    page = (out / "report.md").read_text()
    assert all(f"| {name} |" in page for name in ENCODINGS)
    assert page.count(f"Shown: the reference and the lowest losses, {MOST} of {len(ENCODINGS)} models.") >= 2
    drawn = (out / "plots" / "jsb-loss.csv").read_text()
    assert "xpos" not in drawn
    assert "rope" in drawn
    assert "xpos" in (out / "plots" / "jsb-test-cost.csv").read_text()


def test_the_page_shows_samples_of_the_models_in_its_plots(crowd, report):
    for run in read_study([crowd]).runs:
        (run.path / "samples" / "sample.txt").write_text(f"by {run.encoding}, seed {run.seed}")
    out, _ = report()
    page = (out / "index.html").read_text()
    assert {name for name in ENCODINGS if f"by {name}, seed 0" in page} == {"rope", *OTHERS[: MOST - 1]}
    samples = page.partition("<h3>Samples</h3>")[2]
    assert f"Shown: the reference and the lowest losses, {MOST} of {len(ENCODINGS)} models." in samples


def test_a_comparison_shows_few_samples_but_one_of_each_model(tmp_path, report):
    for encodings, each in ((OTHERS[:2], FILES), (OTHERS[:3], 2), (OTHERS[:MOST], 1)):
        runs = tmp_path / str(len(encodings)) / "runs"
        for name in encodings:
            path = make_run(runs, name, 0)
            for number in range(6):
                (path / "samples" / f"sample-{number}.txt").write_text(f"{number} by {name}")
        folder, _ = report(f"task.directories=[{runs}]")
        page = (folder / "index.html").read_text()
        shown = {name: sum(f"{number} by {name}" in page for number in range(6)) for name in encodings}
        assert shown == dict.fromkeys(encodings, each)


def test_models_of_a_cost_plot_have_different_styles_if_another_comparison_shows_others(
    tmp_path, report, crowd, monkeypatch
):
    reverse = {name: 0.05 * (len(OTHERS) - place) for place, name in enumerate(OTHERS)}
    monkeypatch.setattr(report_support, "BETTER", {**reverse, "rope": 1.0})
    for name in ENCODINGS:
        for seed in range(2):
            make_run(tmp_path / "runs", name, seed, domain="maestro")
    styles, draw = [], plots.cost_plot

    def noted(found, given, stem, title):
        styles.append(given)
        return draw(found, given, stem, title)

    monkeypatch.setattr(plots, "cost_plot", noted)
    monkeypatch.setattr(sections, "on_all_cores", lambda function, given, *_: [*map(function, given)])
    report()
    jsb, maestro = styles
    assert jsb.keys() != maestro.keys()
    for each in styles:
        assert len(each) == MOST
        assert len({(style["color"], style["marker"]) for style in each.values()}) == MOST
