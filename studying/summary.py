"""Summaries of studies: README.md with up to two plots, and results.csv; and where the main README has its table."""

import math
import shutil
import tempfile
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import chain, islice
from pathlib import Path

from ..core.errors import UserError
from ..core.whole_files import write_text
from ..core.words import plural
from ..reporting import plots
from ..reporting.answers import LEGEND, answers
from ..reporting.attention import attention_plot
from ..reporting.baselines import kept_baselines
from ..reporting.claims import claim_verdicts, claims_table
from ..reporting.drawing import Plot
from ..reporting.errors import errors_plot
from ..reporting.forest import forest_plot
from ..reporting.legible import MOST, legible, noted, plain, references_of
from ..reporting.lengths import files_table, holding, lengths_of, names_of, split_table
from ..reporting.packed import RUNS
from ..reporting.planned import NO_RECORD, TUNED, unrecorded_values
from ..reporting.power import needed_sentence
from ..reporting.published import nearest_published
from ..reporting.reading import read_study
from ..reporting.score_tables import CLUSTERS, COST, SOLVING, subsets_table
from ..reporting.scores import Score, study_scores
from ..reporting.statistics import FEWEST_SEEDS
from ..reporting.study import MISSING, UNREAD, Comparison, Study
from ..reporting.study_list import LIST, OUTCOMES, read_list
from ..reporting.tables import Row, Table, as_markdown, interval, p_value, with_sign, write_csv
from ..reporting.take_off import take_off_plot, take_off_sentence, take_off_tables
from ..reporting.zero_shot import zero_shot_tables
from .catalogue import ROOT, STUDIES, studies
from .outcomes import SPEEDS, Measured, Outcome, largest, measured_of, outcome_of, reference_of
from .searching import edges_of_grids

README = ROOT / "README.md"
BEGIN, END = "<!-- made by python main.py task=study study=all task.report=true -->\n", "<!-- end -->\n"
PLOTS = ("differences.svg", "errors.svg", "take-off.svg", "lengths.svg", "loss.svg", "attention.svg")
KEPT = 2  # of PLOTS, the first that a study has: one on its page and one in the details
FIGURES = {"scores": "differences.svg", "lengths": "lengths.svg", "take-off": "take-off.svg"}  # of each outcome
MOST_DRAWN = 12  # differences in the plot of a page
MOST_EXTENDED = 60  # rows of a table of contexts; a longer one has no extensions
MOST_ROWS = 8  # of the table; a longer one is in the details
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
TAKE_OFF_NOTE = "Take-off: the step of the first validation that is half-way between guessing and solving the task."
CLUSTERS_NOTE = (
    f"{CLUSTERS}: with fewer than {FEWEST_SEEDS} seeds, the interval covers other test clusters for these models."
)


def recorded() -> list[str]:
    """Names of the studies that have records."""
    return [name for name in studies() if (STUDIES / name / RUNS).exists() or (STUDIES / name / "runs").is_dir()]


def write_summary(folder: Path) -> Outcome:
    """Write README.md, its plots and results.csv of the study in `folder`. Returns its outcome.

    Raises:
        UserError: records cannot be read; the files are left as they are.
    """
    study = read_study([folder])
    if unread := [trouble for trouble in study.troubles if trouble.state in UNREAD]:
        first, *others = unread
        more = f" (and {plural(len(others), 'other')})" if others else ""
        raise UserError(
            f"the page in {folder} is not written, as it would lack records: {first.place}: {first.why}{more}"
        )
    found = study_scores(study, reference_of(folder))
    measured = measured_of(study)
    outcome = outcome_of(folder, study, found, measured)
    with tempfile.TemporaryDirectory() as place:
        first = FIGURES[read_list(folder).get("outcome", OUTCOMES[0])]
        claimed = [each for claim in read_list(folder).get("claims", ()) for each in (claim.model, claim.than)]
        possible = sorted(_plots(study, found, measured, claimed, Path(place)), key=lambda plot: plot[0] != first)
        made = ((name, plot) for name, draw in possible if (plot := draw()) is not None)
        drawn = dict(islice(made, KEPT))
        for name in PLOTS:
            (folder / name).unlink(missing_ok=True)
        for name, plot in drawn.items():
            shutil.copy(plot.stem.with_name(plot.stem.name + ".svg"), folder / name)
    write_csv(folder / "results.csv", _results(study))
    write_text(folder / "README.md", _page(folder, study, found, measured, outcome, drawn))
    return outcome


