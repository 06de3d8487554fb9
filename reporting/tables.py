"""Tables of a report: rows under headings, written as CSV and Markdown and shown on a terminal."""

import csv
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import chain
from pathlib import Path
from typing import Any

from rich import box
from rich.padding import Padding
from rich.table import Table as ConsoleTable

from ..core.terminal import printable
from ..core.whole_files import write_text, written_whole
from ..core.words import signed

FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n", "＝", "＋", "－", "＠")  # spreadsheets run cells that begin with these
LEFT = (  # keys of text columns, which are aligned left
    "file",
    "benchmark",
    "claim",
    "metric",
    "comparison",
    "stretch",
    "group",
    "domain",
    "split",
    "subset",
    "model",
    "mechanism",
    "against",
    "verdict",
    "unit",
    "code",
    "controls",
    "difference_interval_of",
)
PLAIN: dict[str, Any] = {"box": box.SIMPLE_HEAD, "show_edge": False, "padding": (0, 1, 0, 0)}  # on a terminal
NAME = 27  # maximum width of the first column on a terminal; longer names wrap
Row = dict[str, Any]
Column = tuple[str, Callable[[Any], str]]


@dataclass(frozen=True)
class Table:
    """Rows under headings.

    Attributes:
        slug: file name without suffix.
        columns: for each row key, a heading and a function that formats values, which is pickled with the
            table. Columns without values are hidden.
        notes: one line each.
        main: keys of the columns that the page shows first; if empty, all columns.
        folded: whether the page shows only the title until the reader expands it.
        with_samples: whether the page shows it above the samples.
    """

    slug: str
    title: str
    columns: Mapping[str, Column]
    rows: Sequence[Row]
    notes: Sequence[str]
    main: Sequence[str] = ()
    folded: bool = False
    with_samples: bool = False

    @cached_property
    def shown(self) -> list[str]:
        """Keys of the columns that have values."""
        return [key for key in self.columns if any(row.get(key) is not None for row in self.rows)]

    @property
    def first(self) -> list[str]:
        """Keys of the columns that the page shows first."""
        return [key for key in self.shown if key in self.main or not self.main]

    @property
    def further(self) -> list[str]:
        """Keys of the columns that the page shows in a second table, which repeats the columns that identify a row."""
        if len(self.first) == len(self.shown):
            return []
        return [key for key in self.shown if key in ("domain", "split", "model") or key not in self.first]

    def cell(self, row: Row, key: str) -> str:
        """A value as text; empty if there is none."""
        return "" if row.get(key) is None else self.columns[key][1](row[key])

    def markdown(self) -> str:
        """Heading, unless the title is empty, table and notes."""
        keys = self.shown
        lines = [
            *([f"### {as_markdown(self.title)}", ""] if self.title else []),
            "| " + " | ".join(_in_table(self.columns[key][0]) for key in keys) + " |",
            "|" + "|".join("---" if key in LEFT else "---:" for key in keys) + "|",
            *("| " + " | ".join(_in_table(self.cell(row, key)) for key in keys) + " |" for row in self.rows),
            "",
            *(f"- {as_markdown(note)}" for note in self.notes),
        ]
        return "\n".join(lines).rstrip() + "\n"

    def on_console(self, keys: Sequence[str] | None = None, groups: Sequence[str] = ()) -> ConsoleTable:
        """The table for a terminal. Text wraps if space is short; numbers never wrap.

        Args:
            keys: columns to show if they have values; None for all.
            groups: keys shown as a line above each group of rows with equal values, instead of as columns.
        """
        groups = [key for key in groups if key in self.columns]
        keys = [key for key in (self.shown if keys is None else keys) if key in self.shown and key not in groups]

        def above(row: Row) -> str:
            return ", ".join(filter(None, (self.cell(row, key) for key in groups)))

        table = ConsoleTable(title=self.title, title_justify="left", **PLAIN)
        for key in keys:
            heading, text = self.columns[key][0], key in LEFT
            words = " ".join([heading, *(self.cell(row, key).replace(" ", "\N{NO-BREAK SPACE}") for row in self.rows)])
            widest = None if text else max(map(len, words.split(" ")))
            if groups and key == keys[0]:  # names wrap last
                names = chain((len(self.cell(row, key)) + 2 for row in self.rows), map(len, map(above, self.rows)))
                widest = min(NAME, max(names))
            # Rich wraps fixed-width columns last.
            table.add_column(heading, justify="left" if text else "right", overflow="fold", width=widest)
        group = None
        for row in self.rows:
            here = above(row)
            if here and here != group:
                table.add_row(here, *([""] * (len(keys) - 1)))
            group = here
            cells = [self.cell(row, key) for key in keys]
            table.add_row(Padding(cells[0], (0, 0, 0, 2 if groups else 0)), *cells[1:])
        return table

    def turned_on_console(self, name: str, heading: str, width: int, hidden: Sequence[str] = ()) -> list[ConsoleTable]:
        """The table for a terminal with a line for each column and a column for each row, for tables with few rows.

        Rows that have no room in `width` characters follow in further tables.

        Args:
            name: key of the column whose values head the columns.
            heading: heading of the column with the headings.
            width: width of the terminal.
            hidden: keys of columns to leave out.
        """
        keys = [key for key in self.shown if key not in (name, *hidden)]
        headings = [heading, *(self.columns[key][0] for key in keys)]
        longest = max(len(word) for each in headings for word in each.split())  # Rich wraps headings between words
        parts, room = list[list[list[str]]](), 0
        for row in self.rows:
            cells = [self.cell(row, key) for key in (name, *keys)]
            needed = max(map(len, cells)) + 2
            if not parts or needed > room:
                parts.append([])
                room = width - longest - 1
            parts[-1].append(cells)
            room -= needed
        tables = []
        for part in parts:
            table = ConsoleTable(title=None if tables else self.title, title_justify="left", **PLAIN)
            table.add_column(heading, justify="right", min_width=longest)
            for cells in part:
                table.add_column(cells[0], justify="right", no_wrap=True)
            for line in zip(headings[1:], *(cells[1:] for cells in part), strict=True):
                table.add_row(*line)
            tables.append(table)
        return tables

    def write(self, folder: Path) -> None:
        """Write `folder/<slug>.csv` with unrounded values, and `folder/<slug>.md`."""
        write_csv(folder / f"{self.slug}.csv", self.rows)
        write_text(folder / f"{self.slug}.md", self.markdown())


