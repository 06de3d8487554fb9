"""Every target of a split is scored once, with the context it should have."""

import math

import numpy as np
import pytest
import torch
from conftest import Bigram
from hypothesis import given, settings
from hypothesis import strategies as st
from store_support import marked_store, store_of
from training_support import configured

from bearings.core.errors import UserError
from bearings.domains.records import Records
from bearings.domains.store import UNSCORED
from bearings.lightning_modules.evaluation import ROWS, Evaluation, batched, windows
from bearings.session.session import Session


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
