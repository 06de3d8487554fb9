"""How a report groups runs into comparisons, and how it names comparisons and models."""

import csv
import json
import re
from dataclasses import replace

import pytest
from report_support import make_run, report_task, rewritten, rows_of, undrawn  # noqa: F401

from bearings.domains.records import Records
from bearings.reporting.grouping import numbered
from bearings.reporting.reading import read_study
from bearings.reporting.study import Comparison

pytestmark = pytest.mark.usefixtures("undrawn")


DIFFERENT = {  # settings, what a run records, what differs, and whether names say it
    "other data": ((), {"store": "6" * 64}, ("store.sha256", "555555555555…", "666666666666…"), False),
    "another tokenizer": (("domain.tokenizer=pope",), {}, ("domain.tokenizer", "fine", "pope"), True),
    "other units": ((), {"units": ("note",)}, ("store.units", '["note", "step"]', '["note"]'), True),
    "another length": (("data.length=128",), {}, ("data.length", "64", "128"), True),
    "more steps": (("trainer.steps=40",), {}, ("trainer.steps", "20", "40"), True),
    "a wider model": (("model.width=64",), {}, ("model.width", "32", "64"), True),
}


@pytest.mark.parametrize("case", DIFFERENT)
def test_runs_with_other_settings_form_another_comparison(tmp_path, case):
    overrides, given, named, in_names = DIFFERENT[case]
    for seed in (0, 1, 2):
        make_run(tmp_path / "runs", "rope", seed, domain="maestro")
        make_run(tmp_path / "runs", "pope", seed, domain="maestro")
        make_run(tmp_path / "runs", "pope", seed, *overrides, domain="maestro", **given)
    study = read_study([tmp_path / "runs"])
    key, one, other = named
    names = [comparison.name for comparison in study.comparisons]
    changes = f"{key} {one} (not {other})", f"{key} {other} (not {one})"
    if in_names:
        assert sorted(names) == sorted(f"maestro ({key.split('.')[-1]}={value})" for value in (one, other))
        assert not study.legend()
    else:
        assert names == ["maestro", "maestro-2"]
        assert list(study.legend().values()) in [[f"maestro-2 differs from maestro: {change}"] for change in changes]
    kinds = [sorted(contestant.label for contestant in comparison.contestants) for comparison in study.comparisons]
    assert sorted(kinds) == [["pope"], ["pope", "rope"]]


def test_runs_that_are_read_together_share_equal_arrays(tmp_path):
    """A process returns an array that several runs have only once."""
    for seed in (0, 1):
        make_run(tmp_path / "runs", "rope", seed)
    make_run(tmp_path / "runs", "rope", 0, domain="maestro", units=("note",))
    jsb, maestro = read_study([tmp_path / "runs"]).comparisons
    one, other = (run.records["test"] for run in jsb.contestants[0].runs.values())
    assert one.documents is other.documents
    assert one.nats is not other.nats
    assert maestro.any_run.records["test"].units is not one.units


def test_settings_of_data_are_listed_once(tmp_path):
    """Those that determine the tokens are in the domain's settings and in what identifies its content."""
    for pool in (1000, 2000):
        path = make_run(tmp_path / "runs", "rope", 0, f"domain.pool={pool}", domain="indirect_indexing", correct=0.5)
        rewritten(path, "content", pool=pool, sha256=f"{pool:064}")
        rewritten(path, "domain", shortest=pool)
        rewritten(path, "model", width=pool)
    (line,) = read_study([tmp_path / "runs"]).legend().values()
    changes = [change.split(" ")[0] for change in line.partition(": ")[2].split("; ")]
    assert sorted(changes) == ["content.sha256", "domain.pool", "domain.shortest", "model.width"]


def generated(path, back, sha256):
    run = make_run(path, "rope", 0, f"domain.back={back}", domain="mqrar", units=("answer",), correct=0.5, store=sha256)
    rewritten(run, "content", back=back, sha256=sha256)


