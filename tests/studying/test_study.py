"""task=study: lists and their mistakes, the commands of runs, and the records at the end."""

import re
from pathlib import Path

import pytest
import torch
import yaml
from command_support import run_command  # noqa: F401
from conftest import composed
from hydra.core.override_parser.overrides_parser import OverridesParser
from report_support import make_run, undrawn  # noqa: F401
from study_support import CPU, study_command  # noqa: F401

from bearings.core.errors import UserError
from bearings.core.plain_yaml import as_yaml
from bearings.reporting.lines import expanded
from bearings.session.run_config import written
from bearings.session.run_directory import RunDirectory
from bearings.session.session import Session
from bearings.studying import catalogue, jobs, keeping, planning, running


def test_a_line_that_cannot_be_run_is_named(tmp_path):
    (tmp_path / "study.yaml").write_text("runs:\n  - experiment=debug encoding=rope\n  - encoding=rope seed=0,-1\n")
    with pytest.raises(UserError, match=r"study\.yaml, encoding=rope seed=-1: seed=-1: it must be at least"):
        planning.plan(tmp_path, tmp_path / "trained")


def test_a_line_is_swept_as_hydra_sweeps_it_the_last_key_fastest():
    found = list(expanded("experiment=debug seed=0,1 encoding=rope,pope task.seeds=[0,1]"))
    swept = ["seed=0 encoding=rope", "seed=0 encoding=pope", "seed=1 encoding=rope", "seed=1 encoding=pope"]
    assert [" ".join(each[1:3]) for each in found] == swept
    assert all(each[0] == "experiment=debug" and each[3] == "task.seeds=[0,1]" for each in found)


def test_runs_that_differ_only_in_their_seeds_share_a_command(tmp_path):
    lines = ["experiment=debug seed=0,1,2 encoding=rope,nope", "experiment=debug encoding=rope trainer.steps=30"]
    lines += ["experiment=debug encoding=path seed=3 seed=5", "experiment=debug encoding=path"]
    then = ["task=extrapolate task.contexts=[64] domain=jsb"]
    (tmp_path / "study.yaml").write_text(yaml.safe_dump({"runs": lines, "then": then}))
    planned = planning.plan(tmp_path, tmp_path / "trained", [CPU])
    groups = jobs.together(planned, 2)
    seeds = [[run.seed for run in group] for group in groups]
    assert seeds == [[0, 1], [0, 1], [2], [2], [None], [5], [None]]
    assert jobs.together(planned, 1) == [[run] for run in planned]
    train, follow = (command[2:] for command in jobs.commands(groups[1]))
    assert train == ["-m", "experiment=debug", "encoding=nope", CPU, f"runs={tmp_path / 'trained'}", "seed=0,1"]
    files = ["encoding=nope", "model=small"]  # of groups that the line does not name
    assert sorted(follow) == sorted(["-m", *then[0].split(), f"run={groups[1][0].path},{groups[1][1].path}", *files])


@pytest.mark.parametrize("folder", ["größe", "a (1)", "a,b", "a=b", "it's", "a#b", "a b"])
def test_what_follows_a_run_finds_it_in_a_folder_of_any_name(tmp_path, folder):
    study = {"runs": ["experiment=debug seed=0,1 encoding=rope"], "then": ["task=extrapolate task.contexts=[64]"]}
    (tmp_path / "study.yaml").write_text(yaml.safe_dump(study))
    planned = planning.plan(tmp_path, tmp_path / folder / "trained", [CPU])
    for runs in (planned[:1], planned):
        settings = OverridesParser.create().parse_overrides(
            [setting for setting in jobs.commands(runs)[1][2:] if setting.startswith("run=")]
        )
        value = settings[0].value()
        found = value.list if settings[0].is_sweep_override() else [value]
        assert [str(getattr(each, "text", each)) for each in found] == [str(run.path) for run in runs]


