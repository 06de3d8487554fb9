"""What a report shows: a section of tables, plots and samples for each comparison, and one for all together."""

from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path

from ..core.cores import on_all_cores
from . import plots
from .answers import answers
from .attention import attention_plot, distinction_plot, positions_plot, sinks_table
from .bands import bands_plot
from .baselines import baselines_of
from .differences import difference_table
from .drawing import Plot
from .errors import errors_plot
from .forest import forest_plot
from .legible import legible, noted, references_of, which
from .length_plots import lengths_plot
from .lengths import files_table, lengths_of, names_of, split_table
from .mechanisms import portrait_plots
from .naming import file_name
from .page import Section
from .ranking import ranking_of, ranking_plot, ranking_table
from .remarks import comparison_notes, costs, counted_verdicts, failures, validation_losses
from .runs import runs_table
from .sample_drift import drift_plot
from .sample_metrics import metrics_of, metrics_table
from .samples import FILES, TOGETHER, distinct, samples_of
from .score_tables import across_table, domain_table, subsets_table
from .scores import Score
from .study import Comparison, Study
from .tables import Table
from .take_off import take_off_plot, take_off_tables
from .variants import variants_of, variants_table
from .zero_shot import zero_shot_tables

MOST_ACROSS = 100  # differences in the plot of all comparisons; the table has all of them


class Sections:
    """Makes the sections of a report, and writes their plots and tables to `folder`/plots and `folder`/tables.

    Args:
        found: the study's scores.
        reference: the encoding or label that the others are compared with.
        margin: margin of equivalence in nats/token; None for that of each comparison.
        stores: folder of the token stores, which are read if no run has kept its baselines.
    """

    def __init__(
        self, study: Study, found: Sequence[Score], reference: str, margin: float | None, folder: Path, stores: Path
    ):
        self._comparisons, self._legend = study.comparisons, study.legend()
        self._plots, self._tables = folder / "plots", folder / "tables"
        self._take_offs = take_off_tables(study, reference)
        self._found, self._reference, self._margin = found, reference, margin
        self._pictured = [legible(comparison, found) for comparison in study.comparisons]
        self._styles = plots.styles_of([each.labels for each in self._pictured])
        self._baselines = {
            (comparison.slug, split): baselines_of(comparison, split, study.runs, stores)
            for comparison in study.comparisons
            for split in comparison.splits
        }

    def all(self) -> list[Section]:
        """The overview, if there are scores, and a section for each comparison.

        Raises:
            UserError: a process that makes sections was killed.
        """
        numbers = [*([None] if self._found else []), *range(len(self._comparisons))]
        return on_all_cores(self._section, numbers, self._size)

    def _size(self, number: int | None) -> int:
        """How many models a section shows. The overview has all scores."""
        return len(self._found) if number is None else len(self._comparisons[number].contestants)

    def _section(self, number: int | None) -> Section:
        """The section of a comparison, or the overview if `number` is None."""
        if number is None:
            section = self._overview()
        else:
            section = self._compared(self._comparisons[number], self._pictured[number], self._styles[number])
        for table in section.tables:
            table.write(self._tables)
        return section

    def _overview(self) -> Section:
        baselines = {key: each for key, (each, _) in self._baselines.items()}
        stem, title = self._plots / "across-forest", "Differences of all comparisons"
        forest = forest_plot(self._found, stem, title, percent=True, most=MOST_ACROSS)
        tables, drawn = [across_table(self._found, baselines)], [forest, errors_plot(self._comparisons, self._plots)]
        findings = {"across-forest": counted_verdicts(self._found)}
        if ranking := ranking_of(self._found):
            tables.append(table := ranking_table(ranking))
            drawn.append(ranking_plot(ranking, self._plots))
            findings[table.slug] = ranking.finding
        return Section("across", "Overview", "", tables, _present(drawn), [], findings)

    def _compared(self, comparison: Comparison, pictured: Comparison, styles: Mapping[str, dict]) -> Section:
        folder = self._plots
        references = references_of(comparison, self._found)
        shown: list[Table | None] = []
        drawn: list[Plot | None] = []
        findings = {f"{comparison.slug}-loss": validation_losses(pictured)}
        for split in comparison.splits:
            here = [score for score in self._found if score.comparison is comparison and score.split == split]
            baselines, absent = self._baselines[comparison.slug, split]
            notes = comparison_notes(comparison, split, self._reference, self._margin)
            notes += [absent] if absent else []
            shown += [domain_table(here, baselines, notes), difference_table(here)]
            shown.append(subsets_table(comparison, split, self._reference))
            stem = folder / f"{comparison.slug}-{split}-forest"
            drawn.append(forest_plot(here, stem, f"{comparison.name}, {split} split: differences"))
            findings[stem.name] = " ".join(answer.sentence for answer in answers(here, self._reference))
            stem, title = folder / f"{comparison.slug}-{split}-cost", f"{comparison.name}, {split} split: cost"
            drawn.append(plots.cost_plot(here, styles, stem, title))
            findings[stem.name] = costs(here)
            if measured := lengths_of(comparison, split):
                shown.append(table := split_table(comparison, split, measured))
                drawn.append(lengths_plot(measured, styles, folder / table.slug, table.title, references))
                findings[table.slug] = failures(table)
        shown += zero_shot_tables(comparison, self._reference)
        shown.append(runs_table(comparison))
        shown.append(self._take_offs.get(comparison.name))
        of_few = (
            take_off_plot,
            plots.loss_plot,
            plots.diagnostics_plot,
            attention_plot,
            positions_plot,
            distinction_plot,
            bands_plot,
        )
        drawn += [noted(draw(pictured, styles, folder), pictured, comparison) for draw in of_few]
        shown.append(sinks_table(comparison))
        drawn += portrait_plots(pictured, styles, folder)
        for name in names_of(comparison):
            shown.append(table := files_table(comparison, name, measured := lengths_of(comparison, name)))
            drawn.append(lengths_plot(measured, styles, folder / table.slug, table.title, references))
            findings[table.slug] = failures(table)
        for name, effects in variants_of(comparison).items():
            reference = next((label for label in references if label in effects), None)
            slug, title = f"{comparison.slug}-{file_name(name)}", f"{comparison.name}: effects of variants, {name}"
            shown.append(variants_table(effects, reference, title, slug))
        for settings, measured in metrics_of(comparison).items():
            slug = f"{comparison.slug}-samples-{file_name(settings)}"
            title = f"{comparison.name}: samples against the test split ({settings})"
            shown.append(metrics_table(measured, comparison.measures, title, slug))
            if few := {model: rows for model, rows in measured.items() if model in styles}:
                drawn.append(drift_plot(few, comparison.measures, styles, folder / slug, f"{title}, by position"))
        most = max(1, min(FILES, TOGETHER // len(pictured.contestants)))
        samples = distinct(chain.from_iterable(samples_of(each, most) for each in pictured.contestants))
        of = "" if pictured is comparison else which(len(pictured.contestants), len(comparison.contestants))
        description = self._legend.get(comparison.name, "")
        return Section(
            comparison.slug, comparison.name, description, _present(shown), _present(drawn), samples, findings, of
        )


def _present(found: list) -> list:
    return [each for each in found if each is not None]
