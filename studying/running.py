"""Trains the runs of a study, several at a time on each visible GPU, and keeps the records of finished runs."""

import os
import shlex
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

import torch

from ..core.cores import cores
from ..core.errors import UserError
from .jobs import Job, commands, together
from .searching import Searched

GRACE_S = 15.0  # seconds for a stopped run to write its checkpoint


@dataclass
class Running:
    """The process of command number `stage` of some runs, on the GPU `gpu`, or on all visible devices if None.

    Attributes:
        since: when this command was started.
        logged: size of the log at that time, in bytes.
        failed: whether keeping a run's records failed; only `settle` tries again.
    """

    runs: Sequence[Job]
    log: Path
    gpu: str | None = None
    stage: int = 0
    since: float = 0.0
    logged: int = 0
    failed: bool = False
    process: subprocess.Popen | None = None

    @property
    def last(self) -> bool:
        """Whether this is the last command."""
        return self.stage + 1 == len(commands(self.runs))

    @property
    def step(self) -> str:
        """What this command does, for runs that need several commands; otherwise empty."""
        every = commands(self.runs)
        task = next((word for word in every[self.stage] if word.startswith("task=")), "task=train")
        return f", {task}" if len(every) > 1 else ""

    def start(self, environment: dict[str, str]) -> None:
        self.log.parent.mkdir(parents=True, exist_ok=True)
        self.since = time.monotonic()
        if self.gpu is not None:
            environment = {**environment, "CUDA_VISIBLE_DEVICES": self.gpu}
        with open(self.log, "ab") as log:
            self.logged = log.tell()
            self.process = subprocess.Popen(  # noqa: S603 (main.py without a shell; `plan` has checked its settings)
                commands(self.runs)[self.stage], stdout=log, stderr=log, env=environment, start_new_session=True
            )

    def stop(self) -> None:
        """Ask the process to write a checkpoint and stop."""
        self.started.terminate()

    def kill(self) -> None:
        """Kill it and its loader processes."""
        os.killpg(self.started.pid, signal.SIGKILL)
        self.started.wait()

    @property
    def started(self) -> subprocess.Popen:
        """The process. Raises RuntimeError before `start`."""
        if self.process is None:
            raise RuntimeError(f"{self.runs[0].path} has not been started")
        return self.process


def gpus_for(planned: Sequence[Job]) -> list[str | None]:
    """Names of the GPUs to distribute runs over; a single None if runs use several GPUs or none."""
    given = os.environ.get("CUDA_VISIBLE_DEVICES")
    count = torch.cuda.device_count()
    names = [str(gpu) for gpu in range(count)] if given is None else given.split(",")[:count]
    return [*names] if names and all(each.one_device for each in planned) else [None]


