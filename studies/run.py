"""Train what a study still lacks, on every GPU that is visible, and keep the records of the runs that finish.

    python -m bearings.studies.run jsb
    python -m bearings.studies.run jsb --jobs 4 --limit 420 domain.path=Jsb16thSeparated.json

`studies/STUDY/study.yaml` lists the runs in order of worth, each line as `python main.py -m` takes it, and what follows
each; a folder of yours with such a list does too. Every visible GPU has `--jobs` runs at a time; where a run takes
several GPUs itself (trainer.devices), there are `--jobs` in all, and each sees all GPUs. Runs that share a GPU take
turns on it; with NVIDIA's MPS (`nvidia-cuda-mps-control -d`, before the study) small ones run side by side. A run whose
records are kept in `studies/STUDY/runs` is not run again; one that was stopped goes on. Settings behind the name go to
every run; they say where and how it is made, and none may change what it finds.
"""

import argparse
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from hydra import compose, initialize_config_dir
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from omegaconf import open_dict
from omegaconf.errors import OmegaConfBaseException

from ..core.errors import UserError
from ..reporting.planned import LIST, expanded, read_list
from ..session.configuration import CONFIGS, asked, explain, one_line_errors
from ..session.run_directory import INCIDENTAL, RunDirectory, choices_for, key_of
from ..session.session import Session
from ..session.trust import trusting
from ..tasks.keep import keep_run

SEED = re.compile(r"seed=(0|[1-9]\d{0,17})")
HERE = Path(__file__).parent
MAIN = HERE.parent / "main.py"
GRACE_S = 15.0  # for a stopped run to write its checkpoint


@dataclass
class Planned:
    """One run of a study: its settings, its directory, where its records go, and the commands that follow it.

    `alone` says whether it takes one device.
    """

    settings: Sequence[str]
    path: Path
    kept: Path
    then: Sequence[str] = ()
    alone: bool = True

    @property
    def finished(self) -> bool:
        """Whether its records are kept, which they are once every command has succeeded."""
        return (self.kept / "manifest.json").exists()

    def commands(self) -> list[list[str]]:
        """What is to be run, one after the other."""
        trust = [setting for setting in self.settings if key_of(setting) == "trust"]
        follow = ([*line.split(), *trust, f"run={self.path}"] for line in self.then)
        return [[sys.executable, str(MAIN), *given] for given in (self.settings, *follow)]


@dataclass
class Running:
    """A run's process, of its command number `stage`, on the GPU of that name, or where its environment says."""

    planned: Planned
    log: Path
    gpu: str | None = None
    stage: int = 0
    began: float = field(default_factory=time.monotonic)
    process: subprocess.Popen | None = None

    @property
    def last(self) -> bool:
        """Whether no other command follows."""
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
        """Ask the run to write a checkpoint and end."""
        self.process.terminate()

    def kill(self) -> None:
        """End it with its loader processes."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


def plan(folder: Path, runs: Path, settings: Sequence[str] = ()) -> list[Planned]:
    """The runs of the study in `folder`, in its order; `settings` go to each.

    Raises:
        UserError: no run can have the settings, or they change what runs find; `runs` is where the records are kept; or
            a line of the list cannot be run, which shall not wait until what comes before it has been trained.
    """
    if not (folder / LIST).exists():
        raise UserError(f"{folder}: there is no {LIST}; studies here: {', '.join(studies())}")
    for setting in settings:
        key = key_of(setting)
        group, _, name = key.partition(".")
        if key not in ("stores", "trust") and not (name and group == "task") and name not in INCIDENTAL.get(group, ()):
            raise UserError(
                f"{setting}: it changes what the runs find, whose records would lie among the study's own: add runs to "
                f"{folder / LIST}, or train them with main.py"
            )
    if runs.resolve() == (folder / "runs").resolve():
        raise UserError(
            f"--runs {runs}: this study's records are kept there, where a run that has only begun would pass for a "
            "finished one: name another place, as --runs trained"
        )
    study = read_list(folder)
    found: dict[Path, Planned] = {}
    contents: dict[str, Mapping] = {}  # by the domain's settings: its files are read once
    checked: dict[tuple, Mapping] = {}  # by the settings without a seed: composed and checked once
    follow = study.get("then", ())
    followed: dict[tuple, list[Mapping]] = {}  # by the files that runs are made of: composed once
    with initialize_config_dir(str(CONFIGS), version_base="1.3"):
        for line in study["runs"]:
            for each in expanded(line):
                given = [*each, *settings, f"runs={runs}"]
                unseeded = tuple(setting for setting in given if not SEED.fullmatch(setting))
                if unseeded not in checked:
                    with _named(folder, each):
                        config, _ = _asked(given)
                        domain = repr(config["domain"])
                        checked[unseeded] = Session.of(config | contents.get(domain, {})).config
                        contents[domain] = {"content": checked[unseeded]["content"]}
                seeds = [int(setting.removeprefix("seed=")) for setting in given if SEED.fullmatch(setting)]
                config = checked[unseeded] | ({"seed": seeds[-1]} if seeds else {})
                run = RunDirectory.of(config)
                chosen = tuple(config["names"].items())
                if chosen not in followed:
                    followed[chosen] = [_followed(folder, then, config["names"]) for then in follow]
                for then, configuration in zip(follow, followed[chosen], strict=True):
                    with _named(folder, then.split()):
                        run.configuration_for(configuration, then.split())
                kept = folder / "runs" / run.path.relative_to(runs)
                alone = config["trainer"]["devices"] == config["trainer"]["nodes"] == 1
                found.setdefault(run.path, Planned(given, run.path, kept, [*follow], alone))
    return list(found.values())


def _followed(folder: Path, line: str, names: Mapping[str, str]) -> Mapping:
    """The configuration of a `line` of `then`, in the list in `folder`, that follows a run of these `names`."""
    with _named(folder, line.split()):
        given = line.split()
        config, task = _asked([*given, *choices_for(names, {key_of(each) for each in given})])
        if task.needs != "run":
            raise UserError(f"task={type(task).__name__.lower()} takes no finished run, as lines under then do")
    return config


def _asked(given: list[str]) -> tuple[dict, Any]:
    """The configuration and the task that settings `given` to main.py ask for."""
    config = compose("config", overrides=given, return_hydra_config=True)
    hydra = config.hydra
    with open_dict(config):
        del config["hydra"]
    return asked(config, hydra)


@contextmanager
def _named(folder: Path, line: Sequence[str]) -> Iterator[None]:
    """Name the `line` of the list in `folder` in an error of what it asks for."""
    try:
        yield
    except (UserError, HydraException, OmegaConfBaseException) as error:
        why = error if isinstance(error, UserError) else explain(error)
        raise UserError(f"{folder / LIST}, {' '.join(line)}: {why}") from error


def gpus_for(planned: Sequence[Planned]) -> list[str | None]:
    """Names of the visible GPUs, among which runs are dealt out; None alone where they are not."""
    given = os.environ.get("CUDA_VISIBLE_DEVICES")
    count = torch.cuda.device_count()
    names = [str(gpu) for gpu in range(count)] if given is None else given.split(",")[:count]
    return names if names and all(each.alone for each in planned) else [None]


def execute(
    todo: Sequence[Planned],
    jobs: int,
    logs: Path,
    limit: float = float("inf"),
    commit: str | None = None,
    gpus: Sequence[str | None] = (None,),
) -> list[str]:
    """Run `jobs` at a time on each of `gpus` in the given order until all are done or `limit` seconds have passed.

    At the limit, or when interrupted, every run is asked to stop, so that it can be gone on with. A run is not begun
    when less time is left than the quickest so far has taken.

    Returns:
        Lines about runs that failed.
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
                print(f"began      {planned.path}, log {log}", flush=True)
            if not running:
                break
            time.sleep(0.2)
            for each in [each for each in running if each.process.poll() is not None]:
                running.remove(each)  # what goes wrong with it now shall not be tried again below
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
            if each.process.returncode == 0:  # it was in its last moments
                settle(each, jobs - 1, commit)
    return failed


