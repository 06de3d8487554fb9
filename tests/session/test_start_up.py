"""What the program does first: slow imports wait until they are needed, and Lightning until a run is trained."""

import re
import subprocess
import sys

from conftest import REPOSITORY
from report_support import DELTA, make_run, mechanisms

SLOW = ("lightning", "matplotlib.figure", "scipy.stats", "music21", "torch", "torch._dynamo")


def slow_modules_of(script: str, cwd) -> set[str]:
    """Those of SLOW that a Python script imports."""
    script += f"\nimport sys; print('imported', *(name for name in {SLOW!r} if name in sys.modules))"
    done = subprocess.run([sys.executable, "-c", script], cwd=cwd, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return set(done.stdout.splitlines()[-1].split()[1:])


def test_importing_the_package_imports_nothing_slow_and_loading_nothing_of_training(tmp_path):
    script = "import sys, bearings\nassert not {'numpy', 'pydantic', 'hydra', 'torch'} & sys.modules.keys()\n"
    assert slow_modules_of(f"{script}bearings.load, bearings.encodings.PoPE", tmp_path) == {"torch"}


def test_no_task_and_no_session_imports_lightning_or_the_compiler_before_it_trains(tmp_path):
    tasks = ", ".join(sorted(file.stem for file in (REPOSITORY / "tasks").glob("*.py")))
    imported = slow_modules_of(f"from bearings.session import session\nfrom bearings.tasks import {tasks}", tmp_path)
    assert "torch" in imported
    assert not imported & {"lightning", "torch._dynamo"}


def main_with(*commands, status=0):
    """A script that runs `python main.py` for each of these commands and requires their exit status."""
    return f"""
import runpy, sys
from hydra.core.global_hydra import GlobalHydra
for command in {commands!r}:
    sys.argv = ["main.py", *command.split()]
    GlobalHydra.instance().clear()
    status = 0
    try:
        runpy.run_path({str(REPOSITORY / "main.py")!r}, run_name="__main__")
    except SystemExit as end:
        status = end.code
    assert status == {status}, (command, status)
"""


def test_a_copy_of_the_source_does_not_run_the_code_of_another_one(tmp_path):
    (tmp_path / "main.py").write_bytes((REPOSITORY / "main.py").read_bytes())
    elsewhere = f"bearings is installed from {REPOSITORY}, not from this folder"
    for options, wrong in (([], elsewhere), (["-E", "-S"], "bearings is not installed")):  # without site-packages
        command = [sys.executable, *options, "main.py", "task=check"]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
        assert (done.returncode, done.stdout) == (2, "")
        assert re.fullmatch(rf"error: .*{wrong}.*: .* run pip install --editable {tmp_path}\n", done.stderr)


WRONG = (
    "trainer.steps=x data.batch_size=x domain.transpose=x encoding=path encoding.rank=x",
    "optimizer.clip=-1 encoding.base=-1 task.temperature=-1",
    "model.heads=5",
    "task=check data.workers=-1",
)


def test_a_wrong_value_is_reported_before_anything_slow_is_imported(tmp_path):
    assert slow_modules_of(main_with(*WRONG, status=2), tmp_path) == set()


def test_help_groups_encodings_without_importing_them(tmp_path):
    script = """
from omegaconf import OmegaConf
from bearings.session.help import choices_text
assert "rotation: " in choices_text(_root_=OmegaConf.create({"hydra": {"runtime": {"config_sources": []}}}))
"""
    assert slow_modules_of(script, tmp_path) == set()


def test_a_wrong_option_of_a_report_does_not_wait_for_pytorch(tmp_path):
    wrong = main_with("task=report task.margin=0", "task=report task.directories=[gone]", status=2)
    assert not slow_modules_of(wrong, tmp_path) & {"torch", "lightning", "music21"}


def test_a_report_imports_no_pytorch(tmp_path):
    mechanisms(make_run(tmp_path / "runs", "pope", 0), "delta", ("layer", "head", "element", "delta"), [], DELTA)
    (tmp_path / "study.yaml").write_text("runs: []\n")
    imported = slow_modules_of(main_with("task=report", "task=study study=. task.report=true"), tmp_path)
    assert (tmp_path / "report" / "index.html").exists()
    assert (tmp_path / "results.csv").exists()
    assert "matplotlib.figure" in imported
    assert not imported & {"torch", "lightning", "music21"}