@pytest.mark.parametrize(
    ("listed", "message"),
    [
        (
            'runs: [experiment=debug seed=0]\nthen: ["task=extrapolate task.contxts=[32]"]',
            "task=extrapolate task.contxts=.*unknown",
        ),
        ("runs: [experiment=debug run=here]", "experiment=debug run=here: run=here: remove it"),
        ("runs: [task=check seed=0]", "task=check seed=0: task=check: remove it"),
        ("runs: [experiment=debug +run=here]", r"experiment=debug \+run=here: \+run=here: remove it"),
        ("runs: [experiment=debug stores=here]", "experiment=debug stores=here: stores=here: remove it"),
        ("runs: [experiment=debug seed=0 foo]", "experiment=debug seed=0 foo: foo: write settings as key=value"),
        ("runs: [experiment=debug ++runs=here]", r".* \+\+runs=here: remove it"),
        ("runs: [experiment=debug model=base]", ".* model=base: model=base: experiment=debug sets model.width"),
        (
            'runs: [experiment=debug seed=0]\nthen: ["task=generate task.temperature=-1"]',
            "task=generate task.temperature=-1: task.temperature=-1",
        ),
        (
            'runs: [experiment=debug seed=0]\nthen: ["task=evaluate data.length=128"]',
            "task=evaluate data.length=128: data.length=128: .* was made with data.length=64",
        ),
        ('runs: [experiment=debug seed=0]\nthen: ["task=benchmark"]', "task=benchmark: domain jsb is not text: "),
        (
            'runs: [experiment=debug seed=0]\nthen: ["task=variants task.files=[main.py]"]',
            r"task=variants task.files=\[main.py\]: domain jsb has no bases: ",
        ),
        (
            'runs: [experiment=debug seed=0]\nthen: ["task=tune seed=1"]',
            "task=tune seed=1: .* does not take a finished run",
        ),
        ("runs: [experiment=debug enoding=rope]", "experiment=debug enoding=rope: enoding: unknown key"),
        (
            "runs: [experiment=debug encoding=ropee]",
            "experiment=debug encoding=ropee: encoding=ropee: did you mean rope",
        ),
        (
            "reference: ropee\nruns: [experiment=debug encoding=rope]",
            "reference: no run has the encoding ropee; did you mean rope",
        ),
        (
            "claims: [{claim: x, model: nope, than: rope, split: test}]\nruns: [experiment=debug encoding=rope]",
            "claims: no run has the encoding nope; did you mean rope. allowed: rope",
        ),
        (
            "claims: [{claim: x, model: rope, than: nope, split: test}]\nruns: [experiment=debug encoding=rope]",
            "claims: no run has the encoding nope; did you mean rope. allowed: rope",
        ),
        (
            "claims: [{claim: x, model: rope, than: rope, split: tests}]\nruns: [experiment=debug encoding=rope]",
            "claims: no run has the test split tests; did you mean test. allowed: test",
        ),
        (
            "published: {valid: {rope: 1 nats}}\nruns: [experiment=debug encoding=rope]",
            "published: no run has the test split valid; allowed: test",
        ),
        (
            "published: {test: {pope: 1 nats}}\nruns: [experiment=debug encoding=rope]",
            "published: no run has the encoding pope; did you mean rope. allowed: rope",
        ),
        (
            "runs: [experiment=debug encoding=alibi encoding.head_share=1]",
            ".*encoding.head_share: unknown key of encoding=alibi; did you mean encoding.heads_share. allowed: ",
        ),
        (
            "runs: [experiment=debug domain=genome domain.chunks=1]",
            ".*unknown key of domain=genome; did you mean domain.chunk. allowed",
        ),
        (
            "runs: [experiment=debug]\nthen: ['task=extrapolate task.context=[128]']",
            ".*task.context: unknown key of task=extrapolate; did you mean task.contexts. allowed: task.",
        ),
        (
            "search: task=tune task.rate=[1e-3]\nruns: [experiment=debug]",
            ".*task.rate: unknown key of task=tune; did you mean task.rates. allowed: task.",
        ),
        (
            "claims: [{claim: x, model: rope, context: 99}]\nruns: [experiment=debug encoding=rope]\n"
            "then: [task=extrapolate]",
            "claims: context=99: no line of then scores rope with it; allowed: 16, 32, 64, 128, 256, 512, 1024; change "
            r"it, or add task=extrapolate task\.contexts=\[99\] to then",
        ),
        (
            "claims: [{claim: x, model: rope, context: 99}]\nruns: [experiment=debug encoding=rope]\n"
            "then: ['task=extrapolate task.contexts=[100]', 'task=extrapolate task.contexts=[99] task.split=valid']",
            "claims: context=99: no line of then scores rope with it; allowed: 64, 100; change",
        ),
        (
            "claims: [{claim: x, model: rope, than: pope, context: 64}]\nruns: ['experiment=debug encoding=rope,pope']",
            "claims: context=64: no line of then scores rope with it; allowed: none; change",
        ),
        (
            "claims: [{claim: x, model: rope, than: pope, context: 16}]\nthen: [task=extrapolate]\n"
            "runs: [experiment=debug encoding=rope, experiment=debug encoding=pope data.length=128]",
            "claims: context=16: no line of then scores pope with it; allowed: 32, 64, ",
        ),
        (
            "claims: [{claim: x, model: rope, context: 64}]\nruns: ['experiment=debug encoding=rope']\n"
            "then: [task=extrapolate]",
            "claims: context=64: rope is trained on 64 tokens: give a longer context",
        ),
    ],
)
def test_a_mistake_in_a_list_is_reported_with_its_line_before_training(tmp_path, listed, message):
    (tmp_path / "study.yaml").write_text(listed)
    with pytest.raises(UserError, match=f"study.yaml, {message}"):
        planning.plan(tmp_path, tmp_path / "trained")


