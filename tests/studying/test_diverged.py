"""Runs whose training diverges are results of a study: kept, not trained again, and named on its page."""

import json
from types import SimpleNamespace

import numpy as np
import pytest
from conftest import composed
from report_support import diverge, make_run, undrawn  # noqa: F401
from study_support import CPU, FINISH, FOLLOW, limit_brought_forward, made, study_command, tiny_study  # noqa: F401
from training_support import without_drawing

from bearings.core.errors import DivergedError
from bearings.reporting.packed import read_packed
from bearings.reporting.reading import read_study
from bearings.session.configuration import build
from bearings.session.session import Session
from bearings.studying import keeping, packing, running, summary
from bearings.studying.outcomes import read_outcome
from bearings.tasks import train

# Trains runs as FINISH does, and notes each; fails at the end if one of them has diverged, as a sweep does.
TRAIN = f"""
import json, pathlib, sys
for path in sys.argv[1:]:
    with open(pathlib.Path(path).parents[3] / "trained", "a") as file: print(path, file=file)
{FINISH}
if any(json.loads((path / "manifest.json").read_text()).get("diverged") for path in map(pathlib.Path, sys.argv[1:])):
    sys.exit("it diverged")
"""


def begun(tmp_path):
    """The seeds of the runs that were trained, in their order."""
    return [line[-1] for line in (tmp_path / "trained").read_text().splitlines()]


@pytest.fixture(name="one_diverges")
def first_seed_diverges(tmp_path):
    """Training brings about two runs, of which the first diverges."""
    made(tmp_path)
    diverge(tmp_path / "made" / "s0")


@pytest.mark.usefixtures("one_diverges")
@pytest.mark.parametrize(("seeds", "jobs"), [(1, 1), (1, 2), (2, 1)])
@pytest.mark.parametrize("scripts", [[TRAIN], [TRAIN, FOLLOW]])
def test_a_run_that_diverges_is_kept_and_the_others_of_its_process_too(tmp_path, study, capsys, seeds, jobs, scripts):
    planned = study(*scripts)
    assert running.execute(planned, jobs, tmp_path / "logs", seeds=seeds) == []
    assert sorted(begun(tmp_path)) == ["0", "1"]
    assert len([*(tmp_path / "logs").iterdir()]) == 3 - seeds
    assert [each.finished for each in planned] == [True, True]
    diverged, finished = (each.kept for each in planned)
    assert sorted(file.name for file in diverged.rglob("*")) == ["config.yaml", "manifest.json", "metrics.csv"]
    assert (finished / "nll" / "test.npz").exists()
    assert (finished / "extrapolation").exists() == (FOLLOW in scripts)
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("diverged")]
    assert line == f"diverged   {planned[0].path}, at step 12: its record is kept as a result"


@pytest.mark.usefixtures("one_diverges")
def test_a_run_that_is_known_to_have_diverged_is_not_trained_again(tmp_path, study):
    """The command may have been killed before it kept the run."""
    planned = study(TRAIN)
    planned[0].path.parent.mkdir(parents=True)
    diverge(make_run(tmp_path / "before", "rope", 0)).rename(planned[0].path)
    assert running.execute(planned, 1, tmp_path / "logs", seeds=2) == []
    assert begun(tmp_path) == ["1"]
    assert [each.finished for each in planned] == [True, True]


@pytest.mark.usefixtures("one_diverges")
@pytest.mark.parametrize("then", [[], [FOLLOW]])
def test_runs_that_a_process_has_not_trained_are_tried_without_those_that_diverged(tmp_path, study, capsys, then):
    planned = study(f"import sys\ndel sys.argv[2:]\n{TRAIN}", *then)  # the first run alone
    assert running.execute(planned, 1, tmp_path / "logs", seeds=2) == []
    assert begun(tmp_path) == ["0", "1"]
    assert [each.finished for each in planned] == [True, True]
    assert f"{planned[1].path}: not all finished, so each is tried on its own" in capsys.readouterr().out


@pytest.mark.usefixtures("one_diverges")
def test_a_run_that_diverged_is_kept_as_soon_as_its_process_trains_the_next(tmp_path, study, capsys, limit_once):
    next_begun = "    (path / 'manifest.json').write_text('{}') if '-s1' in path.name else None\n"
    planned = study(f"{FINISH}{next_begun}import time; time.sleep(60)")
    limit = limit_once(lambda: planned[0].finished)
    assert running.execute(planned, 1, tmp_path / "logs", limit, seeds=2) == []
    assert [each.finished for each in planned] == [True, False]
    assert f"diverged   {planned[0].path}, at step 12" in capsys.readouterr().out


@pytest.mark.usefixtures("one_diverges")
def test_a_run_that_is_kept_before_its_process_ends_is_named_once(tmp_path, study, capsys):
    kept = "pathlib.Path(sys.argv[1]).parents[3].joinpath('study', 'runs', *pathlib.Path(sys.argv[1]).parts[-3:])"
    wait = f"import time\nfor _ in range(100):\n    if not {kept}.exists(): time.sleep(0.05)\n"
    assert running.execute(study(TRAIN.replace("if any(", f"{wait}if any(")), 1, tmp_path / "logs", seeds=2) == []
    assert capsys.readouterr().out.count("diverged ") == 1


