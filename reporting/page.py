"""report/index.html: the whole report in one file that needs no network."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from ..core.theme import DARK, LIGHT, PLAIN
from ..core.whole_files import write_text
from .answers import Answer
from .drawing import Plot
from .samples import Sample, data_uri
from .study import Study
from .tables import LEFT, Table

MARK = '<meta name="generator" content="bearings task=report">'  # identifies pages written by this module
WIDE = 560  # points from which a plot gets the page's full width


@dataclass(frozen=True)
class Section:
    """What the page shows of one comparison, or of all comparisons together.

    Attributes:
        slug: anchor of the section.
        description: a line below the title; may be empty.
        findings: what a plot shows, as text for readers who do not see it, by the name of the plot's file.
        sampled: a sentence about the models that the samples are of; empty if they are of all.
    """

    slug: str
    title: str
    description: str
    tables: Sequence[Table]
    plots: Sequence[Plot]
    samples: Sequence[Sample]
    findings: Mapping[str, str] = field(default_factory=dict)
    sampled: str = ""


def write_page(
    path: Path, study: Study, sections: Sequence[Section], answers: Sequence[Answer], remarks: Sequence[str]
) -> None:
    """Write the page. `remarks` explain how to read it."""
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    text = environment.get_template("page.html").render(
        mark=MARK,
        light=LIGHT,
        dark=DARK,
        colours=_colours,
        answers=answers,
        sections=sections,
        troubles=study.troubles,
        troubles_table=_troubles_table(study),
        legend=[*study.legend().values()],
        manifests=study.manifests(),
        remarks=remarks,
        left=(*LEFT, "place", "state", "why"),
        picture=picture,
        is_wide=_is_wide,
        sort_value=sort_value,
    )
    write_text(path, text)


def is_page(path: Path) -> bool:
    """Whether `write_page` wrote the file at `path`."""
    return path.is_file() and MARK in path.read_text(encoding="utf-8", errors="replace")


def _colours(theme: Mapping[str, str]) -> str:
    """The colours of text and background as CSS variables."""
    return " ".join(f"--{name}: {theme[name]};" for name in ("ink", *PLAIN))


def _troubles_table(study: Study) -> Table:
    columns = {"place": ("run", str), "state": ("state", str), "why": ("reason", str)}
    return Table("left-out", "Runs not in the tables", columns, [vars(each) for each in study.troubles], [])


def picture(plot: Plot) -> str:
    """The plot's SVG as a data URI."""
    return data_uri(plot.svg.read_bytes(), "image/svg+xml")


def _is_wide(plot: Plot) -> bool:
    found = re.search(rb'viewBox="0 0 ([\d.]+)', plot.svg.read_bytes()[:2000])
    return found is not None and float(found[1]) >= WIDE


def sort_value(row: Mapping[str, Any], key: str) -> str:
    """The value that a column is sorted by: the number, or the lower end of an interval."""
    value = row.get(key)
    return str(value[0] if isinstance(value, tuple) else "" if value is None else value)
