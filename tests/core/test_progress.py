"""Progress of long work: a line at intervals if there is no terminal for a bar."""

import io
import re
import time

import pytest
from conftest import REPOSITORY
from rich.console import Console

from bearings.core import progress
from bearings.core.progress import line, shown, tracked


@pytest.fixture
def console(monkeypatch):
    monkeypatch.setattr(progress, "EVERY", 0.005)
    return Console(file=io.StringIO(), width=40)


def text_with(console, wanted):
    """What is printed, once `wanted` is in it."""
    limit = time.monotonic() + 10
    while wanted not in (text := console.file.getvalue()) and time.monotonic() < limit:
        time.sleep(0.001)
    return text


def test_lines_show_the_progress(console):
    with shown("scoring test", console=console) as report:
        assert "scoring test: 0:00\n" in text_with(console, "0:00\n")
        report(3, 10)
        assert "scoring test: 30 % in 0:00\n" in text_with(console, "30 %")
    assert not progress._shown


def test_only_the_innermost_of_nested_work_prints(console):
    with shown("preparing", console=console), shown("reading", console=console):
        before = console.file.tell()  # the outer work may print in the moment before the inner work begins
        text = text_with(console, "reading: 0:00\n" * 3)
    assert set(text[before:].splitlines()) == {"reading: 0:00"}


def test_items_are_counted(capsys, monkeypatch):
    monkeypatch.setattr(progress, "EVERY", 0.005)
    found = []
    for item in tracked("abcd", "reading", 4):
        found.append(item)
        time.sleep(0.02)
    assert found == [*"abcd"]
    assert re.search(r"reading: (25|50|75) % in 0:00\n", capsys.readouterr().err)


def test_a_line_shows_the_time():
    assert line("scoring test", 12, 40, 3671) == "scoring test: 30 % in 1:01:11"
    assert progress.EVERY <= 30


def test_all_work_is_shown_by_the_one_mechanism():
    """Except training, whose line shows more."""
    found = [path for folder in ("domains", "session", "tasks") for path in (REPOSITORY / folder).rglob("*.py")]
    assert not [path.name for path in found if "rich.progress" in path.read_text()]
    used = {path.stem for path in found if re.search(r"from \.\.core\.progress import", path.read_text())}
    assert {"base", "workers", "corpus", "fetch", "evaluate", "extrapolate", "generate"} <= used
    assert {"baseline_records", "fit", "mechanisms"} <= used
