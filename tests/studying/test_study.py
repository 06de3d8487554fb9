"""task=study: what is listed is run once, in order, stopped at the limit, and kept without checkpoints."""

import re
import shutil
import sys
import time
from pathlib import Path

import pytest
import yaml
from command_support import run_command  # noqa: F401
from report_support import make_run, undrawn  # noqa: F401
from study_support import CPU, study_command  # noqa: F401

from bearings.core.errors import UserError
from bearings.reporting.planned import expanded
from bearings.studying import catalogue, keeping, planning, running


def test_a_line_that_cannot_be_run_is_named(tmp_path):
    (tmp_path / "study.yaml").write_text("runs:\n  - experiment=debug encoding=rope\n  - encoding=rope seed=0,-1\n")
    with pytest.raises(UserError, match=r"study\.yaml, encoding=rope seed=-1: seed=-1: it should be greater"):
        planning.plan(tmp_path, tmp_path / "trained")


def test_a_line_is_swept_as_hydra_sweeps_it_the_last_key_fastest():
    found = list(expanded("experiment=debug seed=0,1 encoding=rope,pope task.seeds=[0,1]"))
    swept = ["seed=0 encoding=rope", "seed=0 encoding=pope", "seed=1 encoding=rope", "seed=1 encoding=pope"]
    assert [" ".join(each[1:3]) for each in found] == swept
    assert all(each[0] == "experiment=debug" and each[3] == "task.seeds=[0,1]" for each in found)


@pytest.fixture(name="study")
def tiny_study(tmp_path, monkeypatch):
    """A study of two runs whose commands are what a test says, in place of training."""
    folder = tmp_path / "study"
    folder.mkdir()
    (folder / "study.yaml").write_text("runs:\n  - experiment=debug seed=0,1 encoding=rope\n")
    planned = planning.plan(folder, tmp_path / "runs", [CPU])

    def commands(*scripts):
        def given(runs):
            return [[sys.executable, "-c", script, *(str(run.path) for run in runs)] for script in scripts]

        monkeypatch.setattr(running, "commands", given)
        return planned

    return commands


SLEEP = "import time; time.sleep(60)"
FINISH = """
import pathlib, shutil, sys
for path in map(pathlib.Path, sys.argv[1:]):
    path.parent.mkdir(parents=True, exist_ok=True)
    shutil.copytree(path.parents[3] / "made" / path.name.rpartition("-")[2], path)
"""
FOLLOW = """
import pathlib, sys
file = pathlib.Path(sys.argv[1]) / "extrapolation" / "test.csv"; file.parent.mkdir(); file.write_text("figures")
"""


def made(tmp_path):
    """Runs as training leaves them, for the commands to bring about."""
    for seed in (0, 1):
        target = tmp_path / "made" / f"s{seed}"
        target.parent.mkdir(exist_ok=True)
        make_run(tmp_path / "elsewhere", "rope", seed).rename(target)
        (target / "checkpoints" / "best.ckpt").write_text("large")


def test_runs_are_kept_without_checkpoints_and_not_begun_again(tmp_path, study):
    made(tmp_path)
    planned = study(FINISH, FOLLOW)
    assert running.execute(planned, 2, tmp_path / "logs") == []
    assert all(each.finished for each in planned)
    for each in planned:
        assert (each.kept / "nll" / "test.npz").exists()
        assert (each.kept / "extrapolation" / "test.csv").exists()
        assert not (each.kept / "checkpoints").exists()
    shutil.rmtree(tmp_path / "runs")  # what is kept is enough to know
    again = planning.plan(tmp_path / "study", tmp_path / "runs", [CPU])
    assert all(each.finished for each in again)


def test_a_failed_run_is_reported_with_its_last_line_and_the_others_continue(tmp_path, study):
    made(tmp_path)
    planned = study("import sys\nif '-s0' in sys.argv[1]: sys.exit('it broke')\n" + FINISH)
    (line,) = running.execute(planned, 1, tmp_path / "logs")
    assert ": it broke (" in line
    assert [each.finished for each in planned] == [False, True]


