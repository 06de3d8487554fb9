"""Reports of studies that compare the values of settings, next to studies that do not."""

import pytest
from report_support import make_run, report_task, rows_of, undrawn  # noqa: F401

from bearings.reporting.reading import read_study

pytestmark = pytest.mark.usefixtures("undrawn")


SEEDS = (0, 1, 2)


def study(folder, compare="", more=""):
    """The folder of the runs of a study that compares these settings; `more` goes into its list."""
    folder.mkdir(parents=True)
    (folder / "study.yaml").write_text(f"compare: [{compare}]\nruns: [encoding=rope]\n{more}")
    return folder / "runs"


def references(folder):
    return {name: row["against"] for name, row in rows_of(folder / "tables" / "jsb-test.csv").items()}


@pytest.mark.parametrize(
    ("key", "values"),
    [
        ("optimizer.learning_rate", (0.001, 0.002)),
        ("model.mlp_hidden", (32, 64)),
        ("data.batch_size", (32, 64)),
        ("model.width", (32, 64)),
        ("model.kv_heads", ("null", 1)),
    ],
)
def test_any_setting_can_be_compared(tmp_path, report, key, values):
    """Otherwise the best learning rate is chosen, and each MLP size has its own reference."""
    name, runs = key.split(".")[1], study(tmp_path / "runs", key)
    for value in values:
        for seed in SEEDS:
            make_run(runs, "rope", seed, f"{key}={value}")
    folder, _ = report()
    first, second = references(folder)
    assert references(folder) == {first: "", second: first}
    assert first.startswith(f"rope, {name}=")
    full = rows_of(folder / "tables" / "jsb-test-differences.csv")
    assert full[second]["controls"].startswith(f"{name}={second.partition('=')[2]} instead of ")


def test_the_reference_has_the_same_compared_settings(tmp_path, report):
    runs = study(tmp_path / "runs", "model.width")
    for seed in SEEDS:
        for width in (32, 64):
            make_run(runs, "rope", seed, f"model.width={width}")
            make_run(runs, "pope", seed, f"model.width={width}")
    small, large = "rope, width=32", "rope, width=64"
    found = {"pope, width=32": small, "pope, width=64": large}
    assert references(report()[0]) == {**found, small: "", large: small}
    assert references(report(f"task.reference='{large}'")[0]) == {
        **dict.fromkeys(found, large),
        small: large,
        large: "",
    }


def test_studies_in_one_comparison_may_compare_other_settings(tmp_path, report):
    """Runs with a default of null are in the same comparison, whether or not their study compares the setting."""
    comparing = study(tmp_path / "runs" / "a", "model.kv_heads", "margin: 0.5")
    other = study(tmp_path / "runs" / "b", more="margin: 0.25")
    for seed in SEEDS:
        for encoding in ("rope", "pope"):
            make_run(comparing, encoding, seed, "model.kv_heads=1")
            make_run(other, encoding, seed)
    folder, _ = report()
    expected = {"rope": "", "rope, kv_heads=1": "rope", "pope": "rope", "pope, kv_heads=1": "rope, kv_heads=1"}
    assert references(folder) == expected
    full = rows_of(folder / "tables" / "jsb-test-differences.csv")
    assert full["rope, kv_heads=1"]["controls"] == "kv_heads=1 instead of null"
    assert float(full["rope, kv_heads=1"]["margin"]) == 0.005  # that of the domain, since the studies disagree
    folder, _ = report("task.reference='rope, kv_heads=1'")
    assert rows_of(folder / "tables" / "jsb-test-differences.csv")["rope"]["controls"] == "kv_heads=null instead of 1"


def test_values_that_a_study_compares_are_in_names_and_titles(tmp_path, report):
    comparing, other = study(tmp_path / "runs" / "a", "trainer.steps"), study(tmp_path / "runs" / "b")
    for steps in (20, 40):
        make_run(comparing, "rope", 0, f"trainer.steps={steps}")
    make_run(other, "rope", 0)
    folder, out = report()
    assert {"jsb (steps=20 or 40)", "jsb (steps=20)"} <= set(out.splitlines())
    assert "jsb: steps=20 or 40," in (folder / "tables" / "across.csv").read_text()


def test_models_with_other_compared_settings_are_not_copies(tmp_path):
    runs = study(tmp_path / "runs", "optimizer.learning_rate")
    for rate in (0.001, 0.002):
        for seed, encoding in enumerate(("sliding_window", "local_global")):
            make_run(runs, encoding, seed, f"optimizer.learning_rate={rate}")
    (comparison,) = read_study([tmp_path / "runs"]).comparisons
    assert len(comparison.chosen) == 4
    assert comparison.copies == {
        f"local_global, learning_rate={rate}": f"sliding_window, learning_rate={rate}" for rate in (0.001, 0.002)
    }


def test_compared_settings_with_the_same_last_name_are_both_in_the_label(tmp_path):
    """A setting of the domain that is also part of the token store's content is named once."""
    runs = study(tmp_path / "runs", "domain.length, data.length")
    for content, data in ((256, 512), (512, 512), (512, 1024)):
        given = f"domain.length={content}", f"data.length={data}"
        path = make_run(runs, "rope", 0, *given, domain="mqrar", units=("answer",), correct=1.0)
        for name in ("config.yaml", "manifest.json"):
            text = (path / name).read_text()
            text = text.replace("content: {}", f"content:\n  length: {content}")
            (path / name).write_text(text.replace('"content": {}', f'"content": {{"length": {content}}}'))
    (comparison,) = read_study([tmp_path / "runs"]).comparisons
    assert sorted(each.label for each in comparison.contestants) == [
        "rope, length=256, length=512",
        "rope, length=512",
        "rope, length=512, length=1024",
    ]
