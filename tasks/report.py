"""task=report: any set of runs as tables, plots and one page; from what the runs keep, without a GPU."""

import errno
import glob
import os
import shutil
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any
from urllib.parse import quote

from filelock import FileLock, Timeout

from ..core.errors import UserError, nearest
from ..core.whole_files import written_whole
from ..reporting import plots, tables
from ..reporting.baselines import baselines_of
from ..reporting.differences import difference_table
from ..reporting.drawing import Plot
from ..reporting.forest import forest_plot
from ..reporting.lengths import lengths_of, lengths_table
from ..reporting.mechanisms import attention_plot, portrait_plots
from ..reporting.page import Section, is_page, write_page
from ..reporting.reading import read_study
from ..reporting.runs import runs_table
from ..reporting.samples import samples_of
from ..reporting.scores import study_scores
from ..reporting.statistics import DOMINANT, FEWEST_CLUSTERS, FEWEST_SEEDS
from ..reporting.study import Comparison, Study
from ..reporting.tables import as_markdown
from ..session.command import Command
from ..session.configuration import choices_of
from ..session.task import Task
from .options import ReportOptions

FILES = {"index.html", "report.md", "left-out.csv", "tables", "plots"}
LOCK = ".lock"  # of a report's temporary folder
BRIEFLY = ("domain", "split", "model", "solved", "nats_per_token", "difference", "holm_p", "verdict")  # on the console


