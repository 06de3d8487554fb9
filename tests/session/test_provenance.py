"""The recorded source of a run: only source files count."""

import subprocess

import pytest

from bearings.session import provenance
from bearings.session.provenance import code_state, git_state


@pytest.fixture
def checkout(tmp_path):
    def git(*arguments):
        who = ["-c", "user.name=a", "-c", "user.email=a@b.c"]
        subprocess.run(["git", "-C", tmp_path, *who, *arguments], check=True, capture_output=True)

    (tmp_path / "a.py").write_text("1\n")
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs" / "b.yaml").write_text("c: 1\n")
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_a.py").write_text("1\n")
    for arguments in (["init"], ["add", "."], ["commit", "-m", "first"]):
        git(*arguments)
    return tmp_path


def test_a_clean_checkout_is_its_commit(checkout):
    state = git_state(checkout)
    assert len(state["commit"]) == 40
    assert state["dirty"] is None
    assert git_state(checkout / "configs") == {"commit": None, "dirty": None}


def test_without_a_commit_nothing_is_known(tmp_path):
    unknown = {"commit": None, "dirty": None}
    assert git_state(tmp_path) == unknown
    subprocess.run(["git", "init", tmp_path], check=True, capture_output=True)
    assert git_state(tmp_path) == unknown


def test_what_is_no_source_changes_nothing(checkout):
    (checkout / "ü x.txt").write_text("text")
    (checkout / "runs").mkdir()
    (checkout / "runs" / "config.yaml").write_text("x: 1\n")
    (checkout / "tests" / "test_a.py").write_text("2\n")
    (checkout / "tests" / "test_new.py").write_text("1\n")
    assert git_state(checkout)["dirty"] is None


@pytest.mark.parametrize("name", ["a.py", "new.py", "ü x.py", "folder/y.py", "configs/b.yaml", "configs/new.yaml"])
def test_source_that_is_changed_or_new_counts(checkout, name):
    path = checkout / name
    path.parent.mkdir(exist_ok=True)
    path.write_text("2\n")
    first = git_state(checkout)["dirty"]
    path.write_text("3\n")
    assert first
    assert git_state(checkout)["dirty"] not in (None, first)


def test_a_link_to_nowhere_and_a_checkout_inside_do_no_harm(checkout):
    (checkout / "gone.py").symlink_to(checkout / "nowhere.py")
    subprocess.run(["git", "init", checkout / "inner.py"], check=True, capture_output=True)
    (checkout / "inner.py" / "c.py").write_text("4\n")
    assert git_state(checkout)["dirty"] is None


@pytest.mark.parametrize("file", ["mine/__init__.py", "mine.py"])
def test_a_package_whose_class_is_named_counts_as_a_change(tmp_path, monkeypatch, file):
    monkeypatch.setattr(provenance, "git_state", lambda: {"commit": "a" * 40, "dirty": None})
    monkeypatch.syspath_prepend(tmp_path)
    path = tmp_path / file
    path.parent.mkdir(exist_ok=True)
    found = []
    for text in ("1\n", "2\n", "1\n"):
        path.write_text(text)
        found.append(code_state({"encoding": {"layers": [{"_target_": "mine.Spin"}]}})["dirty"])
    first, other, again = found
    assert None not in found
    assert first == again != other
    own = {"task": {"_target_": "bearings.tasks.train.Train"}, "domain": {"path": "a"}}
    assert code_state(own) == {"commit": "a" * 40, "dirty": None}


def test_changes_of_a_package_are_added_to_what_is_known_of_this_project(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "mine.py").touch()
    found = []
    for commit, dirty in ((None, None), ("a" * 40, None), ("a" * 40, "b" * 12)):
        monkeypatch.setattr(provenance, "git_state", lambda state={"commit": commit, "dirty": dirty}: state)
        found.append(code_state({"encoding": {"_target_": "mine.Spin"}}))
    outside, clean, changed = found
    assert outside == {"commit": None, "dirty": None}
    assert clean["commit"] == changed["commit"] == "a" * 40
    assert clean["dirty"] != changed["dirty"]


def test_files_of_a_package_that_cannot_be_read_do_no_harm(tmp_path, monkeypatch):
    monkeypatch.setattr(provenance, "git_state", lambda: {"commit": "a" * 40, "dirty": None})
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "mine" / "inner.py").mkdir(parents=True)
    (tmp_path / "mine" / "__init__.py").touch()
    config = {"encoding": {"_target_": "mine.Spin"}}
    before = code_state(config)
    (tmp_path / "mine" / ".#spin.py").symlink_to(tmp_path / "nowhere")  # of an editor
    (tmp_path / "mine" / ".cache").mkdir()
    (tmp_path / "mine" / ".cache" / "spin.py").touch()
    assert code_state(config) == before
    (tmp_path / "mine" / "inner.py" / "moved.py").touch()
    assert code_state(config) != before
