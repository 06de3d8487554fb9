"""studies/run.py: what is listed is run once, in order, stopped at the limit, and kept without checkpoints."""

import re
import shutil
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import yaml
from conftest import REPOSITORY
from report_support import make_run, mechanisms, report_task  # noqa: F401

from bearings.errors import UserError
from bearings.studies import report as study_report
from bearings.studies import run as studies
from bearings.tasks.keep import keep_run
from bearings.tasks.reporting.planned import expanded
from bearings.tasks.reporting.reading import read_study

CPU = "trainer.accelerator=cpu"
LISTED = sorted(file.parent.name for file in (REPOSITORY / "studies").glob("*/study.yaml"))


def test_a_line_that_cannot_be_run_is_named(tmp_path):
    (tmp_path / "study.yaml").write_text("runs:\n  - experiment=debug encoding=rope\n  - encoding=rope seed=0,-1\n")
    with pytest.raises(UserError, match=r"study\.yaml, encoding=rope seed=-1: seed=-1: it should be greater"):
        studies.plan(tmp_path, tmp_path / "trained")


def test_a_line_is_swept_as_hydra_sweeps_it_the_last_key_fastest():
    found = list(expanded("experiment=debug seed=0,1 encoding=rope,pope task.seeds=[0,1]"))
    swept = ["seed=0 encoding=rope", "seed=0 encoding=pope", "seed=1 encoding=rope", "seed=1 encoding=pope"]
    assert [" ".join(each[1:3]) for each in found] == swept
    assert all(each[0] == "experiment=debug" and each[3] == "task.seeds=[0,1]" for each in found)


@pytest.mark.parametrize("name", LISTED)
def test_every_study_lists_runs_that_can_be_made_and_those_kept_are_among_them(name, tmp_path, monkeypatch):
    for domain in ("text.Text", "genome.Genome"):  # their files are given at the command line
        monkeypatch.setattr(f"bearings.domains.{domain}.options", lambda self: {})
    folder = REPOSITORY / "studies" / name
    planned = studies.plan(folder, tmp_path / "runs")
    assert len({each.path for each in planned}) == len(planned) >= 9
    if name not in ("wikitext2", "genome", "maestro"):  # whose runs read files given at the command line
        kept = {path.parent for path in folder.glob("runs/*/*/*/manifest.json")}
        assert kept <= {each.kept for each in planned}
        assert {each.kept for each in planned if each.finished} == kept


@pytest.fixture(name="study")
def tiny_study(tmp_path, monkeypatch):
    """A study of two runs whose commands are what a test says, in place of training."""
    folder = tmp_path / "study"
    folder.mkdir()
    (folder / "study.yaml").write_text("runs:\n  - experiment=debug seed=0,1 encoding=rope\n")
    planned = studies.plan(folder, tmp_path / "runs", [CPU])

    def commands(*scripts):
        given = {id(each): [[sys.executable, "-c", script, str(each.path)] for script in scripts] for each in planned}
        monkeypatch.setattr(studies.Planned, "commands", lambda self: given[id(self)])
        return planned

    return commands


