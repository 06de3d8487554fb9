"""Training the runs of a study: several processes, failures, limits and interruptions."""

import json
import shutil
import time
from itertools import count

import pytest
from study_support import CPU, FINISH, FOLLOW, limit_brought_forward, made, tiny_study  # noqa: F401

from bearings.studying import jobs, planning, running

SLEEP = "import time; time.sleep(60)"


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


def test_a_run_is_kept_as_soon_as_its_process_trains_the_next(tmp_path, study, monkeypatch, limit_once):
    made(tmp_path)
    planned, stop = study(BEGUN), running.stop

    def checked(processes):
        assert [each.finished for each in planned] == [True, False]
        stop(processes)

    monkeypatch.setattr(running, "stop", checked)
    limit = limit_once(lambda: planned[0].finished)
    assert running.execute(planned, 1, tmp_path / "logs", limit, seeds=2) == []
    assert (planned[0].kept / "nll" / "test.npz").exists()


def test_a_run_that_cannot_be_kept_yet_is_not_tried_again_until_its_process_ends(
    tmp_path, study, monkeypatch, limit_once
):
    made(tmp_path)
    planned, tried, looks = study(BEGUN), [], count()

    def keep(run, *_):
        tried.append(run)
        raise OSError("no space left")

    monkeypatch.setattr(jobs.Planned, "keep", keep)
    limit = limit_once(lambda: tried and next(looks) == 5)
    assert running.execute(planned, 1, tmp_path / "logs", limit, seeds=2) == []
    assert tried == [planned[0]]


def test_a_run_with_a_follow_up_is_not_kept_while_its_process_trains_the_next(tmp_path, study, limit_once):
    made(tmp_path)
    planned = study(BEGUN, FOLLOW)
    limit = limit_once((planned[1].path / "manifest.json").exists)
    assert running.execute(planned, 1, tmp_path / "logs", limit, seeds=2) == []
    assert (planned[0].path / "nll" / "test.npz").exists()
    assert not planned[0].finished


@pytest.mark.parametrize(("script", "seeds"), [(FINISH, 1), (BEGUN, 2)])
def test_records_have_the_commit(tmp_path, study, script, seeds, limit_once):
    made(tmp_path)
    planned = study(script)
    limit = limit_once(lambda: planned[0].finished)
    assert running.execute(planned, 3, tmp_path / "logs", limit, commit="a commit", seeds=seeds) == []
    (session,) = json.loads((planned[0].kept / "manifest.json").read_text())["sessions"]
    assert session["code"]["commit"] == "a commit"


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
def test_if_a_run_fails_or_is_skipped_others_of_its_process_are_tried_on_their_own(
    tmp_path, study, capsys, first, said
):
    made(tmp_path)
    planned = study(f"import sys\n{first}\n{FINISH}")
    (line,) = running.execute(planned, 1, tmp_path / "logs", seeds=2)
    assert said in line
    assert f"{planned[0].path} and 1 with other seeds: not all finished" in capsys.readouterr().out
    assert [each.finished for each in planned] == [False, True]


@pytest.mark.parametrize("failing", ["import sys; sys.exit('it broke')", "import os; os.kill(os.getpid(), 9)"])
def test_a_run_whose_follow_up_fails_is_not_finished_and_gone_on_with(tmp_path, study, failing):
    made(tmp_path)
    planned = study(FINISH, failing)
    assert len(running.execute(planned, 2, tmp_path / "logs")) == 2
    assert not any(each.finished for each in planned)
    assert running.execute(study("", FOLLOW), 2, tmp_path / "logs") == []
    assert all((each.kept / "extrapolation" / "test.csv").exists() for each in planned)


def test_the_reason_of_a_failure_is_found_before_lines_of_another_process(tmp_path, study):
    script = "import sys\nprint('error: it is held', flush=True)\nprint('step 20')\nsys.exit(2)"
    (line,) = running.execute(study(script)[:1], 1, tmp_path / "logs")
    assert ": error: it is held (" in line
    (line,) = running.execute(study("import sys; print('step 40'); sys.exit(2)")[:1], 1, tmp_path / "logs")
    assert ": step 40 (" in line  # the error is of the earlier attempt


def test_a_killed_run_is_not_reported_with_the_last_line_of_an_earlier_attempt(tmp_path, study):
    attempts = {
        "import sys; sys.exit('it broke')": ": it broke (",
        "import os; os.kill(os.getpid(), 9)": ": killed by signal 9 (",
    }
    for script, said in attempts.items():
        (line,) = running.execute(study(script)[:1], 1, tmp_path / "logs")
        assert said in line


def test_all_commands_of_a_run_are_timed_and_write_to_its_log(tmp_path, study, capsys):
    made(tmp_path)
    planned = study(FINISH + "print('trained')", FOLLOW + "print('measured')")[:1]
    assert running.execute(planned, 1, tmp_path / "logs") == []
    (log,) = (tmp_path / "logs").iterdir()
    assert log.read_text().split() == ["trained", "measured"]
    times = [float(line.split()[0]) for line in capsys.readouterr().out.splitlines() if " s  " in line]
    assert len(times) == 2
    assert max(times) < 60


def test_at_the_limit_runs_are_stopped_and_no_more_are_begun(tmp_path, study):
    planned = study(SLEEP)
    began = time.monotonic()
    assert running.execute(planned, 1, tmp_path / "logs", limit=1.0) == []
    assert time.monotonic() - began < 5
    assert len(list((tmp_path / "logs").iterdir())) == 1


