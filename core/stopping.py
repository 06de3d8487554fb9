"""What SIGINT and SIGTERM do: the program ends with one line and status 130, and its worker processes end with it."""

import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import resource_tracker

from . import launcher

SIGNALS = (signal.SIGINT, signal.SIGTERM)
STATUS = 130
AGAIN = 1.0  # seconds: `timeout` signals a process and then its group, so one request arrives twice

_begun = False
_since: float | None = None  # time of the first signal


def listen() -> None:
    """Answer SIGNALS, except those that this process was started to ignore."""
    for number in SIGNALS:
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, answer)


def begin() -> None:
    """From here on there is something to unwind: a signal raises KeyboardInterrupt instead of ending the process.

    Before, the program imports libraries, some of which abort when an exception comes up in the middle.
    """
    global _begun
    _begun = True


def answer(number: int, frame: object) -> None:
    """Handler of SIGNALS: raise KeyboardInterrupt once; if that does not end the program, the next signal does."""
    global _since
    if not _begun:
        say()
        os._exit(STATUS)
    if _since is None:
        _since = time.monotonic()
        raise KeyboardInterrupt
    if time.monotonic() - _since > AGAIN:
        for child in multiprocessing.active_children():
            child.kill()
        say()
        os._exit(STATUS)


def interrupted() -> bool:
    """Whether a signal has raised KeyboardInterrupt: errors raised since come from unwinding."""
    return _since is not None


def say() -> None:
    """Print the line that the program ends with; of several ranks the first prints it."""
    if launcher.rank() == 0:
        print("stopped: rerun the same command to resume", file=sys.stderr, flush=True)


@contextmanager
def unheard() -> Iterator[None]:
    """Processes started in this context never receive SIGNALS.

    A signal to the whole process group then reaches only the main process, which ends the others when it is done.
    """
    resource_tracker.ensure_running()  # it would unblock the signals when it starts
    before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