def execute(
    todo: Sequence[Job],
    jobs: int,
    logs: Path,
    limit: float = float("inf"),
    commit: str | None = None,
    gpus: Sequence[str | None] = (None,),
    seeds: int = 1,
    after: Callable[[Job], Sequence[Job]] = lambda job: (),
) -> list[str]:
    """Run `jobs` processes at a time on each of `gpus`, in order, until all are done or `limit` seconds have passed.

    At the limit, or when interrupted, all runs are asked to stop and can be resumed. If one of the runs of a process
    fails, each is tried on its own. A run whose training diverges has not failed: its records are kept, and it is not
    trained again.

    Args:
        todo: the runs.
        jobs: processes at a time on each GPU.
        logs: folder of log files, one per process.
        limit: time limit in seconds.
        commit: commit of the source, for runs made outside a checkout.
        gpus: names of GPUs, from `gpus_for`.
        seeds: maximum number of runs per process, one after the other, that differ only in their seeds, and of points
            of a search.
        after: the runs that can be trained once a job is done; they come before the searches still to do.

    Returns:
        One line for each failed run, and for each job after which no run could be planned.
    """
    end = time.monotonic() + limit
    places = [gpu for _ in range(jobs) for gpu in gpus]
    threads = str(max(1, cores() // len(places)))
    environment = {"OMP_NUM_THREADS": threads, **os.environ}
    waiting, running, failed = together(todo, seeds), [], []
    try:
        while (waiting or running) and time.monotonic() < end:
            while waiting and places and time.monotonic() < end:
                if not (runs := without_diverged(waiting.pop(0), commit, failed)):
                    continue
                log = logs / f"{runs[0].path.parent.name}-{runs[0].path.name}{runs[0].suffix}.log"
                running.append(Running(runs, log, places.pop(0)))
                running[-1].start(environment)
                print(f"started    {named(runs)}, log {log}", flush=True)
            time.sleep(0.2)
            for each in running:
                keep_ended(each, commit)
            for each in [each for each in running if each.process.poll() is not None]:
                running.remove(each)  # so that an error here is not repeated below
                took, left = time.monotonic() - each.since, without_diverged(each.runs, commit, failed)
                if not left:
                    places.append(each.gpu)
                    continue
                ended = replace(each, runs=left)
                failure = settle(ended, commit, diverged=len(each.runs) - len(left))
                if failure is None and not ended.last:
                    following = replace(ended, stage=ended.stage + 1)
                    following.start(environment)
                    running.append(following)
                else:
                    places.append(each.gpu)
                    if failure is None:
                        try:
                            coming = [run for job in left for run in after(job)]
                        except UserError as error:  # other runs go on
                            failed.append(str(error))
                        else:
                            insert_before_searches(waiting, together(coming, seeds))
                    elif len(each.runs) > 1:
                        failure = f"{named(left)}: not all finished, so each is tried on its own ({each.log})"
                        waiting[:0] = together(left, 1)
                    else:
                        failed.append(failure)
                print(f"{took:7.1f} s  {failure or named(left) + ended.step}", flush=True)
    finally:
        running = [each for each in running if each.process is not None]
        stop(running)
        with ExitStack() as ending:  # calls every callback, even if one raises
            for each in running:
                if each.started.returncode == 0:  # it finished before it could be stopped
                    ending.callback(settle, each, commit)
                else:
                    ending.callback(keep_ended, each, commit)
    return failed


def insert_before_searches(waiting: list[list[Job]], coming: Sequence[list[Job]]) -> None:
    """Insert the groups of jobs `coming` into `waiting`, before the first search."""
    searches = [place for place, (first, *_) in enumerate(waiting) if isinstance(first, Searched)]
    place = min(searches, default=len(waiting))
    waiting[place:place] = coming


def named(runs: Sequence[Job]) -> str:
    """The title of the first of `runs`, and the number of others."""
    return runs[0].title + (f" and {len(runs) - 1} with other seeds" if len(runs) > 1 else "")


def without_diverged(runs: Sequence[Job], commit: str | None, failed: list[str]) -> list[Job]:
    """Keep the records of those of `runs` whose training diverged; returns the others.

    If records cannot be kept, the reason is added to `failed`.
    """
    for run in runs:
        if run.diverged is not None and not run.finished:
            try:
                keep(run, commit)
            except UserError as error:
                failed.append(str(error))
    return [run for run in runs if run.diverged is None]


def keep(run: Job, commit: str | None) -> None:
    """Keep the results of a run, and print that its training diverged, if so."""
    run.keep(commit)
    if run.diverged is not None:
        print(f"diverged   {run.title}, at step {run.diverged:,}: its record is kept as a result", flush=True)


def settle(ended: Running, commit: str | None, diverged: int = 0) -> str | None:
    """Keep the results of runs after their last command; returns a line about a failed command.

    Args:
        ended: a process that has ended.
        commit: commit of the source.
        diverged: number of other runs of the process, whose training diverged, so that its command fails.
    """
    code = ended.started.returncode
    if code and not (diverged and all(run.trained for run in ended.runs)):
        lines = ended.log.read_bytes()[ended.logged :].decode(errors="replace").strip().splitlines()
        # Another process that trains the same run may have written to the log since.
        lines = [line for line in lines if line.startswith(UserError.prefix)] or lines
        why = f"killed by signal {-code}" if code < 0 else lines[-1] if lines else "no output"
        return f"{shlex.join(commands(ended.runs)[ended.stage][2:])}: {why} ({ended.log})"
    if ended.last:
        try:
            for run in ended.runs:
                if not run.finished:
                    run.keep(commit)
        except UserError as error:  # a run that another process trains was skipped
            return f"{error} ({ended.log})"
    return None


def keep_ended(running: Running, commit: str | None) -> None:
    """Keep the results of earlier runs while the process trains later ones. Errors are left for `settle` to report."""
    if running.failed or len(commands(running.runs)) > 1:
        return
    for run, following in pairwise(running.runs):
        try:
            if run.finished:
                continue
            if not (following.path / "manifest.json").exists() or not (run.trained or run.diverged is not None):
                return
            keep(run, commit)
        except (OSError, UserError):
            running.failed = True
            return


def stop(running: Sequence[Running]) -> None:
    """Ask processes to stop, and kill those that do not."""
    for each in running:
        each.stop()
    end = time.monotonic() + GRACE_S
    for each in running:
        try:
            each.started.wait(max(0.0, end - time.monotonic()))
        except subprocess.TimeoutExpired:
            each.kill()
