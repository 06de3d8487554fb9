"""Which model of a comparison the others are compared with."""

from dataclasses import replace

import pytest
from report_support import make_run, report_task, rows_of, undrawn  # noqa: F401

from bearings.domains.records import Records
from bearings.reporting.reading import read_study

pytestmark = pytest.mark.usefixtures("undrawn")


def test_the_plain_model_is_the_reference_even_if_another_is_better(tmp_path, report):
    for seed in (0, 1, 2):
        make_run(tmp_path / "runs", "rope", seed)
        better = make_run(tmp_path / "runs", "rope", seed, "encoding.window=8") / "nll" / "valid.npz"
        here = Records.load(better)
        replace(here, nats=0.9 * here.nats).save(better)
    folder, _ = report()
    rows = rows_of(folder / "tables" / "jsb-test.csv")
    assert {name: row["against"] for name, row in rows.items()} == {"rope": "", "rope, window=8": "rope"}


@pytest.mark.parametrize("usual", [True, False])
def test_the_reference_has_the_fewest_changed_options(tmp_path, report, usual):
    """Of several models of an encoding, whichever is better; the notes say which it is."""
    kinds = {"randomise=0" if usual else "randomise=256": 1.0, "randomise=512": 0.9}
    for seed in (0, 1, 2):
        make_run(tmp_path / "runs", "pope", seed)
        for setting, factor in kinds.items():
            path = make_run(tmp_path / "runs", "rope", seed, f"encoding.{setting}") / "nll" / "valid.npz"
            here = Records.load(path)
            replace(here, nats=factor * here.nats).save(path)
    folder, _ = report()
    plain, better = (f"rope, {setting}" for setting in kinds)
    reference, other = (plain, better) if usual else (better, plain)
    rows = rows_of(folder / "tables" / "jsb-test.csv")
    assert {name: row["against"] for name, row in rows.items()} == {reference: "", other: reference, "pope": reference}
    shown = (folder / "report.md").read_text()
    encoding, _, settings = reference.partition(", ")
    assert f"2 models have the encoding rope. The reference is {encoding} ({settings}): of those" in shown
    assert f"\"task.reference='{other}'\"" in shown


def test_kernels_are_compared_with_the_one_that_is_named(tmp_path, report):
    """As in studies/jsb_kernels."""
    for kernel in ("torch", "triton", "auto"):
        for seed in (0, 1, 2):
            make_run(tmp_path / "runs", "rope", seed, f"encoding.implementation={kernel}")
    named = "rope, implementation=triton"
    folder, _ = report(f"task.reference='{named}'")
    rows = rows_of(folder / "tables" / "jsb-test.csv")
    assert set(rows) == {"rope, implementation=torch", "rope, implementation=auto", named}
    assert {row["against"] for name, row in rows.items() if name != named} == {named}
    assert "There is no run of" not in (folder / "report.md").read_text()


def test_models_with_too_few_seeds_follow_the_others_and_are_no_reference(tmp_path):
    """Even if they are better or have fewer changed options."""
    make_run(tmp_path / "runs", "pope", 0)
    make_run(tmp_path / "runs", "rope", 0)
    for seed in (0, 1, 2):
        make_run(tmp_path / "runs", "nope", seed)
        make_run(tmp_path / "runs", "rope", seed, "encoding.randomise=512")
    (comparison,) = read_study([tmp_path / "runs"]).comparisons
    assert [each.testable for each in comparison.chosen] == [True, True, False, False]
    reference = comparison.reference(comparison.chosen[0], "rope")
    assert reference.label == "rope, randomise=512"


def test_a_reference_may_have_settings_in_which_the_runs_so_far_do_not_differ(tmp_path):
    """As in studies/length_wikitext2, before the runs with other settings; `randomise=0` is the default."""
    for given in ((), ("encoding.randomise=64",)):
        make_run(tmp_path / "runs", "rope", 0, *given)
    (comparison,) = read_study([tmp_path / "runs"]).comparisons
    found = {each.label: each for each in comparison.contestants}

    def called(name):
        return [label for label, each in found.items() if each.called(name)]

    assert list(found) == ["rope, randomise=0", "rope, randomise=64"]
    assert called("rope, randomise=0, spacing=1.0") == ["rope, randomise=0"]
    assert called("rope, randomise=0, spacing=2.0") == []
    assert called("rope, spacing=1.0") == []  # it does not say which of the two
    assert called("pope, randomise=0, spacing=1.0") == []
    assert called("rope") == list(found)
    make_run(tmp_path / "alone", "rope", 0)
    (alone,) = read_study([tmp_path / "alone"]).comparisons[0].contestants
    assert alone.label == "rope"
    assert alone.called("rope, randomise=0, spacing=1.0")
