"""task=score: what no split holds gets the figures that it would get there."""

import csv
import math
import os
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from report_support import records
from training_support import configured, go

from bearings.core.errors import UserError
from bearings.domains.records import Records
from bearings.session.run_directory import RunDirectory
from bearings.session.session import Session
from bearings.tasks.score import Score, rows_of, table_of


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    return go(configured(tmp_path_factory.mktemp("trained"), "encoding=path", "trainer.steps=8"))[0]


@pytest.fixture
def trained(original, tmp_path):
    run = RunDirectory.open(shutil.copytree(original.path, tmp_path / "run"))
    return Session.of(run.config | {"run": str(run.path)}), run


def test_a_file_gets_the_nats_of_the_same_document_in_a_split(trained, tmp_path):
    session, run = trained
    store, records = session.store(), Records.load(run.records("test"))
    files = []
    for number, index in enumerate(store.documents("test")):
        files.append(tmp_path / f"{number}.txt")
        files[-1].write_text(session.domain.decode(store.document(index)[1:]))
    Score(files=[str(file) for file in files], out=str(tmp_path / "new" / "scores.csv"))(session)
    rows = [*csv.DictReader((tmp_path / "new" / "scores.csv").read_text().splitlines())]
    assert [row["file"] for row in rows] == [str(file) for file in files]
    for row, nats, letters in zip(rows, records.nats, records.units[:, 0], strict=True):
        assert float(row["nats"]) == pytest.approx(nats, rel=1e-5)
        assert int(row["tokens"]) == float(row["letter"]) == letters
        assert float(row["nats_per_token"]) == pytest.approx(nats / letters, rel=1e-5)
        assert float(row["bits_per_letter"]) == pytest.approx(nats / letters / math.log(2), rel=1e-5)


def test_it_prints_each_file_and_all_together(trained, tmp_path, capsys, monkeypatch):
    session, _ = trained
    monkeypatch.chdir(tmp_path)  # a long path would be folded
    (tmp_path / "short.txt").write_text("ab")
    (tmp_path / "longer.txt").write_text("abcdefghi" * 20)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    Score(files=["short.txt", "longer.txt"])(session)
    lines = capsys.readouterr().out
    assert "short.txt" in lines
    assert "all 2" in lines
    assert "182" in lines
    assert "bits/letter" in lines
    assert before == {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    Score(files=["short.txt", "short.txt", "./short.txt"])(session)  # one file, however often it is named
    assert "all" not in capsys.readouterr().out


def test_what_cannot_be_scored_is_refused_before_anything_is_written(trained, tmp_path, monkeypatch):
    session, _ = trained
    with pytest.raises(ValueError, match=r"files=\[\]: give at least one"):
        Score(files=[])
    (tmp_path / "a.txt").write_text("abc")
    with pytest.raises(ValueError, match="is a folder: give a file"):
        Score(files=[str(tmp_path / "a.txt")], out=str(tmp_path))
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ValueError, match="pipe is a device or a pipe: give a regular file"):
        Score(files=[str(tmp_path / "a.txt")], out=str(tmp_path / "pipe"))
    with pytest.raises(ValueError, match="it is a folder: name its files"):
        Score(files=[str(tmp_path)])
    (tmp_path / "b.txt").write_text("")
    with pytest.raises(ValueError, match=r"files=nowhere\.txt: the file does not exist"):
        Score(files=[str(tmp_path / "a.txt"), "nowhere.txt"])
    with pytest.raises(UserError, match="contains nothing that can be scored"):
        Score(files=[str(tmp_path / "a.txt"), str(tmp_path / "b.txt")], out=str(tmp_path / "new" / "x.csv"))(session)
    assert not (tmp_path / "new").exists()
    monkeypatch.setattr(type(session.domain), "solved", 0.9)
    with pytest.raises(UserError, match="letters scores answers, which files do not mark"):
        Score(files=[str(tmp_path / "a.txt")], out=str(tmp_path / "x.csv"))(session)
    assert not (tmp_path / "x.csv").exists()


@pytest.mark.parametrize("out", ["/proc/x.csv", "/proc/new/x.csv"])
def test_a_folder_that_takes_no_files_is_refused_before_scoring(trained, tmp_path, monkeypatch, out):
    session, _ = trained
    monkeypatch.setattr("bearings.tasks.score.score", lambda *given: pytest.fail("it was scored"))
    (tmp_path / "a.txt").write_text("abc")
    task = Score(files=[str(tmp_path / "a.txt")], out=out)
    with pytest.raises(UserError, match=f"^task.out={out}: no file can be created in {Path(out).parent} "):
        task(session)


def test_each_document_of_a_file_is_scored_separately(trained, tmp_path, monkeypatch, capsys):
    session, _ = trained
    monkeypatch.chdir(tmp_path)
    for name, letters in {"a.txt": "abc", "b.txt": "hihihi"}.items():
        (tmp_path / name).write_text(letters)
    Score(files=["a.txt", "b.txt"], out="separate.csv")(session)
    whole = type(session.domain).encode_file

    def encode_documents(domain, path):
        assert path == tmp_path / "both.txt"
        yield from {"a/b": whole(domain, Path("a.txt")), "a//b": whole(domain, Path("b.txt"))}.items()

    monkeypatch.setattr(type(session.domain), "encode_documents", encode_documents)
    Path("both.txt").touch()
    Score(files="both.txt", out="both.csv")(session)
    separate, both = ([*csv.DictReader(Path(name).read_text().splitlines())] for name in ("separate.csv", "both.csv"))
    assert [row.pop("file") for row in both] == [f"{tmp_path}/both.txt:a/b", f"{tmp_path}/both.txt:a//b"]
    assert [row.pop("file") for row in separate] == [f"{tmp_path}/a.txt", f"{tmp_path}/b.txt"]
    assert both == separate
    out = capsys.readouterr().out
    assert "all 2" in out
    assert "\nboth.txt:a//b " in out
    weights = type(session.domain).unit_weights

    def of_short_ones(domain, tokens):
        return {"letter": weights(domain, tokens)["letter"] * (len(tokens) < 5)}

    monkeypatch.setattr(type(session.domain), "unit_weights", of_short_ones)
    Score(files="both.txt", out="both.csv")(session)  # one of two has nothing that counts
    rows = [*csv.DictReader(Path("both.csv").read_text().splitlines())]
    assert [bool(row["bits_per_letter"]) for row in rows] == [True, False]


