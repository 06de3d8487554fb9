"""task=score: what no split holds gets the figures that it would get there."""

import csv
import math

import pytest
import yaml
from training_support import configured, go

from bearings.errors import UserError
from bearings.lightning_modules.evaluation import Records
from bearings.tasks.house import House
from bearings.tasks.score import Score


@pytest.fixture
def trained(tmp_path):
    run, _ = go(configured(tmp_path, "encoding=path", "trainer.steps=8"))
    return House.of(yaml.safe_load(run.config_file.read_text()) | {"run": str(run.path)}), run


def test_a_file_gets_the_nats_of_the_same_document_in_a_split(trained, tmp_path):
    house, run = trained
    store, records = house.store(), Records.load(run.records("test"))
    files = []
    for number, index in enumerate(store.documents("test")):
        files.append(tmp_path / f"{number}.txt")
        files[-1].write_text(house.domain.decode(store.document(index)[1:]))
    Score(files=[str(file) for file in files], out=str(tmp_path / "new" / "scores.csv"))(house)
    rows = [*csv.DictReader((tmp_path / "new" / "scores.csv").read_text().splitlines())]
    assert [row["file"] for row in rows] == [str(file) for file in files]
    for row, nats, letters in zip(rows, records.nats, records.units[:, 0], strict=True):
        assert float(row["nats"]) == pytest.approx(nats, rel=1e-5)
        assert int(row["tokens"]) == float(row["letter"]) == letters
        assert float(row["nats_per_token"]) == pytest.approx(nats / letters, rel=1e-5)
        assert float(row["bits_per_letter"]) == pytest.approx(nats / letters / math.log(2), rel=1e-5)


def test_it_prints_each_file_and_all_together(trained, tmp_path, capsys):
    house, _ = trained
    (tmp_path / "short.txt").write_text("ab")
    (tmp_path / "longer.txt").write_text("abcdefghi" * 20)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    Score(files=[str(tmp_path / "short.txt"), str(tmp_path / "longer.txt")])(house)
    lines = capsys.readouterr().out
    assert "short.txt" in lines
    assert "all 2" in lines
    assert "182" in lines
    assert "bits/letter" in lines
    assert before == {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    Score(files=str(tmp_path / "short.txt"))(house)
    assert "all" not in capsys.readouterr().out


def test_what_cannot_be_scored_is_refused_before_anything_is_written(trained, tmp_path, monkeypatch):
    house, _ = trained
    with pytest.raises(ValueError, match=r"files=\[\]: name at least one"):
        Score(files=[])
    with pytest.raises(ValueError, match="it is a folder: name a file in it"):
        Score(files="a.txt", out=str(tmp_path))
    (tmp_path / "a.txt").write_text("abc")
    with pytest.raises(FileNotFoundError):
        Score(files=[str(tmp_path / "a.txt"), "nowhere.txt"], out=str(tmp_path / "x.csv"))(house)
    monkeypatch.setattr(type(house.domain), "solved", 0.9)
    with pytest.raises(UserError, match="letters scores answers, which a file does not mark"):
        Score(files=[str(tmp_path / "a.txt")], out=str(tmp_path / "x.csv"))(house)
    assert not (tmp_path / "x.csv").exists()
