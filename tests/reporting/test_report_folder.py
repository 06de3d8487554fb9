"""The folder of a report: replaced whole, if it is one, also by several processes at once."""

import re
from concurrent.futures import ThreadPoolExecutor

import pytest
from filelock import FileLock
from report_support import make_run, report_task  # noqa: F401

from bearings.core.errors import UserError
from bearings.tasks import report as report_module


def test_leftovers_of_killed_reports_are_removed(tmp_path, report):
    make_run(tmp_path / "runs", "rope", 0)
    killed, running, other = (tmp_path / name for name in (".report.abcd1234", ".report.running1", ".report.else"))
    for folder in (killed, running, other):
        (folder / "making").mkdir(parents=True)
    (killed / ".lock").write_text("")
    with FileLock(running / ".lock"):
        report()
    assert not killed.exists()
    assert running.exists()
    assert other.exists()
    assert not list((tmp_path).glob(".report.????????/making/tables"))


def test_other_files_are_never_replaced(tmp_path, report):
    make_run(tmp_path / "runs", "rope", 0)
    (tmp_path / "report" / "plots").mkdir(parents=True)
    (tmp_path / "report" / "plots" / "mine.png").write_text("mine")
    for folder in ("report", "missing/../report"):
        with pytest.raises(UserError, match=re.escape(f"task.out={folder}: the folder holds other files")):
            report(f"task.out={folder}")
    assert (tmp_path / "report" / "plots" / "mine.png").read_text() == "mine"
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "index.html").write_text("<!doctype html>my own page")
    with pytest.raises(UserError, match=re.escape("task.out=site: the folder holds other files")):
        report("task.out=site")
    assert (tmp_path / "site" / "index.html").read_text() == "<!doctype html>my own page"
    folder, _ = report("task.out=there/other")
    assert folder.exists()
    (tmp_path / "there" / "other" / "tables" / "stale.csv").write_text("")
    report("task.out=there/other")
    assert not (tmp_path / "there" / "other" / "tables" / "stale.csv").exists()
    assert [path.name for path in (tmp_path / "there").iterdir()] == ["other"]


def test_a_link_to_a_folder_is_kept(tmp_path, report):
    make_run(tmp_path / "runs", "rope", 0)
    (tmp_path / "report").symlink_to("new/site")  # which the first report creates
    for folder in ("report", "report", "new/../report", "new/site/../site"):
        report(f"task.out={folder}")
        assert (tmp_path / "new" / "site" / "index.html").exists()
        assert (tmp_path / "report").is_symlink()
    assert {path.name for path in tmp_path.iterdir()} == {"runs", "report", "new"}
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["site"]


def test_concurrent_reports_into_one_folder(tmp_path, report, monkeypatch):
    make_run(tmp_path / "runs", "rope", 0)
    write_page, within = report_module.write_page, []

    def another_comes_between(*given):
        if not within:
            within.append(True)
            report()
        write_page(*given)

    monkeypatch.setattr(report_module, "write_page", another_comes_between)
    folder, _ = report()
    assert (folder / "index.html").exists()
    assert {path.name for path in tmp_path.iterdir()} == {"runs", "report"}


def test_folder_is_complete_after_concurrent_replacements(tmp_path):
    def replace(thread):
        for number in range(200):
            made = tmp_path / f"{thread}-{number}" / "report"
            made.mkdir(parents=True)
            (made / "index.html").write_text(f"{thread}-{number}")
            report_module.put(made, tmp_path / "report")

    with ThreadPoolExecutor(3) as pool:
        list(pool.map(replace, "abc"))
    assert (tmp_path / "report" / "index.html").read_text().endswith("-199")
