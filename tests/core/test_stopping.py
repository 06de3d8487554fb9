"""SIGINT, SIGTERM and SIGHUP end the program in one line at any time."""

import os
import signal
import subprocess
import sys

import pytest
from conftest import REPOSITORY

from bearings.core import stopping
from bearings.core.errors import DivergedError, InterruptedRunError, UserError
from bearings.session.explaining import one_line_errors

LINE = "stopped: rerun the same command to resume\n"


@pytest.fixture
def begun(monkeypatch):
    """Signals are answered as during a task that resumes, whatever an earlier test of this process has begun."""
    monkeypatch.setattr(stopping, "_begun", True)
    monkeypatch.setattr(stopping, "_resumes", True)
    monkeypatch.setattr(stopping, "_since", None)
    monkeypatch.setattr(stopping.os, "dup2", lambda *given: None)  # or SIGHUP would discard the output of the tests
    # A shell's background jobs ignore SIGINT, and so does what they start.
    before = {number: signal.signal(number, signal.SIG_DFL) for number in stopping.SIGNALS}
    stopping.listen()
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def signalled(number, unwound):
    with one_line_errors():
        try:
            os.kill(os.getpid(), number)
        finally:
            unwound()


@pytest.mark.parametrize("number", stopping.SIGNALS)
@pytest.mark.parametrize("rank", [0, 1])
def test_a_task_that_is_stopped_unwinds_and_the_first_rank_says_so(begun, capsys, monkeypatch, number, rank):
    monkeypatch.setenv("LOCAL_RANK", str(rank))
    with pytest.raises(SystemExit) as end:
        signalled(number, lambda: os.kill(os.getpid(), number))  # `timeout` sends two
    assert end.value.code == 130
    assert capsys.readouterr().err == (LINE if rank == 0 else "")


@pytest.mark.parametrize("error", [RuntimeError("connection closed by peer"), UserError("lost touch")])
def test_an_error_that_comes_of_unwinding_is_not_printed(begun, capsys, error):
    def unwound():
        raise error

    with pytest.raises(SystemExit) as end:
        signalled(signal.SIGTERM, unwound)
    assert end.value.code == 130
    assert capsys.readouterr().err == LINE


@pytest.mark.parametrize(
    ("error", "status", "rank", "printed"),
    [
        (InterruptedRunError("stopped after step 3"), 130, 0, "stopped after step 3\n"),
        (DivergedError("the loss is nan"), 2, 0, "error: the loss is nan\n"),
        (DivergedError("the loss is nan"), 2, 1, ""),
        (UserError("rank 1 lost touch"), 2, 1, "error: rank 1 lost touch\n"),
    ],
)
def test_a_stop_of_training_is_no_error_and_all_ranks_diverge_at_once(
    capsys, monkeypatch, error, status, rank, printed
):
    monkeypatch.setenv("LOCAL_RANK", str(rank))
    with pytest.raises(SystemExit) as end, one_line_errors():
        raise error
    assert (end.value.code, capsys.readouterr().err) == (status, printed)


def test_a_later_signal_ends_what_does_not_unwind(begun, monkeypatch):
    ended = []
    monkeypatch.setattr(stopping, "AGAIN", -1.0)
    monkeypatch.setattr(stopping.os, "_exit", ended.append)
    with pytest.raises(KeyboardInterrupt):
        os.kill(os.getpid(), signal.SIGINT)
    os.kill(os.getpid(), signal.SIGINT)
    assert ended == [130]


@pytest.mark.parametrize("number", stopping.SIGNALS)
def test_a_stop_while_the_program_starts_is_one_line(number, tmp_path):
    script = f"""
import os, runpy, signal, sys
signal.signal({int(number)}, signal.SIG_DFL)
class Stop:
    def find_spec(self, name, path=None, target=None):
        if name == "hydra":
            os.kill(os.getpid(), {int(number)})
sys.meta_path.insert(0, Stop())
sys.argv = ["main.py"]
runpy.run_path({str(REPOSITORY / "main.py")!r}, run_name="__main__")
"""
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    said = "" if number == signal.SIGHUP else LINE  # whatever read it has ended with its terminal
    assert (done.returncode, done.stdout, done.stderr) == (130, "", said)


