"""task=report: runs that are not in the tables are listed with the reason."""

import csv
import json
from pathlib import Path

import numpy as np
import pytest
import yaml
from report_support import BETTER, DELTA, diverge, make_run, mechanisms, records, report_task, rows_of, undrawn  # noqa: F401

from bearings.core import cores
from bearings.reporting import reading
from bearings.reporting.planned import absent
from bearings.reporting.reading import read_study

pytestmark = pytest.mark.usefixtures("undrawn")


def spoil_unfinished(path):
    manifest = json.loads((path / "manifest.json").read_text())
    (path / "manifest.json").write_text(json.dumps({**manifest, "finished": False}))


def spoil_failed(path):
    manifest = json.loads((path / "manifest.json").read_text())
    (path / "manifest.json").write_text(
        json.dumps({**manifest, "finished": False, "failed": "the loss was not finite"})
    )


def spoil_nan(path):
    kept = records("pope", 0)
    kept.nats[3] = np.nan
    kept.save(path / "nll" / "test.npz")


def cut(path, name, content):
    (path / name).parent.mkdir(parents=True, exist_ok=True)
    (path / name).write_bytes(content)


SPOILT = {
    "unfinished: step 20 of 20": spoil_unfinished,
    "failed: step 20 of 20: the loss was not finite": spoil_failed,
    "incomplete: finished, but nll/test.npz is missing": lambda path: (path / "nll" / "test.npz").unlink(),
    "unusable: nll/test.npz has a value that is not finite": spoil_nan,
    "unusable: nll/test.npz was scored on other data": lambda path: records("pope", 0, store="7" * 64).save(
        path / "nll" / "test.npz"
    ),
    "unusable: nll/test.npz has 12 of the split's 24 documents": lambda path: records("pope", 0, documents=12).save(
        path / "nll" / "test.npz"
    ),
    "unreadable: nll/test.npz is damaged (BadZipFile: File is not a zip file): delete it and score": lambda path: (
        path / "nll" / "test.npz"
    ).write_bytes(b"PK\x03\x04 cut"),
    "unreadable: manifest.json is damaged": lambda path: (path / "manifest.json").write_text("{"),
    "unreadable: config.yaml cannot be read": lambda path: (path / "config.yaml").write_text("a: ["),
    "unreadable: config.yaml has no 'domain'": lambda path: (path / "config.yaml").write_text("seed: 1"),
    "unreadable: config.yaml does not exist": lambda path: (path / "config.yaml").unlink(),
    "unreadable: baselines/test/unigram.npz is damaged (BadZipFile": lambda path: cut(
        path, "baselines/test/unigram.npz", b"PK\x03\x04 cut"
    ),
    "unreadable: baselines/test/xz -9e.npz is damaged (BadZipFile": lambda path: cut(
        path, "baselines/test/xz -9e.npz", b""
    ),
    "unreadable: extrapolation/test.csv is damaged (the row none,8,3 is cut": lambda path: cut(
        path, "extrapolation/test.csv", b"stretch,context,trained,beyond,low,high,targets,nats\nnone,8,3"
    ),
    "unreadable: mechanisms/attention.csv is damaged (the row 1,2 is cut": lambda path: cut(
        path, "mechanisms/attention.csv", b"low,high,mass\n0,1,0.5\n1,2"
    ),
    "unreadable: mechanisms/delta.csv is damaged (could not convert string to float: '-'": lambda path: mechanisms(
        path, "delta", ("layer", "head", "element", "delta"), [(0, 0, 0, "-")], DELTA
    ),
}


@pytest.mark.parametrize("reason", SPOILT)
def test_runs_left_out_are_listed_with_the_reason(tmp_path, reason):
    for encoding in ("rope", "pope"):
        for seed in (0, 1, 2):
            path = make_run(tmp_path / "runs", encoding, seed)
            if (encoding, seed) == ("pope", 0):
                SPOILT[reason](path)
                spoilt = str(path)
    study = read_study([tmp_path / "runs"])
    found, missing = study.troubles
    assert found.place == spoilt
    assert f"{found.state}: {found.why}".replace(f"{spoilt}/", "").startswith(reason)
    assert (missing.state, missing.place) == ("missing", "jsb: pope, seed 0")
    assert len(study.runs) == 5


def test_runs_are_read_alike_by_several_processes(tmp_path, monkeypatch):
    for encoding in ("rope", "pope"):
        for seed in (0, 1, 2):
            make_run(tmp_path / "runs", encoding, seed)
    next((tmp_path / "runs").rglob("*-s1/manifest.json")).write_text("{")

    def read():
        study = read_study([tmp_path / "runs"])
        runs = [(run.path, run.config, run.manifest, run.facts, repr(run.curve), run.listed) for run in study.runs]
        return runs, [vars(trouble) for trouble in study.troubles]

    alone = read()
    assert list(map(len, alone)) == [5, 2]  # the damaged run, and that its seed is missing
    monkeypatch.setattr(reading, "TOGETHER", 1)
    monkeypatch.setattr(cores, "cores", lambda: 2)
    assert read() == alone