@pytest.mark.usefixtures("one_diverges")
def test_a_run_that_diverged_and_cannot_be_kept_is_reported_and_the_others_continue(tmp_path, study):
    planned = study(TRAIN)
    planned[0].kept.mkdir(parents=True)
    (planned[0].kept / "notes").touch()
    (line,) = running.execute(planned, 1, tmp_path / "logs", seeds=2)
    assert line.startswith(f"task.out={planned[0].kept} exists and is not a copy")
    assert [each.finished for each in planned] == [False, True]


def test_a_study_in_which_all_runs_diverged_is_packed(tmp_path):
    study = tmp_path / "study"
    for seed in (0, 1):
        path = diverge(make_run(tmp_path / "made", "rope", seed), step=12 * (1 - seed))
        keeping.keep_in_study(path, study / "runs" / path.relative_to(tmp_path / "made"))
    assert packing.pack(study) == 2
    files = ["config.yaml", "manifest.json", "metrics.csv"]
    assert [sorted(path.files) for path in read_packed(study).values()] == [files, files]
    (study / "study.yaml").write_text("runs: ['experiment=debug encoding=rope seed=0,1']\n")
    summary.write_summary(study)
    page = (study / "README.md").read_text()
    assert "Listed runs without a record" not in page
    reason = "diverged, step 12 of 20: the loss or gradient was not finite at step 12"
    assert page.count(f"-s0 ({reason}); runs/jsb/rope/") == 1


@pytest.mark.usefixtures("undrawn")
def test_the_page_of_a_study_names_the_runs_that_diverged(tmp_path):
    encodings = "rope", "pope", "nope"
    (tmp_path / "study.yaml").write_text(f"runs: ['experiment=debug encoding={','.join(encodings)} seed=0,1,2,3']\n")
    for encoding in encodings:
        for seed in (0, 1, 2):
            path = make_run(tmp_path / "runs", encoding, seed)
            if encoding == "nope" or (encoding, seed) == ("pope", 1):
                diverge(path, 1200 + seed)
    summary.write_summary(tmp_path)
    page = (tmp_path / "README.md").read_text()
    assert "\n\nListed runs without a record: 3.\n\n" in page
    nope = "nope, 3 of 3 seeds (seed 0 at step 1,200, seed 1 at step 1,201, seed 2 at step 1,202)"
    pope = "pope, 1 of 3 seeds (seed 1 at step 1,201)"
    assert f"\n\nDiverged: {nope}; {pope}. Scores, tests and ranks are of the other runs.\n\n" in page
    assert "Records that are not in the tables" not in page
    outcome = read_outcome(tmp_path)
    assert (outcome.runs, outcome.missing, outcome.diverged) == (5, 3, 4)


@pytest.mark.usefixtures("undrawn")
def test_the_page_of_a_study_with_several_comparisons_names_that_of_a_run_that_diverged(tmp_path):
    (tmp_path / "study.yaml").write_text("runs: ['experiment=debug encoding=rope seed=0,1 data.length=64,128']\n")
    for length in (64, 128):
        make_run(tmp_path / "runs", "rope", 0, f"data.length={length}")
        diverge(make_run(tmp_path / "runs", "rope", 1, f"data.length={length}"))
    summary.write_summary(tmp_path)
    runs = "rope, 1 of 2 seeds (seed 1 at step 12)"
    assert (
        f"Diverged: jsb (length=128): {runs}; jsb (length=64): {runs}. Scores, tests"
        in (tmp_path / "README.md").read_text()
    )


@pytest.mark.usefixtures("undrawn")
def test_a_study_trains_a_run_that_diverges_once(tmp_path, command, monkeypatch):
    settings = "experiment=debug encoding=rope domain=flip_flop trainer.steps=4 trainer.validate_every=2 task.samples=0"
    data = [f"domain.{split}=8" for split in ("train", "valid", "test", "sparse", "dense", "length")]
    rates = "optimizer.learning_rate=1e-3,1e30 optimizer.clip=1e9"
    (tmp_path / "study").mkdir()
    lines = [" ".join([settings, CPU, *data, rates])]
    (tmp_path / "study" / "study.yaml").write_text(json.dumps({"runs": lines}))
    monkeypatch.setattr(train, "plot_losses", without_drawing)

    def start(process, environment):  # in this process, which is faster
        plain = composed(*process.runs[0].settings)
        plain["names"] = {"domain": "flip_flop", "encoding": "rope", "model": "small"}
        try:
            build(plain["task"], "task")(Session.of(plain))
            process.process = SimpleNamespace(returncode=0, poll=lambda: 0)
        except DivergedError:
            process.process = SimpleNamespace(returncode=2, poll=lambda: 2)

    monkeypatch.setattr(running.Running, "start", start)
    printed = command("study=study")
    (line,) = [line for line in printed.splitlines() if line.startswith("diverged")]
    assert line.endswith("at step 1: its record is kept as a result")
    page = (tmp_path / "study" / "README.md").read_text()
    assert "Diverged: rope (learning_rate=1e+30), 1 of 1 seed (seed 0 at step 1)." in page
    monkeypatch.setattr(running.Running, "start", None)
    assert command("study=study").startswith("2 of 2 runs are finished\n")
    (run,) = read_study([tmp_path / "study"]).runs
    assert np.isfinite(run.records["test"].nats).all()
