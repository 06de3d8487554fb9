"""task=tune: the grid is trained, the best on validation is named, and the test split stays unseen."""

import csv
import re
import weakref
from pathlib import Path

import numpy as np
import pytest
from command_support import run_command  # noqa: F401
from conftest import composed
from training_support import configured, without_drawing

from bearings.core.errors import UserError
from bearings.domains.records import Records
from bearings.lightning_modules.graphs import uncollected
from bearings.lightning_modules.language_model import LanguageModel
from bearings.session.configuration import build
from bearings.session.session import Session
from bearings.tasks import train
from bearings.tasks.tune import RATE, Tune, _at_edge


@pytest.fixture(name="tune")
def tune_task(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(train, "plot_losses", without_drawing)

    def run(*overrides, out=None, **given):
        out = out or str(tmp_path / "tuning")
        session = Session.of(configured(tmp_path, "trainer.steps=12", "trainer.validate_every=6", *overrides))
        Tune(out=out, **given)(session)
        (file,) = Path(out).rglob("*-????????.csv")
        with open(file, newline="") as rows:
            return list(csv.DictReader(rows)), capsys.readouterr().out

    return run


def test_the_best_rate_on_validation_is_named_and_nothing_is_tested(tmp_path, tune):
    rows, printed = tune(rates=[1e-5, 1e-2], seeds=[0, 1])
    assert [float(row["optimizer.learning_rate"]) for row in rows] == [1e-5, 1e-2]
    assert [row["chosen"] for row in rows] == ["False", "True"]
    assert "set optimizer.learning_rate=0.01" in printed
    assert "the best rate is at the edge of the grid" in printed
    records = list((tmp_path / "tuning").rglob("nll/*.npz"))
    assert {path.stem for path in records} == {"valid"}
    assert len(records) == 4
    assert not [*(tmp_path / "tuning").rglob("mechanisms"), *(tmp_path / "tuning").rglob("samples")]
    high = [Records.load(path).nats_per_token for path in records]
    assert float(rows[1]["valid_nll"]) == pytest.approx(sum(sorted(high)[:2]) / 2)


@pytest.mark.parametrize("worst", [3.0, float("inf")])
def test_searches_in_parts_find_what_the_whole_search_finds(tmp_path, capsys, monkeypatch, worst):
    """By scores drawn for each point and seed, in place of training."""
    rates, dropouts, seeds = [9e-5, 1e-4, 2e-3], [0.0, 0.25], [9, 10]
    drawn = np.random.default_rng(0).uniform(size=(3, 2, 2))
    drawn[0, 0, 1] = worst
    session = Session.of(configured(tmp_path))

    def score(self, _, point, seed):
        return drawn[rates.index(point[RATE]), dropouts.index(point["model.dropout"]), seeds.index(seed)]

    def searched(out, **given):
        task = Tune(rates=rates[::-1], grid={"model.dropout": dropouts}, out=str(tmp_path / out), **given)
        task(session)
        with open(task.check(session), newline="") as file:
            return list(csv.DictReader(file))

    monkeypatch.setattr(Tune, "_score", score)
    searched("parts", points=[3, 0], seeds=[9])
    for points in ([4, 1], [0], [5, 3, 2, 3]):
        parts = searched("parts", points=points, seeds=[10, 9, 10])
    assert "to use the best" not in capsys.readouterr().out
    whole = searched("whole", seeds=[9, 10])
    assert searched("parts", seeds=[9, 10]) == parts == [*parts[:2], *whole]
    assert [(row["each_seed"], row["chosen"]) for row in parts[:2]].count(("9", "True")) == 1
    printed = capsys.readouterr().out.replace("\n", " ")
    means = {point: drawn[point].mean() for point in np.ndindex(3, 2)}
    for row, (point, mean) in zip(whole, means.items(), strict=True):
        assert (float(row[RATE]), float(row["model.dropout"])) == (rates[point[0]], dropouts[point[1]])
        assert (float(row["valid_nll"]), row["seeds"], row["each_seed"]) == (mean, "2", "9 10")
        assert row["chosen"] == str(mean == min(means.values()))
        if row["chosen"] == "True":
            chosen = f"to use the best, set {RATE}={row[RATE]} model.dropout={row['model.dropout']} "
            assert printed.count(chosen) == 2


def test_a_search_resumes(tmp_path, tune):
    rows, _ = tune(rates=[1e-3, 1e-2])
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "tuning").rglob("checkpoints/*.ckpt")}
    again, printed = tune(rates=[1e-3, 1e-2, 3e-2])
    assert again[:2] == [{**row, "chosen": again[i]["chosen"]} for i, row in enumerate(rows)]
    assert printed.count("already finished") == 2
    assert all(path.stat().st_mtime_ns == time for path, time in before.items())