def settle(run: Running, beside: int, commit: str | None) -> str | None:
    """Keep the records of a run whose last command has ended, up to `beside` others with it; or say what failed."""
    if run.process.returncode:
        lines = run.log.read_text(errors="replace").strip().splitlines()
        return f"{' '.join(run.planned.commands()[run.stage][2:])}: {lines[-1] if lines else 'no output'} ({run.log})"
    if run.last:
        keep_run(run.planned.path, run.planned.kept, beside, commit)
    return None


def stop(running: Sequence[Running]) -> None:
    """End processes, first kindly."""
    for each in running:
        each.stop()
    end = time.monotonic() + GRACE_S
    for each in running:
        try:
            each.process.wait(max(0.0, end - time.monotonic()))
        except subprocess.TimeoutExpired:
            each.kill()


def studies() -> list[str]:
    """Names of the studies in this folder."""
    return sorted(file.parent.name for file in HERE.glob(f"*/{LIST}"))


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("study", help=f"a folder with a study.yaml, or one of {', '.join(studies())}")
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time on a GPU: small ones leave it idle")
    parser.add_argument("--limit", type=float, default=float("inf"), help="seconds, after which what runs is stopped")
    parser.add_argument("--runs", type=Path, default=Path("runs"), help="where runs with their checkpoints lie")
    parser.add_argument("--commit", help="of the source tree, where it is not a git checkout")
    parser.add_argument("--dry", action="store_true", help="list the runs and whether they are finished")
    parser.add_argument("settings", nargs="*", help="of every run, such as domain.path=FILE")
    arguments = parser.parse_intermixed_args()
    for sent in (signal.SIGINT, signal.SIGTERM):  # SIGINT too, which a shell's background processes ignore
        signal.signal(sent, signal.default_int_handler)
    trust = [setting for setting in arguments.settings if key_of(setting) == "trust"]
    with one_line_errors(), trusting(OverridesParser.create().parse_overrides(trust)[-1].value() if trust else None):
        if arguments.jobs < 1:
            raise UserError(f"--jobs {arguments.jobs}: at least one run at a time is needed")
        folder = HERE / arguments.study if arguments.study in studies() else Path(arguments.study)
        planned = plan(folder, arguments.runs, arguments.settings)
        todo = [each for each in planned if not each.finished]
        print(f"{len(planned) - len(todo)} of {len(planned)} runs are finished", flush=True)
        if arguments.dry:
            for each in planned:
                print("finished" if each.finished else "to do   ", " ".join(each.settings))
            return
        logs, gpus = arguments.runs / "logs", gpus_for(todo)
        failed = execute(todo, arguments.jobs, logs, arguments.limit, arguments.commit, gpus)
        left = sum(not each.finished for each in planned)
        if left:
            raise UserError(
                "\n".join([f"{left} of {len(planned)} runs are not finished: the same command goes on", *failed])
            )


if __name__ == "__main__":
    main()