@pytest.mark.parametrize(("line", "context"), [("task.contexts=[99]", 99), ("task.contexts=[99]", 64), ("", 1024)])
def test_claims_about_splits_and_contexts_that_are_scored_are_allowed(tmp_path, line, context):
    claims = [{"claim": "x", "model": "rope", "than": "rope", "context": context}]
    claims += [{"claim": "y", "model": "rope", "than": "rope", "split": "test"}]
    study = {"claims": claims, "runs": ["experiment=debug encoding=rope"], "then": [f"task=extrapolate {line}"]}
    (tmp_path / "study.yaml").write_text(yaml.safe_dump(study))
    assert len(planning.plan(tmp_path, tmp_path / "trained")) == 1


@pytest.mark.parametrize("lengths", ["64,128", "128,64"])
def test_a_context_of_a_claim_is_longer_than_the_shortest_trained_length(tmp_path, lengths):
    claims = [{"claim": "x", "model": "rope", "context": 128}]
    study = {
        "claims": claims,
        "runs": [f"experiment=debug encoding=rope data.length={lengths}"],
        "then": ["task=extrapolate"],
    }
    (tmp_path / "study.yaml").write_text(yaml.safe_dump(study))
    assert len(planning.plan(tmp_path, tmp_path / "trained")) == 2


def test_a_list_without_runs_is_refused(tmp_path):
    (tmp_path / "study.yaml").write_text("reference: rope\nruns: []\n")
    with pytest.raises(UserError, match=r"study\.yaml: runs is empty: list a line"):
        planning.plan(tmp_path, tmp_path / "trained")


def test_what_follows_a_run_knows_the_keys_of_its_files(tmp_path):
    study = {"runs": ["experiment=path_flip_flop seed=0,1"], "then": ["task=evaluate domain.sparse=100"]}
    (tmp_path / "study.yaml").write_text(yaml.safe_dump(study))
    with pytest.raises(UserError, match=r"domain.sparse=100: .* was made with domain.sparse=160000"):
        planning.plan(tmp_path, tmp_path / "trained")
    (tmp_path / "study.yaml").write_text(yaml.safe_dump({**study, "then": ["task=evaluate domain.sparse=160000"]}))
    assert len(planning.plan(tmp_path, tmp_path / "trained")) == 2


def test_the_command_lists_what_is_to_do(tmp_path, command, monkeypatch):
    monkeypatch.setattr("bearings.tasks.study.trusted", tuple)
    (tmp_path / "study").mkdir()
    (tmp_path / "study" / "study.yaml").write_text("runs:\n  - experiment=debug seed=0,1 encoding=rope\n")
    lines = command("study=study", "task.dry=true", "task.settings={trainer.micro_batch:5}").splitlines()
    assert lines[0] == "0 of 2 runs are finished"
    assert lines[1] == "to do    experiment=debug seed=0 encoding=rope trainer.micro_batch=5 runs=runs"
    monkeypatch.setattr("bearings.tasks.study.trusted", lambda: ("mine", "other"))
    lines = command("study=study", "task.dry=true", "stores=elsewhere").splitlines()
    assert lines[1].endswith("encoding=rope stores=elsewhere 'trust=[mine,other]' runs=runs")
    assert not (tmp_path / "study" / ".lock").exists()  # nothing is written
    for overrides, message in (
        (["study=study", "task.jobs=0"], "^task.jobs=0: it must be at least 1$"),
        (["study=study", "task.limit=0"], "^task.limit=0.0: it must be above 0, or null for none"),
        (
            ["study=nowhere"],
            "^study=nowhere: nowhere/study.yaml does not exist; allowed: conversion, flip_flop, ",
        ),
        ([], "^study=null: give one of conversion, flip_flop, "),
        (["study=all"], "^study=all: set task.report=true"),
        (["study=study", "task.check=true"], "^task.check=true: README's table covers all studies: add `study=all`"),
    ):
        with pytest.raises(UserError, match=message):
            command(*overrides)


