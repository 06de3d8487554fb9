"""TAPE: what layers pass on, in models with updates as large as trained ones."""

from functools import partial

import pytest
import torch
from encodings_support import ENCODINGS, make_documents, one_thread  # noqa: F401
from torch.nn import functional as F

from bearings.encodings.pattern import LayerPattern
from bearings.encodings.tape import TAPE, Update
from bearings.kernels.stretching import Stretch
from bearings.lightning_modules.conversion import matched
from bearings.lightning_modules.portraits import look_inside
from bearings.lightning_modules.transformer import Transformer

pytestmark = pytest.mark.usefixtures("one_thread")
EXACT = {"rtol": 0.0, "atol": 1e-10}
SIZES = {"vocabulary": 11, "width": 32, "layers": 3, "heads": 4, "kv_heads": 2, "head_dim": 16, "seed": 3}
TOKENS = torch.arange(60).view(2, 30).square() % 11


def untrained(name="tape", sizes=SIZES, **options) -> Transformer:
    return Transformer(encoding=partial(ENCODINGS[name], **options), **sizes).double().eval()


def trained(encoding=TAPE, **changed) -> Transformer:
    """With weights so large that every update matters."""
    model = Transformer(encoding=encoding, **{**SIZES, **changed}).double().eval()
    torch.manual_seed(0)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" not in name:
                parameter.normal_(std=0.3)
    return model


@torch.no_grad()
@pytest.mark.parametrize("options", [{}, {"base": 300.0, "window": 5}, {"scaling": "ntk", "scaling_factor": 2.0}])
def test_without_updates_it_is_rope(options):
    tape, rope = untrained(**options), untrained("rope", **options)
    torch.testing.assert_close(tape(TOKENS), rope(TOKENS), **EXACT)
    for form in ("interpolation", "yarn", "window"):
        for model in (tape, rope):
            for encoding in model.encodings:
                encoding.stretch(Stretch(form, 4.0, 8) if form in encoding.supported_stretches else None)
        torch.testing.assert_close(tape(TOKENS), rope(TOKENS), **EXACT)


@torch.no_grad()
@pytest.mark.parametrize("window", [None, 5])
def test_pieces_and_packed_documents_equal_full_passes(window):
    model = trained(partial(TAPE, window=window))
    full, state = model(TOKENS), model.new_state(2, 30)
    assert not torch.allclose(full, trained(ENCODINGS["rope"])(TOKENS), atol=1e-2)
    pieces = [model(piece, state) for piece in TOKENS.split([9, 1, 1, 17, 2], 1)]
    torch.testing.assert_close(torch.cat(pieces, 1), full, **EXACT)
    lengths = [12, 1, 17]
    packed = model(TOKENS, documents=make_documents(lengths))
    for row, order in enumerate((lengths, lengths[::-1])):
        separate = [model(piece) for piece in TOKENS[row : row + 1].split(order, 1)]
        torch.testing.assert_close(packed[row], torch.cat(separate, 1)[0], **EXACT)


@torch.no_grad()
def test_a_shift_of_all_positions_changes_nothing(monkeypatch):
    model = trained()
    expected = model(TOKENS)
    for encoding in model.encodings:
        monkeypatch.setattr(encoding, "placed", lambda index, medium: index + 1000)
    torch.testing.assert_close(model(TOKENS), expected, **EXACT)


def test_update_equals_the_equations():
    torch.manual_seed(0)
    update = Update(12, 4, 2, 5).double()
    carried, averaged, branch = torch.randn(2, 3, 2, 8), torch.randn(2, 3, 4, 8), torch.randn(2, 3, 12)
    carried, averaged, branch = (x.double().requires_grad_() for x in (carried, averaged, branch))
    for parameter in update.parameters():
        parameter.data.normal_()
    added = carried + torch.stack([(averaged * update.factor[:, None])[:, :, h : h + 2].sum(2) for h in (0, 2)], 2)
    up = torch.einsum("ih,bthd->btid", update.up, added)
    gated = up * F.silu(branch @ update.gate.weight.T).unsqueeze(-1)
    expected = added + torch.einsum("hi,btid->bthd", update.down, gated)
    torch.testing.assert_close(update(carried, averaged, branch), expected, **EXACT)
    names, values = zip(*update.named_parameters(), strict=True)

    def updated(*given):
        return torch.func.functional_call(update, dict(zip(names, given[3:], strict=True)), given[:3])

    assert torch.autograd.gradcheck(updated, (carried, averaged, branch, *values), fast_mode=True)


