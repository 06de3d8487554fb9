"""task=report: scores, differences, baselines and error messages."""

import csv
import json
import math
import re
import shutil

import numpy as np
import pytest
import yaml
from report_support import make_run, records, report_task, rewritten, rows_of, undrawn  # noqa: F401
from scipy import stats

from bearings.core.errors import UserError
from bearings.domains.jsb import JSB
from bearings.reporting.reading import read_study
from bearings.reporting.runs import runs_table
from bearings.reporting.statistics import holm
from bearings.tasks.report import Report

pytestmark = pytest.mark.usefixtures("undrawn")


def test_subsets_of_a_split_are_scored_separately(tmp_path, report, monkeypatch):
    monkeypatch.setattr(JSB, "subset", classmethod(lambda cls, content, name: "late" if len(name) > 7 else "early"))
    for encoding in ("rope", "pope"):
        for seed in (0, 1, 2):
            make_run(tmp_path / "runs", encoding, seed)
    folder, _ = report()
    with open(folder / "tables" / "jsb-test-subsets.csv", newline="") as file:
        rows = {(row["subset"], row["model"]): row for row in csv.DictReader(file)}
    assert [*rows] == [("early", "pope"), ("early", "rope"), ("late", "pope"), ("late", "rope")]
    kept = {encoding: [records(encoding, seed) for seed in (0, 1, 2)] for encoding in ("rope", "pope")}
    for name, part in (("early", slice(10)), ("late", slice(10, None))):
        levels = {
            key: np.mean([each.nats[part].sum() for each in kept[key]]) / kept[key][0].tokens[part].sum()
            for key in kept
        }
        row = rows[name, "pope"]
        assert int(row["documents"]) == int(row["clusters"]) == len(kept["pope"][0].nats[part])
        assert float(row["nats_per_token"]) == pytest.approx(levels["pope"])
        assert float(row["difference"]) == pytest.approx(levels["pope"] - levels["rope"])
    assert "verdict" not in row


def test_scores_match_the_records(tmp_path, report):
    for encoding in ("rope", "pope", "path"):
        for seed in (0, 1, 2):
            path = make_run(tmp_path / "runs", encoding, seed)
            manifest = json.loads((path / "manifest.json").read_text())
            (path / "manifest.json").write_text(json.dumps({**manifest, "peak_memory_bytes": (seed + 1) << 20}))
    folder, _ = report("task.margin=0.01")
    rows = rows_of(folder / "tables" / "jsb-test.csv")
    headings = (folder / "tables" / "jsb-test.md").read_text().split("\n")[2]
    assert "bits/note | bits/sixteenth" in headings  # as in the table of a run
    per_token = {}
    for encoding, row in rows.items():
        kept = [records(encoding, seed) for seed in (0, 1, 2)]
        per_token[encoding] = np.array([each.nats_per_token for each in kept])
        assert float(row["nats_per_token"]) == pytest.approx(per_token[encoding].mean())
        for unit in ("note", "step"):
            bits = np.mean([each.bits_per_unit[unit] for each in kept])
            assert float(row[f"bits_per_{unit}"]) == pytest.approx(bits)
        reach = stats.t.ppf(0.975, 2) * per_token[encoding].std(ddof=1) / 3**0.5  # over seeds, as published figures
        assert float(row["interval_low"]) == pytest.approx(per_token[encoding].mean() - reach)
        assert float(row["interval_high"]) == pytest.approx(per_token[encoding].mean() + reach)
        assert int(row["parameters"]) > 20_000
        assert int(row["peak_memory_bytes"]) == 3 << 20
        assert float(row["tokens_per_s"]) == pytest.approx(1501)  # the median of 1000, 1500, 2000, of the middle seed
    assert rows["rope"]["verdict"] == "reference"
    assert rows["rope"]["difference"] == ""
    assert rows["pope"]["difference_interval_of"] == "seeds and clusters"
    assert rows["pope"]["verdict"] == "lower"
    assert rows["path"]["verdict"] == "equivalent"
    full = rows_of(folder / "tables" / "jsb-test-differences.csv")
    assert set(full) == {"pope", "path"}
    for encoding, row in full.items():
        theirs = stats.ttest_rel(per_token[encoding], per_token["rope"])
        assert float(row["difference"]) == pytest.approx((per_token[encoding] - per_token["rope"]).mean())
        assert float(row["t_p"]) == pytest.approx(theirs.pvalue)
        assert float(row["sign_flip_floor"]) == 0.25
        welch = stats.ttest_ind(per_token[encoding], per_token["rope"], equal_var=False)
        assert float(row["welch_p"]) == pytest.approx(welch.pvalue)
        assert float(row["welch_low"]) == pytest.approx(welch.confidence_interval(0.95).low)
        assert float(row["margin"]) == 0.01
    adjusted = holm([float(full[encoding]["both_p"]) for encoding in full])
    assert [float(full[encoding]["holm_p"]) for encoding in full] == pytest.approx(adjusted)
    page = (folder / "report.md").read_text()
    assert "| pope | 3 |" in page
    by_document = {
        encoding: np.mean([each.nats / each.tokens for each in (records(encoding, seed) for seed in (0, 1, 2))])
        for encoding in ("path", "pope", "rope")
    }
    averages = re.search("averaged over documents, as in some papers: (.*)[.]\n", page)[1]
    assert averages == ", ".join(f"{encoding} {value:.4f}" for encoding, value in by_document.items())
    assert (folder / "tables" / "across.csv").exists()