FINISH = """
import pathlib, shutil, sys
path = pathlib.Path(sys.argv[1]); path.parent.mkdir(parents=True, exist_ok=True)
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


def test_runs_are_kept_without_checkpoints_and_not_begun_again(tmp_path, study):
    made(tmp_path)
    planned = study(FINISH, FOLLOW)
    assert studies.execute(planned, 2, tmp_path / "logs") == []
    assert all(each.finished for each in planned)
    for each in planned:
        assert (each.kept / "nll" / "test.npz").exists()
        assert (each.kept / "extrapolation" / "test.csv").exists()
        assert not (each.kept / "checkpoints").exists()
    shutil.rmtree(tmp_path / "runs")  # what is kept is enough to know
    again = studies.plan(tmp_path / "study", tmp_path / "runs", [CPU])
    assert all(each.finished for each in again)


def test_a_run_that_fails_is_told_with_its_last_line_and_the_others_go_on(tmp_path, study):
    made(tmp_path)
    planned = study("import sys\nif '-s0' in sys.argv[1]: sys.exit('it broke')\n" + FINISH)
    (line,) = studies.execute(planned, 1, tmp_path / "logs")
    assert ": it broke (" in line
    assert [each.finished for each in planned] == [False, True]


def test_a_run_whose_follow_up_fails_is_not_finished_and_gone_on_with(tmp_path, study):
    made(tmp_path)
    planned = study(FINISH, "import sys; sys.exit('it broke')")
    assert len(studies.execute(planned, 2, tmp_path / "logs")) == 2
    assert not any(each.finished for each in planned)
    assert studies.execute(study("", FOLLOW), 2, tmp_path / "logs") == []
    assert all((each.kept / "extrapolation" / "test.csv").exists() for each in planned)


def test_at_the_limit_runs_are_stopped_and_no_more_are_begun(tmp_path, study):
    planned = study("import time; time.sleep(60)")
    began = time.monotonic()
    assert studies.execute(planned, 1, tmp_path / "logs", limit=1.0) == []
    assert time.monotonic() - began < 5
    assert len(list((tmp_path / "logs").iterdir())) == 1


def test_an_interruption_stops_what_runs(tmp_path, study, monkeypatch):
    planned, started, start = study("import time; time.sleep(60)"), [], studies.Running.start

    def interrupted(run, environment):
        if started:
            raise KeyboardInterrupt
        start(run, environment)
        started.append(run.process)

    monkeypatch.setattr(studies.Running, "start", interrupted)
    with pytest.raises(KeyboardInterrupt):
        studies.execute(planned, 2, tmp_path / "logs")
    assert [process.poll() for process in started] == [-15]


def test_a_run_whose_follow_up_cannot_be_started_is_not_finished(tmp_path, study, monkeypatch):
    made(tmp_path)
    planned, start = study(FINISH, FOLLOW), studies.Running.start

    def out_of_memory(run, environment):
        if run.stage:
            raise OSError(12, "Cannot allocate memory")
        start(run, environment)

    monkeypatch.setattr(studies.Running, "start", out_of_memory)
    with pytest.raises(OSError, match="allocate"):
        studies.execute(planned, 1, tmp_path / "logs")
    assert not any(each.finished for each in planned)


def test_a_run_that_cannot_be_kept_leaves_others_that_have_ended_to_be(tmp_path, study, monkeypatch):
    made(tmp_path)
    planned, keep, asked = study(FINISH), studies.keep_run, []

    def full(path, *given):
        asked.append(path)
        if len(asked) == 1:
            for other in planned:  # both have ended by then
                while not (other.path / "manifest.json").exists():
                    time.sleep(0.05)
            raise OSError(28, "No space left on device")
        time.sleep(0.5)
        return keep(path, *given)

    monkeypatch.setattr(studies, "keep_run", full)
    with pytest.raises(OSError, match="space"):
        studies.execute(planned, 2, tmp_path / "logs")
    assert len(asked) == 2
    assert sum(each.finished for each in planned) == 1


def test_a_run_that_does_not_stop_is_killed(tmp_path, study, monkeypatch):
    monkeypatch.setattr(studies, "GRACE_S", 0.5)
    planned = study("import signal, time; signal.signal(15, signal.SIG_IGN); time.sleep(60)")
    began = time.monotonic()
    studies.execute(planned, 2, tmp_path / "logs", limit=1.0)
    assert time.monotonic() - began < 10


MEET = """
import os, pathlib, sys, time
path = pathlib.Path(sys.argv[1]); met = path.parents[3] / "met"; met.mkdir(exist_ok=True)
(met / path.name).write_text(os.environ["CUDA_VISIBLE_DEVICES"])
end = time.monotonic() + 20
while len(list(met.iterdir())) < 2:
    if time.monotonic() > end:
        sys.exit("alone")
    time.sleep(0.05)
