"""Which runs stand in one table of a report, and what comparisons and models in it are called."""

import csv
import json
import re
from dataclasses import replace

import pytest
from report_support import make_run, report_task, rewritten, rows_of, undrawn  # noqa: F401

from bearings.domains.records import Records
from bearings.reporting.reading import numbered, read_study

pytestmark = pytest.mark.usefixtures("undrawn")


DIFFERENT = {
    "other data": ((), {"store": "6" * 64}, ("store.sha256", "555555555555…", "666666666666…")),
    "another tokenizer": (("domain.tokenizer=pope",), {}, ("domain.tokenizer", "fine", "pope")),
    "other units": ((), {"units": ("note",)}, ("store.units", '["note", "step"]', '["note"]')),
    "another length": (("data.length=128",), {}, ("data.length", "64", "128")),
    "more steps": (("trainer.steps=40",), {}, ("trainer.steps", "20", "40")),
    "a wider model": (("model.width=64",), {}, ("model.width", "32", "64")),
}


@pytest.mark.parametrize("case", DIFFERENT)
def test_what_differs_in_more_than_the_encoding_is_not_mixed_and_the_difference_is_named(tmp_path, case):
    overrides, given, named = DIFFERENT[case]
    for seed in (0, 1, 2):
        make_run(tmp_path / "runs", "rope", seed, domain="maestro")
        make_run(tmp_path / "runs", "pope", seed, domain="maestro")
        make_run(tmp_path / "runs", "pope", seed, *overrides, domain="maestro", **given)
    study = read_study([tmp_path / "runs"])
    (line,) = study.apart()
    key, one, other = named
    assert line.endswith((f" are not mixed: {key} {one} | {other}", f" are not mixed: {key} {other} | {one}"))
    kinds = [sorted(contestant.label for contestant in comparison.contestants) for comparison in study.comparisons]
    assert sorted(kinds) == [["pope"], ["pope", "rope"]]


def test_a_difference_in_percent_is_of_the_reference_s_paired_seeds(tmp_path, report):
    for seed in (0, 1, 2):
        make_run(tmp_path / "runs", "rope", seed)
        make_run(tmp_path / "runs", "pope", seed)
    same, _ = report()
    full = rows_of(same / "tables" / "across.csv")["pope"]
    assert "seeds that both models have" not in (same / "report.md").read_text()
    spoilt = make_run(tmp_path / "runs", "pope", 3)
    kept = Records.load(spoilt / "nll" / "test.npz")
    replace(kept, nats=3 * kept.nats).save(spoilt / "nll" / "test.npz")
    more, _ = report()
    row = rows_of(more / "tables" / "across.csv")["pope"]
    assert float(row["nats_per_token"]) > 1.4 * float(full["nats_per_token"])
    assert row["difference"] == full["difference"]
    assert row["difference_percent"] == full["difference_percent"]
    # Under the domain's table, and under that across domains.
    assert (more / "report.md").read_text().count("seeds that both models have: pope less rope, 3 seeds.") == 2


def test_a_note_of_pairs_tells_each_once_whatever_the_splits(tmp_path, report):
    for encoding, seeds in (("rope", 3), ("pope", 4)):
        for seed in range(seeds):
            make_run(tmp_path / "runs", encoding, seed, splits=("test", "sparse"))
    folder, _ = report()
    # Under each split's table, and under that across domains.
    assert (folder / "report.md").read_text().count("seeds that both models have: pope less rope, 3 seeds.") == 3


def test_comparisons_of_one_domain_have_files_of_their_own(tmp_path, report):
    make_run(tmp_path / "runs", "rope", 0)
    make_run(tmp_path / "runs", "rope", 0, "trainer.steps=40")
    folder, out = report()
    assert len(list((folder / "tables").glob("jsb-*-test.csv"))) == 2
    (line,) = (line for line in out.splitlines() if "are not mixed: trainer.steps" in line)
    assert line in (folder / "report.md").read_text()
    assert "jsb: steps=40, test split" in (folder / "report.md").read_text()


def test_controls_of_fairness_are_compared_and_told(tmp_path, report):
    for seed in (0, 1, 2):
        make_run(tmp_path / "runs", "rope", seed, "optimizer.learning_rate=1e-3")
        make_run(tmp_path / "runs", "rope", seed, "optimizer.learning_rate=2e-3")
        make_run(tmp_path / "runs", "path", seed, "optimizer.learning_rate=2e-3")
        make_run(tmp_path / "runs", "pope", seed, "model.mlp_hidden=96", "optimizer.learning_rate=2e-3")
    folder, _ = report()
    rows = rows_of(folder / "tables" / "jsb-test.csv")
    assert set(rows) == {"rope, learning_rate=0.001", "rope, learning_rate=0.002", "path", "pope"}
    assert rows["path"]["against"] == rows["pope"]["against"] == "rope, learning_rate=0.001"  # they are alike
    assert rows["rope, learning_rate=0.002"]["verdict"] == "rate not chosen"
    full = rows_of(folder / "tables" / "jsb-test-differences.csv")
    assert full["path"]["controls"] == "learning_rate 0.002, rope, learning_rate=0.001 0.001"
    assert full["pope"]["controls"].startswith("mlp_hidden 96, rope, learning_rate=")
    for column, percent in (("parameters", "parameters_percent"), ("flops_per_token", "flops_percent")):
        one, other = (float(rows[model][column]) for model in ("pope", full["pope"]["against"]))
        assert float(full["pope"][percent]) == pytest.approx(100 * (one / other - 1))


