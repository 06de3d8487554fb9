"""study.yaml may come from someone else: its lines set keys of runs and tasks, within bounds, and nothing else."""

import re
import time
from contextvars import Context

import pytest
import yaml
from conftest import composed
from trust_support import importable_modules  # noqa: F401

from bearings.core.errors import UserError
from bearings.reporting.lines import MOST_RUNS, expanded
from bearings.reporting.reading import read_study
from bearings.reporting.study_list import read_list
from bearings.session.trust import trusting
from bearings.studying import jobs
from bearings.studying import planning as studies
from bearings.studying.outcomes import read_outcome


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("hydra.callbacks.x._target_=os.system", "hydra: unknown key; allowed: domain, "),
        ("+hydra.callbacks.x={_target_:evil.Evil}", "hydra: unknown key"),
        ("hydra/launcher=evil", "hydra/launcher: unknown key"),
        ("hydra/job_logging=evil", "hydra/job_logging: unknown key"),
        ("hydra.run.dir=/", "hydra: unknown key"),
        ("trust=evil", "trust: unknown key"),
        ("encoding._target_=evil.Evil", "without keys that begin with _: to use your class, name it in FOLDER/"),
        ("+encoding.x._target_=evil.Evil", "without keys that begin with _"),
        ("encoding@domain=rope", "only settings such as encoding.base=1000 are allowed"),
        ("~encoding", "only settings such as encoding.base=1000 are allowed"),
        ("run=here", "each line is a run to train"),
        ("stores=here", "each line is a run to train"),
        ("encoding=../../evil", "must be the name of a file in configs/encoding"),
        ("encoding={_target_:evil.Evil}", "must be the name of a file in configs/encoding"),
        ("domain.path=${oc.env:HOME}", "interpolations are not allowed"),
        ("--config-dir=/tmp", "cannot be parsed"),
        ("seed=range(0,100000000)", f"may have at most {MOST_RUNS:,} runs"),
        ("seed=range(0,1,1e-30)", f"may have at most {MOST_RUNS:,} runs"),
        ("seed=shuffle(range(0,100000000))", "remove shuffle"),
        ("seed=range(0,1,0)", "not a valid setting"),
        ("seed=interval(0,1)", "Can only enumerate"),
        ("seed=range(0,300) data.batch_size=range(1,300)", f"may have at most {MOST_RUNS:,} runs"),
        (" ".join(f"{key}=1,2" for key in "abcdefghij"), "a: unknown key"),
        ("seed=" + "[" * 300, "seed="),
        ("'domain.path=my music", "No closing quotation: quote settings as on a command line"),
    ],
)
def test_a_line_of_a_study_sets_keys_of_a_run_only(tmp_path, line, message):
    (tmp_path / "study.yaml").write_text(yaml.safe_dump({"runs": ["seed=0", line]}))
    began = time.monotonic()
    with pytest.raises(UserError, match=message) as raised:
        read_list(tmp_path)
    assert "\n" not in str(raised.value)
    with pytest.raises(UserError, match=message):
        studies.plan(tmp_path, tmp_path / "trained")
    assert [trouble.state for trouble in read_study([tmp_path]).troubles] == ["unreadable"]
    assert time.monotonic() - began < 5


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("task=evaluate hydra/launcher=evil", "hydra/launcher: unknown key"),
        ("task=evaluate trust=evil", "trust: unknown key"),
        ("task=evaluate run=here", "run=here"),
        ("task=score task.files=[x] task.out=/home/x.csv", "below the current folder"),
        ("task=score task.files=[x] task.out=a/../../x", "below the current folder"),
        ("task=score task.files=[x] task.out=.bashrc", "below the current folder"),
        ("--config-dir=/tmp task=evaluate", "cannot be parsed"),
    ],
)
def test_what_follows_a_run_is_no_other_command(tmp_path, line, message):
    (tmp_path / "study.yaml").write_text(yaml.safe_dump({"runs": ["seed=0"], "then": [line]}))
    with pytest.raises(UserError, match=message):
        read_list(tmp_path)


def test_settings_with_spaces_have_quotes_as_on_a_command_line(tmp_path):
    path = tmp_path / "my  texts" / "a.txt"
    path.parent.mkdir()
    path.write_text("some words of a text\n" * 200)
    lines = f"experiment=debug domain=text 'domain.path={path}'", f"task=score task.files=\"['{path}']\" seed=0"
    (tmp_path / "study.yaml").write_text(yaml.safe_dump({"runs": lines[:1], "then": lines[1:]}))
    (run,) = studies.plan(tmp_path, tmp_path / "trained")
    training, scoring = (given[2:] for given in jobs.commands([run]))
    assert composed(*training)["domain"]["path"] == str(path)
    assert composed(*scoring)["task"]["files"] == [str(path)]


def test_the_runs_of_all_lines_are_bounded_together(tmp_path):
    (tmp_path / "study.yaml").write_text(yaml.safe_dump({"runs": [f"seed=range(0,{MOST_RUNS})"]}))
    assert len(list(expanded(*read_list(tmp_path)["runs"]))) == MOST_RUNS
    (tmp_path / "study.yaml").write_text(yaml.safe_dump({"runs": [f"seed=range(0,{MOST_RUNS})", "seed=0"]}))
    with pytest.raises(UserError, match=f"may have at most {MOST_RUNS:,} runs"):
        read_list(tmp_path)


