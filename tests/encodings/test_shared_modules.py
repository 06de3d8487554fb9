"""Encodings whose layers share a module: SeqPE with its auxiliary losses, and positional attention."""

from functools import partial
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from encodings_support import ENCODINGS, HEADS, KV_HEADS, WIDTH, attend, make_encoding, make_inputs, one_thread  # noqa: F401

from bearings.encodings.families.digit_draws import EDITED, compared_with, digits_of, edited
from bearings.encodings.families.digits import contrastive, transfer
from bearings.encodings.pattern import LayerPattern
from bearings.kernels import reference
from bearings.lightning_modules.language_model import LanguageModel
from bearings.lightning_modules.transformer import Transformer

pytestmark = pytest.mark.usefixtures("one_thread")
EXACT = {"rtol": 0.0, "atol": 1e-10}
SIZES = {"vocabulary": 11, "width": 16, "layers": 2, "heads": 2, "seed": 3}
LOSSES = ["seqpe_contrastive", "seqpe_transfer"]


def encoder(**options):
    """A digit encoder in float64 with larger parameters than initial ones."""
    torch.manual_seed(0)
    module = ENCODINGS["seqpe"](WIDTH, HEADS, KV_HEADS, 4, **options).shared_module().double().eval()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.normal_(std=0.5)
    return module


def model_of(name="seqpe", **options):
    return Transformer(encoding=partial(ENCODINGS[name], **options), **SIZES)


def pieces_of(model, tokens):
    state = model.new_state(len(tokens), tokens.shape[1])
    return torch.cat([model(piece, state) for piece in tokens.split([5, 1, 3], 1)], 1)


@torch.no_grad()
def test_seqpe_without_projections_is_nope():
    model, plain, tokens = model_of(), model_of("nope"), torch.arange(18).view(2, 9) % 11
    model.eval()
    shared = model.shared["SeqPE"]
    assert not torch.equal(model(tokens), plain(tokens))
    shared.query.weight.zero_()
    torch.testing.assert_close(model(tokens), plain(tokens))


@torch.no_grad()
def test_seqpe_adds_the_product_of_position_vectors():
    encoding, i, module = make_encoding("seqpe", head_dim=4), make_inputs(7, head_dim=4), encoder()
    query, key = module(torch.arange(7))
    scores = torch.einsum("bthc,bshc->bhts", i.q, i.k.repeat_interleave(2, 2))
    scores = scores + torch.einsum("thc,shc->hts", query, key.repeat_interleave(2, 1))
    context = SimpleNamespace(positions=torch.arange(7), shared=(query, key), documents=None, plan="torch")
    found = encoding(i.x, i.q, i.k, i.v, context)
    torch.testing.assert_close(found, reference.attend(scores, i.q, i.v, None), **EXACT)


@torch.no_grad()
def test_a_position_vector_depends_on_its_number_only():
    module = encoder()
    row = torch.tensor([0, 1, 2, 0, 1, 0, 1, 2, 3])
    query, key = module(torch.stack([row, row.flip(0).clamp(max=8)]))
    expected = module(torch.arange(4))
    for packed, single in zip((query, key), expected, strict=True):
        torch.testing.assert_close(packed[0], single[row], **EXACT)
    later = module(torch.arange(2, 4))  # as in decoding
    torch.testing.assert_close(later[0], expected[0][2:], **EXACT)


@torch.no_grad()
def test_digits():
    assert digits_of(torch.tensor([0, 7, 123, 19999]), 5).tolist() == [
        *([0, 0, 0, 0, 0], [0, 0, 0, 0, 7], [0, 0, 1, 2, 3], [1, 9, 9, 9, 9])
    ]
    assert [encoder(length=length).count for length in (10, 11, 20_000, 100_000, 100_001)] == [1, 2, 5, 5, 6]
    module = encoder(length=100)
    found = module.encode(torch.arange(100))
    assert torch.pdist(found).min() > 1e-3  # all differ


def test_one_module_for_all_layers():
    model = model_of(length=200)
    shared = model.shared["SeqPE"]
    calls = []
    shared.register_forward_hook(lambda *_: calls.append(1))
    tokens = torch.arange(18).view(2, 9) % 11
    model.nats(tokens, tokens).backward()
    assert len(calls) == 1
    assert all(parameter.grad is not None for parameter in shared.parameters())
    names = [name for name, _ in model.named_parameters() if "SeqPE" in name]
    assert names
    assert all(name.startswith("shared.SeqPE.") for name in names)
    own = sum(parameter.numel() for parameter in shared.parameters())
    assert model.parameter_count() - model_of("nope").parameter_count() == own
    assert model.flops_per_token(9) == pytest.approx(
        model_of("nope").flops_per_token(9) + 0.5 * 2 * model.encodings[0].attention_flops(9) / 1.5 / 9
    )


