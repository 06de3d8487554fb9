"""Child processes that read mutants, under limits of time and memory, and are started anew where they are lost."""

import contextlib
import multiprocessing
import os
import signal
import time
from collections.abc import Iterator, Sequence
from multiprocessing.connection import wait
from pathlib import Path

from .reading import Reader, Result, limit_memory

ORIGINAL_S = 100.0  # for the first mutant of a target, before which the original is read


def work(connection, root: Path, place: Path, seed: int) -> None:
    """A child's life: read mutants that the parent names until it closes the connection."""
    os.setsid()
    log = os.open(place.parent / f"{place.name}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)
    limit_memory()
    reader = Reader(root, place, seed)
    while True:
        try:
            name, index = connection.recv()
        except EOFError:
            return
        reader.read_original(name)
        case, change = reader.mutate(name, index)
        connection.send(change)  # from here on it may hang
        connection.send(reader.read(name, index, case, change))


class Worker:
    """The parent's end of a child."""

    def __init__(self, root: Path, number: int, seed: int, hang: float):
        self.context, self.given = multiprocessing.get_context("fork"), (root, root / f"worker-{number}", seed)
        self.hang, self.job, self.process = hang, None, None
        self.start()

    def start(self) -> None:
        self.stop()
        self.given[1].mkdir(exist_ok=True)
        self.connection, child = self.context.Pipe()
        self.process = self.context.Process(target=work, args=(child, *self.given), daemon=True)
        self.process.start()
        child.close()

    def give(self, job: tuple[str, int] | None) -> None:
        self.job, self.since, self.change = job, time.monotonic(), ""
        if job is not None:
            self.connection.send(job)

    def stop(self) -> None:
        if self.process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.kill()
            self.process.join()
            self.connection.close()

    def result(self) -> Result | None:
        """Of the job given, if it is there by now. A child that hung, died or took much memory is replaced."""
        if self.connection.poll():
            try:
                if isinstance(found := self.connection.recv(), str):
                    self.since, self.change = time.monotonic(), found
                    return None
                if found.kind == "memory":
                    self.start()
                return found
            except EOFError:
                self.process.join()
                code = self.process.exitcode
                if not self.change:
                    raise SystemExit(
                        f"{self.job[0]}: the original cannot be read; {self.given[1]}.log says why"
                    ) from None
                self.start()
                return Result(*self.job, self.change, "fault", f"the process ended with {code}", "crash", str(code))
        if time.monotonic() - self.since > self.hang + (0 if self.change else ORIGINAL_S):
            self.start()
            return Result(*self.job, self.change, "fault", f"over {self.hang:g} s", "hang")
        return None


def run_all(root: Path, jobs: Sequence[tuple[str, int]], count: int, seed: int, hang: float) -> Iterator[Result]:
    """Results of `jobs`, in no order, by `count` workers; one that takes over `hang` seconds hangs."""
    waiting = list(jobs)[::-1]
    workers = [Worker(root, number, seed, hang) for number in range(count)]
    try:
        for worker in workers:
            worker.give(waiting.pop() if waiting else None)
        while busy := [worker for worker in workers if worker.job is not None]:
            wait([worker.connection for worker in busy], timeout=0.5)
            for worker in busy:
                if (found := worker.result()) is not None:
                    yield found
                    worker.give(waiting.pop() if waiting else None)
    finally:
        for worker in workers:
            worker.stop()
