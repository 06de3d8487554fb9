"""Estimates of cost: operations, and the memory of a training step (test_memory_estimate.py checks it on a GPU)."""

import pytest
import torch
from encodings_support import MECHANISMS
from torch.utils.flop_counter import FlopCounterMode
from transformer_support import SMALL, shipped

from bearings.encodings.base import Encoding
from bearings.lightning_modules.cost import _extrapolated, _saved_bytes, step_seconds, training_memory
from bearings.lightning_modules.transformer import Transformer
from bearings.session.overrides import choices_of


def test_flops_are_twice_the_weights_and_the_attention():
    model = Transformer(encoding=Encoding, **SMALL)
    weights = sum(p.numel() for p in model.parameters() if p.ndim == 2)
    # Causal attention: QK' and PV, 2 operations a multiply-add, (T + 1) / 2 keys a query on average.
    attention = 2 * 2 * 2 * 64 * (100 + 1) / 2
    assert model.flops_per_token(100) == pytest.approx(2 * weights + 2 * attention / 2)


def test_flops_of_training_are_those_that_pytorch_counts():
    model = Transformer(encoding=Encoding, **SMALL)
    tokens = torch.zeros(3, 1, dtype=torch.int64)  # in longer rows, masked keys would count as well
    with FlopCounterMode(display=False) as counter:
        model.nats(tokens, tokens).backward()
    assert counter.get_total_flops() == pytest.approx(tokens.numel() * model.training_flops_per_token(1), rel=0.01)


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])
@pytest.mark.parametrize("checkpointing", [False, True])
def test_the_memory_estimate_is_what_a_real_batch_saves_and_works_with(precision, checkpointing):
    model = Transformer(encoding=Encoding, checkpointing=checkpointing, **SMALL)
    estimate = training_memory(model, 7, 64, precision) - 12 * model.parameter_count()
    extrapolated, measured = _extrapolated(model, 7, 64, precision, False), _saved_bytes(model, 7, 64, precision)
    assert extrapolated == pytest.approx(measured, rel=0.02)
    saved = _saved_bytes(Transformer(encoding=Encoding, **SMALL), 7, 64, precision)
    # At least the MLP's three hidden tensors and the logits of every layer and token are saved.
    assert saved > 7 * 64 * (2 * 3 * 96 + 11) * (4 if precision == "32-true" else 2)
    if checkpointing:
        outside = _saved_bytes(model, 7, 64, precision)
        assert outside > 2 * 7 * 64 * 32 * 4  # the blocks' inputs
        saved = outside + (saved - outside) / 2
    assert saved < estimate < 2 * saved


def test_a_checkpointed_block_saves_its_input():
    def saved(layers):
        model = Transformer(encoding=Encoding, checkpointing=True, **{**SMALL, "layers": layers})
        return _saved_bytes(model, 2, 9, "32-true")

    assert saved(5) - saved(3) == 2 * 4 * (2 * 9 * 32)


@pytest.mark.parametrize(
    ("encoding", "checkpointing"), [*((name, False) for name in (*MECHANISMS, "rnope_swa")), ("path", True)]
)
def test_what_long_rows_save_follows_from_short_ones(encoding, checkpointing):
    model = Transformer(encoding=shipped(encoding), checkpointing=checkpointing, **SMALL)
    length = 1001  # a bias in scores is padded to whole vectors
    extrapolated = _extrapolated(model, 2, length, "32-true", False)
    assert extrapolated == pytest.approx(_saved_bytes(model, 2, length, "32-true"), rel=0.05)


@pytest.mark.parametrize("ranks", [2, 4])
def test_the_largest_block_of_scores_is_counted(ranks, monkeypatch):
    model = Transformer(encoding=shipped("cope"), **SMALL)
    encoding, blocks = model.encodings[0], []
    plain = encoding.scores

    def seen(block, *tensors):
        blocks.append(block.q.shape[:3].numel() * block.k.shape[1])
        return plain(block, *tensors)

    monkeypatch.setattr(encoding, "scores", seen)
    estimates = []
    for tensors in (1000, 2000):  # so many that they take most of the memory
        monkeypatch.setattr(encoding, "block_tensors", tensors)
        estimates.append(training_memory(model, 3, 64, "32-true", ranks=ranks))
    assert estimates[1] - estimates[0] == 4 * 1000 * max(blocks)


def test_compiled_blocks_are_estimated_as_they_will_be_and_left_as_they_were():
    model = Transformer(encoding=Encoding, **{**SMALL, "width": 64})
    plain, compiled = (training_memory(model, 4, 64, "bf16-mixed", compiled) for compiled in (False, True))
    assert 0.4 * plain < compiled < plain
    assert all(part._compiled_call_impl is None for part in (*model.blocks, model.norm))


def test_a_memory_estimate_keeps_no_graph():
    model = Transformer(encoding=shipped("rope"), **SMALL)
    weight = model.embedding.weight
    node = weight.view_as(weight).grad_fn.next_functions[0][0]  # where gradients of the weight are added up
    node.metadata["seen"] = True
    assert training_memory(model, 4, 16, "32-true") > 16 * model.parameter_count()
    del node
    assert "seen" not in weight.view_as(weight).grad_fn.next_functions[0][0].metadata


def test_what_decides_between_launches_and_graphs_is_alike_for_all_encodings():
    models = [Transformer(encoding=shipped(name), **SMALL) for name in choices_of("encoding")]
    kinds = [(model.encodings[0].reads_content, model.encodings[0].heads_per_query) for model in models]
    models = [model for model, kind in zip(models, kinds, strict=True) if kind == (True, 1)]  # with equal projections
    assert len({step_seconds(model, 4, 64, torch.device("cpu")) for model in models}) == 1
    assert len({model.flops_per_token(64) for model in models}) > 1


def test_a_failed_memory_estimate_is_reported(monkeypatch):
    from types import SimpleNamespace

    from bearings.session import banner, session

    def no_room(*arguments):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(session, "training_memory", no_room)
    settings = SimpleNamespace(micro_batch=None, precision="32-true", replicas=1, context_parallel=1)
    given = SimpleNamespace(
        settings=settings, data=SimpleNamespace(length=8, batch_size=4), compiled=lambda model: False
    )
    assert session.Session.step_memory(given, None) is None
    assert "not estimated" in banner.step_memory_text(None)