def test_points_are_trained_apart_and_then_found_by_the_whole_search(tmp_path, tune):
    rows, printed = tune(rates=[1e-3, 1e-2, 3e-2], points=[2])
    assert [float(row["optimizer.learning_rate"]) for row in rows] == [3e-2]
    assert "edge of the grid" not in printed
    assert "to use the best" not in printed
    rows, _ = tune(rates=[1e-3, 1e-2, 3e-2], points=[0, 1])
    again, printed = tune(rates=[1e-3, 1e-2, 3e-2])
    assert again == rows
    assert printed.count("already finished") == 3
    with pytest.raises(UserError, match=r"points=\[0, 3\]: the grid has no point 3: give points from 0 to 2"):
        tune(rates=[1e-3, 1e-2, 3e-2], points=[0, 3])
    with pytest.raises(ValueError, match=r"points=\[\]: give at least one point"):
        Tune(points=[])


def test_a_point_is_trained_without_the_model_of_the_one_before(tune, monkeypatch):
    """Whose memory would otherwise count as used when settings are chosen by free memory."""
    models, before, inner = [], [], Session.model_in_place

    def built(self, *args, **options):
        before.append([model() for model in models])
        model = inner(self, *args, **options)
        model.step = model.forward  # a reference cycle, such as CUDA graphs form
        models.append(weakref.ref(model))
        return model

    monkeypatch.setattr(Session, "model_in_place", built)
    with uncollected():
        tune(rates=[1e-3, 1e-2, 3e-2])
    assert before == [[], [None], [None, None]]


def test_a_wider_grid_joins_the_one_before(tmp_path, tune):
    """As the search itself advises where the best is at the end."""
    first, _ = tune(rates=[1e-5, 1e-4])
    rows, printed = tune(rates=[1e-3, 1e-2])
    assert [float(row["optimizer.learning_rate"]) for row in rows] == [1e-5, 1e-4, 1e-3, 1e-2]
    assert [row["valid_nll"] for row in rows[:2]] == [row["valid_nll"] for row in first]
    assert [row["chosen"] for row in rows].count("True") == 1
    assert "1e-05" in printed
    other, printed = tune(rates=[1e-3, 1e-2], seeds=[0, 1])  # whose means are not comparable with one seed's
    assert [(row["each_seed"], float(row["optimizer.learning_rate"])) for row in other] == [
        *(("0", rate) for rate in (1e-5, 1e-4, 1e-3, 1e-2)),
        *(("0 1", rate) for rate in (1e-3, 1e-2)),
    ]
    assert other[:4] == rows
    assert [row["chosen"] for row in other[4:]].count("True") == 1
    assert "1e-05" not in printed


def test_every_combination_with_other_settings_is_trained(tmp_path, tune):
    rows, printed = tune(rates=[1e-3], grid={"model.dropout": [0.0, 0.5], "model.mlp": ["gelu", "swiglu"]})
    points = [(row["optimizer.learning_rate"], row["model.dropout"], row["model.mlp"]) for row in rows]
    assert points == [("0.001", dropout, mlp) for dropout in ("0.0", "0.5") for mlp in ("gelu", "swiglu")]
    best = min(rows, key=lambda row: float(row["valid_nll"]))
    assert [row["chosen"] for row in rows] == [str(row is best) for row in rows]
    assert f"set optimizer.learning_rate=0.001 model.dropout={best['model.dropout']} model.mlp={best['model.mlp']}" in (
        printed.replace("\n", " ")
    )


@pytest.mark.parametrize(
    ("grid", "said"),
    [
        ({"model.droput": [0.0, 0.1]}, r"^task\.grid: model\.droput is not a setting of this run: did you mean model"),
        ({"dropout": [0.0, 0.1]}, r"^task\.grid: dropout is not a setting of this run"),
        ({"seed.dropout": [0.0, 0.1]}, r"^task\.grid: seed\.dropout is not a setting of this run"),
        ({"model.dropout": [0.0, 2.0]}, r"^model\.dropout=2\.0: "),
    ],
)
def test_a_grid_with_an_impossible_setting_is_refused_before_training(grid, said, tune, tmp_path):
    with pytest.raises(UserError, match=said):
        tune(grid=grid, rates=[1e-3])
    assert not (tmp_path / "tuning").exists()


