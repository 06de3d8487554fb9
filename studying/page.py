"""The page of a study, README.md: its results, tables, plots, and the commands that write its files."""

import math
import shlex
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from ..core.words import plural
from ..reporting.answers import LEGEND, answers
from ..reporting.baselines import kept_baselines
from ..reporting.claims import claim_verdicts, claims_table
from ..reporting.drawing import Plot
from ..reporting.legible import MOST, plain
from ..reporting.lengths import files_table, holding, lengths_of, names_of, split_table
from ..reporting.naming import parenthesised
from ..reporting.planned import NO_RECORD, TUNED, unrecorded_values
from ..reporting.power import needed_sentence
from ..reporting.published import nearest_published
from ..reporting.score_tables import CLUSTERS, COST, SOLVING, subsets_table
from ..reporting.scores import Score
from ..reporting.statistics import DOMINANT, FEWEST_SEEDS
from ..reporting.study import MISSING, Comparison, Study
from ..reporting.study_list import LIST, OUTCOMES, read_list, settings_in
from ..reporting.tables import Row, Table, as_markdown, interval, p_value, with_sign
from ..reporting.take_off import take_off_sentence, take_off_tables
from ..reporting.zero_shot import zero_shot_tables
from ..session.overrides import choices_of
from ..session.provenance import packages_of
from .catalogue import studies
from .outcomes import SPEEDS, Measured, Outcome
from .searching import edges_of_grids

MOST_EXTENDED = 60  # rows of a table of contexts; a longer one has no extensions
MOST_ROWS = 8  # of the table; a longer one is in the details
WIDTH = 120  # characters in a line
MODEL = {
    **{"comparison": ("comparison", str), "model": ("model", str)},
    **{key: COST[key] for key in ("flops_per_token", "tokens_per_s", "peak_memory_bytes")},
}
VERDICT = {"holm_p": ("Holm p", p_value), "verdict": ("verdict", str)}
MODELLING = {
    **MODEL,
    "seeds": ("seeds", str),
    "nats_per_token": ("nats/token", "{:.4f}".format),
    "interval": ("95 % interval over seeds", interval("{:.4f}".format)),
    "published": ("published", str),
    "difference": ("difference", with_sign(4)),
    "difference_interval": ("95 % interval of the difference", str),
    **VERDICT,
}
TASKS = {**MODEL, **SOLVING, "published": ("published error", str), **VERDICT}

DETAILS = '<details markdown="1">\n<summary>Details</summary>'  # the attribute is for Python-Markdown
HOLM_NOTE = "Holm p: p-value of the difference, adjusted by Holm's method for all comparisons that the study plans."
CLUSTER_NOTE = (
    f"If one cluster causes more than {100 * DOMINANT:g} % of the variance over clusters, the larger of the p-values "
    "with and without it is adjusted."
)
TAKE_OFF_NOTE = "Take-off: the step of the first validation that is half-way between guessing and solving the task."
CLUSTERS_NOTE = (
    f"{CLUSTERS}: with fewer than {FEWEST_SEEDS} seeds, the interval covers other test clusters for these models."
)


