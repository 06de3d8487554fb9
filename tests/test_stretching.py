"""Frequencies stretched after training: against hand-computed ones, and what must not change."""

import math

import pytest
import torch

from bearings.encodings.nope import NoPE
from bearings.encodings.pope import PoPE
from bearings.encodings.rope import RoPE
from bearings.kernels.stretching import Stretch

PLAIN = [1.0, 0.1, 0.01, 0.001]  # base 10,000, four pairs


def test_interpolation_divides_every_frequency():
    assert Stretch("interpolation", 4, 64).frequencies(4, 1e4) == pytest.approx([theta / 4 for theta in PLAIN])


def test_ntk_keeps_the_highest_divides_the_lowest_and_is_a_larger_base():
    got = Stretch("ntk", 8, 64).frequencies(4, 1e4)
    assert got[0] == 1
    assert got[-1] == pytest.approx(0.001 / 8)
    base = 1e4 * 8 ** (8 / 6)  # D / (D - 2)
    assert got == pytest.approx([base ** (-c / 4) for c in range(4)])


def test_yarn_keeps_fast_frequencies_divides_slow_ones_and_blends_between():
    got = Stretch("yarn", 4, 1000).frequencies(4, 1e4)
    turns = [1000 * theta / (2 * math.pi) for theta in PLAIN]  # 159, 15.9, 1.59, 0.159
    share = [1, (turns[1] - 1) / 31, (turns[2] - 1) / 31, 0]
    assert got == pytest.approx([theta * (g + (1 - g) / 4) for theta, g in zip(PLAIN, share, strict=True)])
    assert Stretch("yarn", 4, 1000).attention_factor == pytest.approx(0.1 * math.log(4) + 1)
    assert Stretch("ntk", 4, 1000).attention_factor == 1


@pytest.mark.parametrize(("form", "factor", "length"), [("magic", 2, 64), ("ntk", 0.5, 64), ("yarn", 2, 0)])
def test_values_out_of_range_are_refused(form, factor, length):
    with pytest.raises(ValueError, match="must be"):
        Stretch(form, factor, length)


def inputs(length=24):
    torch.manual_seed(0)
    x, q, k, v = (torch.randn(2, length, 2, 8, dtype=torch.float64) for _ in range(4))
    return x.flatten(2), q, k, v


@pytest.mark.parametrize(("kind", "form"), [(kind, form) for kind in (RoPE, PoPE) for form in kind.stretches])
def test_a_stretch_changes_the_output_and_is_undone(kind, form):
    encoding = kind(16, 2, 2, 8).double()
    plain, _ = encoding(*inputs())
    before = {name: value.clone() for name, value in encoding.state_dict().items()}
    encoding.stretch(Stretch(form, 1, 24))
    # By a factor of 1 it changes nothing but rounding.
    torch.testing.assert_close(encoding(*inputs())[0], plain)
    encoding.stretch(Stretch(form, 4, 24))
    assert (encoding(*inputs())[0] - plain).abs().max() > 1e-3
    torch.testing.assert_close(dict(encoding.state_dict()), before, rtol=0, atol=0)
    encoding.stretch(None)
    assert torch.equal(encoding(*inputs())[0], plain)


@pytest.mark.parametrize("kind", [RoPE, PoPE])
def test_interpolation_by_four_sees_every_fourth_position_as_the_trained_model_sees_each(kind):
    encoding = kind(16, 2, 2, 8).double()
    _, q, _, _ = inputs(6)
    near = torch.arange(6)
    plain = encoding.encode_query(q, near), encoding.encode_key(q, near)
    encoding.stretch(Stretch("interpolation", 4, 6))
    far = encoding.encode_query(q, 4 * near), encoding.encode_key(q, 4 * near)
    torch.testing.assert_close(far, plain)


@pytest.mark.parametrize(("kind", "form"), [(kind, form) for kind in (RoPE, PoPE) for form in kind.stretches])
def test_a_stretched_encoding_decodes_as_it_reads(kind, form):
    encoding = kind(16, 2, 2, 8).double()
    encoding.stretch(Stretch(form, 3, 8))
    x, q, k, v = inputs()
    whole, _ = encoding(x, q, k, v)
    state = encoding.new_state(2, 24, x)
    parts = [encoding(*(tensor[:, a:b] for tensor in (x, q, k, v)), state)[0] for a, b in ((0, 10), (10, 11), (11, 24))]
    torch.testing.assert_close(torch.cat(parts, 1), whole)


@pytest.mark.parametrize("name", ["triton", "cudnn"])
def test_stretched_pope_says_before_it_runs_that_no_kernel_serves_it(name):
    encoding = PoPE(16, 2, 2, 8, implementation=name)
    encoding.stretch(None)
    with pytest.raises(ValueError, match=f"implementation={name}: stretched PoPE is computed by PyTorch's attention"):
        encoding.stretch(Stretch("ntk", 2, 64))


def test_an_encoding_without_such_frequencies_says_what_it_takes():
    with pytest.raises(ValueError, match="stretch=yarn: NoPE takes none"):
        NoPE(16, 2, 2, 8).stretch(Stretch("yarn", 2, 64))
    with pytest.raises(ValueError, match="stretch=yarn: PoPE takes interpolation, ntk"):
        PoPE(16, 2, 2, 8).stretch(Stretch("yarn", 2, 64))