def test_one_process_trains_runs_that_differ_only_in_their_seeds(tmp_path, study):
    made(tmp_path)
    planned = study(FINISH)
    assert running.execute(planned, 1, tmp_path / "logs", seeds=2) == []
    assert len(list((tmp_path / "logs").iterdir())) == 1
    assert all(each.finished for each in planned)


BEGUN = FINISH + "    (path / 'manifest.json').write_text('{}') if '-s1' in path.name else None\n" + SLEEP


def test_a_run_is_kept_as_soon_as_its_process_trains_the_next(tmp_path, study, monkeypatch):
    made(tmp_path)
    planned, stop = study(BEGUN), running.stop

    def checked(processes):
        assert [each.finished for each in planned] == [True, False]
        stop(processes)

    monkeypatch.setattr(running, "stop", checked)
    assert running.execute(planned, 1, tmp_path / "logs", limit=2.0, seeds=2) == []
    assert (planned[0].kept / "nll" / "test.npz").exists()


def test_a_run_that_cannot_be_kept_yet_is_not_tried_again_until_its_process_ends(tmp_path, study, monkeypatch):
    made(tmp_path)
    planned, tried = study(BEGUN), []

    def keep(run, *_):
        tried.append(run)
        raise OSError("no space left")

    monkeypatch.setattr(planning.Planned, "keep", keep)
    assert running.execute(planned, 1, tmp_path / "logs", limit=2.0, seeds=2) == []
    assert tried == [planned[0]]


@pytest.mark.parametrize(
    ("first", "said"),
    [
        ("if len(sys.argv) > 2 or '-s0' in sys.argv[1]: sys.exit('it broke')", ": it broke ("),
        (
            "if '-s0' in sys.argv[1]: sys.exit(0)  # as a sweep skips runs that another process trains",
            "config.yaml does not exist",
        ),
    ],
)
def test_if_a_run_fails_or_is_skipped_others_of_its_process_are_tried_on_their_own(tmp_path, study, first, said):
    made(tmp_path)
    planned = study(f"import sys\n{first}\n{FINISH}")
    (line,) = running.execute(planned, 1, tmp_path / "logs", seeds=2)
    assert said in line
    assert [each.finished for each in planned] == [False, True]


def test_runs_that_differ_only_in_their_seeds_share_a_command(tmp_path):
    lines = ["experiment=debug seed=0,1,2 encoding=rope,nope", "experiment=debug encoding=rope trainer.steps=30"]
    then = ["task=extrapolate task.contexts=[64]"]
    (tmp_path / "study.yaml").write_text(yaml.safe_dump({"runs": lines, "then": then}))
    planned = planning.plan(tmp_path, tmp_path / "trained", [CPU])
    groups = planning.together(planned, 2)
    seeds = [[run.seed for run in group] for group in groups]
    assert seeds == [[0, 1], [0, 1], [2], [2], [None]]
    assert planning.together(planned, 1) == [[run] for run in planned]
    train, follow = (command[2:] for command in planning.commands(groups[1]))
    assert train == ["-m", "experiment=debug", "encoding=nope", CPU, f"runs={tmp_path / 'trained'}", "seed=0,1"]
    files = ["domain=jsb", "encoding=nope", "model=small"]
    assert sorted(follow) == sorted(["-m", *then[0].split(), f"run={groups[1][0].path},{groups[1][1].path}", *files])


def test_a_run_whose_follow_up_fails_is_not_finished_and_gone_on_with(tmp_path, study):
    made(tmp_path)
    planned = study(FINISH, "import sys; sys.exit('it broke')")
    assert len(running.execute(planned, 2, tmp_path / "logs")) == 2
    assert not any(each.finished for each in planned)
    assert running.execute(study("", FOLLOW), 2, tmp_path / "logs") == []
    assert all((each.kept / "extrapolation" / "test.csv").exists() for each in planned)


def test_at_the_limit_runs_are_stopped_and_no_more_are_begun(tmp_path, study):
    planned = study(SLEEP)
    began = time.monotonic()
    assert running.execute(planned, 1, tmp_path / "logs", limit=1.0) == []
    assert time.monotonic() - began < 5
    assert len(list((tmp_path / "logs").iterdir())) == 1


