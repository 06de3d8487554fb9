"""What a study's records give, in place: README.md with two plots, results.csv, and README's table of all studies."""

import shutil
import tempfile
import textwrap
from collections.abc import Iterable, Sequence
from itertools import chain
from pathlib import Path

from ..core.errors import UserError
from ..reporting import plots
from ..reporting.drawing import Plot
from ..reporting.forest import forest_plot
from ..reporting.lengths import lengths_of
from ..reporting.mechanisms import attention_plot
from ..reporting.packed import RUNS
from ..reporting.planned import LIST, read_list
from ..reporting.reading import read_study
from ..reporting.scores import Score, study_scores
from ..reporting.statistics import FEWEST_SEEDS
from ..reporting.study import Study
from ..reporting.tables import (
    ALONE,
    BASELINE,
    COST,
    SOLVING,
    Row,
    Table,
    across_table,
    as_markdown,
    interval,
    p_value,
    write_csv,
)
from ..session.run_directory import write_text
from .catalogue import ROOT, STUDIES, studies

README = ROOT / "README.md"
# README's rows: PoPE and PaTH in these studies. Each study's own README.md has all of its rows.
IN_README = {"study": ("jsb", "maestro", "wikitext2", "indirect_indexing_long"), "model": ("pope", "path")}
BEGIN, END = "<!-- made by python main.py task=study study=all task.report=true -->\n", "<!-- end -->\n"
PLOTS = ("differences.svg", "lengths.svg", "loss.svg", "attention.svg")  # the first two that a study has are kept
MODEL = {"study": ("study", str), "model": ("model", str), "flops_per_token": COST["flops_per_token"]}
VERDICT = {"holm_p": ("Holm p", p_value), "verdict": ("verdict", str)}
MODELLING = {
    **MODEL,
    "seeds": ("seeds", str),
    "nats_per_token": ("nats/token", "{:.4f}".format),
    "interval": ("95 % over seeds", interval("{:.4f}")),
    "published": ("published", str),
    "difference": ("difference", "{:+.4f}".format),
    "difference_interval": ("95 % interval of it", str),
    **VERDICT,
}
TASKS = {**MODEL, **SOLVING, "published": ("published error", str), **VERDICT}


def recorded() -> list[str]:
    """Names of the studies that have records."""
    return [name for name in studies() if (STUDIES / name / RUNS).exists() or (STUDIES / name / "runs").is_dir()]


def read_rows(folder: Path) -> list[Row]:
    """The rows of README's table of the study in `folder`; none where no record can be read."""
    study = read_study([folder])
    return rows_of(folder.name, study, across_table(study_scores(study, reference_of(folder)), {}))


def write_summary(folder: Path) -> list[Row]:
    """Write README.md with its plots and results.csv of the study in `folder`. Returns what `read_rows` does."""
    study = read_study([folder])
    found = study_scores(study, reference_of(folder))
    rows = rows_of(folder.name, study, across_table(found, {}))
    with tempfile.TemporaryDirectory() as place:
        drawn = dict(_drawn(study, found, Path(place)))
        for name in PLOTS:
            (folder / name).unlink(missing_ok=True)
        for name, plot in drawn.items():
            shutil.copy(plot.stem.with_name(plot.stem.name + ".svg"), folder / name)
    write_csv(folder / "results.csv", _results(study))
    write_text(folder / "README.md", _page(folder, study, rows, drawn))
    return rows


def reference_of(folder: Path) -> str:
    """The encoding that the others of the study in `folder` are compared with."""
    return read_list(folder).get("reference", "rope")


def _drawn(study: Study, found: Sequence[Score], folder: Path) -> list[tuple[str, Plot]]:
    """The study's plots by the names they are kept under, of its first comparison those that are of one."""
    if not study.comparisons:
        return []
    styles, first = plots.styles_of(study), study.comparisons[0]
    drawn: dict[str, Plot | None] = {
        "differences.svg": forest_plot(found, folder / "across-forest", "Differences", percent=True)
    }
    split = first.splits[0]
    if measured := lengths_of(first, split):
        title = f"{first.title}, {split} split: contexts of other lengths"
        drawn["lengths.svg"] = plots.lengths_plot(measured, styles, folder / "lengths", title)
    drawn["loss.svg"] = plots.loss_plot(first, styles, folder)
    drawn["attention.svg"] = attention_plot(first, styles, folder)
    return [(name, plot) for name in PLOTS if (plot := drawn.get(name)) is not None][:2]


