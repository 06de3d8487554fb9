"""report/index.html: one file that holds the whole report and asks no network for anything."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from ..core.whole_files import written_whole
from .drawing import Plot
from .samples import Sample, data_uri
from .study import Study
from .tables import LEFT, Table

MARK = '<meta name="generator" content="bearings task=report">'  # by which a report is known from another's page


@dataclass(frozen=True)
class Section:
    """What the page shows of one comparison, or across all."""

    slug: str
    title: str
    tables: Sequence[Table]
    plots: Sequence[Plot]
    samples: Sequence[Sample]


def write_page(path: Path, study: Study, sections: Sequence[Section], remarks: Sequence[str]) -> None:
    """Write the page whole. `remarks` are lines for its head."""
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    text = environment.get_template("page.html").render(
        mark=MARK,
        sections=sections,
        troubles=study.troubles,
        apart=study.apart(),
        manifests=study.manifests(),
        remarks=remarks,
        left=LEFT,
        picture=picture,
        sort_value=sort_value,
    )
    with written_whole(path) as file:
        file.write(text)


def is_page(path: Path) -> bool:
    """Whether `write_page` wrote the file at `path`."""
    return path.is_file() and MARK in path.read_text(encoding="utf-8", errors="replace")


def picture(plot: Plot) -> str:
    """The plot's SVG as a data URI."""
    return data_uri(plot.stem.with_name(plot.stem.name + ".svg").read_bytes(), "image/svg+xml")


def sort_value(row: Mapping[str, Any], key: str) -> str:
    """What a column is sorted by: a number in full, an interval by its lower end."""
    value = row.get(key)
    return str(value[0] if isinstance(value, tuple) else "" if value is None else value)
