"""Sweeps with -m: which are refused, which runs are skipped or failed, and missing launchers."""

import math
import re
import shlex

import pytest
import yaml
from command_support import run_command  # noqa: F401
from filelock import FileLock
from hydra._internal.core_plugins import basic_launcher
from hydra.core.config_store import ConfigStore
from hydra.core.plugins import Plugins
from hydra.errors import HydraException, MissingConfigException, OverrideParseException

from bearings.core import stopping
from bearings.core.errors import DivergedError
from bearings.session.explaining import explain
from bearings.tasks.check import Check


def test_a_sweep_of_several_processes_a_run_is_refused(run):
    status, _, err = run("-m", "experiment=debug", "trainer.accelerator=cpu", "trainer.devices=2", "seed=0,1")
    assert status != 0
    assert "a sweep trains each run on one device" in err


def test_a_wrong_value_in_a_sweep_is_refused_before_the_first_run(run):
    settings = ["task=check", "experiment=debug", "domain=flip_flop", "data.length=512"]
    status, out, err = run(*settings, "-m", "optimizer.learning_rate=1e-3,fast")
    assert (status, out, err) == (2, "", "error: optimizer.learning_rate='fast': it should be a valid number\n")
    status, out, err = run(*settings[1:], "-m", "task=check,report")
    assert (status, out) == (2, "")
    assert err.startswith("error: experiment=debug: task=report does not read this setting; ")


def test_a_wrong_value_in_a_sweep_of_an_own_experiment_is_refused_before_the_first_run(run, tmp_path):
    (tmp_path / "mine" / "experiment").mkdir(parents=True)
    swept = "hydra: {sweeper: {params: {optimizer.learning_rate: '1e-3,fast'}}}"
    (tmp_path / "mine" / "experiment" / "own.yaml").write_text(f"# @package _global_\ndefaults: [debug]\n{swept}\n")
    settings = ["task=check", "experiment=own", "domain=flip_flop", "data.length=512"]
    status, out, err = run("--config-dir", str(tmp_path / "mine"), "-m", *settings)
    assert (status, out, err) == (2, "", "error: optimizer.learning_rate='fast': it should be a valid number\n")


@pytest.mark.parametrize("setting", ["encoding=glob(ropp*)", "seed=range(3,1)"])
def test_a_sweep_without_runs_is_refused(run, setting):
    status, out, err = run("task=check", "experiment=debug", "-m", setting)
    assert (status, out) == (2, "")
    assert err == "error: the sweep has no runs: a glob() that matches nothing, or an empty range(): correct it\n"


def test_runs_of_a_sweep_can_use_their_number(run):
    settings = ["task=check", "experiment=debug", "domain=flip_flop", "data.length=512"]
    status, out, err = run(*settings, "-m", "seed=${hydra:job.num}", "encoding=rope,pope")
    assert status == 0, err
    assert re.findall(r"/(rope|pope)/\S+-(s\d)", out) == [("rope", "s0"), ("pope", "s1")]


def test_a_sweep_lists_its_failed_runs_at_the_end(run):
    common = ["task=check", "experiment=debug", "domain=flip_flop"]
    status, out, err = run(*common, "-m", "data.length=64,512,128")  # the flag may be anywhere
    assert status == 2
    assert out.count("The configuration is valid.") == 1
    summary = "error: 2 runs of the sweep failed, as reported above; rerun the command to try again:\n"
    reasons, listed = err.split(summary)
    assert [f"data.length={length}: domain" in reasons for length in (64, 512, 128)] == [True, False, True]
    assert "Error executing job" not in reasons
    assert listed.splitlines() == [f"  {' '.join(common)} data.length={length}" for length in (64, 128)]


def test_a_sweep_continues_after_an_unexpected_error(run, monkeypatch):
    inner = Check.__call__

    def call(self, session):
        if session.config["seed"] == 0:
            raise RuntimeError("a bug")
        inner(self, session)

    monkeypatch.setattr(Check, "__call__", call)
    status, out, err = run("task=check", "experiment=debug", "domain=flip_flop", "data.length=512", "-m", "seed=0,1")
    assert status == 2
    assert out.count("The configuration is valid.") == 1
    assert "\nRuntimeError: a bug\nerror: 1 run of the sweep failed, as reported above" in err


def test_a_sweep_skips_runs_that_another_process_trains(run, tmp_path):
    settings = ["experiment=debug", "domain=flip_flop", "trainer.accelerator=cpu", "run=there/${seed}"]
    locks = [tmp_path / "there" / seed / ".lock" for seed in "01"]
    for lock in locks:
        lock.parent.mkdir(parents=True)
    with FileLock(locks[0]), FileLock(locks[1]):
        status, _, err = run(*settings, "data.length=512", "-m", "seed=0,1")
    assert status == 0, err
    for seed in "01":
        assert f"skipped: there/{seed}: another process is training this run" in err
    assert err.endswith("\nskipped 2 runs of the sweep: other processes are training them\n")