def test_variants_are_apart_and_named_by_what_sets_each_apart(tmp_path, report):
    """One choice at a time, as of studies/jsb_variants: no variant's runs count as another's seeds."""
    variants = {"packed": "data.packed=true", "mlp": "model.mlp=gelu", "tie_embeddings": "model.tie_embeddings=false"}
    for override in variants.values():
        for encoding in ("rope", "pope"):
            for seed in (0, 1, 2):
                make_run(tmp_path / "runs", encoding, seed, override)
    folder, out = report()
    titles = ["jsb: mlp=gelu", "jsb: packed=true", "jsb: tie_embeddings=false"]
    with open(folder / "tables" / "across.csv", newline="") as file:
        rows = [(row["domain"], row["model"], row["seeds"]) for row in csv.DictReader(file)]
    assert rows == [(title, model, "3") for title in titles for model in ("pope", "rope")]
    assert "jsb: mlp=gelu and jsb: packed=true are not mixed: data.packed false | true; model.mlp gelu | swiglu" in out
    make_run(tmp_path / "runs", "rope", 0)  # what most have is not told, and a title of its own is left for it
    folder, _ = report()
    text = (folder / "report.md").read_text()
    assert all(f"\n## {title}\n" in text for title in ("jsb", *titles))


def test_a_comparison_that_differs_in_much_has_a_short_title_of_its_own(tmp_path, report):
    much = ("trainer.steps=40", "data.length=128", "model.width=64", "model.layers=3", "model.dropout=0.5")
    for override in ((), much):
        make_run(tmp_path / "runs", "rope", 0, *override)
    folder, out = report()
    with open(folder / "tables" / "across.csv", newline="") as file:
        titles = [row["domain"] for row in csv.DictReader(file)]
    assert all(
        re.fullmatch(r"jsb-[0-9a-f]{6}: length=\d+, dropout=0\.\d, layers=\d, width=\d+, …", each) for each in titles
    )
    assert len(set(titles)) == 2
    assert "; trainer.steps " in next(line for line in out.splitlines() if "are not mixed" in line)


def test_comparisons_of_other_data_have_titles_of_their_own(tmp_path):
    for store in ("5" * 64, "6" * 64):
        for steps in (20, 40):
            make_run(tmp_path / "runs", "rope", 0, f"trainer.steps={steps}", store=store)
    comparisons = read_study([tmp_path / "runs"]).comparisons
    assert len({comparison.title for comparison in comparisons}) == 4
    assert all(re.fullmatch(r"jsb-[0-9a-f]{6}: steps=[24]0", comparison.title) for comparison in comparisons)


def test_values_that_mean_the_same_are_one_comparison(tmp_path, report):
    make_run(tmp_path / "runs", "rope", 0)
    rewritten(make_run(tmp_path / "runs", "rope", 1), "optimizer", clip=1)
    rewritten(make_run(tmp_path / "runs", "nope", 0), "model", kv_heads=...)
    folder, out = report()
    assert rows_of(folder / "tables" / "jsb-test.csv").keys() == {"rope", "nope"}
    assert rows_of(folder / "tables" / "jsb-test.csv")["rope"]["each_seed"] == "0 1"
    assert "are not mixed" not in out
    assert not list(folder.glob("tables/jsb-?*-runs.csv"))
    rewritten(make_run(tmp_path / "runs", "rope", 0, "seed=0"), "optimizer", clip=1)
    assert "duplicate: " in report()[1]


def test_an_encoding_s_values_that_mean_the_same_are_one_contestant(tmp_path):
    make_run(tmp_path / "runs", "rope", 0)
    rewritten(make_run(tmp_path / "runs", "rope", 1), "encoding", base=10000)
    (comparison,) = read_study([tmp_path / "runs"]).comparisons
    assert [(each.label, list(each.runs)) for each in comparison.contestants] == [("rope", [0, 1])]


def test_no_name_is_taken_twice(tmp_path, report):
    assert numbered(["jsb", "jsb", "jsb-2", "jsb"]) == ["jsb", "jsb-2", "jsb-2-2", "jsb-3"]
    for end in (1, 2):  # what tells them apart is too long to be shown
        path = make_run(tmp_path / "runs", "rope", 0, f"trainer.log_every={end}")
        rewritten(path, "encoding", note=70 * "a" + str(end))
    folder, _ = report()
    label = f"rope, note={60 * 'a'}…"
    assert rows_of(folder / "tables" / "jsb-test.csv").keys() == {label, f"{label}-2"}


def test_settings_of_an_encoding_are_told_where_they_are_not_its_defaults(tmp_path, report):
    make_run(tmp_path / "runs", "rope", 0)
    make_run(tmp_path / "runs", "pope", 0, "encoding.delta_init=zero")
    make_run(tmp_path / "runs", "path", 0, "encoding.rank=0", "encoding.silu=false")
    folder, _ = report()
    line = "Settings of encodings that are not their defaults: path rank=0, silu=false; pope delta_init=zero."
    assert f"- {line}\n" in (folder / "report.md").read_text()


def test_speeds_are_shown_where_no_run_shared_its_device(tmp_path, report):
    paths = [make_run(tmp_path / "runs", encoding, seed) for encoding in ("rope", "pope") for seed in (0, 1)]
    folder, _ = report()
    assert all(float(row["tokens_per_s"]) > 1000 for row in rows_of(folder / "tables" / "jsb-test.csv").values())
    assert "No tokens/s" not in (folder / "report.md").read_text()
    manifest = json.loads((paths[-1] / "manifest.json").read_text())
    manifest["sessions"][0]["beside"] = 1
    (paths[-1] / "manifest.json").write_text(json.dumps(manifest))
    folder, _ = report()
    assert {row["tokens_per_s"] for row in rows_of(folder / "tables" / "jsb-test.csv").values()} == {""}
    assert "No tokens/s" in (folder / "report.md").read_text()