def test_the_command_line_composes_the_lines_of_a_list_itself(tmp_path, run):
    """Within a command that Hydra has composed already."""
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "study.yaml").write_text("runs:\n  - experiment=debug seed=0 encoding=rope\n")
    status, out, error = run("task=study", "study=mine", "task.dry=true")
    assert (status, out.splitlines()[:1]) == (0, ["0 of 1 runs are finished"]), error


@pytest.mark.usefixtures("undrawn")
def test_records_are_packed_and_summed_up_at_the_end(tmp_path, command, monkeypatch):
    (tmp_path / "study").mkdir()
    texts = "question: Why?\nwould_change: More seeds.\n"
    (tmp_path / "study" / "study.yaml").write_text(f"{texts}runs: [experiment=debug seed=0 encoding=rope]\n")

    def trained(todo, *given):
        for each in todo:
            made = make_run(tmp_path / "made", "rope", 0)
            made.rename(tmp_path / "trained")
            keeping.keep_in_study(tmp_path / "trained", each.kept)
        return []

    monkeypatch.setattr(running, "execute", trained)
    assert "wrote study/README.md" in command("study=study")
    names = ["README.md", "loss.svg", "records.parquet", "results.csv", "runs.parquet", "study.yaml"]
    assert sorted(path.name for path in (tmp_path / "study").iterdir() if path.name != ".lock") == names
    page = (tmp_path / "study" / "README.md").read_text()
    assert "Why?" in page
    assert "**What would change the answer.** More seeds." in page
    before = {path: path.read_bytes() for path in (tmp_path / "study").iterdir()}
    assert command("study=study").splitlines() == ["1 of 1 runs are finished", "wrote study/README.md"]
    command("study=study", "task.report=true")
    assert {path: path.read_bytes() for path in (tmp_path / "study").iterdir()} == before
    listed = (tmp_path / "study" / "study.yaml").read_text()
    (tmp_path / "study" / "study.yaml").write_text(listed.replace("Why?", "What?"))
    command("study=study")
    assert "What?" in (tmp_path / "study" / "README.md").read_text()
    (tmp_path / "study" / "study.yaml").write_text(listed.replace("seed=0", "seed=1"))
    command("study=study", "task.report=true")
    page = (tmp_path / "study" / "README.md").read_text()
    assert "1 run in the tables is not listed in study.yaml." in page
    assert "Listed runs without a record: 1, among them" in page


@pytest.mark.usefixtures("undrawn")
def test_a_page_is_left_as_it_is_if_records_cannot_be_read(tmp_path, command, monkeypatch):
    study = tmp_path / "study"
    study.mkdir()
    (study / "study.yaml").write_text("runs:\n  - experiment=debug seed=0,1 encoding=rope\n")
    for seed in (0, 1):
        made = make_run(tmp_path / "made", "rope", seed)
        keeping.keep_in_study(made, study / "runs" / "jsb" / "rope" / made.name)
    command("study=study", "task.report=true")
    before = {name: (study / name).read_bytes() for name in ("README.md", "results.csv")}
    lost = next(study.glob("runs/jsb/rope/*-s0/nll/test.npz"))
    lost.unlink()
    with pytest.raises(
        UserError, match=r"the page in study is not written, .*-s0: finished, but nll/test.npz is missing$"
    ):
        command("study=study", "task.report=true")
    assert {name: (study / name).read_bytes() for name in before} == before
    (study / "study.yaml").write_text("runs:\n  - experiment=debug seed=0,1,2 encoding=rope\n")
    monkeypatch.setattr(running, "execute", lambda *given: ["one failed"])
    with pytest.raises(
        UserError, match=r"(?s)^1 of 3 runs are not finished: .*\none failed\nthe page in study is not written"
    ):
        command("study=study")
    (study / "study.yaml").write_text("runs:\n  - experiment=debug seed=0,1 encoding=rope\n")
    with pytest.raises(UserError, match=r"^the page in study is not written, as it would lack records: "):
        command("study=study")