def test_every_parameter_learns_with_and_without_checkpointing():
    found = []
    for checkpointing in (False, True):
        model = trained(checkpointing=checkpointing, dropout=0.1).train()
        torch.manual_seed(5)
        model.nats(TOKENS, TOKENS.roll(1)).backward()
        found.append({name: parameter.grad for name, parameter in model.named_parameters()})
        assert all(gradient.abs().max() > 0 for gradient in found[-1].values())
    torch.testing.assert_close(found[1], found[0], **EXACT)


def test_costs():
    model, rope = untrained(), untrained("rope")
    assert [[*encoding.parameters()] == [] for encoding in model.encodings] == [False, False, True]
    update = 4 + 2 * 2 * 8 + 8 * 32  # factors, up and down, gate
    assert model.parameter_count() - rope.parameter_count() == 2 * update
    pairs = rope.encodings[0].attention_flops(10) / 10
    operations = 2 * 4 * 16 + 2 * 2 * 2 * 8 + 2 * 2 * 2 * 16 + 2 * 8 * 32
    assert model.flops_per_token(10) == rope.flops_per_token(10) + 2 * (pairs / 2 + operations)
    widths = [(state.keys.shape[-1], state.values.shape[-1]) for state in model.new_state(1, 4).layers]
    assert widths == [(16, 32), (16, 32), (16, 16)]


def test_a_converted_rope_model_starts_with_its_attention():
    model, teacher = untrained(), untrained("rope")
    counted = torch.ones_like(TOKENS, dtype=torch.bool)
    assert matched(model, teacher, TOKENS, counted) < 1e-20


@torch.no_grad()
def test_patterns_pass_on_through_other_layers():
    layers = [{"rope": {"window": 7}}, "tape", "nope", "tape"]
    model = trained(partial(LayerPattern, layers=layers), layers=5)
    assert [getattr(encoding, "last", None) for encoding in model.encodings] == [None, False, None, True, None]
    expected, state = model(TOKENS), model.new_state(2, 30)
    pieces = [model(piece, state) for piece in TOKENS.split([9, 1, 20], 1)]
    torch.testing.assert_close(torch.cat(pieces, 1), expected, **EXACT)
    model.encodings[1].update.factor.zero_()
    assert not torch.allclose(model(TOKENS), expected, atol=1e-3)
    with pytest.raises(ValueError, match="layers: tape has one tensor for all layers: give all their layers the same"):
        LayerPattern(32, 4, 2, 16, layers=["tape", {"tape": {"window": 4}}])


@torch.no_grad()
def test_measured_attention_is_that_of_the_layer():
    model = trained(vocabulary=31)
    tokens, outs = torch.arange(30).view(1, 30), []
    hooks = [each.register_forward_hook(lambda _, given, out: outs.append((given[3], out))) for each in model.encodings]
    attention, _ = look_inside(model, tokens, lambda _, attention: attention.mean(0))
    for hook in hooks:
        hook.remove()
    for weights, (v, out) in zip(attention, outs, strict=True):
        expected = torch.einsum("hts,shd->thd", weights.double(), v[0].repeat_interleave(2, 1))
        torch.testing.assert_close(out[0, ..., :16], expected, rtol=0.0, atol=1e-5)


def test_compiled_blocks_equal_eager_ones():
    model = trained(layers=2).float()
    eager = model.nats(TOKENS, TOKENS)
    torch.compiler.reset()
    model.compile_parts(backend="eager")
    torch.testing.assert_close(model.nats(TOKENS, TOKENS), eager, rtol=1e-4, atol=1e-4)
    torch.compiler.reset()
