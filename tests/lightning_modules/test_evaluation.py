"""Every target of a split is scored once, with the context it should have."""

import io
import math
import re
import shutil
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from threading import Barrier, BrokenBarrierError
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from conftest import Bigram
from filelock import FileLock
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console
from training_support import configured

from bearings.core.errors import UserError
from bearings.domains import baseline_records
from bearings.domains.baseline_records import baselines, kept_baselines
from bearings.domains.baselines import markov, xz
from bearings.domains.records import Records
from bearings.domains.store import SPLITS, UNSCORED, Store, StoreWriter
from bearings.lightning_modules.evaluation import ROWS, Evaluation, batched, windows
from bearings.session.results import print_results, results_table
from bearings.session.run_directory import RunDirectory
from bearings.session.session import Session


def store_of(*documents: list[int], train: list[list[int]] = ((0, 1),), vocabulary: int = 12) -> Store:
    """A store in memory with `documents` as its test split."""
    pieces = [np.array(d) for d in (*train, [0, 1], *documents)]
    splits = np.array([0] * len(train) + [1] + [2] * len(documents))
    offsets = np.concatenate([[0], np.cumsum([len(piece) for piece in pieces])])
    units = np.array([[len(piece) - 1.0] for piece in pieces])
    manifest = {"vocabulary": vocabulary, "units": ["letter"], "groups": [], "splits": SPLITS, "sha256": "0" * 64}
    names = [str(i) for i in range(len(pieces))]
    scored = np.diff(offsets) - 1
    store = Store(None, manifest, np.concatenate(pieces), None, offsets, splits, scored, np.arange(len(pieces)), units)
    vars(store)["names"] = names  # which are otherwise read from its directory
    return store


@settings(max_examples=100)
@given(st.lists(st.integers(1, 70), min_size=1, max_size=6), st.integers(1, 40), st.floats(0, 0.99))
def test_windows_score_every_target_once(sizes, length, overlap):
    store = store_of(*[[0] * (size + 1) for size in sizes])
    found = windows(store, store.documents("test"), length, overlap)
    assert [w.size for w in found] == sorted((w.end - w.begin for w in found), reverse=True)
    for document, size in enumerate(sizes):
        mine = [w for w in found if w.document == document]
        assert sorted(t for w in mine for t in range(w.scored, w.end)) == list(range(size))
        for w in mine:
            assert w.end - w.begin <= length
            assert w.begin == 0 or w.end - w.begin == length
            if w.scored > 0:
                assert w.scored - w.begin >= min(w.scored, int(overlap * length))


@settings(max_examples=100)
@given(st.lists(st.integers(1, 70), min_size=1, max_size=6), st.integers(1, 10), st.floats(0, 0.99))
def test_windows_begin_on_the_periods_grid(sizes, periods, overlap):
    period, length = 4, 4 * periods
    store = store_of(*[[0] * (size + 1) for size in sizes])
    found = windows(store, store.documents("test"), length, overlap, period)
    for document, size in enumerate(sizes):
        mine = sorted((w for w in found if w.document == document), key=lambda w: w.scored)
        assert [t for w in mine for t in range(w.scored, w.end)] == list(range(size))
        assert all(w.begin % period == 0 and 0 < w.end - w.begin <= length for w in mine)
        assert all(w.scored - w.begin >= min(int(overlap * length), length - period) for w in mine[1:])
        # No earlier place on the grid lets the last window reach the document's end.
        assert mine[-1].begin == 0 or mine[-1].end - mine[-1].begin > length - period


@pytest.mark.parametrize("context", [1, 3, 129])
def test_contexts_off_the_grid_still_score_every_target_once(context):
    store = store_of([0] * 402)
    found = windows(store, store.documents("test"), context, 0.5, 4)
    assert sorted(t for w in found for t in range(w.scored, w.end)) == list(range(401))
    assert all(w.begin <= w.scored < w.end <= w.begin + context for w in found)
    assert context < 4 or all(w.begin % 4 == 0 for w in found)
    assert all(w.scored - w.begin >= context // 2 for w in found if w.scored)


@given(st.lists(st.integers(1, 70), max_size=20), st.integers(1, 200))
def test_batches_are_full_and_hold_rows_of_similar_size(sizes, tokens):
    found = [[sizes[i] for i in batch] for batch in batched(range(len(sizes)), sizes, tokens)]
    assert [size for batch in found for size in batch] == sorted(sizes, reverse=True)
    assert all(len(batch) == 1 or len(batch) * batch[0] <= tokens for batch in found)
    assert all((len(batch) + 1) * batch[0] > tokens for batch in found[:-1])
    assert [len(batch) for batch in batched(range(ROWS + 1), [1] * (ROWS + 1), 2 * ROWS)] == [ROWS, 1]


def test_a_domains_scores_begin_on_its_grid(tmp_path):
    configuration = {**configured(tmp_path), "domain": {"_target_": "bearings.domains.jsb.JSB"}}
    assert Session.of(configuration | {"content": {}}).evaluation.period == 4


@pytest.mark.parametrize(("length", "tokens_per_batch"), [(64, 16384), (7, 1), (7, 64)])
def test_score_is_the_sum_over_all_targets(store, length, tokens_per_batch):
    model = Bigram()
    records = Evaluation(length, "32-true", tokens_per_batch=tokens_per_batch).score(model, store, "test")
    logs = model.table.double().log_softmax(-1)
    for row, index in enumerate(store.documents("test")):
        document = torch.from_numpy(store.document(index).astype(np.int64))
        assert records.nats[row] == pytest.approx(-logs[document[:-1], document[1:]].sum().item(), rel=1e-5)
    assert records.tokens.sum() == store.targets("test")
    assert records.nats_per_token == pytest.approx(records.nats.sum() / records.tokens.sum())
    bits = records.bits_per_unit["letter"]
    assert bits == pytest.approx(records.nats.sum() / math.log(2) / store.unit_counts("test")["letter"])


class Noted(Bigram):
    """Notes its mode, whether autocast is on, and the nats and the number of rows that it returns."""

    def __init__(self):
        super().__init__()
        self.modes, self.nats, self.rows = set(), 0.0, 0

    def token_nats(self, tokens, targets):
        nats, right = super().token_nats(tokens, targets)
        self.modes.add((self.training, torch.is_autocast_enabled("cpu")))
        self.nats += nats.double().sum().item()
        self.rows += len(tokens)
        return nats, right


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])
def test_models_are_scored_without_dropout_and_keep_their_mode(store, precision):
    for training in (True, False):
        model = Noted().train(training)
        records = Evaluation(16, precision).score(model, store, "test")
        assert model.training == training
        assert model.modes == {(False, precision == "bf16-mixed")}
        assert records.nats.sum() == pytest.approx(model.nats, rel=1e-12)  # rounded to float32 only once, by the model


