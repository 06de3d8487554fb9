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
from bearings.tasks.reporting.scores import Score, adjusted, scores
from bearings.tasks.reporting.statistics import FEWEST_SEEDS, Estimate
from bearings.tasks.reporting.study import Study
from bearings.tasks.reporting.tables import COST, Row, Table, interval, p_value
from bearings.tasks.run_directory import write_text

README = HERE.parent / "README.md"
BEGIN, END = "<!-- made by python -m bearings.studies.report -->\n", "<!-- end -->\n"
KEPT = ("report.md", "left-out.csv", "tables/*.csv", "plots/*.svg")
MARGIN = 0.01
ALONE = "clusters alone"
COLUMNS = {
    "study": ("study", str),
    "model": ("model", str),
    **{name: COST[name] for name in ("parameters", "flops_per_token")},
    "seeds": ("seeds", str),
    "error": ("error", "{:.2f} %".format),
    "solved": ("solved", str),
    "nats": ("nats/token", "{:.4f}".format),
    "interval": ("95 % interval", str),
    "published": ("published", str),
    "difference": ("difference", "{:+.4f}".format),
    "holm_p": ("Holm p", p_value),
    "verdict": ("verdict", str),
}


def recorded() -> list[str]:
    """Names of the studies that have records."""
    return [name for name in studies() if (HERE / name / "runs").is_dir()]


def write_report(name: str) -> Study:
    """Make the study's report as task=report does, and keep what `KEPT` names. Returns what it is of."""
    folder = HERE / name
    with tempfile.TemporaryDirectory() as place:
        out = Path(place) / "report"
        study, _ = Report(out=str(out), reference=reference_of(name), margin=MARGIN).write([folder], Path(place))
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
    return study


def reference_of(name: str) -> str:
    """The encoding that the study's others are compared with."""
    return read_list(HERE / name).get("reference", "rope")


def summary(rows: Iterable[Sequence[Row]]) -> str:
    """README's table, of the rows of every study."""
    rows = [*chain(*rows)]
    note = f"{ALONE}: of fewer than {FEWEST_SEEDS} seeds, and so for other test clusters of these very models."
    notes = [note] if any(row["interval"] and ALONE in row["interval"] for row in rows) else []
    return Table("studies", "", COLUMNS, rows, notes).markdown().split("\n\n", 1)[1]


def remade(name: str) -> list[Row]:
    """The study's rows of README's table, its report written anew."""
    return rows_of(name, write_report(name))


def rows_of(name: str, study: Study | None = None) -> list[Row]:
    """The rows of README's table of the study named so, which is read if it is not given."""
    study = study or read_study([HERE / name])
    places = [(comparison, split) for comparison in study.comparisons for split in comparison.splits]
    found = adjusted([score for place in places for score in scores(*place, reference_of(name), MARGIN)])
    order = {(comparison.slug, split): number for number, (comparison, split) in enumerate(places)}
    found.sort(key=lambda score: (order[score.comparison.slug, score.split], score.nats.value))
    return [_row(name, score) for score in found]


def _row(name: str, score: Score) -> Row:
    comparison, apart = score.comparison, score.difference
    # One line of the sweep tells how its comparison differs from the study's others.
    own = "" if comparison.title == comparison.domain else comparison.title.removeprefix(f"{comparison.domain}: ")
    return {
        "study": ", ".join(filter(None, (name, own, score.split if len(comparison.splits) > 1 else ""))),
        "model": score.contestant.label,
        "parameters": score.contestant.parameters,
        "flops_per_token": score.contestant.flops_per_token,
        "seeds": len(score.contestant.runs),
        "error": None if score.accuracy is None else 100 * (1 - score.accuracy),
        "solved": None if score.solved is None else f"{score.solved} of {len(score.contestant.runs)}",
        "nats": score.nats.value,
        "interval": _interval(score.nats),
        "published": score.contestant.any_run.published.get(score.split),
        "difference": apart and apart.value,
        "holm_p": score.holm_p,
        "verdict": score.verdict,
    }


def _interval(nats: Estimate) -> str | None:
    """The interval as text, marked where it is not for other seeds too."""
    if pair := nats.both or nats.clusters:
        return interval("{:.4f}")(pair) + ("" if nats.both else f", {ALONE}")
    return None


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
            if before != with_summary(before, summary(map(rows_of, recorded()))):
                raise UserError(f"{README} does not hold what the records give: run python -m bearings.studies.report")
            return
        cores = len(os.sched_getaffinity(0))
        with ProcessPoolExecutor(cores) as pool:
            table = summary(pool.map(remade, recorded()))
        write_text(README, with_summary(before, table))


if __name__ == "__main__":
    main()
