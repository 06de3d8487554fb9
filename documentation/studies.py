"""A page for each kept study, from the summary next to its records, and the overview of all."""

import re

from ..studying.catalogue import ROOT, STUDIES, studies
from ..studying.front_page import PAGE
from .markdown import Open, write

PAGES = ROOT / "docs"
MARK = "<!-- results -->\n"
LINK = re.compile(r"\((\w+)/README\.md\)")
PLANNED = re.compile(r"\[(\w+)\]\(\1/study\.yaml\)")  # which have no page yet
PAGE_OF = re.compile(r"\.\./\.\./studies/(\w+)/README\.md")  # as links in the repository
PICTURE = re.compile(r"\]\(([\w-]+\.svg)\)")


def summarised() -> list[str]:
    """Names of the studies that have a summary of kept records."""
    return [name for name in studies() if (STUDIES / name / "README.md").exists()]


def write_studies(opened: Open) -> None:
    """Write `results/`: a page for each study with its plots, and an index with the overview of all."""
    names = summarised()
    for name in names:
        text = (STUDIES / name / "README.md").read_text(encoding="utf-8")
        for picture in PICTURE.findall(text):
            with opened(f"results/{name}/{picture}", "wb") as file:
                file.write((STUDIES / name / picture).read_bytes())
        write(opened, f"results/{name}.md", PICTURE.sub(rf"]({name}/\1){{ .plot }}", text))
    index = (PAGES / "results" / "index.md").read_text(encoding="utf-8")
    if MARK not in index:
        raise ValueError(f"docs/results/index.md: the overview of all studies needs the line {MARK.strip()}")
    write(opened, "results/index.md", PAGE_OF.sub(r"\1.md", index).replace(MARK, overview()))
    links = [f"* [{name}]({name}.md)" for name in names]
    write(opened, "results/SUMMARY.md", "\n".join(["* [Overview](index.md)", *links]))


def overview() -> str:
    """What the page of all studies says, with links between the pages of the documentation."""
    text = PAGE.read_text(encoding="utf-8").partition("\n\n")[2]
    return LINK.sub(r"(\1.md)", PLANNED.sub(r"`\1`", text.replace("\n## ", "\n### ")))
