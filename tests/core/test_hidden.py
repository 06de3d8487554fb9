"""Searches of folders skip hidden files, and name a folder that cannot be read."""

import errno
import os

import pytest

from bearings.core.errors import UserError
from bearings.core.hidden import files_below


def test_hidden_files_and_linked_folders_are_skipped(tmp_path):
    for name in ("b.txt", "a/c.txt", ".hidden.txt", ".git/d.txt", "a/.e.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "link").symlink_to(tmp_path / "a")
    os.mkfifo(tmp_path / "fifo.txt")
    assert [file.relative_to(tmp_path).as_posix() for file in files_below(tmp_path)] == ["b.txt", "a/c.txt"]


def test_a_link_to_a_missing_file_is_refused_if_the_file_is_wanted(tmp_path):
    (tmp_path / "a.txt").touch()
    (tmp_path / "broken.md").symlink_to(tmp_path / "nowhere")
    assert [file.name for file in files_below(tmp_path, lambda file: file.suffix == ".txt")] == ["a.txt"]
    with pytest.raises(UserError, match=r"broken.md is a link to a missing file: fetch the file, or remove the link"):
        list(files_below(tmp_path))


def test_a_folder_that_cannot_be_read_is_named(tmp_path, monkeypatch):
    """Tests may run as root, who can read everything."""
    (tmp_path / "inner").mkdir()
    scandir = os.scandir

    def refused(path):
        if os.fspath(path).endswith("inner"):
            raise PermissionError(errno.EACCES, "Permission denied", os.fspath(path))
        return scandir(path)

    monkeypatch.setattr("os.scandir", refused)
    with pytest.raises(UserError, match=r"inner cannot be read \(permission denied\): change its permissions"):
        list(files_below(tmp_path))
