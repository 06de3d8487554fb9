"""Studies for tests: the command without a process of its own."""

import pytest
from conftest import composed

from bearings.core.terminal import PlainConsole
from bearings.session.command import Command
from bearings.session.configuration import build

CPU = "trainer.accelerator=cpu"


@pytest.fixture(name="command")
def study_command(tmp_path, monkeypatch, capsys):
    """Run `task=study` with settings in `tmp_path`: what it printed."""
    monkeypatch.chdir(tmp_path)

    def run(*overrides):
        plain = composed("task=study", *overrides)
        plain["names"] = {"domain": "jsb", "encoding": "pope", "model": "small"}
        build(plain["task"], "task")(Command(plain, PlainConsole(width=200)))
        return capsys.readouterr().out

    return run