def test_runs_left_out_are_in_every_output(tmp_path, report):
    for seed in (0, 1):
        path = make_run(tmp_path / "runs", "rope", seed)
    folder, _ = report()
    assert (folder / "left-out.csv").read_text().split() == ["place,state,why"]
    spoil_failed(path)
    folder, out = report()
    assert f"failed: {path.relative_to(tmp_path)}, step 20 of 20: the loss was not finite" in out
    with open(folder / "left-out.csv", newline="") as file:
        assert [row["state"] for row in csv.DictReader(file)] == ["failed"]
    for page in ("report.md", "index.html"):
        assert "step 20 of 20: the loss was not finite" in (folder / page).read_text()


def test_runs_that_diverged_are_named_where_their_model_is_and_are_not_missing(tmp_path, report):
    listed(tmp_path, "experiment=debug seed=0,1,2 encoding=rope,pope,nope")
    for encoding in ("rope", "pope", "nope"):
        for seed in (0, 1, 2):
            path = make_run(tmp_path / "runs", encoding, seed)
            if encoding == "nope" or (encoding, seed) == ("pope", 1):
                diverge(path)
    study = read_study([tmp_path])
    assert [each.state for each in study.troubles] == ["diverged"] * 4
    (comparison,) = study.comparisons
    assert {label: [run.seed for run in runs] for label, runs in comparison.diverged.items()} == {
        "nope": [0, 1, 2],
        "pope": [1],
    }
    assert study.unmade == {tmp_path: 2}  # the tests of both were planned
    assert study.unlisted == 0
    folder, out = report(f"task.directories=[{tmp_path}]")
    assert f"diverged: {path}, step 12 of 20: the loss or gradient was not finite at step 12" in out
    runs = "nope, 3 of 3 seeds (seed 0 at step 12, seed 1 at step 12, seed 2 at step 12); pope, 1 of 3 seeds (seed 1 at"
    note = f"Diverged: {runs} step 12). Scores, tests and ranks are of the other runs."
    for page in ("report.md", "index.html", "tables/jsb-test.md"):
        assert note in (folder / page).read_text()
    assert rows_of(folder / "tables" / "jsb-test.csv")["pope"]["seeds"] == "2"


def test_a_model_that_diverged_with_all_seeds_is_told_apart_from_the_others_of_its_encoding(tmp_path):
    make_run(tmp_path / "runs", "rope", 0)
    diverge(make_run(tmp_path / "runs", "rope", 0, "optimizer.learning_rate=0.5"))
    (comparison,) = read_study([tmp_path / "runs"]).comparisons
    assert [*comparison.diverged] == ["rope, learning_rate=0.5"]
    assert comparison.labels == {"rope, learning_rate=0.004"}


def test_a_run_that_diverged_and_was_trained_again_elsewhere_counts_once(tmp_path):
    diverge(make_run(tmp_path / "runs", "rope", 0))
    make_run(tmp_path / "again", "rope", 0)
    study = read_study([tmp_path / "runs", tmp_path / "again"])
    assert [each.state for each in study.troubles] == ["diverged"]
    assert not study.comparisons[0].diverged


def test_an_unlisted_run_that_diverged_is_not_in_the_tables(tmp_path):
    listed(tmp_path, "experiment=debug seed=0 encoding=rope")
    make_run(tmp_path / "runs", "rope", 0)
    diverge(make_run(tmp_path / "runs", "rope", 1))
    assert read_study([tmp_path]).unlisted == 0


@pytest.mark.parametrize("name", ["documents", "clusters", "tokens", "units"])
def test_records_of_other_documents_are_not_compared(tmp_path, name):
    make_run(tmp_path / "runs", "pope", 0)
    path = make_run(tmp_path / "runs", "rope", 0)
    kept = records("rope", 0)
    getattr(kept, name)[[3, 4]] = getattr(kept, name)[[4, 3]]
    kept.save(path / "nll" / "test.npz")
    (found,) = read_study([tmp_path / "runs"]).troubles
    assert found.place == str(path)
    assert found.why.startswith("nll/test.npz has other documents than ")


@pytest.mark.parametrize("splits", [("test",), ("test", "sparse", "dense")])
def test_records_of_other_splits_are_not_compared(tmp_path, splits):
    first = make_run(tmp_path / "runs", "pope", 0, splits=("test", "sparse"))
    path = make_run(tmp_path / "runs", "rope", 0, splits=splits)
    study = read_study([tmp_path / "runs"])
    (found,) = study.troubles
    here = ", ".join(splits)
    reason = f"its splits are valid, {here}, but those of {first} are valid, test, sparse"
    assert (found.place, found.state, found.why) == (str(path), "unusable", reason)
    assert [run.path for run in study.runs] == [first]