def test_an_interruption_stops_what_runs(tmp_path, study, monkeypatch):
    planned, started, start = study(SLEEP), [], running.Running.start

    def interrupted(run, environment):
        if started:
            raise KeyboardInterrupt
        start(run, environment)
        started.append(run.process)

    monkeypatch.setattr(running.Running, "start", interrupted)
    with pytest.raises(KeyboardInterrupt):
        running.execute(planned, 2, tmp_path / "logs")
    assert [process.poll() for process in started] == [-15]


def test_a_run_whose_follow_up_cannot_be_started_is_not_finished(tmp_path, study, monkeypatch):
    made(tmp_path)
    planned, start = study(FINISH, FOLLOW), running.Running.start

    def out_of_memory(run, environment):
        if run.stage:
            raise OSError(12, "Cannot allocate memory")
        start(run, environment)

    monkeypatch.setattr(running.Running, "start", out_of_memory)
    with pytest.raises(OSError, match="allocate"):
        running.execute(planned, 1, tmp_path / "logs")
    assert not any(each.finished for each in planned)


def test_a_run_that_cannot_be_kept_leaves_others_that_have_ended_to_be(tmp_path, study, monkeypatch):
    made(tmp_path)
    planned, keep, start, asked, started = study(FINISH), planning.keep_in_study, running.Running.start, [], []

    def noted(run, environment):
        start(run, environment)
        started.append(run.process)

    def full(path, *given):
        asked.append(path)
        if len(asked) == 1:
            for process in started:  # both have ended by then
                process.wait()
            raise OSError(28, "No space left on device")
        time.sleep(0.5)
        return keep(path, *given)

    monkeypatch.setattr(running.Running, "start", noted)
    monkeypatch.setattr(planning, "keep_in_study", full)
    with pytest.raises(OSError, match="space"):
        running.execute(planned, 2, tmp_path / "logs")
    assert len(asked) == 2
    assert sum(each.finished for each in planned) == 1


def test_a_run_that_does_not_stop_is_killed(tmp_path, study, monkeypatch):
    monkeypatch.setattr(running, "GRACE_S", 0.5)
    planned = study("import signal, time; signal.signal(15, signal.SIG_IGN); time.sleep(60)")
    began = time.monotonic()
    running.execute(planned, 2, tmp_path / "logs", limit=1.0)
    assert time.monotonic() - began < 10


MEET = """
import os, pathlib, sys, time
path = pathlib.Path(sys.argv[1]); met = path.parents[3] / "met"; met.mkdir(exist_ok=True)
(met / path.name).write_text(os.environ["CUDA_VISIBLE_DEVICES"])
end = time.monotonic() + 20
while len(list(met.iterdir())) < 2:
    if time.monotonic() > end:
        sys.exit("the other run did not start")
    time.sleep(0.05)
"""


def test_runs_are_dealt_out_to_gpus_and_what_follows_one_stays_on_its_own(tmp_path, study):
    made(tmp_path)
    same = "import os, pathlib, sys\npath = pathlib.Path(sys.argv[1])\n"
    same += "assert (path.parents[3] / 'met' / path.name).read_text() == os.environ['CUDA_VISIBLE_DEVICES']"
    assert running.execute(study(MEET, FINISH, same), 1, tmp_path / "logs", gpus=["2", "GPU-5"]) == []
    assert sorted(file.read_text() for file in (tmp_path / "met").iterdir()) == ["2", "GPU-5"]


@pytest.mark.parametrize(
    ("given", "count", "setting", "expected"),
    [
        (None, 2, "devices=1", ["0", "1"]),
        ("3,GPU-5", 2, "devices=1", ["3", "GPU-5"]),
        ("", 0, "devices=1", [None]),
        (None, 0, "devices=1", [None]),
        (None, 2, "devices=2", [None]),
    ],
)
@pytest.mark.usefixtures("study")
def test_gpus_are_the_visible_ones_unless_runs_take_several(given, count, setting, expected, tmp_path, monkeypatch):
    monkeypatch.setattr(running.torch.cuda, "device_count", lambda: count)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if given is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", given)
    planned = planning.plan(tmp_path / "study", tmp_path / "runs", [f"trainer.{setting}", CPU])
    assert running.gpus_for(planned) == expected