@pytest.mark.parametrize("entry", ["compare", "variants"])
@pytest.mark.parametrize(
    ("key", "message"),
    [
        ("optimizer.learning_rat", "unknown key; did you mean optimizer.learning_rate?"),
        ("trainer.precison", "unknown key; did you mean trainer.precision?"),
        ("trainer.precision.x", "unknown key; `python main.py --cfg job` lists all keys"),
        ("model.steps", "unknown key; did you mean trainer.steps?"),
        ("domain.qqqq", "unknown key; `python main.py --cfg job` lists all keys"),
    ],
)
def test_a_key_that_no_run_can_have_is_refused(tmp_path, entry, key, message):
    (tmp_path / "study.yaml").write_text(yaml.safe_dump({"runs": ["seed=0"], entry: ["data.length", key]}))
    with pytest.raises(UserError, match=re.escape(f"study.yaml: {entry}: {key}: {message}")):
        Context().run(read_list, tmp_path)  # without the packages that all tests trust
    with trusting("mine"):  # its classes can have any options
        assert read_list(tmp_path)[entry][1] == key


def test_published_results_of_an_unknown_encoding_are_refused_wherever_the_list_is_read(tmp_path):
    study = {"runs": ["seed=0 encoding=rope"], "published": {"test": {"rope": "1.5 nats", "poep": "1.4 nats"}}}
    (tmp_path / "study.yaml").write_text(yaml.safe_dump(study))
    message = (
        r"study\.yaml, published: poep is not an encoding; did you mean pope\? allowed: absolute_learned, .*, xpos$"
    )
    for read in (read_list, read_outcome):  # task.check=true reads outcomes
        with pytest.raises(UserError, match=message):
            read(tmp_path)


def test_a_key_that_only_some_runs_have_can_be_compared(tmp_path):
    keys = ["domain.pool", "domain.path", "encoding.delta_init", "encoding.implementation", "model.residual_in_fp32"]
    (tmp_path / "study.yaml").write_text(yaml.safe_dump({"runs": ["seed=0"], "compare": keys}))
    assert Context().run(read_list, tmp_path)["compare"] == keys


def test_what_follows_a_run_of_a_trusted_package_trusts_it_too(tmp_path):
    planned = jobs.Planned(["seed=0", "trust=mine"], tmp_path, tmp_path, ["task=evaluate"])
    assert [command[2:] for command in jobs.commands([planned])] == [
        ["seed=0", "trust=mine"],
        ["task=evaluate", "trust=mine", f"run={tmp_path}"],
    ]


def test_lines_that_are_the_same_run_are_refused(tmp_path):
    # RoPE adds neither parameters nor FLOPs, so both kinds of `match` leave the MLP as it is.
    runs = ["experiment=debug encoding=rope match=flops,params"]
    (tmp_path / "study.yaml").write_text(yaml.safe_dump({"runs": runs}))
    same = "experiment=debug encoding=rope match=flops; experiment=debug encoding=rope match=params"
    with pytest.raises(UserError, match=re.escape(f"study.yaml: the same run is listed twice, so remove one: {same}")):
        studies.plan(tmp_path, tmp_path / "trained")


@pytest.mark.parametrize("lines", [["seed=0", "seed=0"], ["seed=0,0"], ["seed=0,1", "seed=0"]])
def test_a_line_that_is_listed_twice_is_shown_once(tmp_path, lines):
    (tmp_path / "study.yaml").write_text("runs:\n" + "".join(f"  - experiment=debug {line}\n" for line in lines))
    with pytest.raises(UserError, match=r"the same run is listed twice, so remove one: experiment=debug seed=0$"):
        studies.plan(tmp_path, tmp_path / "trained")


@pytest.mark.parametrize(
    "setting", ["'domain.path=my music/a'", "optimizer.learning_rate=1e-3", "\"domain.path='a, b'\""]
)
def test_a_run_is_named_as_its_line_is_written(tmp_path, setting):
    (tmp_path / "study.yaml").write_text(f"runs:\n  - experiment=debug {setting} seed=-1,0\n")
    with pytest.raises(UserError, match=re.escape(f"study.yaml, experiment=debug {setting} seed=-1: seed=-1: it must")):
        studies.plan(tmp_path, tmp_path / "trained")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("reference: rope", "runs is missing: list lines under it, such as - encoding=rope,pope seed=0,1,2"),
        ("runs: encoding=rope", "runs is not a list: write each line after a dash, such as - encoding=rope,pope"),
        (
            "runs: [seed=0,1]",
            "runs: 1 is not a line of settings: write each line after a dash, such as - encoding=rope",
        ),
        ("runs:\n  -\n", "runs: null is not a line of settings: write each"),
        (
            "runs:\n  - seed: 0\n    encoding: rope",
            "runs: seed: 0 encoding: rope is not a line of settings: write each",
        ),
        ("runs:\n  - - seed=0\n    - encoding=rope", "runs: - seed=0 - encoding=rope is not a line of settings: write"),
    ],
)
def test_what_is_no_list_of_lines_is_shown_as_written(tmp_path, text, message):
    (tmp_path / "study.yaml").write_text(text)
    with pytest.raises(UserError, match=re.escape(f"study.yaml: {message}")):
        read_list(tmp_path)