def test_digests_of_generated_data_are_not_named_where_settings_differ(tmp_path):
    for back in (1, 2):
        generated(tmp_path / "runs", back, f"{back:064}")
    study = read_study([tmp_path / "runs"])
    assert [each.name for each in study.comparisons] == ["mqrar (back=1)", "mqrar (back=2)"]
    assert [each.title for each in study.comparisons] == ["mqrar: back=1", "mqrar: back=2"]
    assert not study.legend()


def test_other_data_from_the_same_settings_are_named(tmp_path):
    """Another version of a generator can draw other data."""
    for number, back in enumerate((1, 2, 2)):
        generated(tmp_path / f"runs{number}", back, f"{number:064}")
    study = read_study([tmp_path / f"runs{number}" for number in range(3)])
    assert [each.name for each in study.comparisons] == ["mqrar (back=1)", "mqrar-2", "mqrar-3"]
    assert all("store.sha256" in line for line in study.legend().values())


def test_settings_without_effect_are_not_listed_and_files_are_named(tmp_path):
    """Where the tokenizer does not use an option, the domain has its default, and the content has null."""
    for name, vocabulary in (("one", None), ("two", 300)):
        path = make_run(tmp_path / "runs", "rope", 0, f"domain.path={name}.txt", domain="text")
        rewritten(path, "domain", path=f"{name}.txt", vocabulary_size=vocabulary or 8192)
        rewritten(path, "content", files=f"{name:>064}", vocabulary_size=vocabulary)
        (path).rename(path.with_name(f"small-{name}-s0"))
    (line,) = read_study([tmp_path / "runs"]).legend().values()
    changes = [change.rsplit(" (not")[0] for change in line.partition(": ")[2].split("; ")]
    assert changes[0] in ("domain.path one.txt", "domain.path two.txt")
    assert "content.vocabulary_size" in line
    assert "domain.vocabulary_size" not in line


def test_percentages_refer_to_the_paired_seeds_of_the_reference(tmp_path, report):
    for seed in (0, 1, 2):
        make_run(tmp_path / "runs", "rope", seed)
        make_run(tmp_path / "runs", "pope", seed)
    same, _ = report()
    full = rows_of(same / "tables" / "across.csv")["pope"]
    assert "seeds that both models have" not in (same / "report.md").read_text()
    spoilt = make_run(tmp_path / "runs", "pope", 3)
    kept = Records.load(spoilt / "nll" / "test.npz")
    replace(kept, nats=3 * kept.nats).save(spoilt / "nll" / "test.npz")
    more, printed = report()
    row = rows_of(more / "tables" / "across.csv")["pope"]
    assert float(row["nats_per_token"]) > 1.4 * float(full["nats_per_token"])
    assert row["difference"] == full["difference"]
    assert row["difference_percent"] == full["difference_percent"]
    assert (more / "report.md").read_text().count("seeds that both models have: pope less rope, 3 seeds.") == 1
    assert printed.count("seeds that both models have: pope less rope, 3 seeds.") == 1


def test_pairing_note_lists_each_difference_once(tmp_path, report):
    for encoding, seeds in (("rope", 3), ("pope", 4)):
        for seed in range(seeds):
            make_run(tmp_path / "runs", encoding, seed, splits=("test", "sparse"))
    folder, _ = report()
    # Under each split's table, and under that across domains.
    assert (folder / "report.md").read_text().count("seeds that both models have: pope less rope, 3 seeds.") == 3


@pytest.mark.parametrize("domains", [["jsb"], ["jsb", "genome"]])
def test_no_heading_or_table_of_the_report_is_repeated(tmp_path, report, domains):
    for domain in domains:
        make_run(tmp_path / "runs", "rope", 0, domain=domain)
        make_run(tmp_path / "runs", "pope", 0, domain=domain)
    folder, _ = report()
    lines = (folder / "report.md").read_text().splitlines()
    titles = [line.lstrip("# ") for line in lines if line.startswith("#")]
    assert len({*titles}) == len(titles)
    assert ("All comparisons" in titles) == (len(domains) > 1)