def test_windows_overlap_by_the_option(store):
    apart, overlapping = Noted(), Noted()
    Evaluation(8, "32-true", overlap=0.0).score(apart, store, "test")
    Evaluation(8, "32-true", overlap=0.5).score(overlapping, store, "test")
    assert apart.rows < overlapping.rows


def test_records_survive_the_disk(store, tmp_path):
    index = store.documents("test")
    records = Records.of(store, index, np.arange(len(index)))
    records.save(tmp_path / "nll" / "test.npz")
    again = Records.load(tmp_path / "nll" / "test.npz")
    assert [p.name for p in (tmp_path / "nll").iterdir()] == ["test.npz"]
    for name, value in vars(records).items():
        assert np.array_equal(getattr(again, name), value), name


def test_records_of_some_documents_are_theirs(store):
    index = store.documents("test")
    groups = np.arange(2.0 * len(index)).reshape(-1, 2), np.arange(2 * len(index)).reshape(-1, 2)
    records = Records.of(store, index, np.arange(len(index)), np.arange(len(index)), groups)
    chosen = np.arange(len(index)) % 3 == 1
    for name, value in vars(records).items():
        wanted = value[chosen] if isinstance(value, np.ndarray) else value
        assert np.array_equal(getattr(records.where(chosen), name), wanted), name


def test_damaged_records_are_reported(store, tmp_path):
    index, file = store.documents("test"), tmp_path / "test.npz"
    Records.of(store, index, np.arange(len(index))).save(file)
    whole, random, reported = file.read_bytes(), np.random.default_rng(0), 0
    for _ in range(500):
        cut = bytearray(whole[: random.integers(1, len(whole) + 1)] if random.random() < 0.3 else whole)
        for place in random.integers(len(cut), size=random.integers(1, 5)):
            cut[place] = random.integers(256)
        file.write_bytes(cut)
        try:
            Records.load(file)
        except UserError as error:
            reported += str(error).startswith(f"{file} is damaged (")
    assert reported > 300
    file.unlink()
    with pytest.raises(FileNotFoundError):
        Records.load(file)


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


def marked_store(tmp_path, *documents):
    """Vowels 1 to 3, consonants 4 to 11; mark 0, 1 or UNSCORED for context."""
    with StoreWriter(tmp_path / "store", 12, ("letter",), groups=("vowel", "consonant")) as writer:
        for number, split in enumerate(SPLITS):
            tokens, marks = map(np.array, documents[number])
            writer.add(split, split, split, tokens, {"letter": 1.0}, marks)
    return Store.open(tmp_path / "store")


@pytest.mark.parametrize("length", [3, 64])
def test_groups_are_scored_separately_and_context_is_not_scored(tmp_path, length):
    document = [0, 1, 5, 2, 9, 3, 3, 7, 4], [9, 0, 1, 0, 1, UNSCORED, 0, UNSCORED, 1]
    store = marked_store(tmp_path, document, document, document)
    model = Bigram()
    records = Evaluation(length, "32-true").score(model, store, "test")
    logs = -model.table.double().log_softmax(-1)
    tokens, marks = map(np.array, document)
    losses = logs[tokens[:-1], tokens[1:]].detach().numpy()
    likeliest = model.table.argmax(-1)[tokens[:-1]].numpy() == tokens[1:]
    for number, group in enumerate(("vowel", "consonant")):
        here = marks[1:] == number
        assert records.group_nats[0, number] == pytest.approx(losses[here].sum(), rel=1e-5)
        assert records.group_tokens[0, number] == here.sum()
        assert records.group_nats_per_token[group] == pytest.approx(losses[here].mean(), rel=1e-5)
    scored = marks[1:] != UNSCORED
    assert records.nats[0] == pytest.approx(losses[scored].sum(), rel=1e-5)
    assert records.tokens[0] == store.targets("test") == 6
    assert records.correct[0] == likeliest[scored].sum()


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
        "nats/token, vowel",
        "nats/token, consonant",
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
