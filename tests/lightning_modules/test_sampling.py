"""Sampling: the filters by hand, determinism, and time linear in the length."""

from functools import partial

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from bearings.encodings.absolute_learned import AbsoluteLearned
from bearings.encodings.base import Encoding
from bearings.lightning_modules.sampling import draw, sample, visible
from bearings.lightning_modules.transformer import Transformer
from bearings.tasks.options import GenerateOptions

LOGITS = torch.log(torch.tensor([[0.5, 0.25, 0.15, 0.1]]))


def frequencies(**settings):
    generator = torch.Generator().manual_seed(0)
    options = {"temperature": 1.0, "top_k": None, "top_p": None, "forbidden": (), **settings}
    options["forbidden"] = torch.tensor(options["forbidden"], dtype=torch.int64)
    drawn = draw(LOGITS.expand(20000, -1), generator=generator, **options)
    return (torch.bincount(drawn, minlength=4) / 20000).tolist()


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, [0.5, 0.25, 0.15, 0.1]),
        ({"temperature": 0.0}, [1, 0, 0, 0]),
        ({"temperature": 1e-40}, [1, 0, 0, 0]),
        ({"temperature": 0.5}, [0.725, 0.181, 0.065, 0.029]),
        ({"top_k": 2}, [2 / 3, 1 / 3, 0, 0]),
        ({"top_k": 9}, [0.5, 0.25, 0.15, 0.1]),
        ({"top_p": 0.5}, [1, 0, 0, 0]),
        ({"top_p": 0.51}, [2 / 3, 1 / 3, 0, 0]),
        ({"top_p": 1.0}, [0.5, 0.25, 0.15, 0.1]),
        ({"top_p": 1e-6}, [1, 0, 0, 0]),
        ({"forbidden": (0,)}, [0, 0.5, 0.3, 0.2]),
        ({"forbidden": (0,), "temperature": 0.0}, [0, 1, 0, 0]),
    ],
)
def test_draws_have_the_probabilities_they_should(settings, expected):
    assert frequencies(**settings) == pytest.approx(expected, abs=0.015)


def small(encoding=Encoding, **sizes):
    options = {"vocabulary": 11, "width": 32, "layers": 2, "heads": 2, **sizes}
    return Transformer(encoding=encoding, **options)


def test_greedy_sampling_equals_recomputing_the_whole_prefix():
    model = small().double()
    prompt = torch.randint(11, (2, 5))
    drawn = sample(model, prompt, 20, temperature=0.0)
    text = prompt
    for _ in range(20):
        text = torch.cat([text, model.eval()(text)[:, -1:].argmax(-1)], 1)
    assert torch.equal(text[:, 5:], drawn)


def test_the_seed_decides_and_training_mode_returns():
    model = small(dropout=0.5).train()
    prompt = torch.zeros(3, 1, dtype=torch.int64)
    first, again, other = (sample(model, prompt, 40, seed=seed) for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert model.training


def test_each_token_is_computed_once():
    """The model sees the prompt and then one token a call."""
    model = small()
    seen = []
    model.embedding.register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0].shape[1]))
    sample(model, torch.zeros(1, 7, dtype=torch.int64), 64)
    assert seen == [7] + [1] * 63


@pytest.mark.parametrize(
    ("size", "tokens", "limits", "seen"),
    [
        (10, 99, {"length": 10}, 10),
        (10, 99, {"length": 9}, 9),
        (13, 99, {"length": 8, "period": 4}, 5),  # from token 8 on
        (12, 99, {"length": 8, "period": 4}, 8),
        (12, 99, {"length": 3, "period": 4}, 3),
        (40, 4, {"length": 16, "longest": 12}, 8),
        (40, 4, {"length": 6, "longest": 12}, 6),
    ],
)
def test_the_model_sees_the_end_of_a_long_prompt(size, tokens, limits, seen):
    longest = limits.pop("longest", None)
    model = small() if longest is None else small(partial(AbsoluteLearned, length=longest))
    prompt = torch.arange(size).expand(2, -1)
    assert torch.equal(visible(model, prompt, tokens, **limits), prompt[:, -seen:])


def test_more_tokens_than_positions_are_refused():
    model = small(partial(AbsoluteLearned, length=12))
    with pytest.raises(ValueError, match="tokens=12: it must be below the encoding's longest context, 12 tokens"):
        visible(model, torch.zeros(1, 40), 12, length=6)
    message = "tokens=12: with a prompt of 1 token, it must be at most 11, because the encoding's longest context, 12 "
    with pytest.raises(ValueError, match=message):
        sample(model, torch.zeros(1, 1, dtype=torch.int64), 12)


def test_only_the_logits_of_the_last_token_are_computed():
    model, shapes = small(), set()
    model.head.register_forward_hook(lambda module, inputs, logits: shapes.add(tuple(logits.shape)))
    sample(model, torch.zeros(3, 7, dtype=torch.int64), 5)
    assert shapes == {(3, 11)}


def test_no_list_is_copied_to_the_device_for_each_token(monkeypatch):
    model, made = small(), []
    tensor = torch.tensor
    monkeypatch.setattr(torch, "tensor", lambda *given, **options: made.append(given) or tensor(*given, **options))
    sample(model, torch.zeros(1, 1, dtype=torch.int64), 2, forbidden=(0,))
    few = len(made)
    sample(model, torch.zeros(1, 1, dtype=torch.int64), 20, forbidden=(0,))
    assert len(made) == 2 * few


def test_work_grows_linearly_with_the_length():
    model, prompt, work = small(width=128), torch.zeros(1, 1, dtype=torch.int64), {}
    for tokens in (64, 256):
        with FlopCounterMode(display=False) as counter:
            sample(model, prompt, tokens)
        work[tokens] = counter.get_total_flops()
    # In addition to the linear part, each token reads the cache; recomputing the prefix would give more than 16.
    assert 4 <= work[256] / work[64] < 5


@pytest.mark.parametrize("seed", [-1, 2**63])
def test_seeds_have_the_range_of_training_seeds(seed):
    with pytest.raises(ValueError, match=f"^seed={seed}: it must be (at least 0|below 9,223,372,036,854,775,808)$"):
        sample(small(), torch.zeros(1, 1, dtype=torch.int64), 1, seed=seed)


NAN, INFINITY = float("nan"), float("inf")


@pytest.mark.parametrize(
    "wrong",
    [
        *({"tokens": 0}, {"temperature": -1.0}, {"temperature": NAN}, {"temperature": INFINITY}),
        *({"top_k": 0}, {"top_p": 0.0}, {"top_p": 1.5}, {"top_p": NAN}),
    ],
)
def test_settings_are_checked(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        GenerateOptions(**wrong)
