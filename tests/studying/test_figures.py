"""The README's figures, written from kept records."""

import re

import numpy as np
from report_support import make_run

from bearings.domains.jsb import JSB
from bearings.studying import figures
from bearings.studying.front_page import Topic


def texts(path):
    return re.findall(r"<text[^>]*>([^<]*)</text>", path.read_text())


def test_figures_are_written_from_kept_records(tmp_path, monkeypatch):
    for encoding, seeds in {"rope": 3, "pope": 3, "path": 3, "nope": 2}.items():
        for seed in range(seeds):
            path = make_run(tmp_path / "mine" / "runs", encoding, seed)
            JSB().render(JSB().decode(np.arange(2, 50)), path / "samples" / "sample-0")
    monkeypatch.setattr(figures, "STUDIES", tmp_path)
    monkeypatch.setattr(figures, "SHOWN", {"jsb": "mine"})
    monkeypatch.setattr(figures, "RANKED", (Topic("mine", "chorales", "Chorales"),))
    monkeypatch.setattr(figures, "COMPARED", {"path", "nope"})
    monkeypatch.setattr(figures, "NAMED", {"path", "rope"})
    monkeypatch.setattr(figures, "TITLES", {"jsb": "Bach chorales"})
    written = figures.write_figures(tmp_path / "docs" / "assets")
    assert [path.name for path in written] == ["overview.svg", "overview-dark.svg", "results.svg", "results-dark.svg"]
    overview, dark, results, _ = written
    assert texts(overview) == texts(dark)
    assert overview.read_text() != dark.read_text()
    found = texts(overview)
    assert {"Bach chorales: path", "Soprano", "Bass"} <= {*found}
    assert "Bach chorales: pope" not in found, "it is not among those to compare"
    assert "Bach chorales: nope" not in found, "it has too few seeds"
    assert [text for text in texts(results) if text in ("rope", "pope", "path", "nope")] == ["path", "rope"]
    assert "other models" in texts(results)


def test_committed_figures_show_every_domain():
    found = texts(figures.ASSETS / "overview.svg")
    for title in figures.TITLES.values():
        assert f"{title}: pope" in found
        assert title in texts(figures.ASSETS / "results.svg")
