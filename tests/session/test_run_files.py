"""tasks/run_files.py: a shared run that links out of its folder, or holds what is no file, is not read."""

import os
import re
import shutil

import pytest
from report_support import make_run, report_task  # noqa: F401

from bearings.core.errors import UserError
from bearings.reporting.reading import read_study
from bearings.session.run_directory import RunDirectory
from bearings.studying.keeping import keep_run

READ = ("config.yaml", "manifest.json", "metrics.csv", "nll/test.npz", "samples/x.txt", "checkpoints/best.ckpt")
READ += ("baselines/test/xz.npz", "extrapolation/test.csv", "mechanisms/attention.csv", ".lock", "samples")


def link(path):
    path.symlink_to("/etc/passwd")


def nowhere(path):
    path.symlink_to(path.name)


def put_in_place(path, make):
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.is_dir():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)
    make(path)


@pytest.mark.parametrize("name", READ)
def test_a_link_out_of_a_run_is_refused(tmp_path, name):
    path = make_run(tmp_path / "runs", "rope", 0)
    put_in_place(path / name, link)
    with pytest.raises(UserError, match=re.escape(f"run={path}: {name} is a link that leads out of the run")):
        keep_run(path, tmp_path / "kept")
    assert not (tmp_path / "kept").exists()


def test_links_to_nothing_and_fifos_are_refused(tmp_path):
    for make, message in ((nowhere, "is a broken link"), (os.mkfifo, "is neither a file nor a folder")):
        path = make_run(tmp_path / message, "rope", 0)
        put_in_place(path / "metrics.csv", make)
        with pytest.raises(UserError, match=f"metrics.csv {message}"):
            RunDirectory.open(path)


def test_a_report_goes_on_without_refused_runs_and_shows_nothing_of_them(tmp_path, report):
    (tmp_path / "private").mkdir()
    (tmp_path / "private" / "secret.txt").write_text("a private text")
    make_run(tmp_path / "runs", "rope", 0)
    for seed, (name, make) in enumerate(
        {
            "samples/x.txt": lambda path: path.symlink_to(tmp_path / "private" / "secret.txt"),
            "manifest.json": lambda path: path.symlink_to(tmp_path / "private" / "secret.txt"),
            "mechanisms/x.csv": os.mkfifo,
        }.items(),
        start=1,
    ):
        put_in_place(make_run(tmp_path / "runs", "rope", seed) / name, make)
    elsewhere = make_run(tmp_path / "private", "rope", 9)
    (elsewhere / "samples" / "x.txt").write_text("a private text")
    (tmp_path / "runs" / elsewhere.name).symlink_to(elsewhere)
    folder, out = report()
    assert out.count("refused: ") == 4
    assert f"refused: runs/{elsewhere.name}, a link that leads out of runs" in out
    assert "a private text" not in (folder / "index.html").read_text()


def test_folders_in_place_of_files_do_not_end_the_report(tmp_path, report):
    make_run(tmp_path / "runs", "rope", 9)
    for seed, name in enumerate(("config.yaml", "manifest.json", "metrics.csv", "nll/test.npz", "samples/x.txt")):
        put_in_place(make_run(tmp_path / "runs", "rope", seed) / name, os.mkdir)
    _, out = report()
    assert out.count("unreadable: ") == 4  # a folder among the samples is no sample


def test_what_a_user_links_is_read(tmp_path):
    path = make_run(tmp_path / "scratch", "rope", 0)
    (path / "wandb").mkdir()
    (path / "wandb" / "core.log").symlink_to(tmp_path / "core.log")
    (path / "samples" / "x.txt").write_text("x")
    (path / "samples" / "again.txt").symlink_to("x.txt")
    (tmp_path / "runs").symlink_to(tmp_path / "scratch")
    assert len(read_study([tmp_path / "runs"]).runs) == 1
    (tmp_path / "run").symlink_to(path)
    kept = keep_run(tmp_path / "run", tmp_path / "kept")
    assert {file.name for file in (kept / "samples").iterdir()} == {"again.txt", "x.txt"}
    (path / "wandb").rename(path / "samples" / "wandb")  # only the folder of W&B itself is never read
    assert [trouble.state for trouble in read_study([tmp_path / "runs"]).troubles] == ["refused"]


def test_a_sample_that_is_too_large_is_named(tmp_path, report):
    path = make_run(tmp_path / "runs", "rope", 0)
    with open(path / "samples" / "x.txt", "wb") as file:
        file.truncate(100 << 30)
    folder, _ = report()
    assert "not shown: 102,400 MiB is too large" in (folder / "index.html").read_text()