def test_differences_use_common_seeds_and_list_missing_ones(tmp_path, report):
    for encoding, seeds in {"rope": (0, 1, 2, 3), "pope": (1, 2, 3, 4)}.items():
        for seed in seeds:
            make_run(tmp_path / "runs", encoding, seed)
    folder, out = report()
    row = rows_of(folder / "tables" / "jsb-test-differences.csv")["pope"]
    expected = [records("pope", s).nats_per_token - records("rope", s).nats_per_token for s in (1, 2, 3)]
    assert (row["pairs"], float(row["difference"])) == ("3", pytest.approx(np.mean(expected)))
    assert "missing: jsb: pope, seed 0" in out
    assert "missing: jsb: rope, seed 4" in out


@pytest.mark.parametrize("seeds", [1, 2])
def test_fewer_than_three_seeds_give_no_p_value(tmp_path, report, seeds):
    for encoding in ("rope", "pope"):
        for seed in range(seeds):
            make_run(tmp_path / "runs", encoding, seed)
    folder, _ = report()
    row = rows_of(folder / "tables" / "jsb-test.csv")["pope"]
    assert (row["verdict"], row["holm_p"], row["difference_interval_of"]) == ("not enough seeds", "", "clusters only")
    assert "interval_low" not in row  # a score has no interval over seeds
    full = rows_of(folder / "tables" / "jsb-test-differences.csv")["pope"]
    assert {value for key, value in full.items() if key.endswith("_p")} == {""}
    text = (folder / "report.md").read_text()
    assert "not enough seeds" in text
    assert "clusters only" in text


def test_baselines_come_from_a_run_or_the_store_or_are_reported_missing(tmp_path, report, letters):
    path = make_run(tmp_path / "runs", "rope", 0)
    folder, _ = report()
    assert (
        "Baselines are missing: no run has kept them, and the token store 555555555555 is not in data"
        in (folder / "report.md").read_text()
    )
    kept = records("nope", 9)
    kept.save(path / "baselines" / "test" / "Markov, order 3.npz")
    folder, _ = report()
    row = rows_of(folder / "tables" / "jsb-test.csv")["Markov, order 3"]
    assert float(row["nats_per_token"]) == pytest.approx(kept.nats_per_token)
    assert float(row["bits_per_note"]) == pytest.approx(kept.nats.sum() / math.log(2) / kept.units[:, 0].sum())

    make_run(tmp_path / "runs", "rope", 0, "trainer.steps=40")  # another comparison, of the same store
    folder, _ = report()
    for table in folder.glob("tables/jsb-*-test.csv"):
        assert "Markov, order 3" in rows_of(table)
    shutil.rmtree(tmp_path / "runs")
    path = make_run(tmp_path / "runs", "rope", 0)
    kept.save(path / "baselines" / "test" / "Markov, order 3.npz")

    store = letters.prepare(tmp_path / "data")
    (path / "baselines" / "test" / "Markov, order 3.npz").unlink()
    there = yaml.safe_load((path / "config.yaml").read_text())["domain"]
    rewritten(path, "domain", **dict.fromkeys(there, ...) | {"_target_": "conftest.Letters"})
    manifest = json.loads((path / "manifest.json").read_text())
    (path / "manifest.json").write_text(json.dumps({**manifest, "store": store.manifest}))
    damaged = store.directory.with_name("0-damaged")
    damaged.mkdir()
    (damaged / "manifest.json").write_text("{}")
    for split in ("valid", "test"):
        kept = records("rope", 0, store=store.manifest["sha256"], units=("letter",), documents=12)
        kept.save(path / "nll" / f"{split}.npz")
    folder, _ = report()
    assert {"unigram", "xz -9e"} < set(rows_of(folder / "tables" / "jsb-test.csv"))