def test_copies_of_a_run_count_once(tmp_path, report):
    for seed in (0, 1, 2):
        make_run(tmp_path / "runs", "rope", seed)
        make_run(tmp_path / "copy", "rope", seed)
    folder, out = report("task.directories=[runs,copy,runs/jsb]")
    assert rows_of(folder / "tables" / "jsb-test.csv")["rope"]["seeds"] == "3"
    assert out.count("duplicate: copy/jsb/rope") == 3


def listed(folder, *lines, **entries):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "study.yaml").write_text(yaml.safe_dump({"runs": list(lines), **entries}))


def test_incomplete_copies_are_ignored(tmp_path):
    path = make_run(tmp_path / "runs", "rope", 0)
    path.rename(path.with_name(f".{path.name}.making"))
    make_run(tmp_path / "runs", "rope", 0)
    study = read_study([tmp_path / "runs"])
    assert (study.troubles, [run.path for run in study.runs]) == ([], [path])
    path.with_name(f".{path.name}.making").rename(tmp_path / ".kept")
    assert len(read_study([tmp_path / ".kept"]).runs) == 1  # it was requested explicitly


def test_overlapping_folders_list_missing_runs_once(tmp_path):
    listed(tmp_path / "one", "seed=0 encoding=rope,pope")
    make_run(tmp_path / "one" / "runs", "rope", 0)
    for folders in ([tmp_path, tmp_path / "one"], [tmp_path / "one", tmp_path], [tmp_path / "one" / "runs", tmp_path]):
        study = read_study(folders)
        assert [each.place for each in study.troubles] == ["seed=0 encoding=pope"]
        assert len(study.runs) == 1


def test_study_list_is_found_for_any_spelling_of_the_folder(tmp_path, monkeypatch):
    listed(tmp_path / "one", "seed=0 encoding=rope", published={"test": {"rope": "4.9 nats"}})
    make_run(tmp_path / "one" / "runs", "rope", 0)
    monkeypatch.chdir(tmp_path)
    one, runs = Path("one"), tmp_path / "one" / "runs"
    spelt = ([one, tmp_path / "one"], [tmp_path / "one", one], [runs, one], [Path("one/../one")], [one / "runs"])
    for folders in spelt:
        study = read_study(folders)
        assert study.troubles == []
        assert [run.published for run in study.runs] == [{"test": "4.9 nats"}]


def test_missing_seeds_are_listed_once(tmp_path):
    listed(tmp_path, "experiment=debug seed=0,1 encoding=rope,pope")
    for encoding, seed in (("rope", 0), ("rope", 1), ("rope", 2), ("pope", 0)):
        make_run(tmp_path / "runs", encoding, seed)
    assert [(each.place, each.why) for each in read_study([tmp_path]).troubles] == [
        ("experiment=debug seed=1 encoding=pope", "listed in study.yaml, but there is no usable record"),
        ("jsb: pope, seed 2", "other models have this seed"),
    ]


def test_a_missing_line_without_a_seed_hides_no_missing_seed(tmp_path):
    listed(tmp_path, "experiment=debug encoding=rope,pope seed=0,1", "experiment=debug encoding=pope")
    for encoding, seed in (("rope", 0), ("rope", 1), ("rope", 2), ("pope", 0), ("pope", 1)):
        make_run(tmp_path / "runs", encoding, seed)
    missing = [each.place for each in read_study([tmp_path]).troubles]
    assert missing == ["experiment=debug encoding=pope", "jsb: pope, seed 2"]


def test_reused_runs_that_other_incidental_settings_made_are_not_missing(tmp_path):
    listed(tmp_path, "experiment=debug task.samples=0 data.workers=1 encoding=rope data.length=64,128")
    make_run(tmp_path / "runs", "rope", 0)
    assert [each.place for each in read_study([tmp_path]).troubles] == [
        "experiment=debug task.samples=0 data.workers=1 encoding=rope data.length=128"
    ]


def test_records_hold_what_automatic_precision_and_matching_resulted_in(tmp_path):
    """Lines have `auto`, and the size of the MLP before it is matched."""
    listed(tmp_path, "experiment=debug encoding=rope trainer.precision=auto match=flops model.mlp_hidden=40,48")
    path = make_run(tmp_path / "runs", "rope", 0, "match=flops", "model.mlp_hidden=32")
    with open(path / "config.yaml", "a") as file:
        file.write("unmatched_hidden: 40\n")
    study = read_study([tmp_path])
    assert [run.path.name for run in study.runs] == [path.name]
    assert [each.place.rpartition("=")[2] for each in study.troubles] == ["48"]


