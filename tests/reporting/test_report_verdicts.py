"""Verdicts of a report: adjustment within studies, pooled variants, chosen learning rates, margins."""

import csv
from dataclasses import replace

import numpy as np
import pytest
from report_support import make_run, records, report_task, rewritten, rows_of, undrawn  # noqa: F401

from bearings.reporting.differences import difference_table
from bearings.reporting.reading import read_study
from bearings.reporting.scores import study_scores
from bearings.reporting.statistics import holm

pytestmark = pytest.mark.usefixtures("undrawn")


SPLITS = ("test", "sparse", "dense")


def differences(folder):
    return [row for file in sorted(folder.glob("tables/*-differences.csv")) for row in rows_of(file).values()]


def across(folder):
    with open(folder / "tables" / "across.csv", newline="") as file:
        return list(csv.DictReader(file))


def listed(folder, text):
    folder.mkdir(parents=True)
    (folder / "study.yaml").write_text(text)
    return folder


def test_all_tables_show_the_same_adjusted_p(tmp_path, report):
    for domain in ("jsb", "maestro"):
        for encoding in ("rope", "pope"):
            for seed in (0, 1, 2):
                make_run(tmp_path / "runs", encoding, seed, domain=domain)
    folder, out = report()
    rows = [row for row in across(folder) if row["holm_p"]]
    assert [row["domain"] for row in rows] == ["jsb", "maestro"]
    for row in rows:
        own = rows_of(folder / "tables" / f"{row['domain']}-test.csv")["pope"]
        full = rows_of(folder / "tables" / f"{row['domain']}-test-differences.csv")["pope"]
        assert row["holm_p"] == own["holm_p"] == full["holm_p"]
        assert row["verdict"] == own["verdict"] == full["verdict"]
    least = min(float(row["both_p"]) for row in differences(folder))
    assert min(float(row["holm_p"]) for row in rows) == pytest.approx(2 * least)
    assert "maestro" in out


def test_p_values_are_adjusted_within_each_study(tmp_path, report):
    for steps in (20, 40):
        lines = f"runs:\n  - experiment=debug trainer.steps={steps} encoding=rope,pope seed=0,1,2\n"
        folder = listed(tmp_path / "runs" / str(steps), lines)
        for encoding in ("rope", "pope"):
            for seed in (0, 1, 2):
                make_run(folder / "runs", encoding, seed, f"trainer.steps={steps}")
    found = differences(report()[0])
    assert len(found) == 2
    assert [row["holm_p"] for row in found] == [row["both_p"] for row in found]


@pytest.mark.parametrize("rates", ["", " optimizer.learning_rate=1e-3,2e-3"])
def test_models_that_a_study_has_yet_to_train_count_as_tests(tmp_path, rates):
    """So an unfinished study has no lower p-values; other seeds and learning rates of a model are not further tests."""
    line = f"experiment=debug{rates} encoding=rope,pope,path,alibi,nope seed=0,1,2,3"
    folder = listed(tmp_path / "study", f"runs: ['{line}']\n")
    trained = {"rope": 4, "pope": 3, "path": 1}
    for encoding, seeds in trained.items():
        for seed in range(seeds):
            make_run(folder / "runs", encoding, seed)

    def scored():
        return {score.contestant.label: score for score in study_scores(read_study([folder]), "rope")}

    before = scored()["pope"]
    assert before.tests == 4
    assert before.holm_p == pytest.approx(min(1, 4 * before.p))
    for encoding in ("path", "alibi", "nope"):
        for seed in range(trained.get(encoding, 0), 4):
            make_run(folder / "runs", encoding, seed)
    after = scored()
    assert {after[label].tests for label in ("pope", "path", "alibi", "nope")} == {4}
    family = [after[label].p for label in ("pope", "path", "alibi", "nope")]
    assert [after[label].holm_p for label in ("pope", "path", "alibi", "nope")] == pytest.approx(holm(family))


