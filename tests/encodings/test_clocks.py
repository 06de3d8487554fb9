"""Rotations by angles that depend on content: special cases that equal RoPE or NoPE, and their initialisation."""

import pytest
import torch
import torch.nn.functional as F
from encodings_support import ENCODINGS, HEADS, KV_HEADS, WIDTH, attend, make_encoding, make_inputs

from bearings.encodings.contract.context import Context
from bearings.kernels import reference
from bearings.kernels.attention.rope import rope_attention

EXACT = {"rtol": 0.0, "atol": 1e-12}


def made(name, head_dim=16, **options):
    """With initial parameters, in float64."""
    torch.manual_seed(0)
    return ENCODINGS[name](WIDTH, HEADS, KV_HEADS, head_dim, **options).double()


def rope_at(inputs, frequencies):
    phases = torch.arange(inputs.q.shape[1])[:, None, None].double() * torch.as_tensor(frequencies, dtype=torch.float64)
    return reference.turned_attention(inputs.q, inputs.k, inputs.v, phases.expand(1, -1, KV_HEADS, -1))


@pytest.mark.parametrize("head_dim", [2, 16, 64])
@pytest.mark.parametrize("base", [10000.0, 500.0])
def test_carope_without_weights_is_rope_from_the_second_frequency(head_dim, base):
    encoding, inputs = made("carope", head_dim, base=base), make_inputs(21, head_dim)
    with torch.no_grad():
        encoding.reset_parameters()  # again, in float64
        encoding.projection.weight.zero_()
        expected = rope_at(inputs, [base ** (-2 * c / head_dim) for c in range(1, head_dim // 2 + 1)])
        torch.testing.assert_close(attend(encoding, inputs), expected, **EXACT)


def test_carope_without_weights_at_the_paper_s_base():
    """softplus(0) = ln 2 gives f = 0.59."""
    encoding, inputs = made("carope"), make_inputs(21)
    with torch.no_grad():
        encoding.projection.weight.zero_()
        encoding.projection.bias.zero_()
        frequency = 1 / (1 + torch.tensor(2.0).double().log())
        expected = rope_at(inputs, frequency ** torch.arange(1, 9))
        torch.testing.assert_close(attend(encoding, inputs), expected, **EXACT)


@pytest.mark.parametrize("name", ["carope", "selective_rope"])
def test_phases_of_a_repeated_token_are_linear(name):
    encoding, inputs = make_encoding(name), make_inputs(1)
    x = inputs.x.expand(-1, 30, -1)
    with torch.no_grad():
        phases = encoding.phases(x, Context.of(encoding, x))
    steps = phases.diff(dim=1)[:, 3:]  # the convolution reaches back three tokens
    torch.testing.assert_close(steps, steps[:, :1].expand_as(steps), **EXACT)
    assert steps.abs().min() > 0


@pytest.mark.parametrize(("gate", "speed"), [(False, 1.0), (True, 0.5)])
def test_selective_rope_with_bias_and_without_weights_is_rope(gate, speed):
    encoding, inputs = made("selective_rope", base=10000.0, bias=True, gate=gate), make_inputs(21)
    with torch.no_grad():
        encoding.up.weight.zero_()
        if gate:
            encoding.gate.weight.zero_()  # the sigmoid of 0 is 1/2
        expected = rope_at(inputs, [speed * 10000 ** (-c / 8) for c in range(8)])
        torch.testing.assert_close(attend(encoding, inputs), expected, **EXACT)


def test_selective_rope_options():
    """SiLU, bias and gate, with a convolution that reads only the newest token."""
    encoding = make_encoding("selective_rope", convolution=1, silu=True, bias=True, gate=True)
    x = make_inputs(1).x
    with torch.no_grad():
        rates = encoding.rates(x)
        unit = F.normalize(x.unflatten(-1, (KV_HEADS, -1)), dim=-1).flatten(-2)
        omega = F.silu(encoding.up(encoding.down(unit)) * encoding.taps[0]) + encoding.bias.exp()
        gates = torch.sigmoid(encoding.gate(unit))
    wanted = omega.unflatten(-1, (KV_HEADS, -1)) * gates.unsqueeze(-1) * 500000.0 ** (-torch.arange(8).double() / 8)
    torch.testing.assert_close(rates, wanted, rtol=1e-5, atol=0.0)  # the norm has a small constant
    assert set(dict(encoding.named_parameters())) == {
        *("down.weight", "up.weight", "taps", "bias", "gate.weight", "gate.bias")
    }


def test_repo_without_weights_is_nope():
    encoding, inputs = made("repo"), make_inputs(21)
    with torch.no_grad():
        encoding.position.weight.zero_()
        torch.testing.assert_close(
            attend(encoding, inputs), reference.nope_attention(inputs.q, inputs.k, inputs.v), **EXACT
        )


def test_repo_at_positions_that_count_tokens_is_rope(monkeypatch):
    encoding, inputs = made("repo"), make_inputs(21)
    counted = torch.arange(21.0)[:, None].expand(2, -1, KV_HEADS)
    monkeypatch.setattr(encoding, "positions", lambda x: counted)
    torch.testing.assert_close(attend(encoding, inputs), rope_attention(inputs.q, inputs.k, inputs.v), **EXACT)


@pytest.mark.parametrize("name", ["carope", "selective_rope", "repo"])
def test_state_holds_phases_in_float64_and_parameters_are_not_rounded(name):
    encoding = ENCODINGS[name](WIDTH, HEADS, KV_HEADS, 16).to(torch.bfloat16)
    assert {parameter.dtype for parameter in encoding.parameters()} == {torch.float32}
    like = torch.zeros(1, dtype=torch.bfloat16)
    state = encoding.new_state(2, 5, like)
    assert state.keys.dtype == torch.bfloat16
    if name != "repo":
        assert state.phases.dtype == torch.float64
        assert state.phases.shape == (2, KV_HEADS, 8)


def test_errors():
    with pytest.raises(ValueError, match="head_dim=15: CARoPE needs a multiple of 2"):
        ENCODINGS["carope"](WIDTH, HEADS, KV_HEADS, 15)
    with pytest.raises(ValueError, match="width=13, kv_heads=2"):
        ENCODINGS["selective_rope"](13, HEADS, KV_HEADS, 16)
    with pytest.raises(ValueError, match="base"):
        ENCODINGS["carope"](WIDTH, HEADS, KV_HEADS, 16, base=1.0)