def test_bits_per_unit_are_undefined_without_any(recwarn):
    scored = records("rope", 0, documents=2, units=("note", "second"))
    scored = replace(scored, units=scored.units * [1, 0])
    assert math.isnan(scored.bits_per_unit["second"])
    table = table_of(scored, rows_of(scored), "files", "maestro")
    assert table.rows[-1]["file"] == "all 2"
    assert "bits_per_note" in table.shown
    assert "bits_per_second" not in table.shown
    assert not recwarn


def test_long_files_count_more_in_the_score_of_all():
    scored = replace(records("rope", 0, documents=2), tokens=np.array([10, 30]))
    *_, every = table_of(scored, rows_of(scored), "files", "jsb").rows
    assert every["tokens"] == 40
    assert every["nats_per_token"] == pytest.approx(scored.nats.sum() / 40)


def test_a_file_named_twice_stays_where_it_was_first(tmp_path):
    for name in "ab":
        (tmp_path / name).write_text("abc")
    (tmp_path / "link").symlink_to("a")
    named = [str(tmp_path / name) for name in ("a", "b", "link", "../" + tmp_path.name + "/a")]
    assert Score(files=named).files == named[:2]
    for name in ("x" * 300, "~nobodyofthisname/a"):
        with pytest.raises(ValueError, match="the file does not exist"):
            Score(files=name)


def test_scores_of_several_runs_and_files_share_a_table_and_nothing_else_is_replaced(trained, tmp_path):
    session, run = trained
    for name in ("a", "b"):
        (tmp_path / f"{name}.txt").write_text(name * 9)
    mine, table = tmp_path / "a.txt", tmp_path / "scores.csv"
    Score(files=str(mine), out=str(table))(session)
    once = table.read_bytes()
    Score(files=str(mine), out=str(table))(session)
    assert table.read_bytes() == once
    other = tmp_path / "other"
    shutil.copytree(run.path, other)
    session.config = {**session.config, "run": str(other)}
    Score(files=[str(mine), str(tmp_path / "b.txt")], out=str(table))(session)
    rows = [*csv.DictReader(table.read_text().splitlines())]
    assert [(row["run"], Path(row["file"]).name) for row in rows] == [
        (str(run.path), "a.txt"),
        *((str(other), name) for name in ("a.txt", "b.txt")),
    ]
    head = table.read_text().splitlines()[0]
    for precious in (
        f"a,b\n{'x' * 200_000},1\n",
        f"{head}\n{'x' * 200_000},1\n",
        "a" * 9,
        "run,file,tokens\n",
        f"{head}\n{'1,' * 40}\n",
        f"{head}\n1,1\n",
    ):
        mine.write_text(precious)
        with pytest.raises(UserError, match="exists and contains no scores in these units"):
            Score(files=str(mine), out=str(mine))(session)
        assert mine.read_text() == precious


def test_files_of_one_name_in_two_folders_have_a_row_each(trained, tmp_path, monkeypatch):
    session, _ = trained
    for folder, letters in (("one", "abc"), ("two", "hihihi")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "my.txt").write_text(letters)
        monkeypatch.chdir(tmp_path / folder)
        Score(files="my.txt", out="../scores.csv")(session)
    rows = [*csv.DictReader((tmp_path / "scores.csv").read_text().splitlines())]
    assert [(row["file"], row["tokens"]) for row in rows] == [
        (str(tmp_path / "one" / "my.txt"), "3"),
        (str(tmp_path / "two" / "my.txt"), "6"),
    ]


def test_an_unfinished_run_is_noted_and_kept_records_have_no_model(trained, tmp_path, capsys):
    session, run = trained
    (tmp_path / "a.txt").write_text("abc")
    run.write_manifest(finished=None)
    Score(files=str(tmp_path / "a.txt"))(session)
    assert "is not finished; using its best checkpoint so far" in " ".join(capsys.readouterr().out.split())
    shutil.rmtree(run.path / "checkpoints")
    with pytest.raises(UserError, match="this folder holds results only, no checkpoint"):
        Score(files=str(tmp_path / "a.txt"))(session)


def test_a_file_without_a_unit_that_counts_is_named(trained, tmp_path, monkeypatch):
    session, _ = trained
    (tmp_path / "a.txt").write_text("")
    with pytest.raises(UserError, match=r"a\.txt contains nothing that can be scored"):
        Score(files=str(tmp_path / "a.txt"))(session)
    (tmp_path / "a.txt").write_text("abc")
    monkeypatch.setattr(type(session.domain), "unit_weights", lambda self, tokens: {"letter": 0.0 * tokens})
    with pytest.raises(UserError, match=r"a\.txt contains no letter, so bits per letter"):
        Score(files=str(tmp_path / "a.txt"))(session)
