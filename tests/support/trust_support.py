"""Modules that tests of trust name, and a run whose copies name them."""

import sys

import pytest
from report_support import make_run

EVIL = """
import pathlib
pathlib.Path(__file__).with_name("marker").touch()
def Evil(*arguments, **options): pathlib.Path(__file__).with_name("marker").touch()
"""
MINE = """
from bearings.encodings.nope import NoPE
class Mine(NoPE):
    def __init__(
        self, width: int, heads: int, kv_heads: int, head_dim: int = 32, window: int | None = None, speed: float = 0.1,
        warp: object = abs,
    ):
        super().__init__(width, heads, kv_heads, head_dim, window=window)
class NoArguments(NoPE):
    def __init__(self): pass
class Needy(NoPE):
    def __init__(self, width: int, heads: int, kv_heads: int, head_dim: int, rate: float): pass
from bearings.domains.base import Domain
class Half(Domain):
    def options(self): return {}
def function(): pass
"""


@pytest.fixture(autouse=True, name="modules")
def importable_modules(tmp_path, monkeypatch):
    """A folder where Python finds modules: `evil`, which leaves a marker, `mine`, an encoding, and those of a test.

    Afterwards, no marker is left and none of them is imported.
    """
    folder = tmp_path / "modules"
    folder.mkdir()
    (folder / "evil.py").write_text(EVIL)
    (folder / "mine.py").write_text(MINE)
    monkeypatch.syspath_prepend(folder)
    yield folder
    assert not (folder / "marker").exists()
    assert "evil" not in sys.modules
    for file in folder.glob("*.py"):
        sys.modules.pop(file.stem, None)


@pytest.fixture(scope="module", name="sound")
def sound_run(tmp_path_factory):
    """A finished run, to be copied."""
    return make_run(tmp_path_factory.mktemp("runs"), "rope", 0)
