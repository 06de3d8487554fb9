"""What the program does first: slow imports wait until they are needed, and Lightning until a run is trained."""

import subprocess
import sys

import pytest
from conftest import REPOSITORY

SLOW = ("lightning", "matplotlib.figure", "scipy.stats", "music21", "torch")


def slow_modules_of(script: str, cwd) -> set[str]:
    """Those of SLOW that a Python script imports."""
    script += f"\nimport sys; print('imported', *(name for name in {SLOW!r} if name in sys.modules))"
    done = subprocess.run([sys.executable, "-c", script], cwd=cwd, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return set(done.stdout.splitlines()[-1].split()[1:])


def test_reading_an_export_imports_nothing_of_training(tmp_path):
    assert slow_modules_of("from bearings.tasks.export import load_exported", tmp_path) == {"torch"}


WRONG = (
    *("optimizer.clip=-1", "trainer.steps=x data.batch_size=x", "model.heads=5", "task=check data.workers=-1"),
    "domain.transpose=x",
)


@pytest.mark.parametrize("wrong", WRONG)
def test_a_wrong_value_is_reported_before_anything_slow_is_imported(tmp_path, wrong):
    script = f"""
import runpy, sys
sys.argv = ["main.py", *{wrong.split()!r}]
try:
    runpy.run_path({str(REPOSITORY / "main.py")!r}, run_name="__main__")
except SystemExit as end:
    assert end.code == 2
"""
    assert slow_modules_of(script, tmp_path) == set()
