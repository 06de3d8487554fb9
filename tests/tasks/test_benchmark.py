"""task=benchmark: a result per item, sealed, kept with the run, and compared in the report."""

import shutil

import numpy as np
import pytest
from zero_shot_support import benchmark_folder, lines, trained_text_run  # noqa: F401 (fixtures)

from bearings.core.errors import UserError
from bearings.reporting.packed import read_packed
from bearings.session.item_files import read_items
from bearings.session.run_directory import RunDirectory
from bearings.session.session import Session
from bearings.studying.keeping import keep_run
from bearings.studying.packing import pack
from bearings.tasks.benchmark import Benchmark


@pytest.fixture
def session(trained_text, tmp_path):
    """A copy of the trained run, whose files a test may change."""
    shutil.copytree(trained_text[1].path, tmp_path / "run")
    return Session.of(RunDirectory.open(tmp_path / "run").config | {"run": str(tmp_path / "run")})


def test_results_are_saved_and_kept(session, benchmark_files, tmp_path, capsys):
    Benchmark(path=str(benchmark_files))(session)
    run = RunDirectory.open(tmp_path / "run")
    found, printed = read_items(run), capsys.readouterr().out
    assert {name: len(items.names) for name, items in found.items()} == {
        **{"arc_easy": 2, "blimp": 3, "cbt_cn": 2, "copa": 2, "hellaswag": 2, "lambada": 3, "piqa": 2, "winogrande": 2}
    }
    assert "cbt_cn: 6 of 6 texts were cut from the left to data.length=96 tokens" in " ".join(printed.split())
    assert all(title in printed for title in ("LAMBADA", "BLiMP", "PIQA", "guessing", "perplexity"))
    assert sorted(found["lambada"].columns) == ["acc", "nats"]
    assert sorted(found["piqa"].columns) == ["acc", "acc_norm", "margin"]
    study = tmp_path / "study"
    kept = keep_run(run.path, study / "runs" / "text" / "rope" / "tiny-00000000-s0")
    assert (
        read_items(RunDirectory.open(kept))["blimp"].columns["margin"].tolist()
        == found["blimp"].columns["margin"].tolist()
    )
    pack(study)
    (packed,) = read_packed(study).values()
    np.testing.assert_array_equal(read_items(RunDirectory.open(packed))["blimp"].groups, found["blimp"].groups)
    file = run.benchmarks / "blimp.npz"
    file.write_bytes((run.benchmarks / "piqa.npz").read_bytes())
    with pytest.raises(UserError, match=r"blimp.npz has changed since the run wrote it"):
        read_items(run)
    Benchmark(path=str(benchmark_files), benchmarks=["blimp"])(session)
    assert len(read_items(run)["blimp"].names) == 3


def test_files_in_the_folder_of_downloads_are_not_downloaded(session, benchmark_files, tmp_path):
    """So that studies, whose commands name no folder, run without a network."""
    shutil.copytree(session.config["stores"], tmp_path / "data")
    shutil.copytree(benchmark_files, tmp_path / "data" / "benchmarks")
    session = Session.of({**session.config, "stores": str(tmp_path / "data")})
    Benchmark(benchmarks=["arc_easy", "cbt_cn", "cbt_ne"])(session)
    assert [*read_items(RunDirectory.open(tmp_path / "run"))] == ["arc_easy", "cbt_cn"]
    (tmp_path / "data" / "benchmarks" / "arc-easy-test.parquet").mkdir()  # the publisher's file is verified
    with pytest.raises(UserError, match=r"arc-easy-test.parquet is a folder"):
        Benchmark(benchmarks=["arc_easy"])(session)


def test_results_without_the_prefix_have_a_source_of_their_own(session, benchmark_files):
    """Reports compare only results with equal sources."""
    run, sources = RunDirectory.open(session.config["run"]), []
    for prefix in (True, False, True):
        Benchmark(path=str(benchmark_files), benchmarks=["copa"], prefix=prefix)(session)
        sources.append(read_items(run)["copa"].source)
    assert sources[0] == sources[2] != sources[1]


def test_a_limit_saves_nothing(session, benchmark_files, capsys):
    Benchmark(path=str(benchmark_files), benchmarks=["lambada", "cbt_ne"], limit=1)(session)
    printed = " ".join(capsys.readouterr().out.split())
    assert "task.limit=1: nothing was saved" in printed
    assert "left out cbt_ne: cbtest_NE_test_2500ex.txt is not in" in printed
    assert not RunDirectory.open(session.config["run"]).benchmarks.exists()


def test_what_cannot_be_scored_is_reported(session, trained_text, benchmark_files, tmp_path, monkeypatch, capsys):
    with pytest.raises(ValueError, match="benchmarks: blimb: did you mean blimp"):
        Benchmark(benchmarks=["blimb"])
    with pytest.raises(ValueError, match="name at least one benchmark"):
        Benchmark(benchmarks=[])
    with pytest.raises(ValueError, match="no such file or folder"):
        Benchmark(path=str(tmp_path / "nowhere"))
    (tmp_path / "long").mkdir()
    (tmp_path / "long" / "lambada_test.jsonl").write_text(lines([{"text": "a " + "b" * 200}]))
    with pytest.raises(UserError, match="no benchmark could be scored"):
        Benchmark(path=str(tmp_path / "long"), benchmarks=["lambada"])(session)
    assert "a continuation has 201 tokens, more than data.length=96" in " ".join(capsys.readouterr().out.split())
    RunDirectory.open(session.config["run"]).write_manifest(finished=None)
    with pytest.raises(UserError, match="is not finished"):
        Benchmark(path=str(benchmark_files))(session)
    monkeypatch.setitem(vars(session), "domain", trained_text[0].data)  # anything but text
    monkeypatch.setattr(type(trained_text[0].data), "name", "letters", raising=False)
    with pytest.raises(UserError, match="domain letters is not text"):
        Benchmark(path=str(benchmark_files))(session)