def test_comparisons_of_one_domain_have_separate_files(tmp_path, report):
    make_run(tmp_path / "runs", "rope", 0)
    make_run(tmp_path / "runs", "rope", 0, "trainer.steps=40")
    folder, out = report()
    assert len(list((folder / "tables").glob("jsb-*-test.csv"))) == 2
    text = (folder / "report.md").read_text()
    assert all(f"jsb (steps={steps}), test split" in text for steps in (20, 40))
    assert "differs from" not in out + text  # the names say it


def test_mlp_size_and_learning_rate_may_differ_and_are_shown(tmp_path, report):
    for seed in (0, 1, 2):
        make_run(tmp_path / "runs", "rope", seed, "optimizer.learning_rate=1e-3")
        make_run(tmp_path / "runs", "rope", seed, "optimizer.learning_rate=2e-3")
        make_run(tmp_path / "runs", "path", seed, "optimizer.learning_rate=2e-3")
        make_run(tmp_path / "runs", "pope", seed, "model.mlp_hidden=96", "optimizer.learning_rate=2e-3")
    folder, _ = report()
    rows = rows_of(folder / "tables" / "jsb-test.csv")
    assert set(rows) == {"rope, learning_rate=0.001", "rope, learning_rate=0.002", "path", "pope"}
    assert rows["path"]["against"] == rows["pope"]["against"] == "rope, learning_rate=0.001"  # with the same MLP size
    assert rows["rope, learning_rate=0.002"]["verdict"] == "rate not chosen"
    full = rows_of(folder / "tables" / "jsb-test-differences.csv")
    assert full["path"]["controls"] == "learning_rate=0.002 instead of 0.001"
    assert "(sha256). Length 64. Steps: 20, in 32-true on a device." in (folder / "report.md").read_text()
    assert full["pope"]["controls"].startswith("mlp_hidden=96 instead of null; learning_rate=0.002 instead of")
    for column, percent in (("parameters", "parameters_percent"), ("flops_per_token", "flops_percent")):
        one, other = (float(rows[model][column]) for model in ("pope", full["pope"]["against"]))
        assert float(full["pope"][percent]) == pytest.approx(100 * (one / other - 1))


def test_models_are_named_by_match_unless_it_leaves_them_alike(tmp_path, report):
    for seed in (0, 1, 2):
        make_run(tmp_path / "runs", "rope", seed)
        make_run(tmp_path / "runs", "pope", seed, "match=params", "optimizer.learning_rate=1e-3")
        make_run(tmp_path / "runs", "pope", seed, "match=flops", "optimizer.learning_rate=2e-3")
    folder, _ = report()
    assert set(rows_of(folder / "tables" / "jsb-test.csv")) == {"rope", "pope, match=params", "pope, match=flops"}
    for seed in (0, 1, 2):
        make_run(tmp_path / "runs", "pope", seed, "match=flops", "optimizer.learning_rate=4e-3")
    folder, _ = report()
    named = {f"pope, match=flops, learning_rate={rate}" for rate in ("0.002", "0.004")}
    named |= {"rope", "pope, match=params"}
    assert set(rows_of(folder / "tables" / "jsb-test.csv")) == named


def test_a_size_that_match_has_not_chosen_is_part_of_the_name(tmp_path, report):
    for seed in (0, 1, 2):
        make_run(tmp_path / "runs", "rope", seed)
        make_run(tmp_path / "runs", "pope", seed, "model.mlp_hidden=96")
        make_run(tmp_path / "runs", "pope", seed, "match=flops")
    folder, _ = report()
    assert set(rows_of(folder / "tables" / "jsb-test.csv")) == {"rope", "pope, mlp_hidden=96", "pope, match=flops"}


