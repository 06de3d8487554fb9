"""studies/run.py: what is listed is run once, in order, stopped at the limit, and kept without checkpoints."""

import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

from bearings.errors import UserError
from bearings.lightning_modules.evaluation import Records
from bearings.studies import run as studies
from bearings.tasks.keep import keep_run
from bearings.tasks.reporting.reading import read_study
from bearings.tasks.run_directory import RunDirectory
from report_support import make_run, mechanisms

REPOSITORY = Path(__file__).parent.parent
TINY = "experiment=debug trainer.precision=32-true domain.source=music21"
LISTED = sorted(file.parent.name for file in (REPOSITORY / "studies").glob("*/study.yaml"))


def test_a_line_is_swept_as_hydra_sweeps_it_the_last_key_fastest():
    found = list(studies.expanded("experiment=debug seed=0,1 encoding=rope,pope task.seeds=[0,1]"))
    assert [" ".join(each[1:3]) for each in found] == [
        "seed=0 encoding=rope",
        "seed=0 encoding=pope",
        "seed=1 encoding=rope",
        "seed=1 encoding=pope",
    ]
    assert all(each[3] == "task.seeds=[0,1]" for each in found)


@pytest.mark.parametrize("name", LISTED)
def test_every_study_lists_runs_that_can_be_made(name, tmp_path, monkeypatch):
    monkeypatch.setattr("bearings.domains.text.Text.options", lambda self: {})
    monkeypatch.setattr("bearings.domains.genome.Genome.options", lambda self: {})
    planned = studies.plan(REPOSITORY / "studies" / name, tmp_path / "runs")
    assert len({each.path for each in planned}) == len(planned) >= 9
