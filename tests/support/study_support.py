"""Studies for tests: the command without a process of its own, and commands of runs without training."""

import sys
import time

import pytest
from conftest import composed
from report_support import make_run

from bearings.core.terminal import PlainConsole
from bearings.session.command import Command
from bearings.session.configuration import build
from bearings.studying import planning, running

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


@pytest.fixture(name="study")
def tiny_study(tmp_path, monkeypatch):
    """A study of two runs whose commands are what a test says, in place of training."""
    folder = tmp_path / "study"
    folder.mkdir()
    (folder / "study.yaml").write_text("runs:\n  - experiment=debug seed=0,1 encoding=rope\n")
    planned = planning.plan(folder, tmp_path / "runs", [CPU])

    def commands(*scripts):
        def given(runs):
            return [[sys.executable, "-c", script, *(str(run.path) for run in runs)] for script in scripts]

        monkeypatch.setattr(running, "commands", given)
        return planned

    return commands


@pytest.fixture(name="limit_once")
def limit_brought_forward(monkeypatch):
    """Bring the limit of 60 s forward: to the moment at which a condition holds."""

    def given(reached):
        clock, late = time.monotonic, []

        def monotonic():
            if not late and reached():
                late.append(60.0)
            return clock() + sum(late)

        monkeypatch.setattr(running.time, "monotonic", monotonic)
        return 60.0

    return given


FINISH = """
import pathlib, shutil, sys
for path in map(pathlib.Path, sys.argv[1:]):
    path.parent.mkdir(parents=True, exist_ok=True)
    shutil.copytree(path.parents[3] / "made" / path.name.rpartition("-")[2], path)
"""
FOLLOW = """
import pathlib, sys
file = pathlib.Path(sys.argv[1]) / "extrapolation" / "test.csv"; file.parent.mkdir(); file.write_text("figures")
"""


def made(tmp_path):
    """Runs as training leaves them, for the commands to bring about."""
    for seed in (0, 1):
        target = tmp_path / "made" / f"s{seed}"
        target.parent.mkdir(exist_ok=True)
        make_run(tmp_path / "elsewhere", "rope", seed).rename(target)
        (target / "checkpoints" / "best.ckpt").write_text("large")
