"""The estimated training time of a run: its tokens without padding, divided by the logged speed."""

import json

import pytest
from report_support import make_run

from bearings.reporting.reading import read_study

STEPS, ROWS, LENGTH, SPEED = 20, 2, 64, 1500  # of `make_run`; the median speed without the first


@pytest.mark.parametrize(
    ("domain", "packed", "targets", "per_row"),
    [
        ("jsb", True, 20, LENGTH),
        ("jsb", False, 20, 20),
        ("jsb", False, 120, 60),  # in two windows
        ("flip_flop", False, 40, 40),
        ("flip_flop", False, 20, 60),  # as many whole examples as fit
        ("flip_flop", False, 80, 80),  # the average over all splits may exceed that of training
    ],
)
def test_padding_takes_no_time(tmp_path, domain, packed, targets, per_row):
    path = make_run(tmp_path, "rope", 0, f"data.packed={packed}", domain=domain)
    manifest = json.loads((path / "manifest.json").read_text())
    documents = sum(manifest["store"]["documents"].values())
    manifest["store"]["bytes"] = {"tokens.bin": documents * (targets + 1)}
    (path / "manifest.json").write_text(json.dumps(manifest))
    (run,) = read_study([tmp_path]).runs
    assert (run.config["data"]["length"], run.config["data"]["batch_size"]) == (LENGTH, ROWS)
    assert run.training_minutes == pytest.approx(STEPS * ROWS * per_row / SPEED / 60)


def test_rows_of_a_store_of_unknown_size_count_as_full(tmp_path):
    make_run(tmp_path, "rope", 0, "data.packed=false")
    (run,) = read_study([tmp_path]).runs
    assert run.training_minutes == pytest.approx(STEPS * ROWS * LENGTH / SPEED / 60)
