"""Handles SIGINT, SIGTERM and SIGHUP: the program and its worker processes end with one line and status 130."""

import multiprocessing
import os
import signal
import stat
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing import resource_tracker

from . import launcher

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)  # the last one when a terminal or SSH session is closed
STATUS = 130
AGAIN = 1.0  # seconds: `timeout` signals a process and then its group, so one request arrives twice

_begun = False
_requeue: Callable | None = None  # submitit's handler of SIGUSR2, which it requests before a time limit
_by_submitit = False  # whether this signal has come
_resumes = True  # whether the command that runs goes on where it was stopped
_since: float | None = None  # time of the first signal


def heard() -> list[int]:
    """SIGNALS, and SIGUSR2 in jobs of submitit, without those that the parent process ignores, as `nohup` does."""
    numbers = SIGNALS if _requeue is None else (*SIGNALS, signal.SIGUSR2)
    return [number for number in numbers if signal.getsignal(number) != signal.SIG_IGN]


def listen() -> None:
    """Install the handler for the signals that are `heard`."""
    for number in heard():
        signal.signal(number, handle)


def begin(resumes: bool) -> None:
    """From now on, a signal raises KeyboardInterrupt instead of ending the process, so that work can be cleaned up.

    Before that, the program imports libraries, and some of them abort if an exception is raised during the import.

    Args:
        resumes: whether the task goes on where it was stopped if the command is given again.
    """
    global _begun, _resumes, _requeue
    _begun, _resumes = True, resumes
    if "submitit" in sys.modules and callable(given := signal.getsignal(signal.SIGUSR2)) and given != handle:
        _requeue = given
        signal.signal(signal.SIGUSR2, handle)


def requeue_refused() -> bool:
    """Have submitit submit this job again if it was stopped before its time limit. Returns whether submitit refuses."""
    if _requeue is None or not _by_submitit:
        return False
    try:
        _requeue(signal.SIGUSR2, None)  # exits on rank 0, and returns on others
    except Exception:
        return True
    return False


def note(number: int) -> None:
    """Note a signal. After SIGHUP, discard output except to files: an error would come before the checkpoint."""
    global _by_submitit
    _by_submitit |= number == signal.SIGUSR2
    for stream in (1, 2) if number == signal.SIGHUP else ():
        with suppress(OSError):  # closed by the caller
            if not stat.S_ISREG(os.fstat(stream).st_mode):  # a terminal, or a pipe to a command that has ended with it
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream)


def handle(number: int, frame: object) -> None:
    """Handler of SIGNALS: raise KeyboardInterrupt once. If that does not end the program, the next signal does."""
    global _since
    note(number)
    if not _begun:
        print_stopped()
        os._exit(STATUS)
    if _since is None:
        _since = time.monotonic()
        raise KeyboardInterrupt
    if time.monotonic() - _since > AGAIN:
        for child in multiprocessing.active_children():
            child.kill()
        print_stopped()
        os._exit(STATUS)


def interrupted() -> bool:
    """Whether a signal has raised KeyboardInterrupt; later errors are consequences of it."""
    return _since is not None


def print_stopped() -> None:
    """Print the final line, on rank 0 only."""
    if launcher.rank() == 0:
        what = "rerun the same command to resume" if _resumes else "the same command starts from the beginning"
        print(f"stopped: {what}", file=sys.stderr, flush=True)


@contextmanager
def signals_blocked() -> Iterator[None]:
    """Processes that start in this context never receive SIGNALS and SIGUSR2.

    A signal to the whole process group then reaches only the main process, which ends the others when it has finished.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, (*SIGNALS, signal.SIGUSR2))
    try:
        resource_tracker.ensure_running()  # it may unblock signals
        signal.pthread_sigmask(signal.SIG_BLOCK, (*SIGNALS, signal.SIGUSR2))
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
