"""Make the report of every study from its kept records, and README's table of them.

    python -m bearings.studies.report
    python -m bearings.studies.report --check    # whether README's table is what the records give; writes nothing

`studies/STUDY/report` keeps what is small and can be read in place: report.md, the tables and the plots as SVG. For the
page with samples to hear: `python main.py task=report task.directories=[studies/STUDY]`.
"""

import argparse
import os
import tempfile
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from itertools import chain
from pathlib import Path

from ..core.errors import UserError
from ..core.whole_files import made_whole
from ..reporting.planned import read_list
from ..reporting.reading import read_study
from ..reporting.scores import study_scores
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
    interval,
    p_value,
)
from ..session.configuration import one_line_errors
from ..session.run_directory import write_text
from ..tasks.report import Report
from .run import HERE, studies

README = HERE.parent / "README.md"
BEGIN, END = "<!-- made by python -m bearings.studies.report -->\n", "<!-- end -->\n"
KEPT = ("report.md", "left-out.csv", "tables/*.csv", "plots/*.svg")
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
    return [name for name in studies() if (HERE / name / "runs").is_dir()]


def write_report(name: str) -> list[Row]:
    """Make the study's report as task=report does, and keep what `KEPT` names. Returns its rows of README's table."""
    folder = HERE / name
    with tempfile.TemporaryDirectory() as place:
        out = Path(place) / "report"
        study, sections = Report(out=str(out), reference=reference_of(name)).write([folder], Path(place))
        with made_whole(folder / "report") as making:  # without the names of this machine's folders
            for pattern in KEPT:
                for file in out.glob(pattern):
                    target = making / file.relative_to(out)
                    target.parent.mkdir(parents=True, exist_ok=True)
                    text = file.read_text(encoding="utf-8").replace(f"{HERE.parent}/", "").replace(place, "data")
                    target.write_text(text, encoding="utf-8")
    print(f"wrote {folder / 'report'}", flush=True)
    return told(name, study, sections[0].tables[0]) if sections else []  # none where no record can be read


def reference_of(name: str) -> str:
    """The encoding that the study's others are compared with."""
    return read_list(HERE / name).get("reference", "rope")


def summary(rows: Iterable[Sequence[Row]]) -> str:
    """README's tables, of the rows of every study: one of sequence modelling, one of tasks that are solved or not."""
    rows = [*chain(*rows)]
    note = f"{ALONE}: of fewer than {FEWEST_SEEDS} seeds, and so for other test clusters of these very models."
    notes = [note] if any(ALONE in row.get("difference_interval", "") for row in rows) else []
    parts = (
        Table("modelling", "", MODELLING, [row for row in rows if "solved" not in row], notes),
        Table("tasks", "", TASKS, [row for row in rows if "solved" in row], []),
    )
    return "\n".join(part.markdown().split("\n\n", 1)[1] for part in parts if part.rows)


def read_rows(name: str) -> list[Row]:
    """What `write_report` returns, without the report."""
    study = read_study([HERE / name])
    return told(name, study, across_table(study_scores(study, reference_of(name)), {}))


def told(name: str, study: Study, across: Table) -> list[Row]:
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