@dataclass(frozen=True)
class Page:
    """What a study's page is made of.

    Attributes:
        folder: the study.
        study: its runs.
        found: its scores.
        measured: see `measured_of`.
        outcome: see `outcome_of`.
        drawn: its plots by file name; the first is on the page, the others are in the details.
    """

    folder: Path
    study: Study
    found: Sequence[Score]
    measured: Sequence[Measured]
    outcome: Outcome
    drawn: Mapping[str, Plot]

    def markdown(self) -> str:
        """The text of README.md."""
        rows = self.outcome.rows if self.outcome.solved is None else self.outcome.solved.rows
        table, short = table_of(self.outcome), len(rows) <= MOST_ROWS
        figure, *others = [_figure(file, plot) for file, plot in self.drawn.items()] or [""]
        details = ["" if short else table, needed_sentence(self.found) or "", *others, *map(_section, self._tables())]
        parts = [
            f"# {self.folder.name}",
            _filled(self._listed.get("question", "")),
            "\n".join(f"- {item}" for item in self._results()),
            LEGEND if any(each.compared is not None for each in self.found) else "",
            *self._left_out(),
            table if short else "",
            *_baselines(self.study, self.found),
            as_markdown(edges_of_grids(self.folder) or ""),
            figure,
            *self._reservations(),
            *([DETAILS, *details, "</details>"] if any(details) else []),
            *_files(self.folder, *self._commands(), searched="search" in self._listed),
        ]
        return "\n\n".join(part for part in parts if part) + "\n"

    @cached_property
    def _listed(self) -> Mapping[str, Any]:
        return read_list(self.folder)

    def _commands(self) -> tuple[str, str]:
        """The commands for missing runs and for a report; they name packages and files that are not this project's."""
        given = ((value, choices_of(key)) for key, value in settings_in(self._listed["runs"]))
        own = " --config-dir=YOUR_FILES" if any(names and value not in names for value, names in given) else ""
        models = [each.any_run.config for comparison in self.study.comparisons for each in comparison.contestants]
        packages = sorted(set().union(*map(packages_of, models)))
        trusted = packages[0] if len(packages) == 1 else f"[{','.join(packages)}]"
        trust = f" {shlex.quote(f'trust={trusted}')}" if packages else ""
        kept = self.folder.name in studies()
        name, place = (self.folder.name, f"studies/{self.folder.name}") if kept else ("FOLDER", "FOLDER")
        return (
            f"python main.py{own} task=study study={name}{trust}",
            f"python main.py task=report task.directories=[{place}]{trust}",
        )

    @cached_property
    def _lengths(self) -> dict[str, Table]:
        """The loss in other context lengths, by comparison."""
        pairs = zip(self.study.comparisons, self.measured, strict=True)
        return {here.name: _lengths(here, each) for here, each in pairs if each}

    @cached_property
    def _take_offs(self) -> dict[str, Table]:
        """The tables of take-off of comparisons with few models."""
        few = {here.name for here in self.study.comparisons if len(here.contestants) <= MOST}
        tables = take_off_tables(self.study, self.outcome.reference) if few else {}
        return {name: table for name, table in tables.items() if name in few}

    @cached_property
    def _claims(self) -> Table | None:
        return claims_table(self.study, self._listed.get("claims", ()))

    def _results(self) -> list[str]:
        """What was found, as items of a list: first the outcome that the study's list names, then its claims."""
        given = answers(self.found, self.outcome.reference)
        several, shared = len(given) > 1, []
        if several:
            shared = [clause for clause in given[0].clauses if all(clause in each.clauses for each in given)]
        own = [(each.name, [clause for clause in each.clauses if clause not in shared]) for each in given]
        held = [(name, [holding(table)]) for name, table in self._lengths.items()]
        told = [(name, take_off_sentence(table)) for name, table in self._take_offs.items()]
        outcomes = {
            "scores": [*_grouped(own, several), *_items(shared)],
            "lengths": _grouped(held, len(held) > 1),
            "take-off": _grouped([(name, [line]) for name, line in told if line], len(self.study.comparisons) > 1),
        }
        first = outcomes.pop(self._listed.get("outcome", OUTCOMES[0]))
        verdicts = {} if self._claims is None else claim_verdicts(self._claims)
        others = [item for each in outcomes.values() for item in each]
        last = [*filter(None, [nearest_published(self.found)]), *self.study.legend().values()]
        return [*first, *_grouped(verdicts.items(), True), *others, *_items(last)]

    def _left_out(self) -> list[str]:
        """Lines about runs that the study lists and the tables lack, and the other way round."""
        lines, study = [], self.study
        if self.outcome.missing:
            missing = {trouble.place for trouble in study.troubles if trouble.why == NO_RECORD}
            lost = "".join(f", all with {each}" for each in unrecorded_values(self.folder, missing))
            lines.append(f"Listed runs without a record: {self.outcome.missing}{lost and ', among them'}{lost[1:]}.")
        if study.unlisted:
            are = "is not listed" if study.unlisted == 1 else "are not listed"
            lines.append(f"{plural(study.unlisted, 'run')} in the tables {are} in {LIST}.")
        if diverged := [each for each in study.comparisons if each.diverged]:
            named = len(study.comparisons) > 1
            models = (f"{each.name}: {each.divergences}" if named else each.divergences for each in diverged)
            how = " ".join(dict.fromkeys(each.without_diverged for each in diverged))
            lines.append(as_markdown(f"Diverged: {'; '.join(models)}. {how}"))
        told = {str(run.path) for each in study.comparisons for runs in each.diverged.values() for run in runs}
        troubles = (each for each in study.troubles if each.state != MISSING and each.place not in told)
        if places := [f"{each.place.removeprefix(f'{self.folder}/')} ({each.state}, {each.why})" for each in troubles]:
            lines.append(f"Records that are not in the tables: {'; '.join(places)}.")
        return lines

    def _reservations(self) -> list[str]:
        """What would change the answer, and how the models were trained."""
        lines, comparisons = [], self.study.comparisons
        if "would_change" in self._listed:
            lines.append(_filled(f"**What would change the answer.** {self._listed['would_change']}"))
        if self.outcome.minutes:
            devices = sorted({device for comparison in comparisons for device in comparison.devices})
            lines.append(
                f"{plural(self.outcome.runs, 'run')}, about {plural(max(round(self.outcome.minutes), 1), 'minute')} of "
                f"training on {' and '.join(devices)}; start-up and scoring are not included."
            )
        return [*lines, *dict.fromkeys(filter(None, (comparison.augmented for comparison in comparisons)))]

    def _tables(self) -> list[Table]:
        """The tables of the details: lengths, claims, subsets, take-off, zero-shot benchmarks, and files."""
        tables, reference = [*self._lengths.values(), self._claims], self.outcome.reference
        for comparison in self.study.comparisons:
            tables += [subsets_table(comparison, split, reference) for split in comparison.splits]
            tables.append(self._take_offs.get(comparison.name))
            tables += zero_shot_tables(comparison, reference)
            for name in names_of(comparison):
                tables.append(_best_first(files_table(comparison, name, lengths_of(comparison, name))))
        return [each for each in tables if each is not None]


