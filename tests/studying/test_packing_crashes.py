"""Packing loses nothing if it is killed, or if several processes keep and pack at once."""

import multiprocessing
import shutil
from contextlib import suppress
from threading import Thread

from packing_support import files_of, make_study
from report_support import make_run

from bearings.reporting.packed import RECORDS, RUNS, packed_names, read_packed
from bearings.reporting.reading import read_study
from bearings.studying import packing
from bearings.studying.keeping import keep_in_study
from bearings.studying.packing import pack, study_lock


def test_a_crash_at_any_write_loses_nothing(tmp_path, monkeypatch):
    study = make_study(tmp_path / "study", 0)
    pack(study)
    make_study(study, 1)
    expected = {run.path.parts[-1]: run.records["test"].nats_per_token for run in read_study([study]).runs}
    there = make_study(tmp_path / "there", 2)
    pack(there)
    (study / "runs" / "there").mkdir()
    for name in (RUNS, RECORDS):
        shutil.copy(there / name, study / "runs" / "there")
    path, steps = type(tmp_path), []

    def crashing(real, at):
        def step(*given, **options):
            steps.append(real)
            if len(steps) == at:
                raise KeyboardInterrupt
            return real(*given, **options)

        return step

    for at in range(1, 20):
        steps.clear()
        with monkeypatch.context() as patch, suppress(KeyboardInterrupt):
            patch.setattr(path, "replace", crashing(path.replace, at))
            patch.setattr(packing.shutil, "rmtree", crashing(shutil.rmtree, at))
            pack(study)
            break
        found = {run.path.parts[-1]: run.records["test"].nats_per_token for run in read_study([study]).runs}
        assert found.items() >= expected.items(), at
    assert 7 <= at < 19  # four files are written or replaced, a folder renamed, two deleted
    assert len(read_packed(study)) == 3
    assert sorted(path.name for path in study.iterdir()) == [".lock", RECORDS, RUNS, "study.yaml"]


def test_a_folder_of_which_a_killed_process_deleted_a_part_replaces_nothing(tmp_path, monkeypatch):
    study, real = make_study(tmp_path / "study", 0), shutil.rmtree
    expected = read_study([study]).runs[0].records["test"].nats_per_token

    def killed(folder, **options):
        if not str(folder).endswith(".tmp"):
            return real(folder, **options)
        for file in (folder / "nll").iterdir():
            file.unlink()
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, suppress(KeyboardInterrupt):
        patch.setattr(packing.shutil, "rmtree", killed)
        pack(study)
    (study / ".packing.half").mkdir()  # of another one
    assert pack(study) == 0
    assert not (study / "runs").exists()
    assert not (study / ".packing.half").exists()
    (run,) = read_study([study]).runs
    assert run.records["test"].nats_per_token == expected


def test_an_incomplete_folder_does_not_replace_a_packed_run(tmp_path):
    study = make_study(tmp_path / "study", 0)
    pack(study)
    before = files_of(study)
    make_study(study, 0)
    (folder,) = (study / "runs").glob("*/*/*")
    (folder / "nll" / "test.npz").unlink()
    assert pack(study) == 0
    assert files_of(study) == before
    (trouble,) = read_study([study]).troubles
    assert "nll/test.npz is missing" in trouble.why


def _keep(paths, study, barrier):
    barrier.wait()
    for path in paths:
        keep_in_study(path, study / "runs" / "jsb" / "rope" / path.name)
        pack(study)


def test_processes_that_keep_and_pack_at_once_lose_nothing(tmp_path):
    study = make_study(tmp_path / "study")
    runs = [make_run(tmp_path / "trained", "rope", seed) for seed in range(6)]
    context = multiprocessing.get_context("fork")
    barrier = context.Barrier(2)
    processes = [context.Process(target=_keep, args=(half, study, barrier)) for half in (runs[::2], runs[1::2])]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0, 0]
    assert {run.seed for run in read_study([study]).runs} == {*range(6)}
    assert len(packed_names(study)) == 6


def test_records_are_not_changed_while_another_process_changes_them(tmp_path):
    study, trained = make_study(tmp_path / "study", 0), make_run(tmp_path / "trained", "rope", 1)
    (kept,) = study.glob("runs/*/*/*")
    out = kept.with_name(trained.name)
    threads = [Thread(target=pack, args=(study,)), Thread(target=keep_in_study, args=(trained, out))]
    with study_lock(study):
        for thread in threads:
            thread.start()
            thread.join(1.0)
        assert kept.exists()
        assert not out.exists()
    for thread in threads:
        thread.join()
    assert {run.seed for run in read_study([study]).runs} == {0, 1}