def as_markdown(text: str) -> str:
    """`text` as one line of Markdown that displays it unchanged, without HTML, links or images."""
    text = re.sub(r"[\\`\[\]]", r"\\\g<0>", printable(" ".join(text.splitlines())))
    return re.sub(r"<(?=[a-zA-Z/!?])", "&lt;", re.sub(r"&(?=#?\w+;)", "&amp;", text))


def _in_table(text: str) -> str:
    return as_markdown(text).replace("|", "\\|")


def write_csv(path: Path, rows: Sequence[Row], first: Sequence[str] = ()) -> None:
    """Write rows with unrounded values; an interval becomes two columns. The file is replaced only when complete.

    The columns are `first`, also without rows, then the other keys of the rows. Text that a spreadsheet would
    run as a formula gets a leading apostrophe, as OWASP recommends ("CSV Injection").
    """
    flat = []
    for row in rows:
        flat.append({})
        for key, value in row.items():
            if isinstance(value, tuple):
                flat[-1] |= {f"{key}_low": value[0], f"{key}_high": value[1]}
            else:
                flat[-1][key] = value
    # A row without an interval must not add a third column next to the low and high columns of other rows.
    pairs = {key.removesuffix("_low") for row in flat for key in row if key.endswith("_low")}
    keys = dict.fromkeys([*first, *(key for row in flat for key in row if key not in pairs)])
    with written_whole(path) as file:
        writer = csv.writer(file)
        writer.writerow(keys)
        writer.writerows([_inert(row.get(key)) for key in keys] for row in flat)


def _inert(value: Any) -> Any:
    if not isinstance(value, str) or not value.startswith(FORMULA):
        return value
    try:
        float(value)
    except ValueError:
        return f"'{value}"
    return value


def with_sign(digits: int) -> Callable[[float], str]:
    """A function that formats numbers with `signed`."""
    return partial(signed, digits=digits)


def interval(form: Callable[[float], str]) -> Callable[[tuple[float, float]], str]:
    """A function that formats the ends of an interval."""
    return partial(_interval, form)


def _interval(form: Callable[[float], str], pair: tuple[float, float]) -> str:
    return f"{form(pair[0])} to {form(pair[1])}"


def p_value(p: float) -> str:
    """A p-value as text."""
    return "<0.001" if p < 0.001 else f"{p:.3f}"


def at_least(p: float) -> str:
    """The smallest of several p-values as text."""
    return f"at least {p_value(p)}" if p < 1 else p_value(p)


def wrong(accuracy: float) -> str:
    """The error rate in per cent for an accuracy, as text; 0 stands for no error at all."""
    percent = 100 * (1 - accuracy)
    if percent == 0:
        return "0"
    return "<0.01" if percent < 0.005 else f"{percent:.2f}"


def millions(count: float) -> str:
    """A large number in millions, as text."""
    return f"{count / 1e6:,.{2 if count < 1e8 else 0}f}"


def mebibytes(size: int) -> str:
    """A size in bytes as text in MiB."""
    return f"{size / 2**20:,.0f}"


def percentage(proportion: float) -> str:
    """A proportion as text in per cent."""
    return f"{100 * proportion:.0f} %"


def percentages(pair: tuple[float, float]) -> str:
    """An interval of a proportion, as text in per cent."""
    return f"{100 * pair[0]:.0f} to {100 * pair[1]:.0f} %"


def by_value(text: str) -> tuple[float, str]:
    """A key that sorts numbers by value, before other text."""
    try:
        return float(text), text
    except ValueError:
        return math.inf, text
