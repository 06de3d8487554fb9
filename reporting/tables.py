"""The tables of a report: a row a contestant, figures with their intervals and tests, as CSV and Markdown."""

import csv
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.table import Table as ConsoleTable

from ..core.terminal import printable
from ..core.whole_files import written_whole
from ..domains.records import Records
from .scores import Score
from .statistics import Difference

BASELINE = "baseline"
ALONE = "clusters only"
BOTH = "seeds and clusters"
FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n", "＝", "＋", "－", "＠")  # what formulas begin with; numbers may too
Row = dict[str, Any]
Column = tuple[str, Callable[[Any], str]]


@dataclass(frozen=True)
class Table:
    """Rows under headings, and what a reader has to know.

    Attributes:
        columns: by key of a row: heading, and how a value is shown. A key that no row fills is not shown.
        notes: a line each.
    """

    slug: str
    title: str
    columns: Mapping[str, Column]
    rows: Sequence[Row]
    notes: Sequence[str]

    @property
    def shown(self) -> list[str]:
        """Keys of the columns that hold anything."""
        return [key for key in self.columns if any(row.get(key) is not None for row in self.rows)]

    def cell(self, row: Row, key: str) -> str:
        """A value as text; empty where there is none."""
        return "" if row.get(key) is None else self.columns[key][1](row[key])

    def markdown(self) -> str:
        """Heading, table and notes."""
        keys = self.shown
        lines = [
            f"### {as_markdown(self.title)}",
            "",
            "| " + " | ".join(_in_table(self.columns[key][0]) for key in keys) + " |",
            "|" + "|".join("---" if key in LEFT else "---:" for key in keys) + "|",
            *("| " + " | ".join(_in_table(self.cell(row, key)) for key in keys) + " |" for row in self.rows),
            "",
            *(f"- {as_markdown(note)}" for note in self.notes),
        ]
        return "\n".join(lines).rstrip() + "\n"

    def on_console(self, keys: Sequence[str] | None = None) -> ConsoleTable:
        """The columns `keys` that are shown, or all, for a terminal."""
        keys = self.shown if keys is None else [key for key in keys if key in self.shown]
        table = ConsoleTable(title=self.title, title_justify="left", min_width=len(self.title))
        for key in keys:
            heading, words = self.columns[key][0], key in LEFT
            # Where all is too wide, words are folded and no number loses its last digits.
            whole = not words and " " not in heading
            table.add_column(heading, justify="left" if words else "right", overflow="fold", no_wrap=whole)
        for row in self.rows:
            table.add_row(*(self.cell(row, key) for key in keys))
        return table

    def write(self, folder: Path) -> None:
        """`folder/<slug>.csv`, every value in full, and `folder/<slug>.md`."""
        write_csv(folder / f"{self.slug}.csv", self.rows)
        with written_whole(folder / f"{self.slug}.md") as file:
            file.write(self.markdown())


def as_markdown(text: str) -> str:
    """`text` as one line of Markdown that shows it: no HTML, link or image."""
    text = re.sub(r"[\\`\[\]]", r"\\\g<0>", printable(" ".join(text.splitlines())))
    return re.sub(r"<(?=[a-zA-Z/!?])", "&lt;", re.sub(r"&(?=#?\w+;)", "&amp;", text))


def _in_table(text: str) -> str:
    return as_markdown(text).replace("|", "\\|")


def write_csv(path: Path, rows: Sequence[Row]) -> None:
    """Rows as they are, an interval as two columns; the file is written whole or not at all.

    A text that a spreadsheet would run as a formula gets an apostrophe in front, as OWASP advises ("CSV Injection").
    """
    flat = []
    for row in rows:
        flat.append({})
        for key, value in row.items():
            if isinstance(value, tuple):
                flat[-1] |= {f"{key}_low": value[0], f"{key}_high": value[1]}
            else:
                flat[-1][key] = value
    # An interval that one row lacks must not open a third column beside the two of its neighbours.
    pairs = {key.removesuffix("_low") for row in flat for key in row if key.endswith("_low")}
    keys = dict.fromkeys(key for row in flat for key in row if key not in pairs)
    with written_whole(path) as file:
        writer = csv.DictWriter(file, list(keys), extrasaction="ignore")
        writer.writeheader()
        writer.writerows({key: _inert(value) for key, value in row.items()} for row in flat)


