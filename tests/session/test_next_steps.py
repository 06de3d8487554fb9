"""The commands that training suggests at its end."""

import sys
from types import SimpleNamespace

import pytest

from bearings.session.next_steps import next_steps, program


def commands(folder, overrides, run=None, seed=0):
    names = {"domain": "jsb", "encoding": "pope"}
    config = {"names": names, "runs": str(folder), "run": run, "seed": seed}
    session = SimpleNamespace(config=config, overrides=overrides, domain=SimpleNamespace(solved=None))
    return [*next_steps(session, SimpleNamespace(path=run or "runs/jsb/pope/small")).values()]


def test_another_encoding_gets_the_same_settings(tmp_path):
    given = ["encoding=pope", "encoding.delta_init=zero", "seed=3", "runs=there", "stores=here", "model.layers=2"]
    other, report, samples = commands(tmp_path, given)
    assert other == ["encoding=rope", "seed=3", "runs=there", "stores=here", "model.layers=2"]
    assert report == ["task=report", "runs=there"]
    assert samples == ["task=generate", "run=runs/jsb/pope/small", "task.sampling_seed=1", "stores=here"]


def test_a_run_with_a_place_of_its_own_is_named_in_the_report(tmp_path):
    other, report, _ = commands(tmp_path, ["run=mine"], run="mine")
    assert other == ["encoding=rope"]
    assert report == ["task=report", "task.directories=[mine]"]


def test_encodings_with_runs_are_not_suggested_again(tmp_path):
    from bearings.session.configuration import choices_of

    for name in ("rope", "nope"):
        (tmp_path / "jsb" / name).mkdir(parents=True)
    first = next(name for name in choices_of("encoding") if name not in ("rope", "nope"))
    assert commands(tmp_path, [])[0] == [f"encoding={first}"]
    for name in choices_of("encoding"):
        (tmp_path / "jsb" / name).mkdir(parents=True, exist_ok=True)
    assert commands(tmp_path, ["encoding=pope", "seed=3"], seed=3)[0] == ["encoding=pope", "seed=4"]


@pytest.mark.parametrize(
    ("script", "python", "on_path", "typed"),
    [
        ("main.py", "/usr/bin/python", "/usr/bin/python", "python main.py"),
        ("main.py", "{here}/.venv/bin/python", "/usr/bin/python", ".venv/bin/python main.py"),
        ("/elsewhere/main.py", "/usr/bin/python", "/usr/bin/python", "python /elsewhere/main.py"),
        ("{here}/bearings/__main__.py", "/usr/bin/python", "/usr/bin/python", "python -m bearings"),
        ("/usr/bin/bearings", "/usr/bin/python", "/usr/bin/python", "bearings"),
    ],
)
def test_the_program_is_named_as_it_was_typed(script, python, on_path, typed, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [script.format(here=tmp_path)])
    monkeypatch.setattr(sys, "executable", python.format(here=tmp_path))
    found = {"python": on_path, "bearings": "/usr/bin/bearings"}
    monkeypatch.setattr("shutil.which", found.get)
    assert program() == typed