@pytest.mark.parametrize(
    ("listed", "message"),
    [
        (
            'runs: [experiment=debug seed=0]\nthen: ["task=extrapolate task.contxts=[32]"]',
            "task=extrapolate task.contxts=.*unknown",
        ),
        ("runs: [experiment=debug run=here]", "experiment=debug run=here: run=here: remove it"),
        ("runs: [task=check seed=0]", "task=check seed=0: task=check: remove it"),
        ("runs: [experiment=debug +run=here]", r"experiment=debug \+run=here: \+run=here: remove it"),
        ("runs: [experiment=debug stores=here]", "experiment=debug stores=here: stores=here: remove it"),
        ("runs: [experiment=debug seed=0 foo]", "experiment=debug seed=0 foo: foo: write settings as key=value"),
        ("runs: [experiment=debug ++runs=here]", r".* \+\+runs=here: remove it"),
        ("runs: [experiment=debug model=base]", ".* model=base: model=base: experiment=debug sets model.width"),
        (
            'runs: [experiment=debug seed=0]\nthen: ["task=generate task.temperature=-1"]',
            "task=generate task.temperature=-1: task.temperature=-1",
        ),
        (
            'runs: [experiment=debug seed=0]\nthen: ["task=evaluate data.length=128"]',
            "task=evaluate data.length=128: data.length=128: .* was made with data.length=64",
        ),
        (
            'runs: [experiment=debug seed=0]\nthen: ["task=tune seed=1"]',
            "task=tune seed=1: .* takes no finished run",
        ),
        ("runs: [experiment=debug enoding=rope]", "experiment=debug enoding=rope: enoding: unknown key"),
        (
            "runs: [experiment=debug encoding=ropee]",
            "experiment=debug encoding=ropee: encoding=ropee: did you mean rope",
        ),
    ],
)
def test_a_mistake_in_a_list_is_reported_with_its_line_before_training(tmp_path, listed, message):
    (tmp_path / "study.yaml").write_text(listed)
    with pytest.raises(UserError, match=f"study.yaml, {message}"):
        planning.plan(tmp_path, tmp_path / "trained")


def test_what_follows_a_run_knows_the_keys_of_its_files(tmp_path):
    study = {"runs": ["experiment=path_flip_flop seed=0,1"], "then": ["task=evaluate domain.sparse=100"]}
    (tmp_path / "study.yaml").write_text(yaml.safe_dump(study))
    with pytest.raises(UserError, match=r"domain.sparse=100: .* was made with domain.sparse=160000"):
        planning.plan(tmp_path, tmp_path / "trained")
    (tmp_path / "study.yaml").write_text(yaml.safe_dump({**study, "then": ["task=evaluate domain.sparse=160000"]}))
    assert len(planning.plan(tmp_path, tmp_path / "trained")) == 2


def test_the_command_lists_what_is_to_do(tmp_path, command, monkeypatch):
    monkeypatch.setattr("bearings.tasks.study.trusted", tuple)
    (tmp_path / "study").mkdir()
    (tmp_path / "study" / "study.yaml").write_text("runs:\n  - experiment=debug seed=0,1 encoding=rope\n")
    lines = command("study=study", "task.dry=true", "task.settings={trainer.micro_batch:5}").splitlines()
    assert lines[0] == "0 of 2 runs are finished"
    assert lines[1] == "to do    experiment=debug seed=0 encoding=rope trainer.micro_batch=5 runs=runs"
    monkeypatch.setattr("bearings.tasks.study.trusted", lambda: ("mine", "other"))
    lines = command("study=study", "task.dry=true", "stores=elsewhere").splitlines()
    assert lines[1].endswith("encoding=rope stores=elsewhere trust=[mine,other] runs=runs")
    assert not (tmp_path / "study" / ".lock").exists()  # nothing is written
    for overrides, message in (
        (["study=study", "task.jobs=0"], "^task.jobs=0: it must be at least 1$"),
        (["study=study", "task.limit=0"], "^task.limit=0.0: it must be above 0, or null for none"),
        (
            ["study=nowhere"],
            "^study=nowhere: nowhere/study.yaml does not exist; known studies: conversion, flip_flop, ",
        ),
        ([], "^study=null: give one of conversion, flip_flop, "),
        (["study=all"], "^study=all: set task.report=true"),
        (["study=study", "task.check=true"], "^task.check=true: README's table covers all studies: add study=all"),
    ):
        with pytest.raises(UserError, match=message):
            command(*overrides)


