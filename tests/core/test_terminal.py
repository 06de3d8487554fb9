"""terminal.py: names and messages from files reach the terminal as they are and change nothing there."""

import io
import sys

import pytest
from hydra import compose, initialize_config_dir
from report_support import make_run
from rich.text import Text

from bearings.core.errors import UserError
from bearings.core.progress import shown
from bearings.core.terminal import PlainConsole, printable
from bearings.reporting.tables import Table
from bearings.session.configuration import build, resolve
from bearings.session.explaining import one_line_errors
from bearings.session.session import Session
from bearings.session.settings import CONFIGS

MARKUP, ESCAPES = "runs/[bold]x[/] [/] :warning:", "\x1b[2J\x1b]0;title\x07 \u202etxt.exe \udcff\r"


def test_what_a_terminal_would_obey_is_shown():
    assert printable(ESCAPES) == r"\x1b[2J\x1b]0;title\x07 \u202etxt.exe \udcff\r"
    assert printable("Größe 1 000\tπ\n日本 …") == "Größe 1 000\tπ\n日本 …"


def test_lines_and_tables_show_text_as_it_is():
    console = PlainConsole(file=io.StringIO(), width=250)
    text = MARKUP + ESCAPES
    console.print(text, Text("ours", "bold"))
    console.print(Table("slug", text, {"model": (text, str)}, [{"model": text}], []).on_console())
    assert console.file.getvalue().count(MARKUP + printable(ESCAPES)) == 4


@pytest.mark.parametrize("force_terminal", [False, True])
def test_lines_are_printed_whole(force_terminal):
    console = PlainConsole(file=io.StringIO(), width=20, force_terminal=force_terminal)
    console.print("the best rate is at the edge of the grid", Text("of all encodings"))
    assert console.file.getvalue() == "the best rate is at the edge of the grid of all encodings\n"


def test_a_bar_s_title_is_no_markup():
    console = PlainConsole(file=io.StringIO(), width=250, force_terminal=True)
    with shown(MARKUP + "\x07", console=console):
        pass
    assert MARKUP + r"\x07" in console.file.getvalue()


def test_an_error_s_line_is_shown_as_it_is(capsys):
    with pytest.raises(SystemExit), one_line_errors():
        raise UserError(f"there is no {ESCAPES}")
    assert capsys.readouterr().err == f"error: there is no {printable(ESCAPES)}\n"


def test_the_report_of_a_run_with_such_texts_is_written(tmp_path, monkeypatch, capsys):
    path = make_run(tmp_path / "[bold]x[/] [/]", "rope", 0, finished=False)
    manifest = (path / "manifest.json").read_text()
    (path / "manifest.json").write_text(manifest.replace('"failed": null', r'"failed": "[/] \u001b[2J"'))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["main.py"])
    with initialize_config_dir(str(CONFIGS), version_base="1.3"):
        plain = resolve(compose("config", overrides=["task=report"])) | {"runs": "[bold]x[/] [/]"}
    plain["names"] = {"domain": "jsb", "encoding": "pope", "model": "small"}
    build(plain["task"], "task")(Session.of(plain))
    out = capsys.readouterr().out
    assert "failed: [bold]x[/] [/]/jsb/rope/" in out
    assert r"[/] \x1b[2J" in out