def test_a_setting_that_a_study_compares_is_part_of_the_name(tmp_path, report):
    compared = "runs: [experiment=debug]\ncompare: [optimizer.learning_rate]\n"
    (tmp_path / "runs").mkdir()
    (tmp_path / "study.yaml").write_text(compared)
    for seed in (0, 1, 2):
        make_run(tmp_path / "runs", "rope", seed)
        make_run(tmp_path / "runs", "pope", seed, "match=params", "optimizer.learning_rate=1e-3")
        make_run(tmp_path / "runs", "pope", seed, "match=flops", "optimizer.learning_rate=2e-3")
    folder, _ = report()
    named = {"rope", "pope, match=params, learning_rate=0.001", "pope, match=flops, learning_rate=0.002"}
    assert set(rows_of(folder / "tables" / "jsb-test.csv")) == named


def test_converted_models_are_compared_with_their_control(tmp_path, report):
    staged = ("trainer.match_steps=5", "trainer.distil_steps=5")
    for seed in (0, 1, 2):
        make_run(tmp_path / "runs", "rope", seed)
        make_run(tmp_path / "runs", "path", seed, "trainer.anneal_steps=10")
        make_run(tmp_path / "runs", "path", seed, "trainer.anneal_steps=0", *staged)
        make_run(tmp_path / "runs", "pope", seed, *staged)
    (comparison,) = read_study([tmp_path / "runs"]).comparisons
    matched, annealed = (each.label for each in comparison.contestants if each.encoding == "path")
    assert matched == "path, anneal_steps=0, distil_steps=5, match_steps=5"
    assert annealed == "path, anneal_steps=10"
    folder, _ = report()
    rows = rows_of(folder / "tables" / "jsb-test-differences.csv")
    assert "match_steps=5 instead of null" in rows["pope"]["controls"]


def test_variants_are_separate_comparisons(tmp_path, report):
    """As in studies/jsb_variants: runs of one variant do not count as seeds of another."""
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
    names = {"jsb (packed=true)", "jsb (mlp=gelu)", "jsb (tie_embeddings=false)"}
    assert names <= set(out.splitlines())
    make_run(tmp_path / "runs", "rope", 0)  # the usual settings come first and get the plain name
    folder, _ = report()
    text = (folder / "report.md").read_text()
    assert all(f"\n## {name}\n" in text for name in {"jsb", *names})
    assert "differs from" not in text


def test_comparisons_with_many_differences_have_short_titles(tmp_path, report):
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
    assert "; trainer.steps " in next(line for line in out.splitlines() if "differs from" in line)


def test_comparisons_of_other_data_have_unique_titles(tmp_path):
    for store in ("5" * 64, "6" * 64):
        for steps in (20, 40):
            make_run(tmp_path / "runs", "rope", 0, f"trainer.steps={steps}", store=store)
    comparisons = read_study([tmp_path / "runs"]).comparisons
    assert len({comparison.title for comparison in comparisons}) == 4
    assert all(re.fullmatch(r"jsb-[0-9a-f]{6}: steps=[24]0", comparison.title) for comparison in comparisons)


def test_names_have_up_to_two_settings_and_no_digests():
    settings = [{}, {"data.length": 64}, {"data.length": 64, "trainer.steps": 40}]
    settings += [{**settings[2], "model.width": 8}, {"data.length": 64, "store.sha256": "5" * 64}]
    names = [Comparison("jsb", "jsb-123456", {}, different, []).full_name for different in settings]
    assert names == ["jsb", "jsb (length=64)", "jsb (length=64, steps=40)", None, None]


def test_comparisons_are_numbered_by_domain(tmp_path):
    for steps, store in ((20, "5" * 64), (40, "6" * 64)):
        make_run(tmp_path / "runs", "rope", 0, f"trainer.steps={steps}")
        make_run(tmp_path / "runs", "rope", 0, domain="maestro", store=store)
    names = [comparison.name for comparison in read_study([tmp_path / "runs"]).comparisons]
    assert names == ["jsb (steps=20)", "jsb (steps=40)", "maestro", "maestro-2"]