def test_layers_without_vectors_of_positions_share_no_module():
    model = model_of("positional_attention", positions="one_hot", length=9)
    assert not model.shared
    assert model(torch.zeros(1, 9, dtype=torch.int64)).isfinite().all()


def test_shared_modules_in_patterns():
    layers = [{"seqpe": {"window": 4}}, "nope", {"positional_attention": {"positions": "learned"}}]
    model = Transformer(encoding=partial(LayerPattern, layers=layers), **{**SIZES, "layers": 5}).double().eval()
    assert [*model.shared] == ["SeqPE", "PositionalAttention"]
    tokens = torch.arange(18).view(2, 9) % 11
    with torch.no_grad():
        torch.testing.assert_close(pieces_of(model, tokens), model(tokens), **EXACT)
    with pytest.raises(ValueError, match="layers: seqpe has one module for all layers: give all its layers the same"):
        LayerPattern(16, 2, 2, 8, layers=["seqpe", {"seqpe": {"dropout": 0.0}}])


@pytest.mark.parametrize(
    ("name", "kind", "options"),
    [
        ("seqpe", "SeqPE", {}),
        ("positional_attention", "PositionalAttention", {"positions": "learned"}),
        ("positional_attention", "PositionalAttention", {"positions": "one_hot"}),
    ],
)
def test_positions_beyond_the_longest_raise(name, kind, options):
    model = model_of(name, length=6, **options).eval()
    assert model.longest == 6
    message = f"length=6: {kind} has no positions for a context of 7 tokens: use a larger length"
    tokens = torch.zeros(1, 7, dtype=torch.int64)
    with pytest.raises(ValueError, match=message):
        model(tokens)
    state = model.new_state(1, 7)
    model(tokens[:, :6], state)
    with pytest.raises(ValueError, match=message):
        model(tokens[:, 6:], state)
    assert model_of("positional_attention").longest is None


@torch.no_grad()
@pytest.mark.parametrize("positions", ["sinusoidal", "learned", "one_hot"])
def test_positional_attention_is_the_same_for_any_input(positions):
    encoding = make_encoding("positional_attention", positions=positions, length=64)
    given = make_inputs(12), make_inputs(12, seed=1)
    for other in (given[0]._replace(x=given[1].x), given[0]._replace(q=given[1].q, k=given[1].k)):
        assert torch.equal(attend(encoding, other), attend(encoding, given[0]))
    difference = given[0]._replace(v=given[0].v - given[1].v)
    linear = attend(encoding, given[0]) - attend(encoding, given[1])
    torch.testing.assert_close(attend(encoding, difference), linear, **EXACT)  # as the weights do not change
    equal = attend(make_encoding("nope"), given[0])
    assert not torch.allclose(attend(encoding, given[0]), equal)


def test_positional_attention_has_no_projections_of_content():
    model, plain = model_of("positional_attention"), model_of("nope")
    assert {*model.blocks[0].attention.qkv.parts()} == {"value"}
    # As many weights as the projections that it replaces, and biases.
    assert model.parameter_count() == plain.parameter_count() + 2 * 2 * 16
    learned = model_of("positional_attention", positions="learned", length=50)
    assert learned.parameter_count() == model.parameter_count() + 50 * 16
    tokens = torch.arange(18).view(2, 9) % 11
    model.nats(tokens, tokens).backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_seqpe_shifts_some_passes_in_training():
    module, index = encoder(length=1000, shift_rate=0.5, dropout=0.0), torch.arange(10)
    seen = []
    module.digit.register_forward_hook(lambda _, given, out: seen.append(given[0]))
    with torch.no_grad():
        module(index)
        module.train()
        for _ in range(200):
            module(index)
    numbers = [int("".join(map(str, digits.tolist()))) for rows in seen for digits in rows[:1]]
    starts = torch.tensor(numbers[1:])
    assert numbers[0] == 0
    assert 60 < (starts > 0).sum() < 140
    assert starts.max() <= 990
    assert 300 < starts[starts > 0].float().mean() < 690


def test_numbers_to_compare_are_drawn_as_described():
    torch.manual_seed(0)
    pivots = torch.randint(20_000, (4000,))
    others = compared_with(pivots, 32, 20_000, 5)
    assert others.shape == (4000, 32)
    assert others.min() >= 0
    assert others.max() < 20_000
    spread = others.amax(1) - others.amin(1)
    assert (spread < 256).float().mean().item() == pytest.approx(0.6, abs=0.03)
    wide = others[spread >= 256]
    count = int(EDITED * 32)
    nearest = (wide - pivots[spread >= 256, None]).abs().argmin(1)
    assert (nearest >= count).float().mean() > 0.7  # edited numbers are not the nearest
    short = compared_with(torch.arange(7), 6, 7, 1)
    assert short.min() >= 0
    assert short.max() < 7


