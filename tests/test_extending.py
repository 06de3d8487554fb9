"""The example encoding and domain of the documentation work in a copy of the repository."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from conftest import REPOSITORY

FOLDERS = (
    *("configs", "core", "domains", "encodings", "huggingface", "kernels", "lightning_modules"),
    *("pretrained", "reporting", "session", "tasks", "zeroshot"),
    "tests",
)

COMMANDS = """\
import json
import sys
from glob import glob
import pytest
from bearings.session.cli import main
commands, laws = map(json.loads, sys.argv[1:])
for command in commands:
    try:
        main([*command.split(), *(f"run={run}" for run in glob("runs/*/*/*") if "task=" in command)])
    except SystemExit as end:  # --help ends with 0
        if end.code:
            raise
print("the laws")
sys.exit(pytest.main(laws))
"""


def test_documented_encoding_and_domain_work(tmp_path):
    copy = tmp_path / "packages" / "bearings"
    for folder in FOLDERS:
        shutil.copytree(REPOSITORY / folder, copy / folder, ignore=shutil.ignore_patterns("__pycache__"))
    for file in (*REPOSITORY.glob("*.py"), REPOSITORY / "pyproject.toml"):
        shutil.copy(file, copy)
    pages = [(REPOSITORY / "docs" / f"add-{name}.md").read_text() for name in ("an-encoding", "a-domain")]
    added = re.findall(r"^`([a-z/]+\.(?:py|yaml))`\n```[a-z]+\n(.*?)^```", "".join(pages), re.MULTILINE | re.DOTALL)
    assert [name for name, _ in added] == [
        "encodings/spin.py",
        "configs/encoding/spin.yaml",
        "domains/dice.py",
        "configs/domain/dice.yaml",
    ]
    assert f"```python\n{added[0][1]}```" in (REPOSITORY / "README.md").read_text()
    for name, text in added:
        assert not (copy / name).exists()
        (copy / name).write_text(text)
    environment = {**os.environ, "PYTHONPATH": str(copy.parent)}
    (copy / ".venv" / "named").mkdir(parents=True)  # where `make lint` looks for modules
    (copy / ".venv" / "named" / "bearings").symlink_to(copy)
    (copy / ".venv" / "lib").symlink_to(Path(sys.prefix) / "lib")
    files = [name for name, _ in added if name.endswith(".py")]
    for linter in (["ruff", "check"], ["ruff", "format", "--check"], ["basedpyright"]):
        command = [Path(sys.prefix) / "bin" / linter[0], *linter[1:], *files]
        done = subprocess.run(command, cwd=copy, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr

    given = ["domain=dice", "encoding=spin", "experiment=debug", "trainer.accelerator=cpu", "task.tokens=30"]
    (copy / "commands.py").write_text(COMMANDS)
    commands = [
        " ".join([*given, "encoding.speed=0.1"]),  # an option as any other, at its default
        " ".join(given),
        "task=evaluate trainer.accelerator=cpu",
        "task=generate task.tokens=9 trainer.accelerator=cpu",
        " ".join([*given, "encoding.speed=0.3", "--help"]),
    ]
    laws = ["-q", "-kspin or dice or loads_torch", "-pno:cacheprovider"]
    laws += ["tests/encodings/test_encoding_laws.py", "tests/domains/test_domain_laws.py"]
    done = subprocess.run(
        [sys.executable, "commands.py", json.dumps(commands), json.dumps(laws)],
        cwd=copy,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    out, _, passed = done.stdout.partition("the laws")
    assert "bits/throw" in out
    (run,) = copy.glob("runs/dice/spin/*")
    assert set((run / "samples" / "sample-0.txt").read_text().split()) <= set("123456")
    assert "already finished" in out
    assert "test split of " in out
    assert "seed0-tokens9-0.txt" in out
    assert "encoding.speed=0.3 (number; default 0.1)\n      radians per token." in out
    assert int(re.search(r"(\d+) passed", passed)[1]) > 15
    assert "failed" not in passed
