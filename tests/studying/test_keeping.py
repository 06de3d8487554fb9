"""Kept runs: a copy of a run's records is whole and small, names no machine, replaces only an earlier copy."""

import json
import shutil
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
import yaml
from report_support import make_run, mechanisms

from bearings.core.checked_files import digest_of
from bearings.core.errors import UserError
from bearings.domains.items import Items
from bearings.reporting.reading import read_study
from bearings.session.identity import identity
from bearings.session.item_files import save_items
from bearings.session.run_directory import RunDirectory
from bearings.studying import keeping
from bearings.studying.keeping import keep_run


@pytest.mark.parametrize("in_study", [True, False])
def test_baselines_are_kept_once_for_a_store_in_a_study(tmp_path, in_study):
    (tmp_path / "kept").mkdir()
    if in_study:
        (tmp_path / "kept" / "study.yaml").write_text("runs: [encoding=rope]\n")
    for encoding, seed, store in (("rope", 0, "5"), ("rope", 1, "5"), ("pope", 0, "5"), ("rope", 0, "6")):
        path = make_run(tmp_path / "runs", encoding, seed, store=store * 64)
        target = path / "baselines" / "test"
        target.mkdir(parents=True)
        (target / "unigram.npz").write_bytes((path / "nll" / "test.npz").read_bytes())
        keep_run(path, tmp_path / "kept" / path.relative_to(tmp_path), commit="abc")
    assert len(list((tmp_path / "kept").rglob("unigram.npz"))) == (2 if in_study else 4)
    found = read_study([tmp_path / "kept"]).runs
    assert {run.manifest["sessions"][0]["code"]["commit"] for run in found} == {"abc"}


def test_a_copy_has_the_run_s_own_facts_and_the_digests_of_its_files(tmp_path):
    path = make_run(tmp_path / "runs", "rope", 0)
    run = RunDirectory.open(path)
    save_items(run, "piqa", Items(np.array(["a"]), np.array([""]), {"acc": np.array([1])}, "1" * 64))
    (session,) = run.manifest["sessions"]
    own = {**session, "code": {"commit": "own", "dirty": None}, "beside": 5}
    run.write_manifest(sessions=[{**session, "code": None}, own])
    for _ in range(2):  # the copy may be replaced
        keep_run(path, tmp_path / "kept", commit="abc")
    kept = json.loads((tmp_path / "kept" / "manifest.json").read_text())
    unknown, known = kept["sessions"]
    assert unknown["code"] is None
    assert known == own
    assert kept["files"].keys() == {"benchmarks/piqa.npz", "metrics.csv", "nll/test.npz", "nll/valid.npz"}
    assert all(digest_of(tmp_path / "kept" / name) == digest for name, digest in kept["files"].items())


def test_measurements_are_kept_of_every_seed_and_samples_and_parameters_of_one(tmp_path):
    every = {"extrapolation/test.csv", "sample_metrics/test.csv", "mechanisms/attention.csv"}
    once = {"mechanisms/delta.csv", "samples/a.txt"}
    for seed, settings, wanted in ((0, (), every | once), (1, (), every), (1, ["trainer.steps=40"], every | once)):
        path = make_run(tmp_path / "runs", "rope", seed, *settings)
        for name in every | once:
            (path / name).parent.mkdir(exist_ok=True)
            (path / name).write_text("a\n1\n")
        kept = keep_run(path, tmp_path / "kept" / path.name)
        assert {name for name in every | once if (kept / name).exists()} == wanted


@pytest.mark.parametrize(("limit", "wanted"), [(100, "bcd"), (99, "cd")])
def test_the_smallest_samples_are_kept_up_to_a_limit(tmp_path, monkeypatch, limit, wanted):
    monkeypatch.setattr(keeping, "SAMPLES", limit)
    path = make_run(tmp_path / "runs", "rope", 0)
    for name, size in {"a": 200, "b": 60, "c": 30, "d": 10}.items():
        (path / "samples" / name).write_bytes(bytes(size))
    kept = keep_run(path, tmp_path / "kept")
    assert sorted(file.name for file in (kept / "samples").iterdir()) == [*wanted]