def test_the_model_is_matched_at_each_point(tmp_path):
    session = Session.of(configured(tmp_path, "encoding=path", "match=params", "model.width=64", "model.heads=2"))
    wide = Session.of(configured(tmp_path, "encoding=path", "match=params", "model.width=128", "model.heads=2"))
    tune = Tune(rates=[1e-3], grid={"model.width": [64, 128]})
    for point, expected in zip(tune._points(session.config), (session, wide), strict=True):
        found = tune._session(session, point, 0).config["model"]["mlp_hidden"]
        assert found == expected.config["model"]["mlp_hidden"]
    with pytest.raises(UserError, match=r"task\.grid: match=params sets model\.mlp_hidden"):
        Tune(grid={"model.mlp_hidden": [64, 128]}).check(session)


def test_each_kind_of_matching_has_its_own_table(tmp_path):
    given = [["match=null"], ["match=params"], ["match=flops"]]
    sessions = [Session.of(configured(tmp_path, "encoding=path", "model.width=64", *match)) for match in given]
    assert len({Tune(rates=[1e-3, 2e-3]).check(session) for session in sessions}) == len(given)


def test_a_table_of_another_kind_is_refused_before_training(tmp_path, tune):
    _, printed = tune(rates=[1e-3, 1e-2])
    assert "edge of the grid" in printed
    (file,) = (tmp_path / "tuning").rglob("*-????????.csv")
    file.write_text(file.read_text().replace("optimizer.learning_rate", "learning_rate"))
    with pytest.raises(UserError, match="this table is of another search: move it away"):
        tune(rates=[1e-3, 1e-2])
    _, printed = tune(rates=[1e-3], grid={"model.dropout": [0.0, 0.1]}, out=str(tmp_path / "other"))
    assert "edge of the grid" not in printed


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ("valid_nll", "score", "the column valid_nll is missing"),
        ("4.5,", "nan,", "nan is not a score"),
        ("4.5,", "four,", "could not convert string to float: 'four'"),
        ("0.01,", "high,", "could not convert string to float: 'high'"),
        ("\n", ",\n", "not a list of distinct names"),
        ("True", "True,", "is cut"),
    ],
)
def test_a_damaged_table_is_one_line_before_training(tmp_path, before, after, said):
    session = Session.of(configured(tmp_path))
    task = Tune(rates=[1e-3, 1e-2], out=str(tmp_path / "tuning"))
    file = task.check(session)
    file.parent.mkdir(parents=True)
    file.write_text(f"{RATE},valid_nll,seeds,each_seed,chosen\n0.01,4.5,1,0,True\n".replace(before, after))
    with pytest.raises(UserError, match=re.escape(f"{file}: not a table of a search (")) as refused:
        task(session)
    assert said in str(refused.value)
    assert "delete it and rerun the same command" in str(refused.value)


def test_a_grid_that_is_none_is_refused():
    for given, said in [
        ({"rates": [1e-3]}, "at least two different learning rates"),
        ({"rates": [1e-3, 1e-3]}, "at least two different learning rates"),
        ({"rates": [0.0, 1e-3]}, "above 0"),
        ({"rates": [], "grid": {"model.dropout": [0.0, 0.1]}}, "at least one learning rate, finite"),
        ({"rates": [float("nan"), 1e-3]}, "finite"),
        ({"rates": [1e-3, float("inf")]}, "finite"),
        ({"grid": {"model.dropout": [0.1]}}, r"task\.grid: model\.dropout=\[0\.1\]: give at least two values"),
        ({"grid": {"optimizer.learning_rate": [0.1, 0.2]}}, r"use task\.seeds or task\.rates"),
        ({"seeds": []}, "one"),
        ({"seeds": [0, -1]}, "0 or more"),
    ]:
        with pytest.raises(UserError, match=said):
            build({"_target_": "bearings.tasks.tune.Tune", **given}, "task")


