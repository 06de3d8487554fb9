"""Work on all cores: the same results as in one process, and clear errors."""

import os
import signal
import subprocess
import sys
import time
from multiprocessing import get_context
from pathlib import Path

import pytest

from bearings.core import cores as module
from bearings.core.cores import cores, on_all_cores
from bearings.core.errors import UserError

linux = pytest.mark.skipif(sys.platform != "linux", reason="other systems use one process")


@pytest.fixture(autouse=True)
def two_cores(monkeypatch):
    monkeypatch.setattr(module, "cores", lambda: 2)


def test_results_are_in_the_order_of_the_items():
    assert on_all_cores(lambda item: 10 * item, [3, 1, 2]) == [30, 10, 20]


def test_one_item_or_none_starts_no_process():
    assert on_all_cores(lambda item: os.getpid(), ["only"]) == [os.getpid()]
    assert on_all_cores(str, []) == []


@linux
def test_several_items_are_worked_on_in_other_processes():
    assert os.getpid() not in on_all_cores(lambda item: os.getpid(), [1, 2, 3])


@linux
def test_a_daemonic_process_works_alone():
    """Such a process, for instance a worker of `multiprocessing.Pool`, may not start others."""
    with get_context("fork").Pool(1) as pool:
        assert pool.apply(on_all_cores, (abs, [-1, -2])) == [1, 2]


@linux
def test_processes_do_not_receive_the_signals_that_stop_the_program():
    blocked = on_all_cores(lambda item: signal.pthread_sigmask(signal.SIG_BLOCK, []), [1, 2])
    assert all({signal.SIGINT, signal.SIGTERM, signal.SIGHUP} <= each for each in blocked)


def test_errors_reach_the_caller():
    def fail(item):
        raise UserError(f"item {item} is bad")

    with pytest.raises(UserError, match="item 1 is bad"):
        on_all_cores(fail, [1, 2])


@linux
def test_a_killed_process_gives_one_line():
    with pytest.raises(UserError, match="a worker process was killed: free memory and rerun the command"):
        on_all_cores(lambda item: os.kill(os.getpid(), signal.SIGKILL), [1, 2])


@linux
def test_no_process_is_waited_for_when_another_was_killed():
    """It would send its result, and nobody reads it."""

    def work(item):
        if item == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(1)
        return bytes(1 << 24)

    with pytest.raises(UserError, match="a worker process was killed"):
        on_all_cores(work, [1, 2])


WAIT = """
import os, pathlib, time

def wait(folder):
    (pathlib.Path(folder) / str(os.getpid())).touch()
    time.sleep(600)
"""


@linux
@pytest.mark.parametrize(
    "work",
    ["cores.on_all_cores(wait, [folder, folder])", "list(workers.each(wait, iter([(0, folder)] * 40), 40))"],
    ids=["forked", "spawned"],
)
def test_processes_end_when_the_program_is_killed(work, tmp_path):
    (tmp_path / "waiting.py").write_text(WAIT)
    folder = tmp_path / "pids"
    folder.mkdir()
    program = f"""
from bearings.core import cores
from bearings.domains import workers
from waiting import wait
cores.cores = workers.cores = lambda: 2
folder = {str(folder)!r}
{work}
"""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
    started = subprocess.Popen([sys.executable, "-c", program], env=environment)
    end = time.monotonic() + 60
    while len([*folder.iterdir()]) < 2 and time.monotonic() < end:
        time.sleep(0.05)
    started.kill()
    started.wait()
    workers = [Path("/proc", path.name, "cmdline") for path in folder.iterdir()]
    assert len(workers) == 2

    def running(command):
        try:
            return bool(command.read_bytes())  # empty for a process that has ended
        except OSError:
            return False

    while any(map(running, workers)) and time.monotonic() < end:
        time.sleep(0.05)
    assert not any(map(running, workers))


def test_number_of_cores_is_positive():
    assert cores() >= 1
