"""lengths.py: every target of a split counts once, in the bucket of the context that it saw."""

import math

import numpy as np
import pytest
import torch
from conftest import Bigram

from bearings.domains.store import SPLITS, UNSCORED, Store, StoreWriter
from bearings.lightning_modules.lengths import contexts_to_try, score_by_position
from bearings.reporting.lengths import (
    failure_point,
    lengths_table,
    nats_by_context,
)


class Counting(torch.nn.Module):
    """A target after n tokens of its window costs n nats."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(1))

    def token_nats(self, tokens, targets):
        seen = torch.arange(1, tokens.shape[1] + 1).expand(tokens.shape).float()
        return torch.where(targets == -100, 0.0, seen), targets == 0


@pytest.mark.parametrize("context", [1, 4, 7, 16, 64])
def test_every_target_counts_once_in_the_bucket_of_what_it_saw(store, context):
    found = score_by_position(Counting(), store, "test", context, 16, "32-true", 100)
    sizes = np.diff(store.offsets)[store.documents("test")] - 1
    assert sum(bucket.targets for bucket in found) == sizes.sum()
    # Beyond: the documents' targets from the trained length on, for any context.
    assert sum(bucket.targets for bucket in found if bucket.beyond) == np.maximum(sizes - 16, 0).sum()
    for bucket in found:
        assert bucket.low <= bucket.nats / bucket.targets <= bucket.high <= context


@pytest.mark.parametrize("context", [2, 8])
def test_tokens_that_are_only_context_are_in_no_bucket(tmp_path, context):
    marks = np.array([UNSCORED, UNSCORED, 0, UNSCORED, 0])
    with StoreWriter(tmp_path / "store", 12, ("letter",), ("answer",)) as writer:
        for split in SPLITS:
            writer.add(split, split, split, np.arange(5), {"letter": 1.0}, marks)
    found = score_by_position(Counting(), Store.open(tmp_path / "store"), "test", context, 16, "32-true", 100)
    assert sum(bucket.targets for bucket in found) == 2
    assert sum(bucket.nats for bucket in found) == min(2, context) + min(4, context)


def test_windows_begin_on_the_grid_of_the_domain(tmp_path):
    begins = set()

    class Noting(Counting):
        def token_nats(self, tokens, targets):
            begins.update(tokens[:, 0].tolist())
            return super().token_nats(tokens, targets)

    with StoreWriter(tmp_path / "store", 60, ("letter",)) as writer:
        for split in SPLITS:
            writer.add(split, split, split, np.arange(60), {"letter": 59.0})
    score_by_position(Noting(), Store.open(tmp_path / "store"), "test", 10, 16, "32-true", 100, period=4)
    assert len(begins) > 5
    assert not any(begin % 4 for begin in begins)


@pytest.mark.parametrize("context", [7, 16, 24])
def test_targets_that_see_half_of_the_context_have_a_bucket_of_their_own(store, context):
    rows = [
        {"stretch": "none", "context": context, "trained": context, **bucket._asdict()}
        for bucket in score_by_position(Counting(), store, "test", context, context, "32-true", 100)
    ]
    assert {row["low"] for row in rows if row["beyond"]} == {math.ceil(context / 2)}
    table = lengths_table({"rope": [rows]}, "")
    assert f"every column covers the targets with more than {context} tokens before them." in table.notes[0]
    assert f"before them: 100 % at {context}." in table.notes[1]


def test_a_table_says_which_models_have_no_target_beyond_their_trained_length(store):
    short, long = (
        [
            {"stretch": "none", "context": context, "trained": trained, **bucket._asdict()}
            for context in (trained, 2 * trained)
            for bucket in score_by_position(Counting(), store, "test", context, trained, "32-true", 100)
        ]
        for trained in (16, 64)
    )
    longest = "more than 16 or 64 tokens before them, the model's trained length"
    note = lengths_table({"rope": [short], "path": [long]}, "").notes[0]
    assert f"{longest} (path: all targets, because none has so many). Each target" in note
    note = lengths_table({"path": [long]}, "").notes[0]
    assert "every column covers all targets. Each target" in note


def test_a_model_without_memory_scores_the_same_under_every_context(store):
    rows = [
        {"stretch": "none", "context": context, "trained": 16, **bucket._asdict()}
        for context in (4, 8, 16, 64)
        for bucket in score_by_position(Bigram(), store, "test", context, 16, "32-true", 100)
    ]
    curve = nats_by_context(rows, "none")
    assert list(curve) == [4, 8, 16, 64]
    assert np.ptp(list(curve.values())) < 1e-5
    assert failure_point(curve, 16) is None


def test_contexts_run_from_a_quarter_up_to_what_holds_the_longest_document(store):
    longest = int(np.diff(store.offsets)[store.documents("test")].max()) - 1
    assert 32 < longest <= 60
    assert contexts_to_try(store, "test", 16) == [4, 8, 16, 32, 64]
    assert contexts_to_try(store, "test", 1) == [1, 2, 4, 8, 16]
    assert contexts_to_try(store, "test", 100) == [25, 50, 100]
    assert contexts_to_try(store, "test", 400) == [100, 200, 400]  # the trained length is always one of them


def test_batches_of_one_length_do_not_change_what_is_counted(store):
    class Length(Counting):
        """A target costs as many nats as its window, padding included, is long."""

        def token_nats(self, tokens, targets):
            return torch.where(targets == -100, 0.0, float(tokens.shape[1])), targets == 0

    sizes = np.diff(store.offsets)[store.documents("test")] - 1
    for budget in (1, 100, 10_000):
        given = (store, "test", 64, 16, "32-true", budget, 1, True)
        assert sum(bucket.nats for bucket in score_by_position(Length(), *given)) == (sizes**2).sum()
        plain, found = (score_by_position(Counting(), *given[:-1], each) for each in (False, True))
        assert found == plain