def test_records_are_assigned_such_that_every_line_has_one(tmp_path):
    """The run with length 128 also fits the first line, which leaves the length to the experiment."""
    listed(
        tmp_path, "experiment=debug encoding=rope trainer.steps=20", "experiment=debug encoding=rope data.length=128"
    )
    for overrides in ((), ("data.length=128",)):
        make_run(tmp_path / "runs", "rope", 0, *overrides)
    runs = read_study([tmp_path]).runs
    assert absent(tmp_path, runs) == absent(tmp_path, runs[::-1]) == ([], [])
    for one in (runs[:1], runs[1:]):
        lacking, unlisted = absent(tmp_path, one)
        assert (len(lacking), unlisted) == (1, [])


@pytest.mark.parametrize("order", [1, -1])
def test_a_record_that_fits_two_lines_is_of_the_one_with_more_settings(tmp_path, order):
    lines = ["experiment=debug encoding=rope", "experiment=debug encoding=rope data.length=128"]
    listed(tmp_path, *lines[::order])
    make_run(tmp_path / "runs", "rope", 0, "data.length=128")
    assert [each.place for each in read_study([tmp_path]).troubles] == lines[:1]


def test_seeds_can_be_missing_from_two_comparisons(tmp_path):
    listed(tmp_path / "one", "experiment=debug seed=0,1 encoding=rope,pope")
    for folder, overrides in ((tmp_path / "one" / "runs", ()), (tmp_path / "mine", ("data.length=128",))):
        for encoding, seed in (("rope", 0), ("rope", 1), ("pope", 0)):
            make_run(folder, encoding, seed, *overrides)
    assert [each.place for each in read_study([tmp_path / "one", tmp_path / "mine"]).troubles] == [
        "experiment=debug seed=1 encoding=pope",
        "jsb: length=128: pope, seed 1",
    ]


def test_study_list_next_to_a_runs_folder_is_used(tmp_path):
    listed(tmp_path, "seed=0 encoding=rope,pope")
    make_run(tmp_path / "runs", "rope", 0)
    make_run(tmp_path / "others", "rope", 0)
    assert [each.place for each in read_study([tmp_path / "runs"]).troubles] == ["seed=0 encoding=pope"]
    assert not read_study([tmp_path / "others"]).troubles


def test_runs_belong_to_the_nearest_study_list(tmp_path):
    listed(tmp_path, "seed=1 encoding=rope", published={"test": {"rope": "1 nat"}})
    listed(tmp_path / "variants", "seed=0 encoding=rope", published={"test": {"rope": "2 nats"}})
    make_run(tmp_path / "variants" / "runs", "rope", 0)
    make_run(tmp_path / "runs", "rope", 1)
    study = read_study([tmp_path])
    assert study.troubles == []
    assert {run.seed: run.published for run in study.runs} == {0: {"test": "2 nats"}, 1: {"test": "1 nat"}}


@pytest.mark.parametrize("published", [None, {}, {"test": None}, {"valid": {"rope": "1 nat"}}])
def test_published_results_may_be_empty(tmp_path, published):
    listed(tmp_path, "seed=0 encoding=rope", published=published)
    make_run(tmp_path / "runs", "rope", 0)
    study = read_study([tmp_path])
    assert study.troubles == []
    assert "test" not in study.runs[0].published


@pytest.mark.parametrize("published", ["4.9 nats", ["test"], {"test": "4.9 nats"}, {"test": {"rope": [4.9]}}])
def test_published_results_of_other_types_are_refused(tmp_path, published):
    listed(tmp_path, "seed=0 encoding=rope", published=published)
    make_run(tmp_path / "runs", "rope", 0)
    (trouble,) = read_study([tmp_path]).troubles
    assert trouble.place.endswith("study.yaml")
    assert "published must have results by encoding for each split" in trouble.why


def test_missing_runs_may_have_settings_longer_than_a_file_name(tmp_path, report):
    make_run(tmp_path / "runs", "rope", 0)
    settings = " ".join(f"model.width={width}" for width in range(100, 130))
    (tmp_path / "study.yaml").write_text(f"runs:\n  - experiment=debug encoding=rope {settings}\n")
    folder, _ = report(f"task.directories=[{tmp_path}]")
    assert "model.width=129" in (folder / "report.md").read_text()


def test_report_without_finished_runs(tmp_path, report):
    make_run(tmp_path / "runs", "rope", 0, finished=False)
    folder, out = report()
    assert "unfinished: " in out
    assert (folder / "index.html").exists()


def test_partial_last_line_of_a_log_is_ignored(tmp_path):
    path = make_run(tmp_path / "runs", "rope", 0)
    with open(path / "metrics.csv", "a") as file:
        file.write("25,3.")
    (run,) = read_study([tmp_path / "runs"]).runs
    assert run.curve["step"].steps[-1] == 20
