"""Baselines of a store: their values, the chosen order, and files that are counted once."""

import math
import re
import shutil
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from threading import Barrier, BrokenBarrierError
from types import SimpleNamespace

import numpy as np
import pytest
from filelock import FileLock
from store_support import store_of

from bearings.core.errors import UserError
from bearings.domains import baseline_records
from bearings.domains.baseline_records import baselines, kept_baselines
from bearings.domains.baselines import markov, xz


def test_markov_is_witten_bell_by_hand():
    store = store_of([0, 1, 2], train=[[0, 1, 2, 1, 2]], vocabulary=4)
    # Order 0: n = 4 targets, 2 distinct; uniform 1/4 below. P(1) = (2 + 2/4) / 6 = P(2).
    p0 = (2 + 2 * 0.25) / 6
    assert markov(store, "test", 0)[0] == pytest.approx([-2 * math.log(p0)])
    # Order 1: after 0 came {1}, after 1 came {2, 2}: one distinct each.
    after_start, after_one = (1 + p0) / 2, (2 + p0) / 3
    assert markov(store, "test", 1)[1] == pytest.approx([-math.log(after_start) - math.log(after_one)])


def test_markov_probabilities_sum_to_one():
    train = [[0, *np.random.default_rng(0).integers(1, 4, 50)]]
    total = sum(
        math.exp(-markov(store_of([0, 1, 2, 3, last], train=train, vocabulary=4), "test", 3)[3][0]) for last in range(4)
    )
    prefix = store_of([0, 1, 2, 3], train=train, vocabulary=4)
    assert total == pytest.approx(math.exp(-markov(prefix, "test", 3)[3][0]))


def test_markov_learns_a_rule_and_its_order_is_chosen_on_validation(letters, store):
    nats = markov(store, "test", 3)
    assert nats[1].sum() < 0.6 * nats[0].sum()
    assert list(baselines(letters, store, "test"))[1] == "Markov, order 1"


def test_the_order_of_the_baseline_is_chosen_on_validation_and_each_is_scored_on_the_split():
    store = store_of([0, 1, 2, 3], [0, 1])
    nats = {"valid": {0: 3.0, 1: 1.0, 2: 2.0}, "test": {0: 3.0, 1: 2.0, 2: 1.0}}

    def markov(store, split, max_order):
        return {order: np.full(len(store.documents(split)), value) for order, value in nats[split].items()}

    found = baselines(SimpleNamespace(markov=markov), store, "test")
    assert list(found) == ["unigram", "Markov, order 1", "xz -9e"]
    assert found["unigram"].nats.tolist() == [3.0, 3.0]
    assert found["Markov, order 1"].nats.tolist() == [2.0, 2.0]
    assert found["xz -9e"].nats == pytest.approx(xz(store, "test") * np.array([0.75, 0.25]))


def test_runs_on_one_store_count_its_baselines_once(letters, tmp_path, monkeypatch):
    store, counted, save = letters.prepare(tmp_path / "stores"), [], baseline_records._save
    monkeypatch.setattr(baseline_records, "baselines", lambda *given: counted.append(given) or baselines(*given))
    first, second = (tmp_path / run / "baselines" / "test" for run in ("a", "b"))
    found = kept_baselines(letters, store, "test", first)
    again = kept_baselines(letters, store, "test", second)
    assert len(counted) == 1
    assert sorted(found) == sorted(again) == ["Markov, order 1", "unigram", "xz -9e"]
    assert [path.read_bytes() for path in sorted(first.iterdir())] == [
        path.read_bytes() for path in sorted(second.iterdir())
    ]

    def refused(path):
        raise PermissionError(path)

    def locked(path):
        return refused(path) if path.is_relative_to(tmp_path / "stores") else FileLock(path)

    monkeypatch.setattr(
        baseline_records, "FileLock", locked
    )  # a store that others have made and this user may only read
    assert sorted(kept_baselines(letters, store, "test", tmp_path / "c" / "test")) == sorted(found)
    assert len(counted) == 1

    def saved(found, folder):
        if folder.is_relative_to(store.directory):
            refused(folder)
        save(found, folder)

    monkeypatch.setattr(baseline_records, "_save", saved)
    assert sorted(kept_baselines(letters, store, "valid", tmp_path / "runs" / "valid")) == sorted(found)
    assert len(counted) == 2  # the store has none, and the folder is read-only