def _inert(value: Any) -> Any:
    if not isinstance(value, str) or not value.startswith(FORMULA):
        return value
    try:
        float(value)
    except ValueError:
        return f"'{value}"
    return value


def domain_table(found: Sequence[Score], baselines: Mapping[str, Records], notes: Sequence[str]) -> Table:
    """The main table of a comparison's split: scores best first, the baselines among them."""
    comparison, split = found[0].comparison, found[0].split
    rows = [*map(_score_row, found), *(_baseline_row(name, each) for name, each in baselines.items())]
    rows.sort(key=lambda row: row["nats_per_token"])
    columns = _columns(
        found, rows, {f"bits_per_{unit}": (f"bits/{unit}", "{:.4f}".format) for unit in comparison.units}
    )
    title = f"{comparison.title}, {split} split"
    return Table(f"{comparison.slug}-{split}", title, columns, rows, [*notes, *_partly_paired(found)])


def across_table(found: Sequence[Score], baselines: Mapping[tuple[str, str], Mapping[str, Records]]) -> Table:
    """All comparisons under each other. `baselines` by slug and split."""
    rows, places = [], {}
    for score in found:
        places.setdefault((score.comparison.slug, score.split, score.pooled), []).append(score)
    for (slug, split, pooled), here in places.items():
        unit = here[0].comparison.units[0]
        counted = {} if pooled else baselines.get((slug, split), {})
        place = [*map(_score_row, here), *(_baseline_row(*each) for each in counted.items())]
        for row in sorted(place, key=lambda row: row["nats_per_token"]):
            bits = {"unit": unit, "bits_per_unit": row.get(f"bits_per_{unit}")}
            row = {"domain": here[0].comparison.title, "split": split, **row, **bits}
            rows.append({key: value for key, value in row.items() if not key.startswith("bits_per_") or "unit" in key})
    columns = {
        "domain": ("domain", str),
        **({"split": ("split", str)} if len({score.split for score in found}) > 1 else {}),
        **_columns(found, rows, {"bits_per_unit": ("bits/unit", "{:.4f}".format), "unit": ("unit", str)}, percent=True),
    }
    return Table("across", "All comparisons", columns, rows, _partly_paired(found))


def _columns(
    found: Sequence[Score], rows: Sequence[Row], bits: Mapping[str, Column], percent: bool = False
) -> dict[str, Column]:
    """Those that both tables have, what decides first, `bits` later, and differences in per cent if asked for."""
    return {
        "model": ("model", str),
        "seeds": ("seeds", str),
        **SOLVING,
        "nats_per_token": ("nats/token", "{:.4f}".format),
        "interval": ("95 % over seeds", interval("{:.4f}")),
        "published": ("published", str),
        "difference": (f"difference to {_reference_name(found)}", "{:+.4f}".format),
        **_against(found),
        "difference_interval": ("95 % interval of the difference", interval("{:+.4f}")),
        **_told("difference_interval_of", rows),
        "holm_p": ("Holm p", p_value),
        "verdict": ("verdict", str),
        **({"difference_percent": ("difference, %", "{:+.2f}".format)} if percent else {}),
        **bits,
        **COST,
    }


def _score_row(score: Score) -> Row:
    contestant, solving = score.contestant, score.solving
    row = {
        "model": contestant.label,
        "seeds": len(contestant.runs),
        "each_seed": " ".join(map(str, sorted(contestant.runs))),
        "errors": solving and " ".join(map(wrong, solving.accuracies)),
        "solved": solving and "{} of {}".format(*solving.rate),
        "solve_rate": solving and solving.interval,
        "take_off": solving and " ".join("never" if at is None else f"{at / 1000:g}k" for at in solving.take_off),
        "nats_per_token": score.nats.value,
        # A mean over seeds that do or do not solve a task is no figure that a t interval fits.
        "interval": None if solving else score.nats.seeds,
        "published": None if score.pooled else contestant.any_run.published.get(score.split),
    }
    for unit, each in score.bits.items():
        row |= {f"bits_per_{unit}": each.value, f"bits_per_{unit}_interval": None if solving else each.seeds}
    if score.compared is not None:
        against, apart = score.compared
        row |= {
            "against": against.label,
            "difference": apart.value,
            "difference_interval": apart.both or apart.clusters,
            "difference_interval_of": _basis(apart),
            "difference_percent": 100 * apart.value / apart.level,
        }
    row |= {"holm_p": score.holm_p, "verdict": score.verdict}
    if score.pooled:
        return row
    return row | {
        "parameters": contestant.parameters,
        "flops_per_token": contestant.flops_per_token,
        "tokens_per_s": contestant.tokens_per_s if score.comparison.speeds_comparable else None,
        "peak_memory_bytes": contestant.peak_memory,
    }


