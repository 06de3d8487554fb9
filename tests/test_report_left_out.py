"""task=report: what is in no table is listed with the reason, never silently dropped."""

import csv
import json

import numpy as np
import pytest
from report_support import BETTER, make_run, records, report_task, rows_of  # noqa: F401

from bearings.tasks.reporting.reading import read_study


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


SPOILT = {
    "unfinished: step 20 of 20": spoil_unfinished,
    "failed: step 20 of 20: the loss was not finite": spoil_failed,
    "incomplete: finished, but nll/test.npz is not there": lambda path: (path / "nll" / "test.npz").unlink(),
    "unusable: nll/test.npz holds a figure that is not finite": spoil_nan,
    "unusable: nll/test.npz was scored on other data": lambda path: records("pope", 0, store="7" * 64).save(
        path / "nll" / "test.npz"
    ),
    "unusable: nll/test.npz holds 12 of the split's 24 documents": lambda path: records("pope", 0, documents=12).save(
        path / "nll" / "test.npz"
    ),
    "unreadable: BadZipFile": lambda path: (path / "nll" / "test.npz").write_bytes(b"PK\x03\x04 cut"),
    "unreadable: JSONDecodeError": lambda path: (path / "manifest.json").write_text("{"),
    "unreadable: config.yaml cannot be read": lambda path: (path / "config.yaml").write_text("a: ["),
    "unreadable: config.yaml lacks": lambda path: (path / "config.yaml").write_text("seed: 1"),
    "unreadable: there is no": lambda path: (path / "config.yaml").unlink(),
}


@pytest.mark.parametrize("said", SPOILT)
def test_what_is_in_no_table_is_listed_with_the_reason(tmp_path, said):
    for encoding in ("rope", "pope"):
        for seed in (0, 1, 2):
            path = make_run(tmp_path / "runs", encoding, seed)
            if (encoding, seed) == ("pope", 0):
                SPOILT[said](path)
                spoilt = str(path)
    study = read_study([tmp_path / "runs"])
    found, missing = study.troubles
    assert found.place == spoilt
    assert f"{found.state}: {found.why}".startswith(said)
    assert (missing.state, missing.place) == ("missing", "jsb: pope, seed 0")
    assert len(study.runs) == 5


def test_what_is_in_no_table_is_in_every_output(tmp_path, report):
    for seed in (0, 1):
        path = make_run(tmp_path / "runs", "rope", seed)
    spoil_failed(path)
    folder, out = report()
    assert f"failed: {path.relative_to(tmp_path)}, step 20 of 20: the loss was not finite" in out
    with open(folder / "left-out.csv", newline="") as file:
        assert [row["state"] for row in csv.DictReader(file)] == ["failed"]
    for page in ("report.md", "index.html"):
        assert "step 20 of 20: the loss was not finite" in (folder / page).read_text()


def test_records_of_other_documents_are_not_paired(tmp_path):
    make_run(tmp_path / "runs", "pope", 0)
    path = make_run(tmp_path / "runs", "rope", 0)
    kept = records("rope", 0)
    kept.documents[3] = "another piece"
    kept.save(path / "nll" / "test.npz")
    (found,) = read_study([tmp_path / "runs"]).troubles
    assert found.place == str(path)
    assert found.why.startswith("nll/test.npz is of other documents than in ")


def test_a_copy_of_a_run_counts_once(tmp_path, report):
    for seed in (0, 1, 2):
        make_run(tmp_path / "runs", "rope", seed)
        make_run(tmp_path / "copy", "rope", seed)
    folder, out = report("task.directories=[runs,copy,runs/jsb]")
    assert rows_of(folder / "tables" / "jsb-test.csv")["rope"]["seeds"] == "3"
    assert out.count("duplicate: copy/jsb/rope") == 3


def test_only_unfinished_runs_still_give_a_report(tmp_path, report):
    make_run(tmp_path / "runs", "rope", 0, finished=False)
    folder, out = report()
    assert "unfinished: " in out
    assert (folder / "index.html").exists()


def test_a_run_that_is_writing_its_log_is_read(tmp_path):
    path = make_run(tmp_path / "runs", "rope", 0)
    with open(path / "metrics.csv", "a") as file:
        file.write("25,3.")
    (run,) = read_study([tmp_path / "runs"]).runs
    assert run.curve[-1]["step"] == 20
