"""A page for each kept study, from the summary next to its records, and the table of all studies."""

import re
from collections.abc import Iterator
from pathlib import Path

from ..studying.catalogue import STUDIES, studies
from .markdown import Open, write

PAGES = Path(__file__).parent.parent / "docs"
MARK = "<!-- results -->\n"
TABLE = re.compile(r"(?:^\|.*\n)+", re.MULTILINE)
PICTURE = re.compile(r"\]\((\w+\.svg)\)")


def summarised() -> list[str]:
    """Names of the studies that have a summary of kept records."""
    return [name for name in studies() if (STUDIES / name / "README.md").exists()]


def write_studies(opened: Open) -> None:
    """Write `results/`: a page for each study with its plots, and an index with the tables of all of them."""
    names = summarised()
    for name in names:
        text = (STUDIES / name / "README.md").read_text(encoding="utf-8")
        for picture in PICTURE.findall(text):
            with opened(f"results/{name}/{picture}", "wb") as file:
                file.write((STUDIES / name / picture).read_bytes())
        write(opened, f"results/{name}.md", PICTURE.sub(rf"]({name}/\1){{ .plot }}", text))
    index = (PAGES / "results" / "index.md").read_text(encoding="utf-8")
    if MARK not in index:
        raise ValueError(f"docs/results/index.md: the tables of results need the line {MARK.strip()}")
    write(opened, "results/index.md", index.replace(MARK, "\n".join(joined_tables(names))))
    links = [f"* [{name}]({name}.md)" for name in names]
    write(opened, "results/SUMMARY.md", "\n".join(["* [Overview](index.md)", *links]))


def joined_tables(names: list[str]) -> Iterator[str]:
    """The tables in the summaries of studies; those with equal headings are joined. Names link to their pages."""
    found: dict[str, list[str]] = {}
    for name in names:
        for block in TABLE.findall((STUDIES / name / "README.md").read_text(encoding="utf-8")):
            head, line, *rows = block.splitlines()
            linked = (row.replace(f"| {name}", f"| [{name}]({name}.md)", 1) for row in rows)
            found.setdefault(f"{head}\n{line}", []).extend(linked)
    for head, rows in found.items():
        yield "\n".join([head, *rows]) + "\n"
