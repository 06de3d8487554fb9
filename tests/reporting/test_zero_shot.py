"""The report compares benchmarks item by item, with intervals over items and seeds."""

import csv
import json
from dataclasses import replace

import numpy as np
import pytest
from report_support import lengths, make_run, report_task, undrawn  # noqa: F401 (fixtures)

from bearings.domains.items import Items
from bearings.reporting.zero_shot import clusters_of
from bearings.session.item_files import save_items
from bearings.session.run_directory import RunDirectory
from bearings.studying.summary import write_summary

pytestmark = pytest.mark.usefixtures("undrawn")
COUNT = 300


def benchmark(better: float, seed: int, source: str = "1" * 64) -> dict[str, Items]:
    """Results on the same items for every model, which answers more of them right if it is `better`."""
    easy = np.random.default_rng(0).random(COUNT)
    noise = np.random.default_rng([seed, int(1000 * better)]).normal(size=COUNT)
    right = (easy + 0.05 * noise < 0.5 + better).astype(int)
    names, none = np.array([str(i) for i in range(COUNT)]), np.array([""] * COUNT)
    paradigms = np.array([f"paradigm {min(i % 25, 19)}" for i in range(COUNT)])  # the last has more items
    return {
        "blimp": Items(names, paradigms, {"acc": right, "margin": easy}, source),
        "lambada": Items(names, none, {"acc": right, "nats": 3 + easy - better + 0.01 * noise}, source),
    }


@pytest.fixture
def runs(tmp_path):
    for encoding, better in (("rope", 0.0), ("pope", 0.2)):
        for seed in range(3):
            path = make_run(tmp_path / "runs", encoding, seed)
            for name, items in benchmark(better, seed).items():
                save_items(RunDirectory.open(path), name, items)
    return tmp_path / "runs"


def rows(folder, name):
    (file,) = (folder / "tables").glob(f"*{name}.csv")
    with open(file, newline="") as text:
        return {(row["benchmark"], row["metric"], row["model"]): row for row in csv.DictReader(text)}


def test_models_are_compared_item_by_item(runs, report):
    folder, _ = report()
    found = rows(folder, "zero-shot")
    assert [key[2] for key in found] == ["pope", "rope"] * 2
    blimp = found["BLiMP", "accuracy, %", "pope"]
    accuracy = {}
    for encoding, better in (("rope", 0.0), ("pope", 0.2)):
        results = [benchmark(better, seed)["blimp"] for seed in range(3)]
        right = np.mean([items.columns["acc"] for items in results], 0)
        paradigms = results[0].groups
        accuracy[encoding] = 100 * np.mean([right[paradigms == each].mean() for each in np.unique(paradigms)])
    assert float(blimp["score"]) == pytest.approx(accuracy["pope"])
    assert float(blimp["difference"]) == pytest.approx(accuracy["pope"] - accuracy["rope"])
    low, high = (float(blimp[f"difference_interval_{end}"]) for end in ("low", "high"))
    assert 0 < low < float(blimp["difference"]) < high < 40
    assert blimp["difference_interval_of"] == "seeds and items"
    assert not found["BLiMP", "accuracy, %", "rope"]["difference"]
    words = rows(folder, "zero-shot-perplexity")["LAMBADA (OpenAI)", "perplexity", "pope"]
    assert float(words["difference"]) == pytest.approx(100 * (np.exp(-0.2) - 1), abs=0.5)
    assert float(words["difference_interval_low"]) < float(words["difference"]) < 0
    assert "zero-shot benchmarks, accuracy" in (folder / "report.md").read_text()


def test_items_of_the_named_model_decide_which_others_are_compared(tmp_path, report):
    for kernel, source in (("torch", "1" * 64), ("triton", "2" * 64)):
        for seed in range(3):
            path = make_run(tmp_path / "runs", "rope", seed, f"encoding.implementation={kernel}")
            save_items(RunDirectory.open(path), "lambada", benchmark(0.0, seed, source)["lambada"])
    named = "rope, implementation=triton"
    found = rows(report(f"task.reference='{named}'")[0], "zero-shot")
    assert {model for _, _, model in found} == {named}