"""


def test_runs_are_dealt_out_to_gpus_and_what_follows_one_stays_on_its_own(tmp_path, study):
    made(tmp_path)
    same = "import os, pathlib, sys\npath = pathlib.Path(sys.argv[1])\n"
    same += "assert (path.parents[3] / 'met' / path.name).read_text() == os.environ['CUDA_VISIBLE_DEVICES']"
    assert studies.execute(study(MEET, FINISH, same), 1, tmp_path / "logs", gpus=["2", "GPU-5"]) == []
    assert sorted(file.read_text() for file in (tmp_path / "met").iterdir()) == ["2", "GPU-5"]


@pytest.mark.parametrize(
    ("given", "count", "setting", "expected"),
    [
        (None, 2, "devices=1", ["0", "1"]),
        ("3,GPU-5", 2, "devices=1", ["3", "GPU-5"]),
        ("", 0, "devices=1", [None]),
        (None, 0, "devices=1", [None]),
        (None, 2, "devices=2", [None]),
    ],
)
@pytest.mark.usefixtures("study")
def test_gpus_are_the_visible_ones_unless_runs_take_several(given, count, setting, expected, tmp_path, monkeypatch):
    monkeypatch.setattr(studies.torch.cuda, "device_count", lambda: count)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if given is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", given)
    planned = studies.plan(tmp_path / "study", tmp_path / "runs", [f"trainer.{setting}", CPU])
    assert studies.gpus_for(planned) == expected


def test_the_report_of_kept_runs_is_that_of_the_runs(tmp_path, report):
    for encoding in ("rope", "pope"):
        for seed in (0, 1, 2):
            path = make_run(tmp_path / "runs", encoding, seed)
            (path / "samples" / "sample.txt").write_text("a sample")
            mechanisms(path, "delta", ("layer", "head", "element", "delta"), [(0, 0, 0, -1.0)])
            for split in ("valid", "test"):  # as they come back from being kept
                with np.load(path / "nll" / f"{split}.npz") as file:
                    fields = dict(file)
                fields["nats"] = fields["nats"].astype(np.float32)
                np.savez_compressed(path / "nll" / f"{split}.npz", **fields)
            keep_run(path, tmp_path / "kept" / path.relative_to(tmp_path / "runs"))
    first = report()[0]
    before = {path.name: path.read_bytes() for path in first.rglob("*.csv")}
    second = report("task.directories=[kept]")[0]
    assert {path.name: path.read_bytes() for path in second.rglob("*.csv")} == before
    assert len(list((tmp_path / "kept").rglob("sample.txt"))) == 2  # of one seed each


def test_what_is_listed_and_has_no_record_is_missing(tmp_path, report):
    (tmp_path / "study").mkdir()
    lines = "runs:\n  - experiment=debug seed=0,1 encoding=rope,pope\n  - model.mlp=gelu seed=0 encoding=rope\n"
    (tmp_path / "study" / "study.yaml").write_text(lines)
    for encoding, seed in (("rope", 0), ("rope", 1), ("pope", 0)):
        make_run(tmp_path / "study" / "runs", encoding, seed)
    _, printed = report("task.directories=[study]")
    assert "missing: experiment=debug seed=1 encoding=pope, listed in study.yaml, no record is kept" in printed
    assert "missing: model.mlp=gelu seed=0 encoding=rope, listed in study.yaml" in printed
    assert printed.count("listed in study.yaml") == 2
    line = "optimizer.learning_rate=5e-05 seed=0 encoding=nope"
    (tmp_path / "study" / "study.yaml").write_text(f"runs:\n  - seed=0 encoding=nope\n  - {line}\n")
    make_run(tmp_path / "study" / "runs", "nope", 0, "optimizer.learning_rate=5e-05")
    _, printed = report("task.directories=[study]")  # the variant's record is not the plain run's too
    assert f"missing: {line}" not in printed
    assert "missing: seed=0 encoding=nope, listed in study.yaml" in printed
    for text, why in (
        ("runs: 3\n", "runs is no list of lines"),
        ("runs: [seed=0]\nthan: [task=mechanisms]\n", "than is unknown; it may hold runs, then, published, reference"),
        ("runs: [seed=0]\nthen: task=mechanisms\n", "then is no list of lines"),
        ("run: [seed=0]\n", r"it lacks runs: \[LINE, ...\]"),
        ("", r"it lacks runs: \[LINE, ...\]"),
    ):
        (tmp_path / "study" / "study.yaml").write_text(text)
        with pytest.raises(UserError, match=f"is no list of runs .{why}"):
            report("task.directories=[study]")


@pytest.mark.parametrize(
    ("listed", "told"),
    [
        (
            'runs: [experiment=debug seed=0]\nthen: ["task=extrapolate task.contxts=[32]"]',
            "task=extrapolate task.contxts=.*unknown",
        ),
        ("runs: [experiment=debug run=here]", "experiment=debug run=here: run=here: lines are runs to train"),
        ("runs: [task=check seed=0]", "task=check seed=0: task=check: lines are runs to train"),
        ("runs: [experiment=debug +run=here]", r"experiment=debug \+run=here: \+run=here: lines are runs to train"),
        ("runs: [experiment=debug stores=here]", "experiment=debug stores=here: stores=here: lines are runs to train"),
        ("runs: [experiment=debug seed=0 foo]", "experiment=debug seed=0 foo: foo: settings are written key=value"),
        ("runs: [experiment=debug ++runs=here]", r".* \+\+runs=here: lines are runs to train"),
        ("runs: [experiment=debug model=base]", ".* model=base: model=base: experiment=debug sets model.width"),
        (
            'runs: [experiment=debug seed=0]\nthen: ["task=generate task.temperature=-1"]',
            "task=generate task.temperature=-1: task.temperature=-1",
        ),
        (
            'runs: [experiment=debug seed=0]\nthen: ["task=evaluate data.length=128"]',
            "task=evaluate data.length=128: data.length=128: .* was made with data.length=64",
        ),
        (
            'runs: [experiment=debug seed=0]\nthen: ["task=tune seed=1"]',
            "task=tune seed=1: .* takes no finished run",
        ),
        ("runs: [experiment=debug enoding=rope]", "experiment=debug enoding=rope: enoding: unknown key"),
        (
            "runs: [experiment=debug encoding=ropee]",
            "experiment=debug encoding=ropee: encoding=ropee: did you mean rope",
        ),
    ],
)
def test_a_mistake_in_a_list_is_told_with_its_line_before_anything_is_trained(tmp_path, listed, told):
    (tmp_path / "study.yaml").write_text(listed)
    with pytest.raises(UserError, match=f"study.yaml, {told}"):
        studies.plan(tmp_path, tmp_path / "trained")


def test_what_follows_a_run_knows_the_keys_of_its_files(tmp_path):
    study = {"runs": ["experiment=path_flip_flop seed=0,1"], "then": ["task=evaluate domain.sparse=100"]}
    (tmp_path / "study.yaml").write_text(yaml.safe_dump(study))
    with pytest.raises(UserError, match=r"domain.sparse=100: .* was made with domain.sparse=160000"):
        studies.plan(tmp_path, tmp_path / "trained")
    (tmp_path / "study.yaml").write_text(yaml.safe_dump({**study, "then": ["task=evaluate domain.sparse=160000"]}))
    assert len(studies.plan(tmp_path, tmp_path / "trained")) == 2


def test_a_study_whose_records_cannot_be_read_has_a_report_and_no_rows(tmp_path, monkeypatch):
    monkeypatch.setattr(study_report, "HERE", tmp_path)
    (tmp_path / "few").mkdir()
    (tmp_path / "few" / "study.yaml").write_text("runs: [experiment=debug seed=0 encoding=rope]")
    path = make_run(tmp_path / "few" / "runs", "rope", 0)
    (path / "nll" / "test.npz").write_bytes(b"cut")
    assert study_report.write_report("few") == study_report.read_rows("few") == []
    assert "nll/test.npz is damaged" in (tmp_path / "few" / "report" / "report.md").read_text()


def test_the_command_lists_what_is_to_do(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "study").mkdir()
    (tmp_path / "study" / "study.yaml").write_text("runs:\n  - experiment=debug seed=0,1 encoding=rope\n")
    monkeypatch.setattr(sys, "argv", ["run.py", "study", "--dry", "trainer.micro_batch=5"])
    studies.main()
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "0 of 2 runs are finished"
    assert lines[1] == "to do    experiment=debug seed=0 encoding=rope trainer.micro_batch=5 runs=runs"
    monkeypatch.setattr(sys, "argv", ["run.py", "study", "--jobs", "0"])
    with pytest.raises(SystemExit):
        studies.main()
    assert capsys.readouterr().err == "error: --jobs 0: at least one run at a time is needed\n"
    monkeypatch.setattr(sys, "argv", ["run.py", "nowhere"])
    with pytest.raises(SystemExit) as end:
        studies.main()
    assert end.value.code == 2
    assert capsys.readouterr().err.startswith("error: nowhere: there is no study.yaml; studies here: ")


def test_runs_are_not_made_where_their_records_are_kept(tmp_path, monkeypatch):
    """One that has begun has a manifest.json, by which its records would count as kept."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "study.yaml").write_text("runs: [experiment=debug seed=0 encoding=rope]\n")
    with pytest.raises(UserError, match=r"^--runs runs: this study's records are kept there"):
        studies.plan(Path(), Path("runs"))
    assert studies.plan(Path(), Path("trained"))