def test_a_rate_that_diverges_is_reported_and_not_chosen(tune, monkeypatch):
    inner, worst, begun = LanguageModel.nats, {1e-2}, []

    def nats(self, batch):
        loss = inner(self, batch)
        begun.extend([self.options.learning_rate] * (self.global_step == 0))
        return loss * float("nan") if self.options.learning_rate in worst and self.global_step else loss

    monkeypatch.setattr(LanguageModel, "nats", nats)
    rows, printed = tune(rates=[1e-3, 3e-3, 1e-2])
    assert rows[2]["valid_nll"] == "inf"
    assert [row["chosen"] for row in rows] == ["False", "True", "False"]
    assert "diverged" in printed
    assert "edge of the grid" not in printed
    assert begun == [1e-3, 3e-3, 1e-2]
    again, printed = tune(rates=[1e-3, 1e-2])
    assert begun == [1e-3, 3e-3, 1e-2]
    assert again == rows
    assert "optimizer.learning_rate=0.01: training diverged at step 1: to train it again, delete " in printed
    worst |= {1e-4, 2e-4}
    with pytest.raises(
        UserError, match=r"task\.rates: training diverged at all rates, down to 0\.0001: give lower rates"
    ):
        tune(rates=[1e-4, 2e-4])


def test_the_default_rates_are_around_that_of_the_run(tmp_path):
    points = Tune().points(configured(tmp_path, "optimizer.learning_rate=0.004"))
    assert [float(point[RATE]) for point in points] == [0.001, 0.002, 0.004, 0.008, 0.016]


@pytest.mark.parametrize(("best", "edge"), [("0.001", True), ("0.003", False), ("0.01", True)])
def test_the_edges_of_the_grid_are_the_lowest_and_the_highest_of_several_rates(best, edge):
    rows = [{RATE: rate} for rate in ("0.01", "0.001", "0.003")]
    assert _at_edge({RATE: best}, rows) == edge
    assert not _at_edge({RATE: best}, [{RATE: best}] * 2)


def test_the_seed_of_the_run_is_searched_with_where_none_is_named(tmp_path, tune):
    tune("seed=3", rates=[1e-3, 1e-2])
    assert {path.name.rpartition("-")[2] for path in (tmp_path / "tuning").rglob("*-s*")} == {"s3"}


@pytest.mark.parametrize("setting", ["run=somewhere", "runs=somewhere"])
def test_a_folder_that_a_search_would_ignore_is_refused(run, setting):
    _, _, err = run("task=tune", "experiment=debug", "domain=flip_flop", "-m", setting, "encoding=rope,pope")
    key = setting.partition("=")[0]
    refused = f"error: {setting}: a search creates its own runs in task.out=tuning: leave out {key}=, or set task.out\n"
    assert err.startswith(refused)


def test_a_search_with_several_devices_is_refused(tune):
    with pytest.raises(UserError, match=r"trainer\.devices: it must be 1, as a search trains each run on one device"):
        tune("trainer.devices=3")


def test_searches_of_different_settings_have_tables_of_their_own(tmp_path):
    """Also if a setting of the grid is null without a grid, as the search of rates then has its value."""
    session = Session.of(configured(tmp_path))
    assert session.config["model"]["kv_heads"] is None
    wide, narrow = Tune(grid={"model.kv_heads": [1, 2]}), Tune()
    assert wide.check(session) != narrow.check(session)


def test_data_of_each_point_are_its_own(tmp_path):
    few = ["domain.train=4", "domain.valid=4", "domain.test=4", "domain.sparse=4", "domain.dense=4", "domain.length=8"]
    config = composed("experiment=debug", "domain=flip_flop", "data.length=8", *few)
    names = {"names": {"domain": "flip_flop", "encoding": "pope", "model": "small"}}
    session = Session.of(config | names | {"stores": str(tmp_path)})
    session.store()  # of an earlier run
    tune = Tune(rates=[1e-3], grid={"domain.length": [6, 8]})
    stores = [tune._session(session, point, 0).store() for point in tune._points(session.config)]
    assert [int(store.offsets[1]) for store in stores] == [7, 9]


def test_settings_that_do_not_distinguish_runs_cannot_be_searched(tmp_path, tune):
    with pytest.raises(UserError, match=r"^task\.grid: trainer\.micro_batch does not distinguish runs"):
        tune(grid={"trainer.micro_batch": [1, 2]})


def test_integers_are_the_numbers_that_a_setting_declares(tmp_path):
    session = Session.of(configured(tmp_path))
    tune = Tune(rates=[1, 1.0], grid={"model.dropout": [0, 0.0, 0.5]})
    points = tune.points(session.config)
    assert [(point[RATE], point["model.dropout"]) for point in points] == [("1.0", "0.0"), ("1.0", "0.5")]