def test_a_sweeper_gets_the_loss_of_each_run(run, monkeypatch):
    inner, losses = basic_launcher.run_job, []

    def run_job(**given):
        done = inner(**given)
        losses.append(done.return_value)
        return done

    def half(self, session):
        if session.config["seed"] == 4:
            raise DivergedError("the loss is nan")
        return session.config["seed"] / 2

    monkeypatch.setattr(basic_launcher, "run_job", run_job)
    monkeypatch.setattr(Check, "__call__", half)
    run("task=check", "experiment=debug", "domain=flip_flop", "data.length=512", "-m", "seed=3,4,5")
    assert losses == [1.5, math.inf, 2.5]


@pytest.fixture
def jobs(monkeypatch):
    """A setting that starts the runs of a sweep in this process, as jobs of submitit."""
    target = "hydra._internal.core_plugins.basic_launcher.BasicLauncher"
    basic = Plugins.instance().class_name_to_class[target]
    node = {"_target_": target, "submitit_folder": "${hydra.sweep.dir}/.submitit/%j"}
    monkeypatch.setitem(ConfigStore.instance().repo["hydra"]["launcher"], "submitit_here.yaml", None)  # restored later
    ConfigStore.instance().store(group="hydra/launcher", name="submitit_here", node=node)
    inner = basic.__init__
    monkeypatch.setattr(basic, "__init__", lambda self, submitit_folder: inner(self))
    return "hydra/launcher=submitit_here"


def test_a_sweep_of_jobs_names_their_output_and_the_reason_of_a_failure(run, jobs):
    status, out, err = run("task=check", "experiment=debug", "domain=flip_flop", jobs, "-m", "data.length=512,64")
    assert status == 2
    assert out.startswith("submitting 2 jobs, whose output goes to runs/.sweep/.submitit\n")
    reason, _, failed = err.splitlines()
    assert failed.startswith(f"error: a run of the sweep failed: {reason.removeprefix('error: ')} (task=check ")
    assert failed.endswith(" data.length=64)")


def test_a_job_that_its_time_limit_has_stopped_is_a_failed_run(run, jobs, monkeypatch):
    def stopped(self, session):
        raise KeyboardInterrupt

    monkeypatch.setattr(Check, "__call__", stopped)
    monkeypatch.setattr(stopping, "requeue_refused", lambda: True)
    status, _, err = run("task=check", "experiment=debug", "domain=flip_flop", "data.length=512", jobs, "-m", "seed=0")
    assert status == 2
    assert (
        "\nerror: a run of the sweep failed: stopped before its time limit; rerun the command to resume (task=" in err
    )


def test_a_launcher_that_is_not_installed_is_named_with_its_command():
    error = MissingConfigException("", "hydra/launcher/submitit_slurm", ["basic"])
    assert explain(error) == ('hydra/launcher=submitit_slurm: the launcher is not installed: pip install -e ".[slurm]"')


def test_an_error_of_hydra_is_one_line_and_names_the_setting():
    assert explain(HydraException("no\n  such thing")) == "no such thing"
    position = ValueError("invalid literal for int() with base 10: 'a'")
    assert str(explain(position, ["seed=1", "optimizer.betas.a=1"])).startswith("optimizer.betas.a=1: a is not a ")
    unparsed = OverrideParseException("key=a(b$c", "")
    assert str(explain(unparsed)).endswith("quotes: " + shlex.quote("key='a(b$c'"))


def test_a_mistake_in_a_configuration_file_names_its_place():
    with pytest.raises(yaml.MarkedYAMLError) as raised:
        yaml.safe_load("a: [")
    assert re.fullmatch(r"<unicode string> .*\bline 1\b.*: correct the file", str(explain(raised.value)))


def test_missing_slurm_is_reported_in_one_line():
    line = explain(RuntimeError('Could not detect "srun", are you indeed on a slurm cluster?'))
    assert line.startswith("hydra/launcher=submitit_slurm: srun was not found: ")


def test_a_job_that_was_killed_is_named_with_its_state():
    killed = type("UncompletedJobError", (RuntimeError,), {"__module__": "submitit.core.utils"})
    path = "Job 15_0 (task: 0) with path /my/15_0_0_result.pkl"
    line = explain(killed(f"{path}\nhas not produced any output (state: CANCELLED by 0)\nError stream produced:\n---"))
    assert line.startswith("job 15_0 of the sweep ended without a result (state: CANCELLED by 0); its output ")
    refused = type("FailedJobError", (killed,), {"__module__": "submitit.core.utils"})
    assert explain(refused("sbatch: error: Invalid\n")) == "hydra/launcher=submitit_slurm: sbatch: error: Invalid"