def test_a_run_s_baselines_are_saved_once_by_two_that_score_it(letters, tmp_path, monkeypatch):
    store, folder, saved, save = (
        letters.prepare(tmp_path / "stores"),
        tmp_path / "run" / "test",
        [],
        baseline_records._save,
    )
    kept_baselines(letters, store, "test", tmp_path / "other" / "test")
    both = Barrier(2, timeout=0.5)

    def at_once(found, folder):
        saved.append(folder)
        with suppress(BrokenBarrierError):
            both.wait()
        save(found, folder)

    monkeypatch.setattr(baseline_records, "_save", at_once)
    with ThreadPoolExecutor(2) as pool:
        one, other = pool.map(lambda _: kept_baselines(letters, store, "test", folder), range(2))
    assert saved == [folder]
    assert one.keys() == other.keys() == {"Markov, order 1", "unigram", "xz -9e"}


def test_a_damaged_baseline_is_reported_and_computed_again_after_deletion(letters, tmp_path):
    store, folder = letters.prepare(tmp_path / "stores"), tmp_path / "run" / "test"
    whole = kept_baselines(letters, store, "test", folder)
    file = folder / "unigram.npz"
    for content in (file.read_bytes()[:100], b"", b"text"):
        file.write_bytes(content)
        with pytest.raises(
            UserError, match=rf"^{re.escape(str(file))} is damaged .*: delete {re.escape(str(folder))} to"
        ):
            kept_baselines(letters, store, "test", folder)
    shutil.rmtree(folder)
    assert kept_baselines(letters, store, "test", folder).keys() == whole.keys()


def test_an_error_in_baselines_is_reported_at_once(letters, tmp_path, monkeypatch):
    store, counted = letters.prepare(tmp_path / "stores"), []

    def full(*given):
        counted.append(given)
        raise OSError("no room for a temporary file")

    monkeypatch.setattr(baseline_records, "baselines", full)
    with pytest.raises(OSError, match="no room"):
        kept_baselines(letters, store, "test", tmp_path / "run" / "test")
    assert len(counted) == 1


@pytest.mark.parametrize("name", ["MARKOV_ORDERS", "REVISION"])
def test_baselines_of_another_kind_are_computed_again(letters, tmp_path, monkeypatch, name):
    store, counted = letters.prepare(tmp_path / "stores"), []
    monkeypatch.setattr(baseline_records, "baselines", lambda *given: counted.append(given) or baselines(*given))
    for value in (3, 3, 4):
        monkeypatch.setattr(baseline_records, name, value, raising=False)
        kept_baselines(letters, store, "test", tmp_path / f"run-{len(counted)}-{value}" / "test")
    assert len(counted) == 2


def test_xz_profits_from_the_training_split():
    text = [0, *np.random.default_rng(1).integers(0, 250, 4000)]
    known, unknown = store_of(text, train=[text], vocabulary=256), store_of(text, vocabulary=256)
    assert xz(known, "test") < 0.1 * xz(unknown, "test")
    assert xz(unknown, "test") == pytest.approx(4000 * math.log(250), rel=0.2)


def test_xz_profits_from_the_end_of_a_long_training_split(monkeypatch):
    monkeypatch.setattr("bearings.domains.baselines.XZ_WINDOW", 8 * 4096)  # 4096 tokens of 64 bits
    train = [[0, *np.random.default_rng(i).integers(0, 250, size)] for i, size in enumerate((4000, 3000, 2000))]
    forgotten, *known = (
        xz(store_of([0, *tokens], train=train, vocabulary=256), "test") / len(tokens) / math.log(250)
        for tokens in (train[0], train[1][-2000:], train[2][:1000])
    )
    assert forgotten > 1
    assert max(known) < 0.1


def test_xz_does_not_compress_start_tokens():
    drawn = np.random.default_rng(2).integers(0, 250, 500)
    alike, different = (
        [[start, number % 3] for number, start in enumerate(starts)] for starts in (np.zeros_like(drawn), drawn)
    )
    nats = [xz(store_of(*documents, train=documents, vocabulary=256), "test") for documents in (alike, different)]
    assert nats[0] == nats[1]
