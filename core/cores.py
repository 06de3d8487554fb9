"""Work on all processor cores that this process may use."""

import gc
import os
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing import active_children, current_process, get_context, parent_process
from typing import Any, TypeVar

from . import stopping
from .errors import UserError

Item = TypeVar("Item")
Made = TypeVar("Made")

_inherited: Callable  # in a process of `on_all_cores`: its function


def cores() -> int:
    """The number of cores, at least 1."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def on_all_cores(
    function: Callable[[Item], Made], items: Sequence[Item], size: Callable[[Item], float] = lambda _: 0
) -> list[Made]:
    """`function` of each item, in order.

    On Linux, forked processes do the work: they share what `function` refers to, so it is neither copied nor pickled.
    It must not use PyTorch, whose threads do not survive a fork. A daemonic process, which may not start others, does
    the work itself.

    Args:
        size: how large an item is. The largest are started first, so that none of them is left over at the end.

    Raises:
        UserError: a process was killed.
    """
    alone = sys.platform != "linux" or current_process().daemon
    processes = 1 if alone else min(cores(), len(items))
    if processes <= 1:
        return [function(item) for item in items]
    try:
        with worker_pool(processes, "fork", _inherit, function) as submit:
            largest_first = sorted(range(len(items)), key=lambda place: -size(items[place]))
            made = {place: submit(_call, items[place]) for place in largest_first}
            return [made[place].result() for place in range(len(items))]
    except BrokenProcessPool as error:
        raise UserError("a worker process was killed: free memory and rerun the command") from error


@contextmanager
def worker_pool(processes: int, method: str, begin: Callable, *arguments: Any) -> Iterator[Callable[..., Future]]:
    """`submit` of a pool of `processes`, started by `method`, that receive no signals and first `begin(*arguments)`.

    If one was killed, the others are killed too: the pool would send them SIGTERM, which they block, and wait forever.
    """
    others = {*active_children()}
    with stopping.signals_blocked():  # the pool may start multiprocessing's resource tracker
        pool = ProcessPoolExecutor(processes, get_context(method), begin, arguments)

    def submit(function: Callable, *given: Any) -> Future:
        with stopping.signals_blocked():  # the first submission starts the processes
            return pool.submit(function, *given)

    try:
        yield submit
    except BrokenProcessPool:
        for worker in {*active_children()} - others:
            worker.kill()
        raise
    finally:
        pool.shutdown(cancel_futures=True)


def _inherit(function: Callable) -> None:
    global _inherited
    _inherited = function
    gc.disable()  # it ends soon: freeing cycles, as figures are, takes a tenth of the time for 1 MB per figure
    end_with_parent()


def end_with_parent() -> None:
    """End this worker process when the main process is killed; otherwise it would wait for work forever."""
    threading.Thread(target=_wait_for_parent, daemon=True).start()


def _wait_for_parent() -> None:
    if (parent := parent_process()) is not None:
        parent.join()
    os._exit(1)


def _call(item):
    return _inherited(item)