def _filled(text: str) -> str:
    return textwrap.fill(text, WIDTH, break_on_hyphens=False)


def _grouped(groups: Iterable[tuple[str, Sequence[str]]], named: bool) -> list[str]:
    """Items for the clauses of each group, with its name if `named`."""
    return [item for name, clauses in groups for item in _items(clauses, name if named else "")]


def _items(clauses: Sequence[str], name: str = "") -> list[str]:
    """Items of a Markdown list: one for each clause; several clauses with a name are a list below it."""
    if not name or not clauses:
        return [as_markdown(clause) for clause in clauses]
    if len(clauses) == 1:
        return [as_markdown(f"{name}: {clauses[0]}")]
    return ["\n    - ".join(map(as_markdown, [f"{name}:", *clauses]))]


def _section(table: Table) -> str:
    """A table under its title."""
    return f"## {as_markdown(table.title)}\n\n{replace(table, title='').markdown().strip()}"


def _figure(file: str, plot: Plot) -> str:
    """A plot with its caption."""
    return f"![{as_markdown(plot.title)}]({file})\n\n{as_markdown(plot.title)}. {as_markdown(plot.caption)}"


def _baselines(study: Study, scores: Sequence[Score]) -> list[str]:
    """A line about the baselines of each test split that a run has kept, lowest first; equal lines are merged."""
    places: dict[tuple[str, str], list[str]] = {}
    for comparison in study.comparisons:
        for split in comparison.splits:
            if found := kept_baselines(comparison, split, study.runs):
                nats = sorted((records.nats_per_token, name) for name, records in found.items())
                given = "; ".join(f"{name}: {each:.4f}" for each, name in nats)
                here = [each for each in scores if each.comparison is comparison and each.split == split]
                if "unigram" in found and (poor := _not_below(found["unigram"].nats_per_token, here)):
                    given += f". Not better than the unigram: {', '.join(poor)}"
                places.setdefault((split, given), []).append(comparison.title)
    lines = []
    for (split, given), titles in places.items():
        place = split if len(titles) == len(study.comparisons) else f"{', '.join(titles)}, {split}"
        lines.append(as_markdown(f"Baselines in nats/token ({place}): {given}."))
    return lines


