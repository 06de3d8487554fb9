"""Reads music files on all cores, in order."""

import gc
import math
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures.process import BrokenProcessPool
from typing import Any

from ..core.cores import cores, end_with_parent, worker_pool
from ..core.errors import UserError
from ..core.progress import tracked


def each(
    function: Callable[..., Any], items: Iterator[tuple[Any, Any]], total: int, *arguments: Any
) -> Iterator[tuple[Any, Any]]:
    """Yield `(key, function(data, *arguments))` for every `(key, data)`, in order, on all cores.

    At most a few items are processed ahead.

    Raises:
        UserError: a worker process was killed.
    """
    workers = min(cores(), 8, math.ceil(total / 16))
    if workers <= 1:
        yield from tracked(((key, function(data, *arguments)) for key, data in items), "reading music", total)
        return
    # Spawned, because the caller may use threads or a GPU, which do not work after a fork.
    try:
        with worker_pool(workers, "spawn", _begin) as submit:
            yield from tracked(_ahead(submit, 4 * workers, function, items, arguments), "reading music", total)
    except BrokenProcessPool as error:
        raise UserError(
            "a process that reads music was killed: free memory, and call from within `if __name__ == '__main__':`"
        ) from error


def _begin() -> None:
    # A score consists of thousands of objects that are freed together. Collecting garbage less often saves a fifth of
    # the time.
    gc.set_threshold(50_000)
    end_with_parent()


def _ahead(submit: Callable, depth: int, function, items, arguments: Sequence) -> Iterator[tuple[Any, Any]]:
    waiting: deque = deque()
    for key, data in items:
        waiting.append((key, submit(function, data, *arguments)))
        if len(waiting) >= depth:
            key, future = waiting.popleft()
            yield key, future.result()
    for key, future in waiting:
        yield key, future.result()
