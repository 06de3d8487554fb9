"""Progress of long work: a bar on a terminal; otherwise a line every EVERY seconds."""

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

from . import launcher
from .terminal import PlainConsole, printable

EVERY = 30.0

Item = TypeVar("Item")
_shown: list[object] = []  # nested work in progress, outermost first; only the innermost prints


@contextmanager
def shown(
    title: str, total: float | None = None, console: Console | None = None, bar: bool = True, in_bytes: bool = False
) -> Iterator[Callable[..., None]]:
    """Show progress while the context is open; yields `report(done, total=None)`.

    Args:
        title: what is being done, such as "scoring test".
        total: amount of work; `report` may set it later.
        console: where it is printed; None for standard error.
        bar: show a bar on a terminal; False if another one is shown already.
        in_bytes: `done` and `total` count bytes.
    """
    console = console or PlainConsole(stderr=True, quiet=launcher.rank() != 0)
    work = _bar if console.is_terminal and bar else _lines
    with work(title, total, console, in_bytes) as report:
        yield report


@contextmanager
def _bar(title: str, total: float | None, console: Console, in_bytes: bool) -> Iterator[Callable[..., None]]:
    amount = [DownloadColumn()] if in_bytes else []
    columns = TextColumn("{task.description}", markup=False), BarColumn(), *amount, TimeRemainingColumn()
    with Progress(*columns, console=console, transient=True) as live, _innermost(live):
        task = live.add_task(printable(title), total=total)
        yield lambda done, total=None: live.update(task, completed=done, total=total)


@contextmanager
def _lines(title: str, total: float | None, console: Console, in_bytes: bool) -> Iterator[Callable[..., None]]:
    state: tuple[float, float | None] = (0.0, total)
    ended, began = threading.Event(), time.monotonic()

    def lines() -> None:
        while not ended.wait(EVERY):
            if _shown[-1] is ended:
                console.print(line(title, *state, time.monotonic() - began))

    def report(done: float, total: float | None = None) -> None:
        nonlocal state
        state = done, state[1] if total is None else total

    with _innermost(ended):
        thread = threading.Thread(target=lines, daemon=True)
        thread.start()
        try:
            yield report
        finally:
            ended.set()
            thread.join()


@contextmanager
def _innermost(work: object) -> Iterator[None]:
    _shown.append(work)
    try:
        yield
    finally:
        _shown.remove(work)


def tracked(items: Iterable[Item], title: str, total: int) -> Iterator[Item]:
    """Yield the items and show progress."""
    with shown(title, total) as report:
        for done, item in enumerate(items, 1):
            yield item
            report(done)


def line(title: str, done: float, total: float | None, seconds: float) -> str:
    """A progress line, such as `scoring test: 30 % in 1:30`."""
    share = f" {100 * done / total:.0f} % in" if total else ""
    return f"{title}:{share} {duration(seconds)}"


def duration(seconds: float) -> str:
    """Minutes and seconds, such as `1:30`, or `2:01:30` with hours."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
