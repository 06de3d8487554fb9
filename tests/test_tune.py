"""task=tune: the grid is trained, the best on validation is named, and the test split stays unseen."""

import csv

import pytest
from test_training import configured

from bearings.errors import UserError
from bearings.lightning_modules.evaluation import Records
from bearings.tasks.configuration import build
from bearings.tasks.house import House
from bearings.tasks.tune import Tune


@pytest.fixture(name="tune")
def tune_task(tmp_path, capsys):
    def run(*overrides, **given):
        house = House.of(configured(tmp_path, "trainer.steps=12", "trainer.validate_every=6", *overrides))
        Tune(out=str(tmp_path / "tuning"), **given)(house)
        (file,) = (tmp_path / "tuning").rglob("*-????????.csv")
        with open(file, newline="") as rows:
            return list(csv.DictReader(rows)), capsys.readouterr().out

    return run


def test_the_best_rate_on_validation_is_named_and_nothing_is_tested(tmp_path, tune):
    rows, printed = tune(rates=[1e-5, 1e-2], seeds=[0, 1])
    assert [float(row["learning_rate"]) for row in rows] == [1e-5, 1e-2]
    assert [row["chosen"] for row in rows] == ["False", "True"]
    assert "train with optimizer.learning_rate=0.01" in printed
    assert "the best is at the end of the grid" in printed
    records = list((tmp_path / "tuning").rglob("nll/*.npz"))
    assert {path.stem for path in records} == {"valid"}
    assert len(records) == 4
    high = [Records.load(path).nats_per_token for path in records]
    assert float(rows[1]["valid_nll"]) == pytest.approx(sum(sorted(high)[:2]) / 2)


def test_a_search_is_gone_on_with_and_not_begun_anew(tmp_path, tune):
    rows, _ = tune(rates=[1e-3, 1e-2])
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "tuning").rglob("checkpoints/*.ckpt")}
    again, printed = tune(rates=[1e-3, 1e-2, 3e-2])
    assert again[:2] == [{**row, "chosen": again[i]["chosen"]} for i, row in enumerate(rows)]
    assert printed.count("already finished") == 2
    assert all(path.stat().st_mtime_ns == time for path, time in before.items())


def test_a_grid_that_is_none_is_refused():
    for given, said in [
        ({"rates": [1e-3]}, "at least two"),
        ({"rates": [0.0, 1e-3]}, "above 0"),
        ({"seeds": []}, "one"),
    ]:
        with pytest.raises(UserError, match=said):
            build({"_target_": "bearings.tasks.tune.Tune", **given}, "task")
