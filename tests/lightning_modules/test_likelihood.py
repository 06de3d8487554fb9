"""Log-likelihoods of continuations equal those of single rows, in any batch."""

import numpy as np
import pytest
import torch
from conftest import Bigram

from bearings.core.errors import DivergedError
from bearings.lightning_modules.likelihood import continuation_nats

PAIRS = [
    (np.array([0, 3, 4]), np.array([5, 6])),
    (np.array([0]), np.array([7])),
    (np.arange(9), np.array([2, 2, 2])),
    (np.array([1, 2]), np.array([3, 3, 3, 3])),
    (np.array([1, 2]), np.array([5, 4, 3, 2, 1])),
]


@pytest.mark.parametrize("tokens", [1, 8, 100])
def test_each_continuation_is_scored_given_its_context(tokens):
    model = Bigram()
    nats, greedy = continuation_nats(model, PAIRS, 5, "32-true", tokens)
    table = model.table.log_softmax(-1).detach().double()
    for (context, then), each, right in zip(PAIRS, nats, greedy, strict=True):
        before = np.concatenate([context[-1:], then[:-1]])
        assert each == pytest.approx(-table[before, then].sum().item(), rel=1e-6)
        assert right == all(table[before].argmax(-1) == torch.from_numpy(then))


def test_greedy_continuations_are_recognised():
    model = Bigram()
    first = int(model.table[3].argmax())
    second = int(model.table[first].argmax())
    other = (second + 1) % 12
    pairs = [(np.array(context), np.array([first, last])) for context in ([3], [0, 5, 3]) for last in (second, other)]
    assert continuation_nats(model, pairs, 8, "32-true", 64)[1].tolist() == [True, False] * 2


def test_contexts_are_cut_from_the_left(monkeypatch):
    model, seen = Bigram(), []
    inner = model.token_nats
    monkeypatch.setattr(model, "token_nats", lambda tokens, targets: seen.append(tokens) or inner(tokens, targets))
    continuation_nats(model, [(np.arange(9), np.array([2, 3, 4]))], 5, "32-true", 64)
    assert [each.tolist() for each in seen] == [[[6, 7, 8, 2, 3]]]


def test_models_are_scored_without_dropout_and_keep_their_mode(monkeypatch):
    model, seen, done = Bigram(), [], []
    inner = model.token_nats
    monkeypatch.setattr(model, "token_nats", lambda *given: seen.append(model.training) or inner(*given))
    for training in (True, False):
        continuation_nats(model.train(training), PAIRS, 5, "32-true", 8, lambda *counts: done.append(counts))
        assert model.training == training
    assert {*seen} == {False}
    assert done == [(1, 5), (2, 5), (3, 5), (5, 5)] * 2


def test_models_keep_their_mode_after_an_interruption():
    def interrupt(*counts):
        raise KeyboardInterrupt

    model = Bigram().train()
    with pytest.raises(KeyboardInterrupt):
        continuation_nats(model, PAIRS, 5, "32-true", 8, interrupt)
    assert model.training


def test_what_cannot_be_scored_is_refused():
    for pair in ((np.array([1]), np.arange(6)), (np.array([], int), np.array([1])), (np.array([1]), np.array([], int))):
        with pytest.raises(ValueError, match="pair 0 has"):
            continuation_nats(Bigram(), [pair], 5, "32-true", 64)
    broken = Bigram()
    broken.table.data[:] = torch.nan
    with pytest.raises(DivergedError, match="not finite"):
        continuation_nats(broken, PAIRS, 5, "32-true", 64)