@pytest.mark.parametrize("setting", ["trainer.steps=50", "+trainer.steps=50", "seed=3", "model=base", "match=flops"])
def test_settings_that_change_what_runs_find_are_refused(setting, tmp_path):
    """Their records would be kept among the study's own."""
    (tmp_path / "study.yaml").write_text("runs:\n  - experiment=debug seed=0 encoding=rope\n")
    places = ["data.workers=1", "stores=elsewhere", "task.samples=0"]
    (plain,), (moved,) = (studies.plan(tmp_path, tmp_path / "trained", given) for given in ([], places))
    assert moved.path == plain.path
    with pytest.raises(UserError, match=rf"^{re.escape(setting)}: it changes what the runs find, .*study\.yaml"):
        studies.plan(tmp_path, tmp_path / "trained", [*places, setting])


def test_readme_s_table_is_what_the_records_give():
    readme = study_report.README.read_text(encoding="utf-8")
    table = study_report.summary(map(study_report.read_rows, study_report.recorded()))
    assert study_report.with_summary(readme, table) == readme
    with pytest.raises(UserError, match="it lacks the lines"):
        study_report.with_summary("no marks", "a table")


def test_a_row_of_too_few_seeds_says_what_its_interval_is_of(tmp_path, monkeypatch):
    monkeypatch.setattr(study_report, "HERE", tmp_path)
    listed = "runs:\n  - experiment=debug seed=0,1,2 encoding=rope\n  - experiment=debug seed=0,1 encoding=pope\n"
    (tmp_path / "few").mkdir()
    (tmp_path / "few" / "study.yaml").write_text(listed)
    for encoding, seeds in (("rope", 3), ("pope", 2)):
        for seed in range(seeds):
            make_run(tmp_path / "few" / "runs", encoding, seed)
    rows = {row["model"]: row["interval"] for row in study_report.read_rows("few")}
    assert re.fullmatch(r"\d\.\d{4} to \d\.\d{4}", rows["rope"])
    assert re.fullmatch(r"\d\.\d{4} to \d\.\d{4}, clusters alone", rows["pope"])
    table = study_report.summary([study_report.read_rows("few")])
    assert ", clusters alone |" in table
    assert "\n- clusters alone: of fewer than 3 seeds, and so for other test clusters" in table


