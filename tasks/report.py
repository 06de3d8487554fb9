"""task=report: compare runs in tables, plots and one page, from their records and without a GPU."""

import errno
import gc
import glob
import os
import shutil
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import fields
from itertools import count
from pathlib import Path
from typing import Any
from urllib.parse import quote

from filelock import FileLock, Timeout
from rich.padding import Padding

from ..core.errors import UserError, suggestions
from ..core.options import as_path
from ..core.whole_files import write_text
from ..reporting.answers import Answer, answers
from ..reporting.page import Section, is_page, write_page
from ..reporting.reading import read_study
from ..reporting.remarks import remarks
from ..reporting.scores import study_scores
from ..reporting.sections import Sections
from ..reporting.study import Study, Trouble
from ..reporting.tables import as_markdown, write_csv
from ..session.command import Command
from ..session.overrides import choices_of
from ..session.task import Task
from .options import ReportOptions

FILES = {"index.html", "report.md", "left-out.csv", "tables", "plots"}
LOCK = ".lock"  # in the temporary folder of a report
BRIEF = ("model", "solved", "nats_per_token", "difference", "holm_p", "verdict")  # columns on a terminal


class Report(Task):
    """Compare all finished runs in the given folders, and list the others.

    Args:
        options: fields of `ReportOptions`.
    """

    needs = "nothing"
    reads = "runs", "stores"

    def __init__(self, **options: Any):
        given = ReportOptions(**options)
        self.directories, self.out = given.directories, as_path(given.out)
        self.reference, self.margin = given.reference, given.margin

    def __call__(self, session: Command) -> None:
        folders = [as_path(folder) for folder in self.directories or [session.config["runs"]]]
        self._show(session, *self.write(folders, Path(session.config["stores"])))

    def write(self, folders: Sequence[Path], stores: Path) -> tuple[Study, list[Section], list[Answer]]:
        """Write the report of the runs in `folders`.

        Args:
            stores: folder of the token stores, which are read if no run has kept its baselines.

        Raises:
            UserError: there are no runs, the reference is unknown, or `task.out` holds other files.
        """
        out = Path(os.path.realpath(self.out))  # the folder is replaced, not a link to it
        self._refuse_other_files(out)
        study = read_study(folders)
        gc.freeze()  # records are kept to the end; without this, each collection after a few figures visits them all
        models = (each for comparison in study.comparisons for each in comparison.contestants)
        known = {*choices_of("encoding"), *(name for each in models for name in (each.encoding, each.label))}
        if self.reference not in known:
            raise UserError(f"task.reference={self.reference}: {suggestions(self.reference, sorted(known))}")
        out.parent.mkdir(parents=True, exist_ok=True)
        remove_abandoned(out)
        temporary = tempfile.TemporaryDirectory(prefix=f".{out.name}.", dir=out.parent, ignore_cleanup_errors=True)
        with temporary as place, FileLock(Path(place) / LOCK):
            making = Path(place) / "making"
            for name in ("tables", "plots"):
                (making / name).mkdir(parents=True)
            found = study_scores(study, self.reference, self.margin)
            sections = Sections(study, found, self.reference, self.margin, making, stores).all()
            results = answers(found, self.reference)
            named = [field.name for field in fields(Trouble)]
            write_csv(making / "left-out.csv", [vars(trouble) for trouble in study.troubles], named)
            write_text(making / "report.md", self._markdown(study, sections, results, making / "tables"))
            write_page(making / "index.html", study, _shown(study, sections), results, remarks())
            put(making, out)
        return study, sections, results

    def _markdown(self, study: Study, sections: Sequence[Section], results: Sequence[Answer], tables: Path) -> str:
        """report.md, with the tables that are in the folder `tables`."""
        parts = ["# Report\n", "## Results\n", *(f"- {as_markdown(each.sentence)}" for each in results), ""]
        for section in _shown(study, sections):
            parts.append(f"## {as_markdown(section.title)}\n")
            if section.description:
                parts.append(f"{as_markdown(section.description)}\n")
            parts += [(tables / f"{table.slug}.md").read_text(encoding="utf-8") for table in section.tables]
            for plot in section.plots:
                title, file = as_markdown(plot.title), quote(plot.stem.name, safe="=+")
                parts.append(f"![{title}](plots/{file}.svg)\n\n{title}. {as_markdown(plot.caption)}\n")
        if study.troubles:
            lines = (f"{trouble.place}: {trouble.state}, {trouble.why}" for trouble in study.troubles)
            parts += ["## Runs not in the tables\n", *(f"- {as_markdown(line)}" for line in lines), ""]
        if legend := study.legend():
            parts += ["## How the comparisons differ\n", *(f"- {as_markdown(line)}" for line in legend.values()), ""]
        parts += ["## How to read the results\n", *(f"- {line}" for line in remarks()), ""]
        return "\n".join(parts)

    def _refuse_other_files(self, out: Path) -> None:
        if out.exists():
            inside = {path.name for path in out.iterdir()} if out.is_dir() else {out.name}
            if inside and (inside - FILES or not is_page(out / "index.html")):
                raise UserError(f"task.out={self.out}: the folder holds other files; choose a new or empty folder")

    def _show(self, session: Command, study: Study, sections: Sequence[Section], results: Sequence[Answer]) -> None:
        console = session.console
        for trouble in study.troubles:
            console.print(f"{trouble.state}: {trouble.place}, {trouble.why}")
        for section in sections[:1]:
            table, *_ = section.tables
            console.print(table.on_console(BRIEF, groups=("domain", "split")))
            for note in table.notes:
                console.print(note)
            console.print()
        for line in study.legend().values():
            console.print(line)
        for result in results:
            console.print(result.name)
            for clause in result.clauses:
                console.print(Padding(clause, (0, 0, 0, 2), expand=False))
        console.print(f"wrote {self.out / 'index.html'}, with report.md, tables/ and plots/")


def remove_abandoned(out: Path) -> None:
    """Delete temporary folders of killed reports next to `out`. A report that is being written holds its lock."""
    for lock in out.parent.glob(f".{glob.escape(out.name)}.*/{LOCK}"):
        with suppress(Timeout), FileLock(lock, timeout=0):
            shutil.rmtree(lock.parent, ignore_errors=True)


def put(made: Path, out: Path) -> None:
    """Move the folder `made` to `out` and an existing `out` next to `made`, safely for concurrent processes."""
    for number in count():
        with suppress(FileNotFoundError):  # `out` does not exist
            out.replace(made.with_name(f"before-{number}"))
        try:
            made.replace(out)
            return
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):  # another process has written `out` in the meantime
                raise


def _shown(study: Study, sections: Sequence[Section]) -> Sequence[Section]:
    """The sections of the page and of report.md. A single comparison needs no overview, which would repeat it."""
    return sections[1:] if len(study.comparisons) == 1 and len(study.comparisons[0].splits) == 1 else sections
