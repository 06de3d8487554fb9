"""The table and the lines of a run's results."""

import io
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from conftest import Bigram
from rich.console import Console
from store_support import marked_store

from bearings.domains.store import UNSCORED
from bearings.lightning_modules.evaluation import Evaluation
from bearings.session.results import print_results, results_table
from bearings.session.run_directory import RunDirectory


def test_a_table_shows_groups_and_accuracy_only_where_there_are_any(tmp_path, store):
    document = [0, 1, 5, 2], [UNSCORED, 0, 1, 0]
    marked = marked_store(tmp_path, document, document, document)
    score = Evaluation(64, "32-true").score
    columns = [column.header for column in results_table("t", {"a": score(Bigram(), marked, "test")}, True).columns]
    assert columns == [
        "model",
        "accuracy",
        "nats/token",
        "bits/letter",
        "nats/token,\nvowel",
        "nats/token,\nconsonant",
    ]
    columns = [column.header for column in results_table("t", {"a": score(Bigram(), store, "test")}).columns]
    assert columns == ["model", "nats/token", "bits/letter"]


def test_a_table_lists_the_best_first_and_marks_the_model(store):
    own = Evaluation(64, "32-true").score(Bigram(), store, "test")
    rows = {"model": own, "a worse": replace(own, nats=2 * own.nats), "the best": replace(own, nats=own.nats / 2)}
    table = results_table("t", rows, accuracy=True)
    assert [*table.columns[0].cells] == ["the best", "model", "a worse"]
    assert [row.style for row in table.rows] == ["", "bold", ""]
    assert {*table.columns[1].cells} == {f"{100 * own.accuracy:.2f} %"}
    for column, value in ((2, own.nats_per_token), (3, own.bits_per_unit["letter"])):
        cells = [*map(float, table.columns[column].cells)]
        assert cells == pytest.approx([value / 2, value, 2 * value], abs=5e-4)


def test_seeds_from_the_accuracy_that_counts_as_solved_on_are_counted(tmp_path, letters, store, monkeypatch):
    own = Evaluation(64, "32-true").score(Bigram(), store, "test")
    half = own.tokens // 2
    monkeypatch.setattr(type(letters), "solved", half.sum() / own.tokens.sum())
    fewer = half - (np.arange(len(half)) == half.argmax())
    for seed, correct in enumerate((fewer, half, own.tokens)):
        file = tmp_path / f"small-0123abcd-s{seed}" / "nll" / "test.npz"
        file.parent.mkdir(parents=True)
        replace(own, correct=correct).save(file)
    console = Console(file=io.StringIO(), width=200)
    session = SimpleNamespace(domain=letters, config={"names": {"encoding": "rope"}}, console=console)
    print_results(session, RunDirectory(tmp_path / "small-0123abcd-s0", {}), store, "test", own, "title")
    printed = console.file.getvalue()
    assert "by 2 of 3 seeds\n" in printed
    assert "Markov, order " in printed
