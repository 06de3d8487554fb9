"""task=study study=NAME: train the missing runs of a study on all visible GPUs, and summarise the records."""

import shlex
import time
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ..core.cores import on_all_cores
from ..core.errors import UserError
from ..core.whole_files import write_text
from ..core.words import plural
from ..session.command import Command
from ..session.overrides import as_setting
from ..session.task import Task
from ..session.trust import trusted
from ..studying.catalogue import STUDIES, folder_of, recorded, studies
from ..studying.figures import write_figures
from ..studying.front_page import MARKS, PAGE, front_page, small_models
from ..studying.outcomes import Outcome, read_outcome
from ..studying.packing import pack
from ..studying.readme import README, with_table
from ..studying.summary import write_summary
from .options import StudyOptions

ALL = "all"
REMEDY = "to train on the data here, copy study.yaml to a new folder"


class Study(Task):
    """Train the runs in a study's list that have no records yet, in the order of the list.

    Each visible GPU trains `jobs` runs at a time. If a run uses several GPUs (trainer.devices), `jobs` is the total
    number of runs, and each sees all GPUs. Runs that share a GPU take turns; NVIDIA's MPS (start it with
    `nvidia-cuda-mps-control -d`) lets small runs execute concurrently. A process trains up to `seeds` runs in turn that
    differ only in their seeds, or points of a search. If the list has a `search`, it chooses settings on the validation
    split first, and its results are added to `STUDY/tuning.csv`; runs whose search has ended come before other
    searches. Runs with kept records are not repeated, even if the records are of other data, which are then named, and
    stopped runs are resumed. Records are kept in `STUDY/runs` as runs finish or diverge, and packed at the end. Those
    found at the start are packed first.

    Args:
        options: fields of `StudyOptions`.
    """

    needs = "nothing"
    resumes = True
    reads = "study", "runs", "stores"

    def __init__(self, **options: Any):
        given = StudyOptions(**options)
        if given.study is None:
            raise UserError(f"study=null: give one of {', '.join(studies())}, or a folder with a study.yaml")
        if given.check and given.study != ALL:
            raise ValueError("check=true: README's table covers all studies: add `study=all`")
        if given.study == ALL and not (given.report or given.check):
            raise UserError("study=all: set task.report=true or task.check=true as well, or name one study to train")
        self.study, self.jobs, self.seeds, self.limit = given.study, given.jobs, given.seeds, given.limit
        self.settings, self.commit = given.settings or {}, given.commit
        self.dry, self.report, self.check = given.dry, given.report, given.check

    def __call__(self, session: Command) -> None:
        if self.check:
            _check_readme()
        elif self.study == ALL:
            _report_all(session)
        else:
            folder = folder_of(self.study, self.dry)
            if self.report:
                _report(session, folder)
            else:
                self._train(session, folder)

    def _train(self, session: Command, folder: Path) -> None:
        from ..studying.jobs import Job, Planned  # late: these modules import PyTorch, which reports do not need
        from ..studying.planning import plan
        from ..studying.running import execute, gpus_for
        from ..studying.searching import Searched

        runs, stores = Path(session.config["runs"]), session.config["stores"]
        settings = [as_setting(key, value) for key, value in self.settings.items()]
        if stores != "data":
            settings.append(as_setting("stores", stores))
        if trusted():
            settings.append(f"trust=[{','.join(trusted())}]")
        packed = not self.dry and pack(folder) > 0  # records of another machine, which this one may be unable to train
        faults = _faults(session, folder) if packed else []  # told at the end, because the other runs can be trained
        end = time.monotonic() + (float("inf") if self.limit is None else self.limit)
        own = session.own_files
        planned = plan(folder, runs, settings, own_files=own)
        todo = [each for each in planned if not each.finished]
        searches = [each for each in planned if isinstance(each, Searched)]
        finished = len(planned) - len(todo)
        done = f"{finished} of {len(planned)} runs are finished"
        if searches:
            waiting, ready = sum(each.waiting for each in searches), len(planned) - len(searches)
            done = f"searches to do: {len(searches)}, before the {plural(waiting, 'run')} whose settings they choose"
            done += f"; of {plural(ready, 'other run')}, {finished} are finished" if ready else ""
        session.console.print(done)
        for differing, count in Counter(each.other_data for each in planned if isinstance(each, Planned)).items():
            if differing:
                session.console.print(f"{count} of them with other data ({differing}): {REMEDY}")
        if self.dry:
            for each in planned:
                state = "finished" if each.finished else "to do   "
                session.console.print(state, shlex.join([*each.flags, *each.settings]))
            return

        known = {each.path for each in planned}  # so that nothing is trained or searched twice

        def after(job: Job) -> list[Job]:
            found = plan(folder, runs, settings, job.run, own) if isinstance(job, Searched) else []
            new = [each for each in found if not (each.finished or each.path in known)]
            known.update(each.path for each in new)
            return new

        limit, gpus = max(0.0, end - time.monotonic()), gpus_for(todo)
        failed = execute(todo, self.jobs, runs / "logs", limit, self.commit, gpus, self.seeds, after)
        if pack(folder) or not (todo or packed):  # the question or the claims may have changed
            faults = _faults(session, folder)
        if searches:  # those that have ended are runs by now
            planned = plan(folder, runs, settings, own_files=own)
        if left := sum(not each.finished for each in planned):
            what = "runs and searches" if any(isinstance(each, Searched) for each in planned) else "runs"
            unfinished = f"{left} of {len(planned)} {what} are not finished: rerun the command to resume"
            faults = [unfinished, *dict.fromkeys(failed), *faults]
        if faults:
            raise UserError("\n".join(faults))


def _report(session: Command, folder: Path) -> None:
    write_summary(folder)
    session.console.print(f"wrote {folder / 'README.md'}")


def _faults(session: Command, folder: Path) -> list[str]:
    """Write the page of a study. Returns why it could not be written, if so."""
    try:
        _report(session, folder)
    except UserError as error:
        return [str(error)]
    return []


def _report_all(session: Command) -> None:
    before = README.read_text(encoding="utf-8")
    outcomes = of_all(write_summary)
    pages = _pages(before, outcomes)
    for path, text in pages.items():
        write_text(path, text)
    written = " and ".join(map(str, pages))
    session.console.print(f"wrote {written}, and the READMEs of {len(outcomes)} studies")
    for path in write_figures():
        session.console.print(f"wrote {path}")


def of_all(make: Callable[[Path], Outcome]) -> dict[str, Outcome]:
    """What `make` returns for the folder of each kept study, by name."""
    names = recorded()
    folders = [STUDIES / name for name in names]
    made = on_all_cores(make, folders, lambda folder: sum(file.stat().st_size for file in folder.glob("*")))
    return dict(zip(names, made, strict=True))


def _check_readme() -> None:
    for path, text in _pages(README.read_text(encoding="utf-8"), of_all(read_outcome)).items():
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            raise UserError(
                f"{path} does not match the records: run python main.py task=study study=all task.report=true"
            )


def _pages(readme: str, outcomes: Mapping[str, Outcome]) -> dict[Path, str]:
    """The text of the repository's README, updated from `readme`, and of the page of all studies."""
    planned = [name for name in studies() if name not in outcomes]
    return {README: with_table(readme, *MARKS, small_models(outcomes)), PAGE: front_page(outcomes, planned)}
