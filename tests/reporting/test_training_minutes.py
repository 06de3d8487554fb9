"""The estimated training time of a run: its tokens without padding, divided by the logged speed."""

import json

import numpy as np
import pytest
from report_support import make_run

from bearings.reporting.contestant import Contestant
from bearings.reporting.finished import Listed, Measured, Run
from bearings.reporting.losses import Series
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
@pytest.mark.parametrize("beside", [0, 3])
def test_padding_and_other_runs_on_the_device_take_no_time(tmp_path, domain, packed, targets, per_row, beside):
    path = make_run(tmp_path, "rope", 0, f"data.packed={packed}", domain=domain)
    manifest = json.loads((path / "manifest.json").read_text())
    documents = sum(manifest["store"]["documents"].values())
    manifest["store"]["bytes"] = {"tokens.bin": documents * (targets + 1)}
    manifest["sessions"][0]["beside"] = beside
    (path / "manifest.json").write_text(json.dumps(manifest))
    (run,) = read_study([tmp_path]).runs
    assert (run.config["data"]["length"], run.config["data"]["batch_size"]) == (LENGTH, ROWS)
    assert run.training_minutes == pytest.approx(STEPS * ROWS * per_row / SPEED / 60 / (1 + beside))


def test_rows_of_a_store_of_unknown_size_count_as_full(tmp_path):
    make_run(tmp_path, "rope", 0, "data.packed=false")
    (run,) = read_study([tmp_path]).runs
    assert run.training_minutes == pytest.approx(STEPS * ROWS * LENGTH / SPEED / 60)


def test_speed_is_the_median_without_the_first_and_only_if_nothing_else_ran():
    def run(*speeds, **session):
        curve = {"tokens_per_s": Series(np.arange(1 + len(speeds)), np.array([1.0, *speeds]))}
        return Run(None, {"sessions": [session]}, {}, {}, {}, curve, Measured({}, {}, {}, {}), Listed())

    assert run(10.0, 90.0, 20.0).tokens_per_s == 20
    assert run().tokens_per_s is None
    runs = [run(10.0), run(90.0, beside=0), run(20.0)]
    assert Contestant("rope", dict(enumerate(runs))).tokens_per_s == 20
    assert Contestant("rope", dict(enumerate([*runs, run(20.0, beside=1)]))).tokens_per_s is None