def test_records_of_other_data_count_and_are_named(tmp_path, command):
    study = tmp_path / "study"
    study.mkdir()
    (study / "study.yaml").write_text("runs:\n  - experiment=debug seed=0,1 encoding=rope,pope\n")
    session = Session(composed("experiment=debug", "encoding=rope", "seed=1"))
    session.identify()
    config = session.config | {"names": {"domain": "jsb", "encoding": "rope", "model": "small"}}
    config["content"] = {**config["content"], "music21": "7.0"}
    kept = study / RunDirectory.of(config).path
    kept.mkdir(parents=True)
    (kept / "config.yaml").write_text(as_yaml(written(config)))
    counted, other, *lines = command("study=study", "task.dry=true").splitlines()
    assert counted == "1 of 4 runs are finished"
    assert re.fullmatch(r"1 of them with other data \(content\.music21=7\.0, here \S+\): .* copy study\.yaml .*", other)
    assert [line.split()[1:4] for line in lines if line.startswith("finished")] == [
        ["experiment=debug", "seed=1", "encoding=rope"]
    ]


@pytest.mark.usefixtures("undrawn")
@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
@pytest.mark.parametrize("setting", ["encoding.implementation=cudnn", "trainer.accelerator=gpu", "trainer.devices=0"])
def test_kept_records_do_not_need_the_hardware_that_trained_them(tmp_path, command, setting):
    (tmp_path / "study").mkdir()
    file = tmp_path / "study" / "study.yaml"
    file.write_text(f"runs:\n  - experiment=debug trainer.precision=bf16-mixed seed=0 encoding=rope {setting}\n")
    config = composed("experiment=debug", "encoding=rope", "trainer.precision=bf16-mixed", "seed=0", setting)
    session = Session(config | {"names": {"domain": "jsb", "encoding": "rope", "model": "small"}})
    session.identify()
    kept = tmp_path / "study" / RunDirectory.of(session.config).path
    made = make_run(tmp_path / "made", "rope", 0)
    keeping.keep_in_study(made, kept)
    assert command("study=study") == "wrote study/README.md\n1 of 1 runs are finished\n"
    assert not kept.exists()
    assert "| rope |" in (tmp_path / "study" / "README.md").read_text()
    file.write_text(file.read_text().replace("seed=0", "seed=0,1"))
    with pytest.raises(UserError, match=rf"study\.yaml, .* seed=1 .*: {setting.replace('.', '[.]')}: "):
        command("study=study")


def test_an_installed_package_is_left_as_it_is(tmp_path, monkeypatch):
    installed = tmp_path / "site-packages" / "bearings"
    (installed / "studies" / "tiny").mkdir(parents=True)
    (installed / "studies" / "tiny" / "study.yaml").write_text("runs: []\n")
    monkeypatch.setattr(catalogue, "ROOT", installed)
    monkeypatch.setattr(catalogue, "STUDIES", installed / "studies")
    (tmp_path / "user").mkdir()
    monkeypatch.chdir(tmp_path / "user")
    assert catalogue.folder_of("tiny", dry=True) == installed / "studies" / "tiny"
    assert not any((tmp_path / "user").iterdir())
    assert catalogue.folder_of("tiny") == Path("studies/tiny")
    assert (tmp_path / "user" / "studies" / "tiny" / "study.yaml").read_text() == "runs: []\n"
    (installed / "pyproject.toml").touch()  # a checkout, from which the command may be run anywhere
    assert catalogue.folder_of("tiny") == Path("studies/tiny")
    monkeypatch.chdir(tmp_path)
    assert catalogue.folder_of("tiny") == installed / "studies" / "tiny"


def test_runs_are_not_made_where_their_records_are_kept(tmp_path, monkeypatch):
    """One that has begun has a manifest.json, by which its records would count as kept."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "study.yaml").write_text("runs: [experiment=debug seed=0 encoding=rope]\n")
    with pytest.raises(UserError, match=r"^runs=runs: this folder holds the study's records"):
        planning.plan(Path(), Path("runs"))
    assert planning.plan(Path(), Path("trained"))