def test_edited_numbers_are_a_few_digits_away():
    torch.manual_seed(0)
    numbers = torch.full((4000,), 123)
    found = edited(numbers, 20_000, 5)
    assert found.max() < 20_000
    for expected in (12, 213, 1231, 133, 23):
        assert (found == expected).any()
    assert (found == 123).float().mean() < 0.3


def test_contrastive_loss_equals_a_loop():
    torch.manual_seed(0)
    e, compared = torch.randn(3, 8).double(), torch.randn(3, 4, 8).double()
    pivots, others = torch.tensor([5, 9, 100]), torch.tensor([[1, 6, 8, 20], [9, 3, 14, 0], [1, 2, 101, 99]])
    losses = [F.cross_entropy(compared[0] @ e[0], torch.tensor(1))]
    losses += [
        F.cross_entropy(compared[1, 1:] @ e[1], torch.tensor(1)),
        F.cross_entropy(compared[2] @ e[2], torch.tensor(2)),
    ]
    torch.testing.assert_close(contrastive(e, compared, pivots, others), torch.stack(losses).mean(), **EXACT)


def test_transfer_loss_is_a_symmetric_divergence():
    torch.manual_seed(0)
    moved, trained = torch.randn(3, 5, 2, 4).double(), torch.randn(3, 5, 2, 4).double()
    first, second = (torch.einsum("snhd,smhd->shnm", x, x).log_softmax(-1) for x in (moved, trained))
    pairs = (first, second), (second, first)
    expected = sum(F.kl_div(*pair, log_target=True, reduction="sum") for pair in pairs) / first.numel()
    torch.testing.assert_close(transfer(moved, trained), expected, **EXACT)
    assert transfer(moved, moved) == 0


def step_of(model, **options):
    """The loss and auxiliary losses of a step, and its gradients."""
    module = LanguageModel(model.train(), seed=0, steps=5, **options)
    module.manual_backward, module.device_mesh = torch.Tensor.backward, None
    module.trainer = SimpleNamespace(strategy=None)
    torch.manual_seed(5)
    tokens = torch.arange(36).view(4, 9) % 11
    loss, auxiliary = module._accumulate({"inputs": tokens, "targets": tokens})
    gradients = {name: parameter.grad for name, parameter in model.named_parameters()}
    return loss, dict(zip(module.auxiliary_names, auxiliary, strict=True)), gradients


def test_auxiliary_losses_train_but_are_not_part_of_the_nats():
    plain = {"length": 100, "dropout": 0.0, "shift_rate": 0.0}
    loss, losses, gradients = step_of(model_of(**plain))
    nats, none, without = step_of(model_of(**plain, contrastive=0.0, transfer=0.0))
    assert [*losses] == LOSSES
    assert none == {}
    assert torch.equal(loss, nats)
    assert all(0 < value < 1 for value in losses.values())
    for name, gradient in gradients.items():
        same = torch.equal(gradient, without[name])
        assert same == (not name.startswith("shared.") or ".query." in name or ".key." in name), name
    only, _, _ = step_of(model_of(**plain, contrastive=0.0))
    assert torch.equal(only, nats)


def test_auxiliary_losses_are_added_once_for_all_micro_batches():
    plain = {"length": 100, "dropout": 0.0, "shift_rate": 0.0}
    whole, parts = (step_of(model_of(**plain), micro_batch=rows) for rows in (None, 1))
    for name, value in whole[1].items():
        torch.testing.assert_close(parts[1][name], value)
    for name, gradient in whole[2].items():
        torch.testing.assert_close(parts[2][name], gradient, rtol=1e-3, atol=1e-6)


def test_no_auxiliary_losses_in_evaluation():
    model = model_of()
    assert [*model.train().auxiliary_losses(9)] == LOSSES
    assert model.eval().auxiliary_losses(9) == {}
    assert model_of("rope").train().auxiliary_losses(9) == {}


@pytest.mark.parametrize("name", ENCODINGS)
def test_every_encoding_names_its_auxiliary_losses(name):
    model = Transformer(11, ENCODINGS[name], width=16, layers=1, heads=2).train()
    names = {each for module in model.position_modules for each in module.auxiliary}
    assert model.auxiliary_losses(9).keys() == names
    assert model.eval().auxiliary_losses(9) == {}


def test_errors():
    with pytest.raises(ValueError, match="width=15: SeqPE's encoder has 2 heads"):
        ENCODINGS["seqpe"](15, 2, 2, 8)
    with pytest.raises(ValueError, match="width=15: sinusoids need pairs"):
        ENCODINGS["positional_attention"](15, 3, 3, 5)
