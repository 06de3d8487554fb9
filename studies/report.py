"""Make the report of every study from its kept records, and README's table of them.

    python -m bearings.studies.report
    python -m bearings.studies.report --check    # whether README's table is what the records give; writes nothing

`studies/STUDY/report` keeps what is small and can be read in place: report.md, the tables and the plots as SVG. For the
page with samples to hear: `python main.py task=report task.directories=[studies/STUDY]`.
"""

import argparse
import os
import shutil
import tempfile
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from itertools import chain
from pathlib import Path

from bearings.errors import UserError
from bearings.studies.run import HERE, studies
from bearings.tasks.configuration import one_line_errors
from bearings.tasks.report import Report
from bearings.tasks.reporting.planned import read_list
from bearings.tasks.reporting.reading import read_study
from bearings.tasks.reporting.scores import scores
from bearings.tasks.reporting.statistics import FEWEST_SEEDS
from bearings.tasks.reporting.study import Study
from bearings.tasks.reporting.tables import ALONE, BASELINE, COST, Row, Table, across_table, interval, p_value, wrong
from bearings.tasks.run_directory import write_text

README = HERE.parent / "README.md"
BEGIN, END = "<!-- made by python -m bearings.studies.report -->\n", "<!-- end -->\n"
KEPT = ("report.md", "left-out.csv", "tables/*.csv", "plots/*.svg")
MARGIN = 0.01
COLUMNS = {
    "study": ("study", str),
    "model": ("model", str),
    **{name: COST[name] for name in ("parameters", "flops_per_token")},
    "seeds": ("seeds", str),
    "accuracy": ("error", wrong),
    "solved": ("solved", str),
    "nats_per_token": ("nats/token", "{:.4f}".format),
    "interval": ("95 % interval", str),
    "published": ("published", str),
    "difference": ("difference", "{:+.4f}".format),
    "holm_p": ("Holm p", p_value),
    "verdict": ("verdict", str),
}


def recorded() -> list[str]:
    """Names of the studies that have records."""
    return [name for name in studies() if (HERE / name / "runs").is_dir()]


def write_report(name: str) -> list[Row]:
    """Make the study's report as task=report does, and keep what `KEPT` names. Returns its rows of README's table."""
    folder = HERE / name
    with tempfile.TemporaryDirectory() as place:
        out = Path(place) / "report"
        study, sections = Report(out=str(out), reference=reference_of(name), margin=MARGIN).write([folder], Path(place))
        making = folder / ".report.making"  # without the names of this machine's folders
        shutil.rmtree(making, ignore_errors=True)
        for pattern in KEPT:
            for file in out.glob(pattern):
                target = making / file.relative_to(out)
                target.parent.mkdir(parents=True, exist_ok=True)
                text = file.read_text(encoding="utf-8").replace(f"{HERE.parent}/", "").replace(place, "data")
                target.write_text(text, encoding="utf-8")
        shutil.rmtree(folder / "report", ignore_errors=True)
        making.replace(folder / "report")
    print(f"wrote {folder / 'report'}", flush=True)
    return told(name, study, sections[0].tables[0]) if sections else []  # none where no record can be read


def reference_of(name: str) -> str:
    """The encoding that the study's others are compared with."""
    return read_list(HERE / name).get("reference", "rope")


def summary(rows: Iterable[Sequence[Row]]) -> str:
    """README's table, of the rows of every study."""
    rows = [*chain(*rows)]
    note = f"{ALONE}: of fewer than {FEWEST_SEEDS} seeds, and so for other test clusters of these very models."
    notes = [note] if any(row["interval"] and ALONE in row["interval"] for row in rows) else []
    return Table("studies", "", COLUMNS, rows, notes).markdown().split("\n\n", 1)[1]


def read_rows(name: str) -> list[Row]:
    """What `write_report` returns, without the report."""
    study, given = read_study([HERE / name]), (reference_of(name), MARGIN)
    found = [score for each in study.comparisons for split in each.splits for score in scores(each, split, *given)]
    return told(name, study, across_table(found, {}))


def told(name: str, study: Study, across: Table) -> list[Row]:
    """The models of a study's table of all comparisons, as README names and shows them."""
    comparisons = {each.title: each for each in study.comparisons}
    rows = []
    for row in across.rows:
        if row["verdict"] == BASELINE:
            continue
        each = comparisons[row["domain"]]
        # One line of the sweep tells how its comparison differs from the study's others.
        own = "" if each.title == each.domain else each.title.removeprefix(f"{each.domain}: ")
        place = ", ".join(filter(None, (name, own, row["split"] if len(each.splits) > 1 else "")))
        ends = row["interval"] and interval("{:.4f}")(row["interval"])
        rows.append({**row, "study": place, "interval": f"{ends}, {ALONE}" if row["interval_of"] == ALONE else ends})
    return rows


def with_summary(readme: str, table: str) -> str:
    """README with `table` between its marks. Raises UserError where there are none."""
    head, begin, rest = readme.partition(BEGIN)
    _, end, tail = rest.partition(END)
    if not (begin and end):
        raise UserError(f"{README}: it lacks the lines {BEGIN.strip()} and {END.strip()}, between which the table goes")
    return head + begin + table + end + tail


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="say whether README is up to date, and write nothing")
    arguments = parser.parse_args()
    with one_line_errors():
        before = README.read_text(encoding="utf-8")
        if arguments.check:
            if before != with_summary(before, summary(map(read_rows, recorded()))):
                raise UserError(f"{README} does not hold what the records give: run python -m bearings.studies.report")
            return
        cores = len(os.sched_getaffinity(0))
        with ProcessPoolExecutor(cores) as pool:
            largest_first = sorted(recorded(), key=lambda name: -len(list(HERE.glob(f"{name}/runs/*/*/*"))))
            made = {name: pool.submit(write_report, name) for name in largest_first}
            table = summary(made[name].result() for name in recorded())
        write_text(README, with_summary(before, table))


if __name__ == "__main__":
    main()
