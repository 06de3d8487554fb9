"""task=report: compare runs in tables, plots and one page, from their records and without a GPU."""

import errno
import gc
import glob
import os
import shutil
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from itertools import chain, count
from pathlib import Path
from typing import Any
from urllib.parse import quote

from filelock import FileLock, Timeout
from rich.padding import Padding

from ..core.errors import UserError, nearest
from ..core.whole_files import written_whole
from ..reporting import plots
from ..reporting.answers import Answer, answers
from ..reporting.attention import attention_plot, distinction_plot, positions_plot, sinks_table
from ..reporting.bands import bands_plot
from ..reporting.baselines import baselines_of
from ..reporting.differences import difference_table
from ..reporting.drawing import Plot
from ..reporting.forest import forest_plot
from ..reporting.legible import legible, noted, references_of
from ..reporting.lengths import files_table, lengths_of, names_of, split_table
from ..reporting.mechanisms import portrait_plots
from ..reporting.page import Section, is_page, write_page
from ..reporting.reading import read_study
from ..reporting.remarks import comparison_notes, costs, counted_verdicts, failures, remarks, validation_losses
from ..reporting.runs import runs_table
from ..reporting.sample_drift import drift_plot
from ..reporting.sample_metrics import metrics_of, metrics_table
from ..reporting.samples import distinct, samples_of
from ..reporting.score_tables import across_table, domain_table
from ..reporting.scores import Score, study_scores
from ..reporting.study import Study, file_name
from ..reporting.tables import Table, as_markdown, write_csv
from ..reporting.variants import variants_of, variants_table
from ..reporting.zero_shot import zero_shot_tables
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
        self.directories, self.out = given.directories, Path(os.path.expanduser(given.out))
        self.reference, self.margin = given.reference, given.margin

    def __call__(self, session: Command) -> None:
        folders = [Path(os.path.expanduser(folder)) for folder in self.directories or [session.config["runs"]]]
        self._show(session, *self.write(folders, Path(session.config["stores"])))

    def write(self, folders: Sequence[Path], stores: Path) -> tuple[Study, list[Section], list[Answer]]:
        """Write the report of the runs in `folders`.

        Args:
            stores: folder of the token stores, which are read if no run has kept its baselines.

        Raises:
            UserError: there are no runs, the reference is unknown, or `task.out` holds other files.
        """
        self._refuse_other_files()
        study = read_study(folders)
        gc.freeze()  # records are kept to the end; without this, each collection after a few figures visits them all
        models = (each for comparison in study.comparisons for each in comparison.contestants)
        known = {*choices_of("encoding"), *(name for each in models for name in (each.encoding, each.label))}
        if self.reference not in known:
            allowed = ", ".join(sorted(known))
            raise UserError(f"task.reference={self.reference}: {nearest(self.reference, known)}allowed: {allowed}")
        self.out.parent.mkdir(parents=True, exist_ok=True)
        remove_abandoned(self.out)
        temporary = tempfile.TemporaryDirectory(
            prefix=f".{self.out.name}.", dir=self.out.parent, ignore_cleanup_errors=True
        )
        with temporary as place, FileLock(Path(place) / LOCK):
            making = Path(place) / "making"
            for name in ("tables", "plots"):
                (making / name).mkdir(parents=True)
            found = study_scores(study, self.reference, self.margin)
            sections, results = self._sections(study, found, making / "plots", stores), answers(found, self.reference)
            for section in sections:
                for table in section.tables:
                    table.write(making / "tables")
            write_csv(making / "left-out.csv", [vars(trouble) for trouble in study.troubles])
            with written_whole(making / "report.md") as file:
                file.write(self._markdown(study, sections, results))
            write_page(making / "index.html", study, _shown(study, sections), results, remarks())
            put(making, self.out)
        return study, sections, results

    def _sections(self, study: Study, found: Sequence[Score], folder: Path, stores: Path) -> list[Section]:
        """A section for all comparisons together, and one for each comparison."""
        sections, kept, legend = [], {}, study.legend()
        smaller = [legible(comparison, found) for comparison in study.comparisons]
        styles = plots.styles_of(smaller)
        for comparison, pictured in zip(study.comparisons, smaller, strict=True):
            references = references_of(comparison, found)
            shown: list[Table | None] = []
            drawn: list[Plot | None] = []
            findings = {f"{comparison.slug}-loss": validation_losses(pictured)}
            for split in comparison.splits:
                here = [score for score in found if score.comparison is comparison and score.split == split]
                baselines, absent = baselines_of(comparison, split, study.runs, stores)
                notes = comparison_notes(comparison, split, self.reference, self.margin)
                notes += [absent] if absent else []
                shown += [domain_table(here, baselines, notes), difference_table(here)]
                stem = folder / f"{comparison.slug}-{split}-forest"
                drawn.append(forest_plot(here, stem, f"{comparison.name}, {split} split: differences"))
                findings[stem.name] = " ".join(answer.sentence for answer in answers(here, self.reference))
                stem, title = folder / f"{comparison.slug}-{split}-cost", f"{comparison.name}, {split} split: cost"
                drawn.append(plots.cost_plot(here, styles, stem, title))
                findings[stem.name] = costs(here)
                if measured := lengths_of(comparison, split):
                    shown.append(table := split_table(comparison, split, measured))
                    drawn.append(plots.lengths_plot(measured, styles, folder / table.slug, table.title, references))
                    findings[table.slug] = failures(table)
                kept[comparison.slug, split] = baselines
            shown += zero_shot_tables(comparison, self.reference)
            shown.append(runs_table(comparison))
            of_few = (
                plots.loss_plot,
                plots.diagnostics_plot,
                attention_plot,
                positions_plot,
                distinction_plot,
                bands_plot,
            )
            drawn += [noted(draw(pictured, styles, folder), pictured, comparison) for draw in of_few]
            shown.append(sinks_table(comparison))
            for contestant in pictured.contestants:
                drawn += portrait_plots(contestant, comparison, folder)
            for name in names_of(comparison):
                shown.append(table := files_table(comparison, name, measured := lengths_of(comparison, name)))
                drawn.append(plots.lengths_plot(measured, styles, folder / table.slug, table.title, references))
                findings[table.slug] = failures(table)
            for name, effects in variants_of(comparison).items():
                models = [each.label for each in comparison.chosen if each.called(self.reference)]
                reference = next((label for label in models if label in effects), None)
                slug, title = f"{comparison.slug}-{file_name(name)}", f"{comparison.name}: effects of variants, {name}"
                shown.append(variants_table(effects, reference, title, slug))
            for settings, measured in metrics_of(comparison).items():
                slug = f"{comparison.slug}-samples-{file_name(settings)}"
                title = f"{comparison.name}: samples against the test split ({settings})"
                shown.append(metrics_table(measured, comparison.measures, title, slug))
                if few := {model: rows for model, rows in measured.items() if model in styles}:
                    drawn.append(drift_plot(few, comparison.measures, styles, folder / slug, f"{title}, by position"))
            samples = distinct(chain.from_iterable(map(samples_of, comparison.contestants)))
            description = legend.get(comparison.name, "")
            sections.append(
                Section(
                    comparison.slug, comparison.name, description, _present(shown), _present(drawn), samples, findings
                )
            )
        if found:
            forest = forest_plot(found, folder / "across-forest", "Differences of all comparisons", percent=True)
            table, findings = across_table(found, kept), {"across-forest": counted_verdicts(found)}
            across = Section("across", "Overview", "", [table], _present([forest]), [], findings)
            sections.insert(0, across)
        return sections

    def _markdown(self, study: Study, sections: Sequence[Section], results: Sequence[Answer]) -> str:
        parts = ["# Report\n", "## Results\n", *(f"- {as_markdown(each.sentence)}" for each in results), ""]
        for section in _shown(study, sections):
            parts.append(f"## {as_markdown(section.title)}\n")
            if section.description:
                parts.append(f"{as_markdown(section.description)}\n")
            parts += [table.markdown() for table in section.tables]
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

    def _refuse_other_files(self) -> None:
        if self.out.exists():
            inside = {path.name for path in self.out.iterdir()} if self.out.is_dir() else {self.out.name}
            if inside and (inside - FILES or not is_page(self.out / "index.html")):
                raise UserError(f"task.out={self.out}: the folder holds other files; choose a new or empty folder")

    def _show(self, session: Command, study: Study, sections: Sequence[Section], results: Sequence[Answer]) -> None:
        console = session.console
        for trouble in study.troubles:
            console.print(f"{trouble.state}: {trouble.place}, {trouble.why}", soft_wrap=True)
        for section in sections[:1]:
            console.print(section.tables[0].on_console(BRIEF, groups=("domain", "split")))
            console.print()
        for line in study.legend().values():
            console.print(line, soft_wrap=True)
        for result in results:
            console.print(result.name)
            for clause in result.clauses:
                console.print(Padding(clause, (0, 0, 0, 2), expand=False))
        console.print(f"wrote {self.out / 'index.html'}, with report.md, tables/ and plots/", soft_wrap=True)


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


def _present(found: list) -> list:
    return [each for each in found if each is not None]