def test_runs_table_has_seed_best_step_and_code(tmp_path, report):
    for seed in (0, 1):
        path = make_run(tmp_path / "runs", "rope", seed)
    manifest = json.loads((path / "manifest.json").read_text())
    manifest["sessions"] = [
        {"device": "a device", "code": {"commit": "0123456789", "dirty": dirty}} for dirty in (None, "1" * 8)
    ]
    (path / "manifest.json").write_text(json.dumps(manifest))
    folder, _ = report()
    with open(folder / "tables" / "jsb-runs.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(row["model"], row["seed"], row["best_step"], row["code"]) for row in rows] == [
        ("rope", "0", "20", ""),
        ("rope", "1", "20", "0123456, 0123456+1111"),
    ]
    for row in rows:
        assert float(row["test"]) == pytest.approx(records("rope", int(row["seed"])).nats_per_token)
    changed = "The runs of rope differ in code that is not in their commits: see the table of runs."
    assert changed in (folder / "report.md").read_text()


@pytest.mark.parametrize(
    ("encoding", "setting"),
    [
        ("nope", "trainer.anneal_steps=15"),
        ("rope", "encoding.drop_after=0.5"),
        ("pattern", "encoding.layers=[nope,{rope:{drop_after:0.5}}]"),
    ],
)
def test_best_step_is_of_a_model_without_the_rotations_that_training_ends(tmp_path, encoding, setting):
    path = make_run(tmp_path / "runs", encoding, 0, setting)
    curve = ((5, 1.0), (10, 1.0), (15, 3.0), (20, 4.0))
    (path / "metrics.csv").write_text("step,valid_nll\n" + "".join(f"{step},{nll}\n" for step, nll in curve))
    (row,) = runs_table(read_study([tmp_path / "runs"]).comparisons[0]).rows
    assert row["best_step"] == 15


def test_best_step_has_a_finite_score(tmp_path):
    path = make_run(tmp_path / "runs", "rope", 0)
    (path / "metrics.csv").write_text("step,valid_nll\n5,nan\n10,inf\n15,3.0\n20,4.0\n")
    (row,) = runs_table(read_study([tmp_path / "runs"]).comparisons[0]).rows
    assert row["best_step"] == 15


def test_published_results_apply_to_the_runs_of_their_study(tmp_path, report):
    for name, figure in (("one", "4.9 nats"), ("two", None)):
        folder = tmp_path / "studies" / name
        folder.mkdir(parents=True)
        published = {"published": {"test": {"pope": figure}}} if figure else {}
        line = f"experiment=debug seed=0 encoding=rope,pope,path trainer.steps={20 if figure else 40}"
        (folder / "study.yaml").write_text(yaml.safe_dump({"runs": [line], **published}))
        for encoding in ("rope", "pope"):
            make_run(folder / "runs", encoding, 0, *([] if figure else ["trainer.steps=40"]))
    folder, out = report("task.directories=[studies]")
    with open(folder / "tables" / "across.csv", newline="") as file:
        rows = {(row["domain"], row["model"]): row["published"] for row in csv.DictReader(file)}
    assert rows == {
        ("jsb: steps=20", "pope"): "4.9 nats",
        ("jsb: steps=20", "rope"): "",
        ("jsb: steps=40", "pope"): "",
        ("jsb: steps=40", "rope"): "",
    }
    assert out.count("encoding=path trainer.steps=40, listed in study.yaml") == 1  # each study's own list counts
    assert out.count("encoding=rope trainer.steps=40, listed in study.yaml") == 0


