"""A page for each kept study, from the summary next to its records, and one for all together."""

import re

from ..studying.catalogue import ROOT, STUDIES, studies
from ..studying.front_page import PAGE
from .markdown import Open, write

PAGES = ROOT / "docs"
HOME = "[studies/README.md](../../studies/README.md"
# Lines of docs/results/index.md that only the repository shows: the site has what they name instead.
ANSWER = f"{HOME}) has the answer in ten lines and a table. `make docs` writes them here.\n"
LISTS = f"## All studies\n\n{HOME}#all-studies) lists them. `make docs` writes the list here.\n"
LINK = re.compile(r"\((\w+)/README\.md\)")
PLANNED = re.compile(r"\[(\w+)\]\(\1/study\.yaml\)")  # which have no page yet
PAGE_OF = re.compile(r"\.\./\.\./studies/(\w+)/README\.md")  # as links in the repository
PICTURE = re.compile(r"\]\(([\w-]+\.svg)\)")


def summarised() -> list[str]:
    """Names of the studies that have a summary of kept records."""
    return [name for name in studies() if (STUDIES / name / "README.md").exists()]


def write_studies(opened: Open) -> None:
    """Write `results/`: a page for each study with its plots, and an index with the answer and the findings."""
    names = summarised()
    for name in names:
        text = (STUDIES / name / "README.md").read_text(encoding="utf-8")
        for picture in PICTURE.findall(text):
            with opened(f"results/{name}/{picture}", "wb") as file:
                file.write((STUDIES / name / picture).read_bytes())
        write(opened, f"results/{name}.md", PICTURE.sub(rf"]({name}/\1){{ .plot }}", text))
    index = (PAGES / "results" / "index.md").read_text(encoding="utf-8")
    for mark, part in zip((ANSWER, LISTS), overview(), strict=True):
        if mark not in index:
            raise ValueError(f"docs/results/index.md: must have this, which the site replaces: {mark.strip()}")
        index = index.replace(mark, part)
    write(opened, "results/index.md", PAGE_OF.sub(r"\1.md", index))
    links = [f"* [{name}]({name}.md)" for name in names]
    write(opened, "results/SUMMARY.md", "\n".join(["* [Overview](index.md)", *links]))


def overview() -> tuple[str, str]:
    """The answer that the page of all studies gives, and its lists of studies, with links between pages of the site."""
    text = PAGE.read_text(encoding="utf-8").partition("\n\n")[2]
    answer, heading, lists = LINK.sub(r"(\1.md)", PLANNED.sub(r"`\1`", text)).partition("## ")
    return answer, heading + lists
