"""The memory that is estimated before training on a CPU is what a step takes at its peak."""

from functools import partial

import pytest
import torch
from encodings_support import MECHANISMS, one_thread  # noqa: F401
from torch.profiler import ProfilerActivity, profile
from transformer_support import shipped

from bearings.encodings.contract.context import Context
from bearings.encodings.dape import DAPE
from bearings.encodings.fire import FIRE
from bearings.encodings.pattern import LayerPattern
from bearings.kernels.attention import rows as row_blocks
from bearings.lightning_modules import working_memory
from bearings.lightning_modules.cost import training_memory
from bearings.lightning_modules.language_model import LanguageModel
from bearings.lightning_modules.transformer import Transformer
from bearings.session.overrides import choices_of

pytestmark = pytest.mark.usefixtures("one_thread")


def peak_of_a_step(model, rows, length):
    """Bytes at the peak of a step, from the allocations that PyTorch's profiler records."""
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    tokens = torch.randint(50, (rows, length))

    def step():
        optimizer.zero_grad()
        (model.nats({"inputs": tokens, "targets": tokens}) / tokens.numel()).backward()
        optimizer.step()

    step()
    optimizer.zero_grad()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        step()
    events = [event for event in profiled.profiler.kineto_results.events() if event.name() == "[memory]"]
    now = peak = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        now += event.nbytes()
        peak = max(peak, now)
    return 12 * model.transformer.parameter_count() + peak


def check(name, rows, length, within=0.1, **sizes):
    sizes = {"width": 48, "layers": 2, "heads": 3, **sizes}
    model = LanguageModel(Transformer(50, shipped(name), **sizes), seed=0, steps=1)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    estimate = training_memory(model.transformer, rows, length, "32-true")
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())
    assert estimate == pytest.approx(peak_of_a_step(model, rows, length), rel=within)


@pytest.mark.parametrize("name", choices_of("encoding"))
def test_the_estimate_is_the_peak(name):
    check(name, 4, 160)


@pytest.mark.parametrize("name", ["nope", "alibi", "cope", "path"])
def test_the_estimate_is_the_peak_with_checkpointing(name):
    check(name, 4, 160, checkpointing=True)


@pytest.mark.parametrize("name", MECHANISMS)
def test_long_rows_are_estimated_from_short_ones_and_the_size_of_a_block(name, monkeypatch):
    monkeypatch.setattr(working_memory, "MEASURED", 128)
    monkeypatch.setattr(row_blocks, "SCORES", 2**17)  # 6 rows of 320 tokens take several blocks
    check(name, 6, 320, within=0.2)


@pytest.mark.parametrize("layers", [["cope", "kernelized_rpe"], ["kernelized_rpe", "cope"]])
def test_pairs_count_if_any_layer_holds_scores(layers):
    model = Transformer(50, partial(LayerPattern, layers=layers), width=8, layers=2, heads=2)
    assert working_memory._size(model, 2, 100) == 100**2


@pytest.mark.parametrize("rows", [1, 3, 8])
@pytest.mark.parametrize("scores", [2**24, 2**15])  # one block, and several
@pytest.mark.parametrize(
    "encoding",
    [
        partial(FIRE, hidden=8),
        FIRE,
        partial(FIRE, hidden=64),
        DAPE,
        partial(DAPE, kernel=1, hidden=8),
        partial(DAPE, bias="none", hidden=64),
    ],
)
def test_hidden_units_of_a_bias_are_part_of_the_scratch_memory(encoding, scores, rows, monkeypatch):
    monkeypatch.setattr(row_blocks, "SCORES", scores)
    heads, channels, length = 4, 2, 128
    module = encoding(heads * channels, heads, heads, channels)
    x = torch.randn(rows, length, heads * channels)
    q, k, v = (torch.randn(rows, length, heads, channels, requires_grad=True) for _ in range(3))
    context = Context.of(module, q)
    with working_memory.LiveBytes() as live:
        out = module(x, q, k, v, context)
        saved = live.now
        out.sum().backward()
    assert module.scratch_bytes(rows, length, length) == pytest.approx(live.peak - saved, rel=0.2)