def _plots(
    study: Study, found: Sequence[Score], measured: Sequence[Measured], claimed: Sequence[str | None], folder: Path
) -> list[tuple[str, Callable[[], Plot | None]]]:
    """Names of PLOTS, in their order, with functions that draw them; those of one comparison show the largest.

    The plot of contexts has the `claimed` models, whatever their loss.
    """
    if not study.comparisons:
        return []
    number = largest(study)
    whole, lengths = study.comparisons[number], measured[number]
    shown = legible(whole, found)
    (styles,) = plots.styles_of([shown.labels])
    title = f"{shown.name}, {shown.splits[0]} split: other context lengths"
    named = [each for each in lengths if each in claimed]
    of_lengths = lengths, styles, folder / "lengths", title, references_of(whole, found), named

    def of_shown(draw: Callable[..., Plot | None]) -> Callable[[], Plot | None]:
        return lambda: noted(draw(shown, styles, folder), shown, whole)

    differences = {"title": "Differences", "percent": True, "most": MOST_DRAWN}
    return [
        ("differences.svg", lambda: forest_plot(found, folder / "across-forest", **differences)),
        ("errors.svg", lambda: errors_plot(study.comparisons, folder)),
        ("take-off.svg", of_shown(take_off_plot)),
        ("lengths.svg", lambda: plots.lengths_plot(*of_lengths) if lengths else None),
        ("loss.svg", of_shown(plots.loss_plot)),
        ("attention.svg", of_shown(attention_plot)),
    ]


def _results(study: Study) -> list[Row]:
    """A row for each run and split, with the scores from its records."""
    rows = []
    for comparison in study.comparisons:
        for contestant in comparison.contestants:
            for seed in sorted(contestant.runs):
                run = contestant.runs[seed]
                for split, records in run.records.items():
                    rows.append(
                        {
                            "comparison": comparison.title,
                            "model": contestant.label,
                            "seed": seed,
                            "split": split,
                            "documents": len(records.documents),
                            "tokens": int(records.tokens.sum()),
                            "nats_per_token": records.nats_per_token,
                            **{f"bits_per_{unit}": bits for unit, bits in records.bits_per_unit.items()},
                            **({} if comparison.solved is None else {"accuracy": records.accuracy}),
                            "run": "/".join(run.path.parts[-3:]),
                        }
                    )
    return rows


def _page(
    folder: Path,
    study: Study,
    found: Sequence[Score],
    measured: Sequence[Measured],
    outcome: Outcome,
    drawn: Mapping[str, Plot],
) -> str:
    listed = read_list(folder)
    question = textwrap.fill(listed.get("question", ""), 120, break_on_hyphens=False)
    lengths = {here.name: _lengths(here, each) for here, each in zip(study.comparisons, measured, strict=True) if each}
    several, many = len(given := answers(found, outcome.reference)) > 1, len(study.comparisons) > 1
    take_offs = _take_offs(study, outcome.reference)
    told = {name: take_off_sentence(table) for name, table in take_offs.items()}
    shared = [clause for clause in given[0].clauses if all(clause in each.clauses for each in given)] if several else []
    own = [(each.name, [clause for clause in each.clauses if clause not in shared]) for each in given]
    items = {
        "scores": chain(*(_items(clauses, name if several else "") for name, clauses in own), _items(shared)),
        "lengths": chain(
            *(_items([holding(table)], name if len(lengths) > 1 else "") for name, table in lengths.items())
        ),
        "take-off": chain(*(_items([line], name if many else "") for name, line in told.items() if line)),
    }
    claims = [each for each in [claims_table(study, listed.get("claims", ()))] if each is not None]
    verdicts = chain(*(_items(found, claim) for table in claims for claim, found in claim_verdicts(table).items()))
    first = items.pop(listed.get("outcome", OUTCOMES[0]))
    last = _items([*filter(None, [nearest_published(found)]), *study.legend().values()])
    results = "\n".join(f"- {item}" for item in [*first, *verdicts, *chain(*items.values()), *last])
    rows = outcome.rows if outcome.solved is None else outcome.solved.rows
    figure, *others = [_figure(file, plot) for file, plot in drawn.items()] or [""]
    legend = LEGEND if any(each.compared is not None for each in found) else ""
    parts = [f"# {folder.name}", question, results, legend]
    if outcome.missing:
        missing = {trouble.place for trouble in study.troubles if trouble.why == NO_RECORD}
        lost = "".join(f", all with {each}" for each in unrecorded_values(folder, missing))
        parts.append(f"Listed runs without a record: {outcome.missing}{lost and ', among them'}{lost[1:]}.")
    if study.unlisted:
        are = "is not listed" if study.unlisted == 1 else "are not listed"
        parts.append(f"{plural(study.unlisted, 'run')} in the tables {are} in {LIST}.")
    troubles = (each for each in study.troubles if each.state != MISSING)
    left_out = [f"{each.place.removeprefix(f'{folder}/')} ({each.why})" for each in troubles]
    parts.append(f"Records that are not in the tables: {'; '.join(left_out)}." if left_out else "")
    parts.append(table_of(outcome) if len(rows) <= MOST_ROWS else "")
    parts += [*_baselines(study), as_markdown(edges_of_grids(folder) or ""), figure]
    if "would_change" in listed:
        parts.append(
            textwrap.fill(f"**What would change the answer.** {listed['would_change']}", 120, break_on_hyphens=False)
        )
    if outcome.minutes:
        devices = sorted({device for comparison in study.comparisons for device in comparison.devices})
        parts.append(
            f"{plural(outcome.runs, 'run')}, about {plural(max(round(outcome.minutes), 1), 'minute')} of training on "
            f"{' and '.join(devices)}; start-up and scoring are not included."
        )
    parts += dict.fromkeys(filter(None, (comparison.augmented for comparison in study.comparisons)))
    details = [table_of(outcome) if len(rows) > MOST_ROWS else "", needed_sentence(found) or "", *others]
    details += [_section(each) for each in [*lengths.values(), *claims, *_further(study, outcome.reference, take_offs)]]
    if any(details):
        parts += [DETAILS, *details, "</details>"]
    parts += _files(folder, searched="search" in listed)
    return "\n\n".join(part for part in parts if part) + "\n"


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