def _not_below(unigram: float, scores: Sequence[Score]) -> list[str]:
    """The models, best first, that have learned nothing from the context: it means little if they are equivalent.

    Those of tasks with right answers are judged by what they solve.
    """
    poor = [each for each in scores if each.chosen and each.solving is None and each.nats.value >= unigram]
    best_first = sorted(poor, key=lambda each: each.nats.value)
    return [*dict.fromkeys(parenthesised(each.contestant.label) for each in best_first)]


def _files(folder: Path, training: str, report: str, searched: bool) -> list[str]:
    """The last section of a study's page: its files, and the commands that write them."""
    parts, given = ["## Files"], [LIST]
    if (folder / TUNED).exists():
        parts.append(f"`{TUNED}` has the results of the search, by `task=tune`.")
        given += [] if searched else [TUNED]
    if (folder / SPEEDS).exists():
        parts.append(
            f"`{SPEEDS}` has tokens/s of models of this size without dropout, one at a time on the GPU, measured by "
            "`python -m bearings.benchmarks.training`."
        )
        given.append(SPEEDS)
    files = ", ".join(f"`{file}`" for file in given)
    return [
        *parts,
        f"`{LIST}` lists the runs. `results.csv` has a row for each run and split. `runs.parquet` has a row for each\n"
        "run, with its configuration, manifest, training curve and samples. `records.parquet` has a row for each\n"
        f"scored document. These commands write all files except {files}:",
        f"- `{training}`: train the missing runs\n- `{report}`: all tables, plots and samples",
    ]


def _lengths(comparison: Comparison, measured: Measured) -> Table:
    """Loss in other context lengths on the first split; in a long table, without extensions."""
    whole = _best_first(split_table(comparison, comparison.splits[0], measured))
    if len(whole.rows) <= MOST_EXTENDED:
        return whole
    short = _best_first(split_table(comparison, comparison.splits[0], plain(measured)))
    left_out = f"{plural(len(whole.rows) - len(short.rows), 'row')} of models that were extended after training"
    return replace(short, notes=[*short.notes, f"Left out: {left_out}; task=report lists them."])


def _best_first(lengths: Table) -> Table:
    """The table with its rows sorted by the loss in the longest context."""
    longest = max((key for key in lengths.columns if key.startswith("at_")), key=lambda key: int(key[3:]))
    return replace(lengths, rows=sorted(lengths.rows, key=lambda row: row.get(longest, math.inf)))


def table_of(outcome: Outcome) -> str:
    """The Markdown table, or tables, of a study's page."""
    return (rows_as_markdown(outcome.rows) if outcome.solved is None else outcome.solved.markdown()).strip()


def rows_as_markdown(rows: Sequence[Row]) -> str:
    """Markdown tables of the rows of a study: one for sequence modelling, one for tasks with right answers."""
    modelling, tasks = ([row for row in rows if ("solved" in row) is solving] for solving in (False, True))
    adjusted = [f"{note} {CLUSTER_NOTE}" for note in _adjusted(modelling)]
    clusters = any(CLUSTERS in row.get("difference_interval", "") for row in modelling)
    parts = (
        Table("modelling", "", MODELLING, modelling, [*adjusted, *([CLUSTERS_NOTE] if clusters else [])]),
        Table("tasks", "", TASKS, tasks, [*_adjusted(tasks), TAKE_OFF_NOTE]),
    )
    return "\n".join(part.markdown() for part in parts if part.rows)


def _adjusted(rows: Sequence[Row]) -> list[str]:
    """The note about p-values, if there are any."""
    return [HOLM_NOTE] if any(row.get("holm_p") is not None for row in rows) else []