@pytest.mark.parametrize("output", [os.openpty, os.pipe])  # a pipe as to `tee`, which ends with its terminal
def test_work_is_cleaned_up_after_the_terminal_was_closed(tmp_path, output):
    script = f"""
import signal, time
from pathlib import Path
from bearings.core import stopping
from bearings.session.explaining import one_line_errors
signal.signal(signal.SIGHUP, signal.SIG_DFL)
stopping.listen()
stopping.begin(resumes=True)
with one_line_errors():
    try:
        print("ready", flush=True)
        time.sleep(60)
    finally:
        print("writing the checkpoint", flush=True)
        Path({str(tmp_path / "checkpoint")!r}).write_text("whole")
"""
    ours, theirs = output()
    child = subprocess.Popen([sys.executable, "-c", script], stdout=theirs, stderr=theirs)
    os.close(theirs)
    assert os.read(ours, 5) == b"ready"
    os.close(ours)
    child.send_signal(signal.SIGHUP)
    assert child.wait(60) == 130
    assert (tmp_path / "checkpoint").read_text() == "whole"


def test_a_signal_that_the_parent_process_ignores_is_not_heard(begun):
    assert signal.SIGHUP in stopping.heard()
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as `nohup` does
    assert signal.SIGHUP not in stopping.heard()


def test_a_job_of_submitit_is_stopped_before_its_limit_and_submitted_again(begun, monkeypatch):
    monkeypatch.setitem(sys.modules, "submitit", sys)
    monkeypatch.setattr(stopping, "_requeue", None)
    monkeypatch.setattr(stopping, "_by_submitit", False)
    submitted = []

    def requeue(number, frame):
        submitted.append(number)
        raise RuntimeError("timed out too many times")

    before = signal.signal(signal.SIGUSR2, requeue)
    try:
        stopping.begin(resumes=True)
        stopping.begin(resumes=True)  # the next run of the job
        assert signal.SIGUSR2 in stopping.heard()
        assert not stopping.requeue_refused()
        assert submitted == []
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGUSR2)
        assert stopping.requeue_refused()
        assert submitted == [signal.SIGUSR2]
    finally:
        signal.signal(signal.SIGUSR2, before)


def test_a_task_that_cannot_resume_does_not_say_that_it_does(begun, capsys, monkeypatch):
    monkeypatch.setattr(stopping, "_resumes", True)
    stopping.begin(resumes=False)
    stopping.print_stopped()
    assert capsys.readouterr().err == "stopped: the same command starts from the beginning\n"


def test_helper_processes_do_not_receive_the_signals():
    script = "import signal; print(sorted(signal.pthread_sigmask(signal.SIG_BLOCK, [])))"
    with stopping.signals_blocked():
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert "SIGINT" in done.stdout
    assert "SIGTERM" in done.stdout
    assert "SIGHUP" in done.stdout
    assert "SIGUSR2" in done.stdout
    assert not signal.pthread_sigmask(signal.SIG_BLOCK, []) & set(stopping.SIGNALS)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize(
    "start",
    ["with stopping.signals_blocked(): pass", "with cores.worker_pool(1, 'spawn', print) as pool: pass"],
    ids=["blocked", "pool"],
)
def test_the_resource_tracker_survives_a_closed_terminal(start):
    """Otherwise it would print tracebacks about the locks of pools."""
    script = f"""
import pathlib, signal
from multiprocessing import resource_tracker
from bearings.core import cores, stopping
{start}
status = pathlib.Path("/proc", str(resource_tracker._resource_tracker._pid), "status").read_text()
blocked = int(status.partition("SigBlk:")[2].split()[0], 16)
print(blocked >> (signal.SIGHUP - 1) & 1, signal.pthread_sigmask(signal.SIG_BLOCK, []))
"""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=environment)
    assert done.stdout == "1 set()\n", done.stderr
