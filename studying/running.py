"""Trains the runs of a study, several at a time on each visible GPU, and keeps the records of finished runs."""

import os
import signal
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch

from .keeping import keep_in_study
from .planning import Planned

GRACE_S = 15.0  # seconds for a stopped run to write its checkpoint


@dataclass
class Running:
    """The process of a run's command number `stage`, on the GPU `gpu`, or on all visible devices if None."""

    planned: Planned
    log: Path
    gpu: str | None = None
    stage: int = 0
    began: float = field(default_factory=time.monotonic)
    process: subprocess.Popen | None = None

    @property
    def last(self) -> bool:
        """Whether this is the run's last command."""
        return self.stage + 1 == len(self.planned.commands())

    def start(self, environment: dict[str, str]) -> None:
        self.log.parent.mkdir(parents=True, exist_ok=True)
        if self.gpu is not None:
            environment = {**environment, "CUDA_VISIBLE_DEVICES": self.gpu}
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(  # noqa: S603 (main.py without a shell; `plan` has checked its settings)
                self.planned.commands()[self.stage], stdout=log, stderr=log, env=environment, start_new_session=True
            )

    def stop(self) -> None:
        """Ask the run to write a checkpoint and stop."""
        self.started.terminate()

    def kill(self) -> None:
        """Kill it and its loader processes."""
        os.killpg(self.started.pid, signal.SIGKILL)
        self.started.wait()

    @property
    def started(self) -> subprocess.Popen:
        """The process. Raises RuntimeError before `start`."""
        if self.process is None:
            raise RuntimeError(f"{self.planned.path} has not been started")
        return self.process


def gpus_for(planned: Sequence[Planned]) -> list[str | None]:
    """Names of the GPUs to distribute runs over; a single None if runs use several GPUs or none."""
    given = os.environ.get("CUDA_VISIBLE_DEVICES")
    count = torch.cuda.device_count()
    names = [str(gpu) for gpu in range(count)] if given is None else given.split(",")[:count]
    return [*names] if names and all(each.one_device for each in planned) else [None]


def execute(
    todo: Sequence[Planned],
    jobs: int,
    logs: Path,
    limit: float = float("inf"),
    commit: str | None = None,
    gpus: Sequence[str | None] = (None,),
) -> list[str]:
    """Run `jobs` runs at a time on each of `gpus`, in order, until all are done or `limit` seconds have passed.

    At the limit, or when interrupted, all runs are asked to stop and can be resumed. A run is not started if less time
    is left than the fastest run so far has needed.

    Args:
        todo: the runs.
        jobs: runs at a time on each GPU.
        logs: folder of log files, one per run.
        limit: time limit in seconds.
        commit: commit of the source, for runs made outside a checkout.
        gpus: names of GPUs, from `gpus_for`.

    Returns:
        One line for each failed run.
    """
    end = time.monotonic() + limit
    places = [gpu for _ in range(jobs) for gpu in gpus]
    threads = str(max(1, len(os.sched_getaffinity(0)) // len(places)))
    environment = {"OMP_NUM_THREADS": threads, **os.environ}
    waiting, running, failed, quickest = list(todo), [], [], 0.0
    try:
        while (waiting or running) and time.monotonic() < end:
            while waiting and places and time.monotonic() + quickest < end:
                planned = waiting.pop(0)
                log = logs / f"{planned.path.parent.name}-{planned.path.name}.log"
                running.append(Running(planned, log, places.pop(0)))
                running[-1].start(environment)
                print(f"started    {planned.path}, log {log}", flush=True)
            if not running:
                break
            time.sleep(0.2)
            for each in [each for each in running if each.process.poll() is not None]:
                running.remove(each)  # so that an error here is not repeated below
                failure, took = settle(each, jobs - 1, commit), time.monotonic() - each.began
                if failure is None and not each.last:
                    following = replace(each, stage=each.stage + 1)
                    following.start(environment)
                    running.append(following)
                else:
                    places.append(each.gpu)
                    if failure is None:
                        quickest = min(quickest or took, took)
                    else:
                        failed.append(failure)
                print(f"{took:7.1f} s  {failure or each.planned.path}", flush=True)
    finally:
        running = [each for each in running if each.process is not None]
        stop(running)
        for each in running:
            if each.started.returncode == 0:  # it finished before it could be stopped
                settle(each, jobs - 1, commit)
    return failed


def settle(run: Running, sharing: int, commit: str | None) -> str | None:
    """Keep the records of a run after its last command; returns a line about a failed command.

    Args:
        run: the run, whose current command has ended.
        sharing: maximum number of other runs on the same device.
        commit: commit of the source.
    """
    if run.started.returncode:
        lines = run.log.read_text(errors="replace").strip().splitlines()
        return f"{' '.join(run.planned.commands()[run.stage][2:])}: {lines[-1] if lines else 'no output'} ({run.log})"
    if run.last:
        keep_in_study(run.planned.path, run.planned.kept, sharing, commit)
    return None


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