def test_equal_values_of_different_types_form_one_comparison(tmp_path, report):
    make_run(tmp_path / "runs", "rope", 0)
    rewritten(make_run(tmp_path / "runs", "rope", 1), "optimizer", clip=1)
    rewritten(make_run(tmp_path / "runs", "nope", 0), "model", kv_heads=...)
    folder, out = report()
    assert rows_of(folder / "tables" / "jsb-test.csv").keys() == {"rope", "nope"}
    assert rows_of(folder / "tables" / "jsb-test.csv")["rope"]["each_seed"] == "0 1"
    assert "differs from" not in out
    assert not list(folder.glob("tables/jsb-?*-runs.csv"))
    rewritten(make_run(tmp_path / "runs", "rope", 0, "seed=0"), "optimizer", clip=1)
    assert "duplicate: " in report()[1]


def test_equal_encoding_options_form_one_contestant(tmp_path):
    make_run(tmp_path / "runs", "rope", 0)
    rewritten(make_run(tmp_path / "runs", "rope", 1), "encoding", base=10000)
    (comparison,) = read_study([tmp_path / "runs"]).comparisons
    assert [(each.label, list(each.runs)) for each in comparison.contestants] == [("rope", [0, 1])]


def test_names_are_unique(tmp_path, report):
    assert numbered(["jsb", "jsb", "jsb-2", "jsb"]) == ["jsb", "jsb-2", "jsb-2-2", "jsb-3"]
    for end in (1, 2):  # the difference is too long to be shown
        path = make_run(tmp_path / "runs", "rope", 0, f"trainer.log_every={end}")
        rewritten(path, "encoding", note=70 * "a" + str(end))
    folder, _ = report()
    label = f"rope, note={60 * 'a'}…"
    assert rows_of(folder / "tables" / "jsb-test.csv").keys() == {label, f"{label}-2"}


def test_default_options_are_shown_beside_others(tmp_path):
    make_run(tmp_path / "runs", "rope", 0)
    make_run(tmp_path / "runs", "rope", 0, "encoding.clock=medium")
    (comparison,) = read_study([tmp_path / "runs"]).comparisons
    assert [each.label for each in comparison.contestants] == ["rope, clock=index", "rope, clock=medium"]


def test_encoding_options_that_differ_from_defaults_are_shown(tmp_path, report):
    make_run(tmp_path / "runs", "rope", 0)
    make_run(tmp_path / "runs", "pope", 0, "encoding.delta_init=zero")
    make_run(tmp_path / "runs", "path", 0, "encoding.rank=0", "encoding.silu=false")
    folder, _ = report()
    line = "Encoding options that differ from the defaults: path rank=0, silu=false; pope delta_init=zero."
    assert f"- {line}\n" in (folder / "report.md").read_text()


def test_speeds_of_shared_devices_are_not_shown(tmp_path, report):
    paths = [make_run(tmp_path / "runs", encoding, seed) for encoding in ("rope", "pope") for seed in (0, 1)]
    folder, _ = report()
    assert all(float(row["tokens_per_s"]) > 1000 for row in rows_of(folder / "tables" / "jsb-test.csv").values())
    assert "Tokens/s are not shown" not in (folder / "report.md").read_text()
    manifest = json.loads((paths[-1] / "manifest.json").read_text())
    manifest["sessions"][0]["beside"] = 1
    (paths[-1] / "manifest.json").write_text(json.dumps(manifest))
    folder, _ = report()
    assert {row["tokens_per_s"] for row in rows_of(folder / "tables" / "jsb-test.csv").values()} == {""}
    assert "Tokens/s are not shown" in (folder / "report.md").read_text()
