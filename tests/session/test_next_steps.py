"""The commands that training suggests at its end."""

import shlex
import sys
from types import SimpleNamespace

import pytest
from report_support import make_run

from bearings.core.terminal import PlainConsole
from bearings.session.matching import matched
from bearings.session.next_steps import next_steps, print_next_steps, program
from bearings.session.run_directory import RunDirectory

SEED = 3  # of the run after which commands are suggested


def commands(folder, overrides, run=None, finished=(), own_files=None, solved=None):
    """The suggested commands after a run of PoPE with `overrides`, in a folder with the `finished` runs."""
    for given in finished:
        make_run(folder, *given)
    own = RunDirectory.open(make_run(folder / "own", "pope", SEED, *overrides))
    config = {**matched(own.config), "runs": str(folder), "run": run}
    domain = SimpleNamespace(solved=solved)
    session = SimpleNamespace(config=config, overrides=overrides, domain=domain, own_files=own_files)
    return [*next_steps(session, SimpleNamespace(path=run or "runs/jsb/pope/small")).values()]


def test_another_encoding_gets_the_same_settings(tmp_path):
    own = ["encoding.delta_init=zero", "+encodings.pope.delta_init=zero"]
    other, report, samples = commands(tmp_path, [*own, "runs=there", "stores=here", "trust=mine", "++model.layers=2"])
    assert other == ["encoding=rope", "runs=there", "stores=here", "trust=mine", "model.layers=2"]
    assert report == ["task=report", "runs=there", "trust=mine"]
    assert samples == ["task=generate", "run=runs/jsb/pope/small", "task.sampling_seed=1", "stores=here", "trust=mine"]


def test_more_answers_are_sampled_in_a_domain_with_answers(tmp_path):
    *_, answers = commands(tmp_path, [], solved=lambda *_: True)
    assert answers == ["task=generate", "run=runs/jsb/pope/small", "task.samples=8"]


def test_the_folder_of_own_files_is_given_again(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    other, report, _ = commands(tmp_path, ["experiment=debug"], own_files=str(tmp_path / "my files"))
    assert other == ["--config-dir=my files", "encoding=rope", "experiment=debug"]
    assert report == ["task=report"]


def test_a_run_with_a_place_of_its_own_is_named_in_the_report(tmp_path):
    other, report, _ = commands(tmp_path, ["run=mine"], run="mine")
    assert other == ["encoding=rope"]
    assert report == ["task=report", f"task.directories=[mine,{tmp_path}]"]


def test_a_run_s_directory_is_quoted_for_hydra(tmp_path):
    _, report, samples = commands(tmp_path / "a,b", ["run='läufe x'"], run="läufe x")
    assert report == ["task=report", f"task.directories=['läufe x','{tmp_path}/a,b']"]
    assert samples == ["task=generate", "run='läufe x'", "task.sampling_seed=1"]


def test_encodings_with_runs_are_not_suggested_again(tmp_path):
    finished = [("rope", SEED), ("path", SEED)]
    assert commands(tmp_path, [], finished=finished)[0] == ["encoding=absolute_learned"]


@pytest.mark.parametrize("other", [("rope", 4), ("rope", SEED, "model.layers=1"), ("rope", SEED, "data.length=32")])
def test_an_encoding_with_runs_of_other_settings_is_suggested(tmp_path, other):
    assert commands(tmp_path, [], finished=[other])[0] == ["encoding=rope"]


def test_options_of_encodings_and_where_runs_were_made_do_not_matter(tmp_path):
    finished = [("rope", SEED, "encoding.base=500", "trainer.accelerator=cpu", "data.workers=1")]
    assert commands(tmp_path, [], finished=finished)[0] == ["encoding=path"]


@pytest.mark.parametrize(
    ("setting", "suggested"),
    [
        ("match=params", "sinusoidal"),
        ("match=flops", "learned"),
        ("data.length=2049", "sinusoidal"),
        ("data.length=2048", "learned"),
    ],
)
def test_an_encoding_that_these_settings_exclude_is_not_suggested(tmp_path, setting, suggested):
    given = ["experiment=debug", setting]
    finished = [(name, SEED, *given) for name in ("rope", "path")]
    assert commands(tmp_path, given, finished=finished)[0][0] == f"encoding=absolute_{suggested}"


@pytest.mark.parametrize(("finished", "suggested"), [([], "rope"), ([("rope", SEED)], "path")])
def test_a_damaged_run_is_no_run_and_hides_none(tmp_path, finished, suggested):
    for name in "abcdef":
        (damaged := tmp_path / "jsb" / "rope" / name).mkdir(parents=True)
        (damaged / "config.yaml").write_text("{")
    assert commands(tmp_path, [], finished=finished)[0] == [f"encoding={suggested}"]


def test_once_all_encodings_have_runs_another_seed_is_suggested(tmp_path, monkeypatch):
    monkeypatch.setattr("bearings.session.next_steps.choices_of", lambda group: ["nope", "path", "pope", "rope"])
    finished = [(name, SEED) for name in ("nope", "path", "rope")]
    given = ["encoding=pope", "model.layers=1", "++encodings.pope.delta_init=uniform"]
    finished = [(*each, "model.layers=1") for each in finished]
    overrides = [*given, f"seed={SEED}", "run=mine"]
    assert commands(tmp_path, overrides, finished=finished, own_files="/mine")[0] == [
        "--config-dir=/mine",
        *given,
        f"seed={SEED + 1}",
    ]


def test_the_control_of_a_conversion_is_trained_as_it_is(tmp_path):
    own = make_run(tmp_path / "own", "path", SEED, "trainer.match_steps=1", "trainer.distil_steps=1")
    session = SimpleNamespace(
        config={**RunDirectory.open(own).config, "runs": str(tmp_path)},
        overrides=["task=convert", "encoding=path", "model.pretrained=m.bin"],
        domain=SimpleNamespace(solved=None),
        own_files=None,
    )
    other, _, _ = next_steps(session, SimpleNamespace(path="there")).values()
    assert other == ["encoding=rope", "model.pretrained=m.bin"]
    make_run(tmp_path, "rope", SEED)
    other, _, _ = next_steps(session, SimpleNamespace(path="there")).values()
    assert other == ["encoding=pope", "model.pretrained=m.bin", "task=convert"]


@pytest.mark.parametrize(
    ("script", "python", "on_path", "typed"),
    [
        ("main.py", "/usr/bin/python", "/usr/bin/python", "python main.py"),
        ("main.py", "{here}/.venv/bin/python", "/usr/bin/python", ".venv/bin/python main.py"),
        ("main.py", "{here}/my env/python", "/usr/bin/python", "'my env/python' main.py"),
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


def test_commands_are_printed_for_a_shell_and_not_in_a_sweep(monkeypatch, capsys):
    monkeypatch.setattr("bearings.session.next_steps.next_steps", lambda *_: {"compare": ["runs='my runs'"]})
    session = SimpleNamespace(overrides=None, console=PlainConsole())
    print_next_steps(session, run=None)
    assert capsys.readouterr().out == ""
    session.overrides = []
    print_next_steps(session, run=None)
    assert shlex.split(capsys.readouterr().out.splitlines()[-1])[-1] == "runs='my runs'"
