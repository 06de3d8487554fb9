"""Which folder may import which: `make lint` holds it, and would notice an import in the other direction."""

import os
import shutil
import subprocess
import sys

import pytest
from conftest import REPOSITORY

ROOMS = (
    *("adapters", "benchmarks", "core", "documentation", "domains", "encodings", "huggingface", "kernels"),
    *("lightning_modules", "pretrained", "reporting", "session", "studying"),
    "tasks",
    "zeroshot",
)


@pytest.mark.parametrize(
    ("planted", "broken"),
    {
        "": 0,
        "from ..tasks.train import Train": 2,  # which imports PyTorch
        "import torch": 1,
    }.items(),
)
def test_an_import_in_the_wrong_direction_is_noticed(tmp_path, planted, broken):
    copy = tmp_path / "bearings"
    ignored = shutil.ignore_patterns("__pycache__", "results")
    for room in ROOMS:
        shutil.copytree(REPOSITORY / room, copy / room, ignore=ignored)
    for name in ("__init__.py", "pyproject.toml"):
        shutil.copy(REPOSITORY / name, copy)
    with open(copy / "reporting" / "runs.py", "a") as file:
        file.write(f"\n{planted}\n")
    done = subprocess.run(
        [os.path.join(os.path.dirname(sys.executable), "lint-imports"), "--no-cache"],
        cwd=copy,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert f"{2 - broken} kept, {broken} broken" in done.stdout, done.stdout + done.stderr
    assert done.returncode == min(broken, 1)