def first_of(items: Items, count: int) -> Items:
    columns = {name: values[:count] for name, values in items.columns.items()}
    return Items(items.names[:count], items.groups[:count], columns, items.source)


@pytest.mark.parametrize(
    "changed",
    {
        "fewer items": lambda items: first_of(items, COUNT - 1),
        "other items": lambda items: replace(items, names=items.names[::-1]),
        "fewer metrics": lambda items: replace(items, columns={"acc": items.columns["acc"]}),
    }.values(),
)
def test_results_that_cannot_be_compared_are_left_out(runs, report, changed):
    """Even if they name the same source, as those of another version may."""
    for path in runs.glob("jsb/pope/*"):
        save_items(RunDirectory.open(path), "lambada", changed(benchmark(0.2, 0)["lambada"]))
    folder, _ = report()
    assert {model for title, _, model in rows(folder, "zero-shot") if title != "BLiMP"} == {"rope"}
    assert "LAMBADA (OpenAI): runs of pope with other items" in (folder / "report.md").read_text()


@pytest.mark.parametrize(("count", "shown"), [(9, False), (10, True)])
def test_a_few_differing_items_have_no_interval(runs, report, count, shown):
    """Resamples without any of them have no spread, so the ends of the interval would be arbitrary."""
    for path in runs.glob("jsb/*/*"):
        items = benchmark(0.0, 0)["lambada"]
        right = np.zeros(COUNT, int)
        right[:count] = "pope" in path.parts
        save_items(RunDirectory.open(path), "lambada", replace(items, columns={**items.columns, "acc": right}))
    row = rows(report()[0], "zero-shot")["LAMBADA (OpenAI)", "accuracy, %", "pope"]
    assert float(row["difference"]) == pytest.approx(100 * count / COUNT)
    assert bool(row["difference_interval_low"]) is shown
    assert bool(row["difference_interval_of"]) is shown


def test_the_page_of_a_study_has_benchmarks_and_files_with_other_context_lengths(runs):
    (runs.parent / "study.yaml").write_text("runs:\n  - experiment=debug seed=0,1,2 encoding=rope,pope\n")
    for path in runs.glob("jsb/*/*"):
        lengths(path)
        (path / "extrapolation" / "test.csv").rename(path / "extrapolation" / "emma-123abc.csv")
    write_summary(runs.parent)
    page = (runs.parent / "README.md").read_text()
    assert "## jsb: zero-shot benchmarks, accuracy" in page
    assert "| BLiMP | accuracy, % | pope | 3 | 300 |" in page
    assert "| LAMBADA (OpenAI) | perplexity | pope | 3 | 300 |" in page
    assert "## jsb, files emma-123abc: other context lengths" in page
    assert "- emma-123abc: files scored with task.files" in page
    assert "| pope | yarn | 3 |" in page
    assert "- Holm p: p-value of the difference" in page


def test_other_items_are_left_out(runs, report):
    (path,) = runs.glob("jsb/pope/*-s0")
    save_items(RunDirectory.open(path), "blimp", benchmark(0.2, 0, "2" * 64)["blimp"])
    folder, _ = report("task.reference=rope")
    text = (folder / "report.md").read_text()
    assert "BLiMP: runs of pope with other items or another task.prefix than rope are left out." in text


def test_a_damaged_file_leaves_the_run_out(runs, report):
    (path,) = runs.glob("jsb/pope/*-s0")
    (path / "benchmarks" / "blimp.npz").write_bytes(b"nothing")
    facts = json.loads((path / "manifest.json").read_text())
    del facts["files"], facts["sha256"]
    (path / "manifest.json").write_text(json.dumps(facts))
    _, printed = report()
    assert "unreadable" in printed
    assert "blimp.npz is damaged" in printed


def test_resampled_units_are_groups_or_blocks_of_consecutive_items():
    names = np.array([str(i) for i in range(1000)])
    found = benchmark(0.0, 0)
    assert len(set(clusters_of(found["blimp"]))) == 20
    assert len(set(clusters_of(found["lambada"]))) == COUNT
    blocks = clusters_of(Items(names, np.array([""] * 1000), {}, ""))
    assert len(set(blocks)) == 400
    assert (np.diff(blocks) >= 0).all()
    assert np.bincount(blocks).max() == 3