def test_models_that_a_study_has_yet_to_train_count_on_every_split(tmp_path):
    lines = [
        "experiment=debug encoding=rope,pope seed=0,1,2 trainer.steps=20,40",
        "experiment=debug encoding=path seed=0,1,2",
    ]
    folder = listed(tmp_path / "study", f"runs: {lines}\n")
    for steps, splits in ((20, ("test", "other")), (40, ("test",))):
        for encoding in ("rope", "pope"):
            for seed in (0, 1, 2):
                make_run(folder / "runs", encoding, seed, f"trainer.steps={steps}", splits=splits)
    study = read_study([folder])
    assert [*study.unmade.values()] == [1]
    found = study_scores(study, "rope")
    assert [score.tests for score in found if score.holm_p is not None] == [3 + 2] * 3


@pytest.mark.parametrize(
    ("other", "missing"),
    [
        ("experiment=debug trainer.steps=40 encoding=rope,pope seed=0,1,2", 2),
        ("experiment=path_mqrar encoding=rope,pope seed=0,1,2", 2),  # differs only in the experiment
        ("experiment=debug encoding=rope seed=0,1,2 encoding.base=500", 1),
        ("experiment=debug encoding=nope seed=0,1", 0),  # will never be tested
    ],
)
def test_a_model_accounts_for_one_of_the_listed_models_that_it_fits(tmp_path, other, missing):
    line = "experiment=debug encoding=rope,pope seed=0,1,2"
    folder = listed(tmp_path / "study", f"runs: ['{line}', '{other}']\n")
    for encoding in ("rope", "pope"):
        for seed in (0, 1, 2):
            make_run(folder / "runs", encoding, seed)
    assert list(read_study([folder]).unmade.values()) == [missing]


def test_a_model_with_more_settings_does_not_account_for_one_with_fewer(tmp_path):
    line = "experiment=debug encoding=rope seed=0,1,2"
    folder = listed(tmp_path / "study", f"runs: ['{line}', '{line} encoding.base=500']\n")
    for seed in (0, 1, 2):
        make_run(folder / "runs", "rope", seed, "encoding.base=500")
    assert list(read_study([folder]).unmade.values()) == [1]


def test_a_model_that_a_study_does_not_list_accounts_for_none_of_its_models(tmp_path):
    folder = listed(tmp_path / "study", "runs: ['experiment=debug encoding=rope,pope,path seed=0,1,2']\n")
    for encoding in ("rope", "pope", "nope"):
        for seed in (0, 1, 2):
            make_run(folder / "runs", encoding, seed)
    assert list(read_study([folder]).unmade.values()) == [1]


def test_studies_whose_runs_are_compared_are_adjusted_together(tmp_path, report):
    """The first and the second study share a comparison, so that their other tests are in one family too."""
    pair = "pope", "rope"
    studies = {"first": {20: pair, 30: pair}, "second": {20: ["path"], 40: pair}, "third": {50: pair}}
    for name, trained in studies.items():
        line = "  - experiment=debug trainer.steps={} encoding={} seed=0,1,2\n"
        lines = [line.format(steps, ",".join(encodings)) for steps, encodings in trained.items()]
        folder = listed(tmp_path / "runs" / name, "".join(["runs:\n", *lines]))
        for steps, encodings in trained.items():
            for encoding in encodings:
                for seed in (0, 1, 2):
                    make_run(folder / "runs", encoding, seed, f"trainer.steps={steps}")
    folder, _ = report()
    rows = [row for row in across(folder) if row["holm_p"]]
    assert [(row["domain"][-2:], row["model"]) for row in rows] == [
        *(("20", model) for model in ("pope", "path")),
        *((steps, "pope") for steps in ("30", "40", "50")),
    ]
    plain = {(row["model"], row["difference"]): float(row["both_p"]) for row in differences(folder)}
    *family, alone = (plain[row["model"], row["difference"]] for row in rows)
    assert [float(row["holm_p"]) for row in rows] == pytest.approx([*holm(family), alone])
    note = "The runs are of the study first and the study second, whose p-values are adjusted together."
    assert (folder / "report.md").read_text().count(note) == 1