def _baseline_row(name: str, records: Records) -> Row:
    bits = {f"bits_per_{unit}": value for unit, value in records.bits_per_unit.items()}
    return {"model": name, "nats_per_token": records.nats_per_token, **bits, "verdict": BASELINE}


def _basis(apart: Difference) -> str | None:
    if apart.both:
        return BOTH
    return ALONE if apart.clusters else None


def _told(key: str, rows: Sequence[Row]) -> dict[str, Column]:
    """A column that says what intervals are of, where not all are of seeds and clusters together."""
    return {} if {row.get(key) for row in rows} <= {BOTH, None} else {key: ("for other", str)}


def _against(found: Sequence[Score]) -> dict[str, Column]:
    """A column that names the reference of each row, where a comparison has several."""
    several = {}
    for score in found:
        if score.compared is not None:
            several.setdefault(id(score.comparison), set()).add(score.compared[0].label)
    return {"against": ("less", str)} if any(len(labels) > 1 for labels in several.values()) else {}


def _partly_paired(found: Sequence[Score]) -> list[str]:
    """A note that says which differences leave out seeds that a figure beside them is of."""
    several, told = len({each.comparison.title for each in found}) > 1, []
    for each in found:
        if each.compared is None:
            continue
        against, pairs = each.compared[0], each.compared[1].pairs
        if pairs < max(len(model.runs) for model in (each.contestant, against)):
            place = f"{each.comparison.title}, " if several else ""
            seeds = "1 seed" if pairs == 1 else f"{pairs} seeds"
            told.append(f"{place}{each.contestant.label} less {against.label}, {seeds}")
    return [f"A difference is of the seeds that both models have: {'; '.join(dict.fromkeys(told))}."] if told else []


def _reference_name(found: Sequence[Score]) -> str:
    labels = {score.against.label: score.against.encoding for score in found if score.against is not None}
    return next(iter(labels if len(labels) == 1 else labels.values()), "reference")


def interval(form: str) -> Callable[[tuple[float, float]], str]:
    """How a pair of ends is shown."""
    return lambda pair: f"{form.format(pair[0])} to {form.format(pair[1])}"


def p_value(p: float) -> str:
    """How a p is shown."""
    return "<0.001" if p < 0.001 else f"{p:.3f}"


def wrong(accuracy: float) -> str:
    """How an accuracy is shown: by the share of wrong answers, in %."""
    return f"{100 * (1 - accuracy):.2f}"


def percentages(pair: tuple[float, float]) -> str:
    """How an interval of a share is shown."""
    return f"{100 * pair[0]:.0f} to {100 * pair[1]:.0f} %"


LEFT = (
    "file",
    "study",
    "stretch",
    "domain",
    "split",
    "model",
    "against",
    "verdict",
    "unit",
    "code",
    "controls",
    "difference_interval_of",
)
SOLVING = {
    "errors": ("error by seed, %", str),
    "solved": ("solved", str),
    "solve_rate": ("95 % of the solve rate", percentages),
    "take_off": ("take-off by seed", str),
}
COST = {
    "parameters": ("parameters", "{:,}".format),
    "flops_per_token": ("MFLOP/token", lambda flops: f"{flops / 1e6:,.{2 if flops < 1e8 else 0}f}"),
    "tokens_per_s": ("tokens/s", "{:,.0f}".format),
    "peak_memory_bytes": ("peak MiB", lambda size: f"{size / 2**20:,.0f}"),
}