def _results(study: Study) -> list[Row]:
    """A row for each run and split, of the figures that its records hold."""
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


def _page(folder: Path, study: Study, rows: Sequence[Row], drawn: dict[str, Plot]) -> str:
    lacking = sum(each.state == "missing" and each.why.endswith("is kept") for each in study.troubles)
    question = textwrap.fill(read_list(folder).get("question", ""), 120)
    parts = [f"# {folder.name}", question, summary([rows]).strip()]
    if lacking:
        parts.append(f"Listed runs without a record: {lacking}.")
    own = folder.name in studies()
    name, place = (folder.name, f"studies/{folder.name}") if own else ("FOLDER", "FOLDER")
    for file, plot in drawn.items():
        parts.append(f"![{as_markdown(plot.title)}]({file})")
        parts.append(f"{as_markdown(plot.title)}. {as_markdown(plot.caption)}")
    parts.append(
        f"`{LIST}` lists the runs. `results.csv` has a row for each run and split. `runs.parquet` has a row for each\n"
        "run: configuration, manifest, curve, samples. `records.parquet` has a row for each document that is scored.\n"
        f"Everything here except `{LIST}` is written by commands:"
    )
    parts.append(
        f"- `python main.py task=study study={name}`: train what is missing\n"
        f"- `python main.py task=report task.directories=[{place}]`: every table and plot, and samples"
    )
    return "\n\n".join(part for part in parts if part) + "\n"


def summary(rows: Iterable[Sequence[Row]]) -> str:
    """README's tables, of the rows of every study: one of sequence modelling, one of tasks that are solved or not."""
    every = [*chain(*rows)]
    note = f"{ALONE}: of fewer than {FEWEST_SEEDS} seeds, and so for other test clusters of these very models."
    notes = [note] if any(ALONE in row.get("difference_interval", "") for row in every) else []
    parts = (
        Table("modelling", "", MODELLING, [row for row in every if "solved" not in row], notes),
        Table("tasks", "", TASKS, [row for row in every if "solved" in row], []),
    )
    return "\n".join(part.markdown().split("\n\n", 1)[1] for part in parts if part.rows)


def chosen(rows: Iterable[Sequence[Row]]) -> list[list[Row]]:
    """The rows of every study that README shows."""
    return [[row for row in each if all(row[key] in IN_README[key] for key in IN_README)] for each in rows]


def rows_of(name: str, study: Study, across: Table) -> list[Row]:
    """The models of a study's table of all comparisons, as README names and shows them."""
    splits = {each.domain: each.splits for each in study.comparisons}
    rows = []
    for row in across.rows:
        if row["verdict"] == BASELINE:
            continue
        # One line of the sweep tells how its comparison differs from the study's others.
        domain, _, own = row["domain"].partition(": ")
        place = ", ".join(filter(None, (name, own, row["split"] if len(splits[domain]) > 1 else "")))
        rows.append({key: value for key, value in row.items() if value is not None} | {"study": place})
        if (ends := row.get("difference_interval")) is not None:
            alone = f", {ALONE}" if row["difference_interval_of"] == ALONE else ""
            rows[-1]["difference_interval"] = interval("{:+.4f}")(ends) + alone
    return rows


def with_summary(readme: str, table: str) -> str:
    """README with `table` between its marks. Raises UserError where there are none."""
    head, begin, rest = readme.partition(BEGIN)
    _, end, tail = rest.partition(END)
    if not (begin and end):
        raise UserError(f"{README}: it lacks the lines {BEGIN.strip()} and {END.strip()}, between which the table goes")
    return head + begin + table + end + tail