def test_variants_are_pooled_into_one_test(tmp_path, report):
    lines = "variants: [model.mlp, model.dropout]\nruns:\n  - model.mlp=gelu encoding=rope,pope seed=0,1,2\n"
    runs = listed(tmp_path / "runs", lines)
    for override, change in (("model.mlp=gelu", 1.0), ("model.dropout=0.3", 1.02)):
        for encoding in ("rope", "pope"):
            for seed in (0, 1, 2):
                path = make_run(runs, encoding, seed, override)
                if encoding == "pope":
                    kept = records(encoding, seed)
                    replace(kept, nats=change * kept.nats).save(path / "nll" / "test.npz")
    *variants, pooled = (row for row in across(report()[0]) if row["model"] == "pope")
    assert [row["verdict"] for row in variants] == ["pooled", "pooled"]
    assert [row["holm_p"] for row in variants] == ["", ""]
    assert (pooled["domain"], pooled["verdict"]) == ("jsb: pooled=2 settings", "lower")
    separate = [float(row["difference"]) for row in variants]
    assert separate[1] - separate[0] == pytest.approx(0.02, abs=0.005)
    assert float(pooled["difference"]) == pytest.approx(np.mean(separate))
    assert float(pooled["difference_interval_low"]) < np.mean(separate) < float(pooled["difference_interval_high"])
    assert pooled["parameters"] == ""  # no single model has this cost


def test_variants_are_pooled_on_each_split(tmp_path):
    runs = listed(tmp_path / "runs", "variants: [model.mlp]\nruns:\n  - encoding=rope,pope\n")
    for mlp in ("gelu", "swiglu"):
        for encoding in ("rope", "pope"):
            make_run(runs, encoding, 0, f"model.mlp={mlp}", splits=("test", "other"))
    pooled = [score for score in study_scores(read_study([runs]), "rope") if score.pooled]
    assert sorted((score.split, score.pooled) for score in pooled) == [("other", 2), ("test", 2)]


def test_values_of_a_compared_setting_are_models_of_one_comparison(tmp_path, report):
    """The default is named too, although the names of runs leave it out."""
    lines = "compare: [model.residual_in_fp32]\nruns:\n  - model.residual_in_fp32=true,false seed=0,1,2\n"
    runs = listed(tmp_path / "runs", lines)
    for stream in ("true", "false"):
        for seed in (0, 1, 2):
            make_run(runs, "rope", seed, f"model.residual_in_fp32={stream}")
    rows = across(report("task.reference='rope, residual_in_fp32=true'")[0])
    assert [(row["domain"], row["model"]) for row in rows] == [
        ("jsb", "rope, residual_in_fp32=false"),
        ("jsb", "rope, residual_in_fp32=true"),
    ]
    assert [row["verdict"] for row in rows].count("reference") == 1


def test_compared_values_of_any_setting_are_in_the_notes(tmp_path, report):
    """As in studies/jsb_kernels, whose models differ in precision."""
    keys = "data.length, trainer.steps, trainer.precision"
    runs = listed(tmp_path / "runs", f"compare: [{keys}]\nruns:\n  - seed=0,1,2 encoding=rope\n")
    for settings in ([], ["trainer.steps=2000", "data.length=128"]):
        for seed in (0, 1, 2):
            make_run(runs, "rope", seed, *settings)
    text = (report()[0] / "report.md").read_text()
    assert "Length 64 or 128." in text
    assert "Steps: 20 or 2,000, in 32-true on" in text


def test_variants_are_pooled_next_to_runs_of_another_study(tmp_path, report):
    """The other study's model comes first in the comparison that they share."""
    runs = listed(tmp_path / "runs" / "a", "variants: [model.mlp]\nruns:\n  - encoding=rope,pope\n")
    other = listed(tmp_path / "runs" / "b", "runs:\n  - encoding=alibi\n")
    for seed in (0, 1, 2):
        make_run(other, "alibi", seed, "model.mlp=gelu")
        for mlp in ("gelu", "swiglu"):
            for encoding in ("rope", "pope"):
                make_run(runs, encoding, seed, f"model.mlp={mlp}")
    rows = across(report()[0])
    assert [row["verdict"] for row in rows if row["model"] == "pope"] == ["pooled", "pooled", "lower"]
    assert [row["verdict"] for row in rows if row["model"] == "alibi"] == ["undecided"]