def test_a_kept_run_names_no_folder_of_this_machine(tmp_path):
    path = make_run(tmp_path / "runs", "rope", 0, f"domain.path={tmp_path}/music.json", f"stores={tmp_path}/data")
    config = yaml.safe_load((path / "config.yaml").read_text()) | {"runs": str(tmp_path / "runs"), "run": str(path)}
    (path / "config.yaml").write_text(yaml.safe_dump(config))
    manifest = json.loads((path / "manifest.json").read_text())
    (path / "manifest.json").write_text(json.dumps({**manifest, "config": config}))
    kept = keep_run(path, tmp_path / "kept")
    for name in ("config.yaml", "manifest.json"):
        assert str(tmp_path) not in (kept / name).read_text()
    assert RunDirectory.open(kept).config["domain"]["path"] == "music.json"
    assert identity(RunDirectory.open(kept).config) == identity(config)


def test_folders_in_lists_are_not_named_and_addresses_are_kept_whole(tmp_path):
    path = make_run(tmp_path / "runs", "rope", 0)
    config = yaml.safe_load((path / "config.yaml").read_text())
    given = {"path": [f"{tmp_path}/a.txt", f"{tmp_path}/b.txt"], "urls": "https://example.org/music/all.zip"}
    config["domain"] |= given
    (path / "config.yaml").write_text(yaml.safe_dump(config))
    kept = RunDirectory.open(keep_run(path, tmp_path / "kept")).config["domain"]
    assert kept["path"] == ["a.txt", "b.txt"]
    assert kept["urls"] == given["urls"]


def test_a_run_kept_again_keeps_its_baselines_and_samples(tmp_path, monkeypatch):
    """Neither its earlier copy, nor an unfinished one or a backup, counts as another run that has them."""
    (tmp_path / "study.yaml").write_text("runs: [encoding=rope]\n")
    path = make_run(tmp_path / "trained", "rope", 0)
    (path / "baselines" / "test").mkdir(parents=True)
    (path / "baselines" / "test" / "unigram.npz").write_bytes((path / "nll" / "test.npz").read_bytes())
    (path / "samples" / "sample.txt").write_text("a sample")
    monkeypatch.chdir(tmp_path)
    out = "runs" / path.relative_to(tmp_path / "trained")
    for _ in range(2):
        keep_run(path, out)
        assert (out / "baselines" / "test" / "unigram.npz").exists()
        assert (out / "samples" / "sample.txt").exists()
        for name in (f".{out.name}", f"{out.name}.old"):
            shutil.copytree(out, out.with_name(name), dirs_exist_ok=True)


@pytest.mark.parametrize("trained", [True, False])
def test_a_run_s_own_baselines_are_not_taken_for_those_of_a_copy(tmp_path, trained, monkeypatch):
    (tmp_path / "study.yaml").write_text("runs: [encoding=rope]\n")
    path = make_run(tmp_path / "runs", "rope", 0)
    (path / "baselines" / "test").mkdir(parents=True)
    (path / "baselines" / "test" / "unigram.npz").write_bytes((path / "nll" / "test.npz").read_bytes())
    (path / "mechanisms").mkdir()
    (path / "mechanisms" / "beta.csv").write_text("a\n1\n")
    if trained:
        shutil.copytree(path, path.with_name(path.name.removesuffix("0") + "1"))  # nor are those of another trained run
    else:
        (path / "checkpoints").rmdir()
    monkeypatch.chdir(path.parent)
    half = tmp_path / "runs" / ".half" / "copy-s1"
    shutil.copytree(path, half)
    shutil.rmtree(half / "checkpoints", ignore_errors=True)
    half.rename(half.with_name(".copy-s1.making"))
    for out in (
        tmp_path / "runs" / "x" / "copy-s0",
        Path("kept"),
        Path(f"{path.name}0"),
        path.parent.parent / "kept" / "copy",
    ):
        kept = keep_run(path, out)
        assert (kept / "baselines" / "test" / "unigram.npz").exists()
        assert (kept / "mechanisms" / "beta.csv").exists()
        shutil.rmtree(kept)