class Report(Task):
    """Compare every finished run under some folders, and list those that are not finished.

    Args:
        options: fields of `ReportOptions`.
    """

    needs = "nothing"

    def __init__(self, **options: Any):
        given = ReportOptions(**options)
        self.directories, self.out = given.directories, Path(os.path.expanduser(given.out))
        self.reference, self.margin = given.reference, given.margin

    def __call__(self, session: Command) -> None:
        folders = [Path(os.path.expanduser(folder)) for folder in self.directories or [session.config["runs"]]]
        study, sections = self.write(folders, Path(session.config["stores"]))
        self._show(session, study, sections)

    def write(self, folders: Sequence[Path], stores: Path) -> tuple[Study, list[Section]]:
        """Write the report of the runs under `folders`; `stores` is where token stores may be, for baselines."""
        self._refuse_other_files()
        study = read_study(folders)
        known = {*choices_of("encoding"), *(run.encoding for run in study.runs)}
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
            sections = self._sections(study, making / "plots", stores)
            for section in sections:
                for table in section.tables:
                    table.write(making / "tables")
            tables.write_csv(making / "left-out.csv", [vars(trouble) for trouble in study.troubles])
            with written_whole(making / "report.md") as file:
                file.write(self._markdown(study, sections))
            write_page(making / "index.html", study, sections, self._remarks())
            put(making, self.out)
        return study, sections

    def _sections(self, study: Study, folder: Path, stores: Path) -> list[Section]:
        sections, kept = [], {}
        styles, found = plots.styles_of(study), study_scores(study, self.reference, self.margin)
        for comparison in study.comparisons:
            shown: list[tables.Table | None] = []
            drawn: list[Plot | None] = [plots.loss_plot(comparison, styles, folder)]
            for split in comparison.splits:
                here = [score for score in found if score.comparison is comparison and score.split == split]
                baselines, absent = baselines_of(comparison, split, study.runs, stores)
                notes = [*self._notes(comparison, split), *([absent] if absent else [])]
                shown += [tables.domain_table(here, baselines, notes), difference_table(here)]
                stem = folder / f"{comparison.slug}-{split}-forest"
                drawn.append(forest_plot(here, stem, f"{comparison.title}, {split} split: differences"))
                stem, title = folder / f"{comparison.slug}-{split}-cost", f"{comparison.title}, {split} split: cost"
                drawn.append(plots.cost_plot(here, styles, stem, title))
                if measured := lengths_of(comparison, split):
                    slug = f"{comparison.slug}-{split}-lengths"
                    title = f"{comparison.title}, {split} split: contexts of other lengths"
                    shown.append(lengths_table(measured, title, slug))
                    drawn.append(plots.lengths_plot(measured, styles, folder / slug, title))
                kept[comparison.slug, split] = baselines
            shown.append(runs_table(comparison))
            drawn.append(plots.diagnostics_plot(comparison, styles, folder))
            drawn.append(attention_plot(comparison, styles, folder))
            for contestant in comparison.contestants:
                drawn += portrait_plots(contestant, comparison, folder)
            samples = [sample for contestant in comparison.contestants for sample in samples_of(contestant)]
            sections.append(Section(comparison.slug, comparison.title, _there(shown), _there(drawn), samples))
        if found:
            forest = forest_plot(found, folder / "across-forest", "Differences across domains", percent=True)
            across = Section("across", "Across domains", [tables.across_table(found, kept)], _there([forest]), [])
            sections.insert(0, across)
        return sections

    def _notes(self, comparison: Comparison, split: str) -> list[str]:
        facts, records = comparison.facts, comparison.any_run.records[split]
        lines = [
            f"{len(records.documents):,} documents in {len(set(records.clusters.tolist())):,} clusters, "
            f"{records.tokens.sum():,} tokens.",
            f"Store sha256 {facts['store.sha256'][:12]}; length {facts['data.length']}; "
            f"{facts['trainer.steps']:,} steps; {facts['trainer.precision']}; on {'; '.join(comparison.devices)}.",
        ]
        if comparison.solved is None:
            margin = comparison.margin if self.margin is None else self.margin
            lines.append(f"Margin of equivalence: {margin:g} nats/token.")
        if len(set(records.tokens.tolist())) > 1:
            means = (f"{each.label} {each.document_mean(split):.4f}" for each in comparison.contestants)
            lines.append(f"Nats/token averaged over documents, as some report them: {', '.join(means)}.")
        if len(comparison.devices) > 1:
            lines.append("The devices differ, and so tokens/s and peak memory are not comparable.")
        if settings := [told for each in comparison.contestants if (told := each.settings_told)]:
            lines.append(f"Settings of encodings that are not their defaults: {'; '.join(settings)}.")
        if not comparison.speeds_comparable:
            lines.append("No tokens/s: some of the runs shared their device with others, or logged none.")
        if not any(contestant.encoding == self.reference for contestant in comparison.contestants):
            lines.append(f"No run of {self.reference} is here, and so there are no differences (task.reference=NAME).")
        if comparison.solved is not None:
            lines.append(
                f"Solved: at least {100 * comparison.solved:g} % right. Take-off: the step of the first validation "
                f"that is at least {100 * comparison.half_way:.3g} % right, half-way from guessing to solving."
            )
        return lines

    def _remarks(self) -> list[str]:
        return [
            "Nats and bits: lower is better. Every target of a split is scored once, with the checkpoint best on "
            "validation. The unigram, Markov and xz baselines need no network. FLOPs are of training, forward and "
            "backward, in rows of full length. Published: what others report of such a model.",
            "The interval of a figure covers other seeds on the same test set, as a published figure does. The "
            "difference decides: its interval and p cover other seeds and other test clusters together. Where the "
            f"table says clusters only, there are fewer than {FEWEST_SEEDS} seeds: the interval covers other test "
            f"clusters for the models as trained, and there is no p. Under {FEWEST_CLUSTERS} clusters there is "
            "neither; unequal clusters count as fewer.",
            "Verdicts are at 5 %, p adjusted by Holm's rule over all differences of a study: the runs under one "
            "study.yaml, or all runs without one. Settings that study.yaml lists as variants are pooled into one "
            "test. No difference: two one-sided tests place it within the margin either way. Undecided: neither is "
            f"shown. One cluster dominates: it makes up more than {100 * DOMINANT:g} % of the spread over clusters, and"
            " the tests with and without it do not both decide. Intervals are not adjusted: one may leave out 0 "
            "where the verdict is undecided.",
            "Learning rates are chosen on validation, for each encoding; only what is chosen is compared. Tasks that"
            " a run solves or does not are compared by how many seeds solve them (Boschloo's exact test), not by "
            "nats.",
        ]

    def _markdown(self, study: Study, sections: list[Section]) -> str:
        parts = ["# Report\n", "\n".join(f"- {remark}" for remark in self._remarks()) + "\n"]
        for section in sections:
            parts += [f"## {as_markdown(section.title)}\n", *(table.markdown() for table in section.tables)]
            for plot in section.plots:
                title, file = as_markdown(plot.title), quote(plot.stem.name, safe="=+")
                parts.append(f"![{title}](plots/{file}.svg)\n\n{title}. {as_markdown(plot.caption)}\n")
        if study.troubles:
            lines = (f"{trouble.place}: {trouble.state}, {trouble.why}" for trouble in study.troubles)
            parts += ["## Not in the tables\n", *(f"- {as_markdown(line)}" for line in lines), ""]
        if apart := study.apart():
            parts += ["## Not mixed\n", *(f"- {as_markdown(line)}" for line in apart), ""]
        return "\n".join(parts)

    def _refuse_other_files(self) -> None:
        if self.out.exists():
            inside = {path.name for path in self.out.iterdir()} if self.out.is_dir() else {self.out.name}
            if inside and (inside - FILES or not is_page(self.out / "index.html")):
                raise UserError(f"task.out={self.out}: something else is there; name a folder of its own")

    def _show(self, session: Command, study: Study, sections: list[Section]) -> None:
        for table in (section.tables[0] for section in sections[:1]):
            session.console.print(table.on_console(BRIEFLY))
        for trouble in study.troubles:
            session.console.print(f"{trouble.state}: {trouble.place}, {trouble.why}", soft_wrap=True)
        for line in study.apart():
            session.console.print(line, soft_wrap=True)
        session.console.print(
            f"wrote {self.out / 'index.html'}, report.md, tables and plots in the same folder", soft_wrap=True
        )


def remove_abandoned(out: Path) -> None:
    """Delete the temporary folders of killed reports next to `out`; a report that is being written holds its lock."""
    for lock in out.parent.glob(f".{glob.escape(out.name)}.*/{LOCK}"):
        with suppress(Timeout), FileLock(lock, timeout=0):
            shutil.rmtree(lock.parent, ignore_errors=True)


def put(made: Path, out: Path) -> None:
    """Move the folder `made` to `out`, and what is there beside it; other processes may do so at the same time."""
    for number in count():
        with suppress(FileNotFoundError):  # nothing is there
            out.replace(made.with_name(f"before-{number}"))
        try:
            made.replace(out)
            return
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):  # another process's is there by now
                raise


def _there(found: list) -> list:
    return [each for each in found if each is not None]