def test_settings_that_are_not_variants_tell_pooled_differences_apart(tmp_path, report):
    runs = listed(tmp_path / "runs", "variants: [model.mlp]\nruns:\n  - encoding=rope,pope\n")
    for mlp in ("gelu", "swiglu"):
        for length in (64, 128):
            for encoding in ("rope", "pope"):
                path = make_run(runs, encoding, 0, f"model.mlp={mlp}", f"data.length={length}")
                rewritten(path, "content", length=length)  # a second fact of the same name and value is not shown
    folder, out = report()
    titles = [row["domain"] for row in across(folder) if "pooled" in row["domain"]]
    assert titles == [f"jsb: length={length}, pooled=2 settings" for length in (128, 64)]
    for length in (64, 128):
        assert out.count(f"\njsb, 2 settings, length={length}") == 2  # in the table and above its clause


def test_pooling_uses_the_seeds_that_all_settings_have(tmp_path, report):
    runs = listed(tmp_path / "runs", "variants: [model.mlp]\nruns:\n  - encoding=rope,pope\n")
    for override, seeds in (("model.mlp=gelu", (0, 1, 2)), ("model.mlp=swiglu", (1, 2, 3))):
        for encoding in ("rope", "pope"):
            for seed in seeds:
                make_run(runs, encoding, seed, override)
    make_run(runs, "pope", 0, "model.mlp=swiglu")  # which its reference lacks
    *variants, pooled = (row for row in across(report()[0]) if row["model"] == "pope")
    assert [row["verdict"] for row in (*variants, pooled)] == ["pooled", "pooled", "not enough seeds"]


def test_models_without_common_seeds_are_not_compared(tmp_path):
    for encoding, seeds in (("rope", (0, 1, 2)), ("pope", (3, 4, 5))):
        for seed in seeds:
            make_run(tmp_path, encoding, seed)
    found = {score.contestant.label: score for score in study_scores(read_study([tmp_path]), "rope")}
    assert (found["pope"].verdict, found["pope"].difference) == ("not enough seeds", None)


def test_learning_rates_are_chosen_on_validation(tmp_path, report):
    """The best of each encoding are compared, and the test split does not influence the choice."""
    for rate, valid, test in (("1e-3", 1.1, 1.0), ("2e-3", 1.0, 1.1)):
        for encoding in ("rope", "pope"):
            for seed in (0, 1, 2):
                path = make_run(tmp_path / "runs", encoding, seed, f"optimizer.learning_rate={rate}")
                for split, change in (("valid", valid), ("test", test)):
                    # For PoPE, the other rate is better.
                    change = 2.1 - change if encoding == "pope" else change
                    kept = records(encoding, seed)
                    replace(kept, nats=change * kept.nats).save(path / "nll" / f"{split}.npz")
    folder, _ = report()
    rows = rows_of(folder / "tables" / "jsb-test.csv")
    assert {model: row["verdict"] for model, row in rows.items() if row["verdict"] != "lower"} == {
        "rope, learning_rate=0.001": "rate not chosen",
        "rope, learning_rate=0.002": "reference",
        "pope, learning_rate=0.002": "rate not chosen",
    }
    (row,) = differences(folder)
    assert (row["model"], row["against"]) == ("pope, learning_rate=0.001", "rope, learning_rate=0.002")
    assert "difference from rope, learning_rate=0.002" in (folder / "report.md").read_text()


