"""task=report: text from runs is displayed, never interpreted as HTML, Markdown, TeX or formulas."""

import csv
import json
import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest
from report_support import lengths, make_run, mechanisms, report_task, rewritten  # noqa: F401

from bearings.core.legends import Legend
from bearings.reporting.naming import file_name
from bearings.reporting.reading import read_study
from bearings.reporting.study import Trouble
from bearings.reporting.tables import Table, as_markdown, write_csv
from bearings.tasks import report as report_module

HOSTILE = "=</pre><script>x</script>\"' onload=x |$\\frac{$ [a](javascript:x) ![b](http://x) `&lt; \x1b[2J\ud800\n# c"


class Elements(HTMLParser):
    """Names of all elements and of their attributes."""

    def __init__(self):
        super().__init__()
        self.tags, self.names = [], set()

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.names |= {name for name, _ in attributes}


def parsed(text):
    elements = Elements()
    elements.feed(text)
    return elements


@pytest.fixture
def hostile(monkeypatch):
    """Labels, titles, facts and troubles of every report are HOSTILE."""

    def read(folders):
        study = read_study(folders)
        comparisons = []
        for number, each in enumerate(study.comparisons):
            contestants = [
                replace(contestant, label=f"{HOSTILE} {place}") for place, contestant in enumerate(each.contestants)
            ]
            # Comparisons of one domain differ in a fact.
            facts = {**each.facts, HOSTILE: number}
            comparisons.append(replace(each, contestants=contestants, facts=facts, different={HOSTILE: HOSTILE}))
        return replace(study, comparisons=comparisons, troubles=[Trouble(HOSTILE, HOSTILE, HOSTILE)])

    monkeypatch.setattr(report_module, "read_study", read)


def test_hostile_text_is_displayed(tmp_path, report, hostile):
    for encoding in ("rope", "pope"):
        for seed in (0, 1):
            path = make_run(tmp_path / "runs", encoding, seed)
            text = HOSTILE.replace("\ud800", "")  # which no file can hold
            quantiles = ("layer", "head", "q05", "q25", "q50", "q75", "q95")
            mechanisms(path, "x_y", quantiles, [(0, 0, 1, 2, 3, 4, 5)], Legend(text, text))
            mechanisms(path, "attention", ("low", "high", "mass"), [(0, 1, 0.5)])
            lengths(path, forms=("none", "yarn"))
            curve = (path / "metrics.csv").read_text().replace("delta_frozen_share", "x_y")
            (path / "metrics.csv").write_text(curve)
            make_run(tmp_path / "runs", encoding, seed, "data.length=64")
    (path / "samples" / '<img src=x onerror="x">.txt').write_text("</pre><script>x</script>")
    folder, _ = report()
    page = parsed((folder / "index.html").read_text(encoding="utf-8"))
    assert page.tags.count("script") == 1  # the page's own
    assert not {name for name in page.names if name.startswith("on")}
    for file in (folder / "report.md", *folder.glob("tables/*.md")):
        text = file.read_text(encoding="utf-8")
        assert not parsed(text).tags
        assert not re.search(r"(?<!\\)\[[^\]]*(?<!\\)\]\((?!plots/)", text)
        assert "\x1b" not in text
        if file.parent.name == "tables":
            rows = [re.sub(r"\\.", "", line) for line in text.splitlines() if line.startswith("|")]
            assert len({row.count("|") for row in rows}) == 1
    assert list(folder.glob("plots/*x_y*.svg"))
    cells = [cell for file in folder.rglob("*.csv") for row in csv.reader(file.open(encoding="utf-8")) for cell in row]
    assert any(cell.startswith("'=</pre>") for cell in cells)
    assert not [cell for cell in cells if cell.startswith(("=", "@"))]


def test_markdown_displays_text_unchanged():
    plain = "pope, delta_init=zero | p <0.001 & 5 % (2 < 3) *"
    assert as_markdown(plain) == plain
    assert as_markdown("a <b> &lt; [c](d) `e` \\\nf") == r"a &lt;b> &amp;lt; \[c\](d) \`e\` \\ f"
    table = Table("", "t", {"a|b": ("a|b", str)}, [{"a|b": "c\\|d"}], []).markdown()
    assert r"| a\|b |" in table
    assert r"| c\\\|d |" in table


def test_csv_cells_are_never_formulas(tmp_path):
    texts = ["=1+1", "+1+1", "-1+1", "@SUM(1)", "\t=1", "\r=1", "＝1+1"]
    numbers = ["-0.5", "+1e3", "-inf", -0.5, -3]
    write_csv(tmp_path / "table.csv", [{"x": each} for each in (*texts, *numbers, "a=1")])
    with open(tmp_path / "table.csv", newline="", encoding="utf-8") as file:
        found = [row["x"] for row in csv.DictReader(file)]
    assert found == [*(f"'{text}" for text in texts), *map(str, numbers), "a=1"]


def test_names_in_a_run_cannot_escape_the_report_folder(tmp_path, report):
    make_run(tmp_path / "runs", "rope", 0)
    path = make_run(tmp_path / "runs", "rope", 1, "data.length=64")
    rewritten(path, "names", domain="../../../out")
    split = make_run(tmp_path / "runs", "rope", 2)
    manifest = json.loads((split / "manifest.json").read_text())
    manifest["store"]["splits"][2] = "../../out"
    (split / "manifest.json").write_text(json.dumps(manifest))
    _, out = report("task.out=a/b/report")
    assert {file.name for file in tmp_path.rglob("*out*")} <= {
        file.name for file in (tmp_path / "a" / "b" / "report").rglob("*")
    }
    assert "store.splits is missing or invalid" in out
    assert file_name("x" * 300) != file_name("x" * 301)
    assert len(file_name("x" * 300)) == 60