def test_the_command_line_composes_the_lines_of_a_list_itself(tmp_path, run):
    """Within a command that Hydra has composed already."""
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "study.yaml").write_text("runs:\n  - experiment=debug seed=0 encoding=rope\n")
    status, out, error = run("task=study", "study=mine", "task.dry=true", CPU)
    assert (status, out.splitlines()[:1]) == (0, ["0 of 1 runs are finished"]), error


@pytest.mark.usefixtures("undrawn")
def test_records_are_packed_and_summed_up_at_the_end(tmp_path, command, monkeypatch):
    (tmp_path / "study").mkdir()
    (tmp_path / "study" / "study.yaml").write_text("question: Why?\nruns: [experiment=debug seed=0 encoding=rope]\n")

    def trained(todo, *given):
        for each in todo:
            made = make_run(tmp_path / "made", "rope", 0)
            made.rename(tmp_path / "trained")
            keeping.keep_in_study(tmp_path / "trained", each.kept)
        return []

    monkeypatch.setattr(running, "execute", trained)
    assert "wrote study/README.md" in command("study=study")
    names = ["README.md", "loss.svg", "records.parquet", "results.csv", "runs.parquet", "study.yaml"]
    assert sorted(path.name for path in (tmp_path / "study").iterdir() if path.name != ".lock") == names
    assert "Why?" in (tmp_path / "study" / "README.md").read_text()
    before = {path: path.read_bytes() for path in (tmp_path / "study").iterdir()}
    assert command("study=study") == "1 of 1 runs are finished\n"
    command("study=study", "task.report=true")
    assert {path: path.read_bytes() for path in (tmp_path / "study").iterdir()} == before


def test_an_installed_package_is_left_as_it_is(tmp_path, monkeypatch):
    installed = tmp_path / "site-packages" / "bearings"
    (installed / "studies" / "tiny").mkdir(parents=True)
    (installed / "studies" / "tiny" / "study.yaml").write_text("runs: []\n")
    monkeypatch.setattr(catalogue, "ROOT", installed)
    monkeypatch.setattr(catalogue, "STUDIES", installed / "studies")
    (tmp_path / "user").mkdir()
    monkeypatch.chdir(tmp_path / "user")
    assert catalogue.folder_of("tiny", dry=True) == installed / "studies" / "tiny"
    assert not any((tmp_path / "user").iterdir())
    assert catalogue.folder_of("tiny") == Path("studies/tiny")
    assert (tmp_path / "user" / "studies" / "tiny" / "study.yaml").read_text() == "runs: []\n"
    (installed / "pyproject.toml").touch()  # a checkout, from which the command may be run anywhere
    assert catalogue.folder_of("tiny") == Path("studies/tiny")
    monkeypatch.chdir(tmp_path)
    assert catalogue.folder_of("tiny") == installed / "studies" / "tiny"


def test_runs_are_not_made_where_their_records_are_kept(tmp_path, monkeypatch):
    """One that has begun has a manifest.json, by which its records would count as kept."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "study.yaml").write_text("runs: [experiment=debug seed=0 encoding=rope]\n")
    with pytest.raises(UserError, match=r"^runs=runs: this folder holds the study's records"):
        planning.plan(Path(), Path("runs"))
    assert planning.plan(Path(), Path("trained"))


@pytest.mark.parametrize("setting", ["trainer.steps=50", "+trainer.steps=50", "seed=3", "model=base", "match=flops"])
def test_settings_that_change_what_runs_find_are_refused(setting, tmp_path):
    """Their records would be kept among the study's own."""
    (tmp_path / "study.yaml").write_text("runs:\n  - experiment=debug seed=0 encoding=rope\n")
    places = ["data.workers=1", "stores=elsewhere", "task.samples=0"]
    (plain,), (moved,) = (planning.plan(tmp_path, tmp_path / "trained", given) for given in ([], places))
    assert moved.path == plain.path
    with pytest.raises(
        UserError, match=rf"^{re.escape(setting)}: this setting changes the results of the study's runs: .*study\.yaml"
    ):
        planning.plan(tmp_path, tmp_path / "trained", [*places, setting])