def test_invalid_options_give_one_line_errors(tmp_path, report):
    with pytest.raises(UserError, match=r"^runs: no such folder; set runs=DIRECTORY"):
        report()
    (tmp_path / "runs").mkdir()
    with pytest.raises(UserError, match=r"^runs: no runs found"):
        report()
    make_run(tmp_path / "runs", "pope", 0)
    with pytest.raises(UserError, match=r"^task.reference=rop: did you mean rope\? "):
        report("task.reference=rop")
    with pytest.raises(ValueError, match=r"^margin="):
        Report(margin=0.0)
    with pytest.raises(ValueError, match=r"^directories="):
        Report(directories=[])


def test_speeds_of_different_devices_are_not_shown(tmp_path, report):
    make_run(tmp_path / "runs", "rope", 0)
    path = make_run(tmp_path / "runs", "pope", 0)
    manifest = json.loads((path / "manifest.json").read_text())
    manifest["sessions"] = [{"device": "a device", "ranks": 4, "compiled": True}]
    (path / "manifest.json").write_text(json.dumps(manifest))
    text = (report()[0] / "report.md").read_text()
    assert "on 4 x a device (compiled); a device." in text
    assert "different devices, so tokens/s are not shown and peak memory is not comparable" in text
    manifest["sessions"] = [{"device": "a device", "compiled": True}]
    (path / "manifest.json").write_text(json.dumps(manifest))
    text = (report()[0] / "report.md").read_text()
    assert "The runs are not all compiled, so tokens/s are not shown" in text
    assert "different devices" not in text


def test_a_reference_that_is_not_the_chosen_rate_is_reported(tmp_path, report):
    for rate in ("1e-3", "2e-3"):
        make_run(tmp_path / "runs", "rope", 0, f"optimizer.learning_rate={rate}")
    make_run(tmp_path / "runs", "pope", 0)
    text = (report("task.reference='rope, learning_rate=0.002'")[0] / "report.md").read_text()
    assert "There is no run of" not in text
    assert "The rate of rope, learning_rate=0.002 is not the chosen one, so there are no differences" in text
    assert "Nats/token averaged over documents, as in some papers: pope 0.9" in text
    assert ", rope (learning_rate=0.001) 0.9" in text


def test_missing_reference_is_reported(tmp_path, report):
    for seed in (0, 1, 2):
        make_run(tmp_path / "runs", "pope", seed)
    folder, _ = report()
    assert "There is no run of rope" in (folder / "report.md").read_text()
    assert rows_of(folder / "tables" / "jsb-test.csv")["pope"]["verdict"] == "no reference"
    assert not (folder / "tables" / "jsb-test-differences.csv").exists()


def test_runs_of_removed_encodings_and_domains_are_reported(tmp_path, report, caplog):
    for seed in (0, 1, 2):
        path = make_run(tmp_path / "runs", "rope", seed)
        rewritten(path, "encoding", _target_="bearings.encodings.gone.Gone")
        rewritten(path, "domain", _target_="bearings.domains.gone.Gone")
    folder, _ = report()
    row = rows_of(folder / "tables" / "jsb-test.csv")["rope"]
    assert float(row["nats_per_token"]) > 0
    assert int(row["parameters"]) > 20_000  # as the manifest says
    assert not caplog.records  # on the console


def test_runs_of_other_versions_are_read(tmp_path, report):
    for encoding, group, change in (
        ("rope", "encoding", {"scaling": "yarn"}),
        ("pope", "optimizer", {"newer": 1}),
        ("nope", "task", {"tokens": "many"}),
    ):
        rewritten(make_run(tmp_path / "runs", encoding, 0), group, **change)
    _, printed = report()
    assert "unreadable" not in printed


def test_exports_inside_a_run_are_not_runs(tmp_path, report):
    path = make_run(tmp_path / "runs", "rope", 0)
    (path / "export").mkdir()
    (path / "export" / "config.yaml").write_text("vocabulary: 60\n")
    _, printed = report()
    assert "export" not in printed