@pytest.mark.parametrize(
    ("seeds", "chosen"),
    [
        ({"1e-3": [0, 1, 2], "2e-3": [0]}, "1e-3"),
        ({"1e-3": [1, 2], "2e-3": [0, 1, 2]}, "2e-3"),
        ({"1e-3": [1, 2, 3], "2e-3": [0, 1, 2, 3]}, "1e-3"),
        ({"1e-3": [1, 2], "2e-3": [0, 1]}, "1e-3"),
        ({"1e-3": [1], "2e-3": [0]}, "2e-3"),
    ],
)
def test_learning_rates_are_chosen_over_the_same_seeds(tmp_path, seeds, chosen):
    """Seed 0 is far better than the others, and the rate 1e-3 better than 2e-3 by less."""
    for rate in seeds:
        for seed in seeds[rate]:
            path = make_run(tmp_path, "rope", seed, f"optimizer.learning_rate={rate}")
            kept = records("rope", seed)
            factor = (0.9 if seed == 0 else 1.0) * (1.0 if rate == "1e-3" else 1.02)
            replace(kept, nats=factor * kept.nats).save(path / "nll" / "valid.npz")
    (comparison,) = read_study([tmp_path]).comparisons
    (best,) = comparison.chosen
    assert best.any_run.config["optimizer"]["learning_rate"] == float(chosen)


def test_a_single_seed_is_not_the_reference_if_another_model_has_more(tmp_path):
    for base, seeds, factor in ((1e4, (0, 1, 2), 1.0), (500.0, (0,), 0.9)):
        for seed in seeds:
            path = make_run(tmp_path, "rope", seed, f"encoding.base={base}")
            kept = records("rope", seed)
            replace(kept, nats=factor * kept.nats).save(path / "nll" / "valid.npz")
    (comparison,) = read_study([tmp_path]).comparisons
    reference = comparison.reference(comparison.contestants[0], "rope")
    assert reference is not None
    assert len(reference.runs) == 3


def test_margin_comes_from_the_domain_or_the_task(tmp_path, report):
    for domain in ("jsb", "genome"):
        for encoding in ("rope", "path"):
            for seed in (0, 1, 2):
                make_run(tmp_path / "runs", encoding, seed, domain=domain)
    assert [float(row["margin"]) for row in differences(report()[0])] == [0.015, 0.005]
    assert [float(row["margin"]) for row in differences(report("task.margin=0.1")[0])] == [0.1, 0.1]


def test_a_study_may_set_its_margin(tmp_path, report):
    listed(tmp_path / "runs", "margin: 0.5\nruns: [encoding=rope]\n")
    for encoding in ("rope", "pope"):
        for seed in (0, 1, 2):
            make_run(tmp_path / "runs", encoding, seed)
    (row,) = differences(report()[0])
    assert (float(row["margin"]), row["verdict"]) == (0.5, "lower, within the margin")
    (row,) = differences(report("task.margin=0.001")[0])
    assert (float(row["margin"]), row["verdict"]) == (0.001, "lower")


@pytest.mark.parametrize(
    ("margin", "verdict"),
    [(0.05, "one cluster dominates"), (1e-6, "undecided")],  # without it, the difference is within 0.05
)
def test_dominant_cluster_leaves_the_verdict_open(tmp_path, report, margin, verdict):
    noise = np.random.default_rng(0)
    for encoding in ("rope", "path"):
        for seed in (0, 1, 2):
            path = make_run(tmp_path / "runs", encoding, seed)
            kept = records(encoding, seed)
            if encoding == "path":
                kept.nats[:] += 0.001 * noise.normal(size=len(kept.tokens)) * kept.tokens
                kept.nats[3] += 0.3 * kept.tokens[3]
            kept.save(path / "nll" / "test.npz")
    folder, _ = report(f"task.margin={margin}")
    (row,) = differences(folder)
    assert float(row["largest_share"]) > 0.9
    assert row["verdict"] == verdict


@pytest.mark.parametrize("dominated", [True, False])
def test_notes_say_which_p_is_adjusted_if_one_cluster_dominates(tmp_path, dominated):
    for encoding in ("rope", "path"):
        for seed in (0, 1, 2):
            path = make_run(tmp_path / "runs", encoding, seed)
            kept = records(encoding, seed)
            kept.nats[3] += 0.3 * kept.tokens[3] * (dominated and encoding == "path")
            kept.save(path / "nll" / "test.npz")
    table = difference_table(study_scores(read_study([tmp_path / "runs"]), "rope"))
    assert any("without that cluster" in note for note in table.notes) == dominated