@pytest.mark.parametrize("processes", [1, 4])
def test_runs_are_begun_until_the_limit(tmp_path, study, monkeypatch, processes):
    """The third is, with 15 of 100 seconds left, but not the fourth."""
    planned, took, start, late, clock = study(""), [60, 25, 15, 0], running.Running.start, [0], time.monotonic

    def slow(run, environment):
        start(run, environment)
        late[0] += took.pop(0)

    monkeypatch.setattr(running.time, "monotonic", lambda: clock() + late[0])
    monkeypatch.setattr(running.Running, "start", slow)
    monkeypatch.setattr(jobs.Planned, "keep", lambda *_: None)
    assert running.execute([*planned, *planned], processes, tmp_path / "logs", limit=100.0) == []
    assert took == [0]


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
    planned, keep, start, asked, started = study(FINISH), jobs.keep_in_study, running.Running.start, [], []

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
    monkeypatch.setattr(jobs, "keep_in_study", full)
    with pytest.raises(OSError, match="space"):
        running.execute(planned, 2, tmp_path / "logs")
    assert len(asked) == 2
    assert sum(each.finished for each in planned) == 1


SAVE = """
import pathlib, signal, sys, time
def save(*_):
    time.sleep(0.5)
    (pathlib.Path(sys.argv[1]).parents[3] / "saved").touch()
    sys.exit()
signal.signal(15, save)
print("begun", flush=True)
time.sleep(60)
"""


def logged(folder):
    """The sizes of the log files."""
    return [log.stat().st_size for log in sorted(folder.glob("*.log"))]


def test_a_stopped_run_has_time_to_save_a_checkpoint(tmp_path, study, limit_once):
    limit = limit_once(lambda: any(logged(tmp_path / "logs")))
    running.execute(study(SAVE), 1, tmp_path / "logs", limit)
    assert (tmp_path / "saved").exists()


STAY = """
import signal, subprocess, sys, time
signal.signal(15, signal.SIG_IGN)
loader = "import time\\nfor _ in range(400):\\n    print(flush=True)\\n    time.sleep(0.05)"
subprocess.Popen([sys.executable, "-c", loader])
time.sleep(60)
"""


def test_a_run_that_does_not_stop_is_killed_with_its_loader(tmp_path, study, monkeypatch, limit_once):
    monkeypatch.setattr(running, "GRACE_S", 0.5)
    logs, began = tmp_path / "logs", time.perf_counter()
    running.execute(study(STAY), 2, logs, limit_once(lambda: sum(map(bool, logged(logs))) == 2))  # the loaders write
    assert time.perf_counter() - began < 10
    sizes = logged(logs)
    time.sleep(0.5)
    assert logged(logs) == sizes
    assert min(sizes) > 0


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


def test_runs_are_dealt_out_to_gpus_and_what_follows_one_stays_on_its_own(tmp_path, study, monkeypatch):
    made(tmp_path)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,GPU-5")
    same = "import os, pathlib, sys\npath = pathlib.Path(sys.argv[1])\n"
    same += "assert (path.parents[3] / 'met' / path.name).read_text() == os.environ['CUDA_VISIBLE_DEVICES']"
    assert running.execute(study(MEET, FINISH, same), 1, tmp_path / "logs", gpus=["2", "GPU-5"]) == []
    assert sorted(file.read_text() for file in (tmp_path / "met").iterdir()) == ["2", "GPU-5"]


def test_a_gpu_has_one_process_at_a_time(tmp_path, study, monkeypatch):
    planned, start, begun = study("import time; time.sleep(0.5)"), running.Running.start, []

    def noted(run, environment):
        assert run.gpu not in [each.gpu for each in begun if each.process.poll() is None]
        start(run, environment)
        begun.append(run)

    monkeypatch.setattr(running.Running, "start", noted)
    monkeypatch.setattr(jobs.Planned, "keep", lambda *_: None)
    assert running.execute([*planned, *planned], 1, tmp_path / "logs", gpus=["2", "GPU-5"]) == []
    assert len(begun) == 4


@pytest.mark.parametrize(("given", "cores", "expected"), [(None, 9, "2"), (None, 3, "1"), ("5", 9, "5")])
def test_processes_share_the_cores_unless_the_number_of_threads_is_given(
    tmp_path, study, monkeypatch, given, cores, expected
):
    monkeypatch.setattr(running, "cores", lambda: cores)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    if given is not None:
        monkeypatch.setenv("OMP_NUM_THREADS", given)
    planned = study("import os, sys; sys.exit(os.environ['OMP_NUM_THREADS'])")
    failed = running.execute(planned, 2, tmp_path / "logs", gpus=["2", "GPU-5"])
    assert [f": {expected} (" in line for line in failed] == [True, True]


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


def test_the_commands_of_a_run_are_named_if_there_are_several(tmp_path):
    alone = jobs.Planned(["seed=0"], tmp_path, tmp_path)
    followed = jobs.Planned(["seed=0"], tmp_path, tmp_path, ["task=extrapolate task.split=valid"])
    assert running.Running([alone], tmp_path / "log").step == ""
    steps = [running.Running([followed], tmp_path / "log", stage=stage).step for stage in (0, 1)]
    assert steps == [", task=train", ", task=extrapolate"]