def test_a_damaged_baseline_is_reported_with_a_remedy(tmp_path):
    path = make_run(tmp_path / "runs", "rope", 0)
    (path / "baselines" / "test").mkdir(parents=True)
    (path / "baselines" / "test" / "unigram.npz").write_bytes(b"")
    with pytest.raises(UserError, match=r"unigram.npz is damaged .*: delete .*/test to compute it again"):
        keep_run(path, tmp_path / "kept" / "run")
    assert not list((tmp_path / "kept").glob("run"))


def test_folders_next_to_a_kept_run_need_not_be_runs(tmp_path):
    path = make_run(tmp_path / "runs", "rope", 0)
    (path / "baselines" / "test").mkdir(parents=True)
    (path / "baselines" / "test" / "unigram.npz").write_bytes((path / "nll" / "test.npz").read_bytes())
    kept = tmp_path / "runs" / "jsb"
    (tmp_path / "study.yaml").write_text("runs: [encoding=rope]\n")
    for name, text in (("without", None), ("another", "[]"), ("damaged", "{")):
        (kept / "notes" / name / "baselines").mkdir(parents=True)
        if text:
            (kept / "notes" / name / "manifest.json").write_text(text)
    kept = keep_run(path, kept / "rope" / "run")
    assert (kept / "baselines" / "test" / "unigram.npz").exists()


def test_a_run_is_kept_in_a_folder_near_the_root(tmp_path):
    path = make_run(tmp_path / "runs", "rope", 0)
    with TemporaryDirectory(dir="/tmp") as folder:
        assert (keep_run(path, Path(folder) / "run") / "manifest.json").exists()


def test_only_an_earlier_copy_of_the_same_run_is_replaced(tmp_path):
    path, other = (make_run(tmp_path / "runs", "rope", seed) for seed in (0, 1))
    kept, folder = keep_run(other, tmp_path / "kept"), tmp_path / "notes"
    folder.mkdir()
    (folder / "mine.txt").write_text("mine")
    for out in (path, kept, folder, folder / "mine.txt"):
        before = sorted(tmp_path.rglob("*"))
        with pytest.raises(UserError, match="is not a copy of run="):
            keep_run(path, out)
        assert sorted(tmp_path.rglob("*")) == before
    with pytest.raises(UserError, match="is not a copy of run="):
        keep_run(kept, kept)


def test_other_files_in_a_copy_are_not_deleted(tmp_path):
    path = make_run(tmp_path / "runs", "rope", 0)
    (path / "samples" / "sample.txt").write_text("a sample")
    mechanisms(path, "delta", ("layer", "head", "element", "delta"), [(0, 0, 0, -1.0)])
    kept = tmp_path / "kept"
    for name in ("notes.txt", "nll/notes.txt", "more/notes.txt", "checkpoints/best.ckpt", "baselines/.test/a.npz"):
        keep_run(path, kept)
        keep_run(path, kept)  # all that keeping writes may be replaced
        (kept / name).parent.mkdir(parents=True, exist_ok=True)
        (kept / name).write_text("mine")
        with pytest.raises(UserError, match=rf"^task\.out={kept}: {name} is not part of the copy"):
            keep_run(path, kept)
        assert (kept / name).read_text() == "mine"
        (kept / name).unlink()


def test_nothing_is_kept_inside_a_run(tmp_path):
    path = make_run(tmp_path / "runs", "rope", 0)
    (tmp_path / "site").mkdir()
    for name in ("config.yaml", "site/manifest.json"):  # of something else
        (tmp_path / name).touch()
    kept = keep_run(path, tmp_path / "site" / "kept")
    for run in (path, kept):
        before = sorted(tmp_path.rglob("*"))
        with pytest.raises(UserError, match=f"is inside the run {run}: give a folder outside"):
            keep_run(path, run / "more" / "x")
        assert sorted(tmp_path.rglob("*")) == before


def test_a_run_that_is_not_finished_is_not_kept(tmp_path):
    path = make_run(tmp_path / "runs", "rope", 0, finished=False)
    with pytest.raises(UserError, match="is not finished"):
        keep_run(path, tmp_path / "kept")
    assert not (tmp_path / "kept").exists()