def _baselines(study: Study) -> list[str]:
    """A line about the baselines of each test split that a run has kept, lowest first; equal lines are merged."""
    places: dict[tuple[str, str], list[str]] = {}
    for comparison in study.comparisons:
        for split in comparison.splits:
            if found := kept_baselines(comparison, split, study.runs):
                nats = sorted((records.nats_per_token, name) for name, records in found.items())
                given = "; ".join(f"{name}: {each:.4f}" for each, name in nats)
                places.setdefault((split, given), []).append(comparison.title)
    lines = []
    for (split, given), titles in places.items():
        place = split if len(titles) == len(study.comparisons) else f"{', '.join(titles)}, {split}"
        lines.append(as_markdown(f"Baselines in nats/token ({place}): {given}."))
    return lines


def _files(folder: Path, searched: bool) -> list[str]:
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
    own = folder.name in studies()
    name, place = (folder.name, f"studies/{folder.name}") if own else ("FOLDER", "FOLDER")
    return [
        *parts,
        f"`{LIST}` lists the runs. `results.csv` has a row for each run and split. `runs.parquet` has a row for each\n"
        "run, with its configuration, manifest, training curve and samples. `records.parquet` has a row for each\n"
        f"scored document. These commands write all files except {files}:",
        f"- `python main.py task=study study={name}`: train the missing runs\n"
        f"- `python main.py task=report task.directories=[{place}]`: all tables, plots and samples",
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


def _take_offs(study: Study, reference: str) -> dict[str, Table]:
    """The tables of take-off of comparisons with few models."""
    few = {here.name for here in study.comparisons if len(here.contestants) <= MOST}
    return {name: table for name, table in take_off_tables(study, reference).items() if name in few} if few else {}


def _further(study: Study, reference: str, take_offs: Mapping[str, Table]) -> list[Table]:
    """Tables of subsets, take-off, zero-shot benchmarks, and files that were scored with other context lengths."""
    tables = []
    for comparison in study.comparisons:
        tables += [subsets_table(comparison, split, reference) for split in comparison.splits]
        tables.append(take_offs.get(comparison.name))
        tables += zero_shot_tables(comparison, reference)
        for name in names_of(comparison):
            tables.append(_best_first(files_table(comparison, name, lengths_of(comparison, name))))
    return [each for each in tables if each is not None]


def table_of(outcome: Outcome) -> str:
    """The Markdown table, or tables, of a study's page."""
    return (summary(outcome.rows) if outcome.solved is None else outcome.solved.markdown()).strip()


def summary(rows: Sequence[Row]) -> str:
    """Markdown tables of the rows of a study: one for sequence modelling, one for tasks with right answers."""
    modelling, tasks = ([row for row in rows if ("solved" in row) is solving] for solving in (False, True))
    clusters = any(CLUSTERS in row.get("difference_interval", "") for row in modelling)
    parts = (
        Table("modelling", "", MODELLING, modelling, [*_adjusted(modelling), *([CLUSTERS_NOTE] if clusters else [])]),
        Table("tasks", "", TASKS, tasks, [*_adjusted(tasks), TAKE_OFF_NOTE]),
    )
    return "\n".join(part.markdown() for part in parts if part.rows)


def _adjusted(rows: Sequence[Row]) -> list[str]:
    """The note about p-values, if there are any."""
    return [HOLM_NOTE] if any(row.get("holm_p") is not None for row in rows) else []


def with_summary(readme: str, table: str) -> str:
    """`readme` with `table` between the two markers.

    Raises:
        UserError: a marker is missing.
    """
    head, begin, rest = readme.partition(BEGIN)
    _, end, tail = rest.partition(END)
    if not (begin and end):
        raise UserError(f"{README}: the lines {BEGIN.strip()} and {END.strip()}, which enclose the table, are missing")
    return head + begin + table + end + tail