def test_a_source_that_is_listed_by_its_path_is_found_where_it_is_kept_by_its_name(tmp_path):
    (tmp_path / "study.yaml").write_text(f"runs:\n  - domain.path={tmp_path}/music.json encoding=rope seed=0,1\n")
    for seed in (0, 1):
        path = make_run(tmp_path / "runs", "rope", seed, f"domain.path={tmp_path}/music.json")
        if seed == 0:
            keep_run(path, tmp_path / "kept" / path.relative_to(tmp_path / "runs"))
            shutil.rmtree(path)
    assert not read_study([tmp_path]).troubles
    (tmp_path / "study.yaml").write_text(f"runs:\n  - domain.path={tmp_path}/other.json encoding=rope seed=0,1\n")
    assert [trouble.state for trouble in read_study([tmp_path]).troubles] == ["missing"] * 2


@pytest.mark.parametrize("name", LISTED)
def test_what_is_kept_of_a_study_is_small_and_names_no_machine(name):
    folder = REPOSITORY / "studies" / name
    files = [path for path in folder.rglob("*") if path.is_file()]
    size = {path: path.stat().st_size for path in files}
    own, models = 0, set()
    for run in folder.glob("runs/*/*/*"):
        models.add(run.with_name(run.name.rpartition("-s")[0]))  # without its seed
        nats_and_curve = [*run.glob("nll/*"), *run.glob("*.*")]
        own += sum(map(size.get, nats_and_curve))
        assert sum(map(size.get, nats_and_curve)) < 400 << 10  # 220 of them: 20,000 answers' nats
    # Once a model: its part of the report, baselines, samples, mechanisms.
    assert sum(size.values()) - own < len(models) * 400 << 10
    assert not [path for path in files if path.suffix in (".ckpt", ".html", ".safetensors")]
    for path in files:
        if path.suffix in (".json", ".yaml", ".md", ".csv"):
            assert not re.search(r"(?<![\w.])/(home|root|tmp|work|dev)/", path.read_text(encoding="utf-8")), path
