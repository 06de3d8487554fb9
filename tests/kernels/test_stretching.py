"""Frequency scaling after training, compared with `transformers` and hand-computed values."""

import json
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from encodings_support import attend
from fused_support import DEVICE

from bearings.encodings.nope import NoPE
from bearings.encodings.pope import PoPE
from bearings.encodings.rope import RoPE
from bearings.kernels.stretching import Stretch

PLAIN = [1.0, 0.1, 0.01, 0.001]  # base 10,000, four pairs
RECORDED = json.loads((Path(__file__).parents[1] / "fixtures" / "rope_scaling.json").read_text())["cases"]
EVERY_FORM = [(kind, form) for kind in (RoPE, PoPE) for form in kind.stretches]


def stretch(form, factor, length):
    """A `Stretch`, with factors for four pairs if the form is longrope."""
    return Stretch(form, factor, length, *([[1.0, 1.5, 2.0, 4.0]] if form == "longrope" else []))


@pytest.mark.parametrize("form", RoPE.stretches)
def test_frequencies_match_transformers(form):
    cases = [case for case in RECORDED if case["form"] == form]
    if form == "ntk":  # transformers has only dynamic_ntk; at this length it has the same base
        cases = [case for case in RECORDED if case["form"] == "dynamic_ntk"]
    assert len(cases) == 8
    for case in cases:
        given = [case[key] for key in ("factor", "length")]
        lists = [case.get(f"{which}_factors", ()) for which in ("long", "short")]
        if form == "ntk":
            given[0] = given[0] * case["tokens"] / case["length"] - (given[0] - 1)
        found = Stretch(form, *given, *lists)
        frequencies = found.frequencies(len(case["frequencies"]), case["base"], case["tokens"])
        assert frequencies == pytest.approx(case["frequencies"], rel=2e-6)  # recorded in float32
        assert found.attention_factor == pytest.approx(case["attention_factor"], rel=1e-12)


def test_interpolation_divides_every_frequency():
    assert Stretch("interpolation", 4, 64).frequencies(4, 1e4, 64) == pytest.approx([theta / 4 for theta in PLAIN])


def test_ntk_is_a_larger_base():
    got = Stretch("ntk", 8, 64).frequencies(4, 1e4, 64)
    assert got[0] == 1
    assert got[-1] == pytest.approx(0.001 / 8)
    base = 1e4 * 8 ** (8 / 6)  # D / (D - 2)
    assert got == pytest.approx([base ** (-c / 4) for c in range(4)])


def test_dynamic_ntk_matches_ntk_for_actual_length():
    for tokens, factor in ((10, 1), (64, 1), (192, 3)):
        expected = Stretch("ntk", factor, 64).frequencies(4, 1e4, tokens)
        assert Stretch("dynamic_ntk", 1, 64).frequencies(4, 1e4, tokens) == pytest.approx(expected)


@pytest.mark.parametrize(("form", "factor", "length"), [("magic", 2, 64), ("ntk", 0.5, 64), ("yarn", 2, 0)])
def test_values_out_of_range_raise(form, factor, length):
    with pytest.raises(ValueError, match=r"must be (one of|at least)"):
        Stretch(form, factor, length)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (("longrope", 2, 64), "long_factors=.*: longrope needs one number per frequency"),
        (("longrope", 2, 64, [1.0, 2.0]), "long_factors: got 2 numbers; the encoding has 4 frequencies"),
        (("longrope", 2, 64, [1.0] * 4, [1.0]), "short_factors: got 1 numbers; the encoding has 4"),
        (("longrope", 2, 64, [1.0, 1.0, 0.0, 1.0]), "each number must be finite and above 0"),
        (("longrope", 2, 1, [1.0] * 4), "length=1: longrope"),
        (("yarn", 2, 64), "base=1.0: yarn needs a base above 1"),
    ],
)
def test_missing_arguments_of_a_form_raise(given, message):
    encoding = RoPE(16, 2, 2, 8, base=1.0)
    with pytest.raises(ValueError, match=message):
        encoding.stretch(Stretch(*given))
    assert encoding.stretching is None


def inputs(length=24):
    torch.manual_seed(0)
    x, q, k, v = (torch.randn(2, length, 2, 8, dtype=torch.float64) for _ in range(4))
    return x.flatten(2), q, k, v


@pytest.mark.parametrize(("kind", "form"), EVERY_FORM)
def test_stretch_changes_output_and_can_be_undone(kind, form):
    encoding = kind(16, 2, 2, 8).double()
    plain = attend(encoding, inputs())
    before = {name: value.clone() for name, value in encoding.state_dict().items()}
    encoding.stretch(stretch(form, 1, 24))
    # A factor of 1 changes results only by rounding.
    torch.testing.assert_close(attend(encoding, inputs()), plain)
    encoding.stretch(stretch(form, 4, 16))
    assert (attend(encoding, inputs()) - plain).abs().max() > 1e-3
    torch.testing.assert_close(dict(encoding.state_dict()), before, rtol=0, atol=0)
    encoding.stretch(None)
    assert torch.equal(attend(encoding, inputs()), plain)


@pytest.mark.parametrize("kind", [RoPE, PoPE])
def test_interpolation_by_four_matches_quarter_positions(kind):
    encoding = kind(16, 2, 2, 8).double()
    _, q, _, _ = inputs(6)
    near = torch.arange(6)
    plain = encoding.encode_query(q, near), encoding.encode_key(q, near)
    encoding.stretch(Stretch("interpolation", 4, 6))
    far = encoding.encode_query(q, 4 * near), encoding.encode_key(q, 4 * near)
    torch.testing.assert_close(far, plain)


@pytest.mark.parametrize(("kind", "form"), EVERY_FORM)
def test_stretched_decoding_matches_full_pass(kind, form):
    encoding = kind(16, 2, 2, 8).double()
    encoding.stretch(stretch(form, 3, 12))
    x, q, k, v = inputs()
    state = encoding.new_state(2, 24, x)
    ends = (0, 9, 10, 12, 13, 24)  # these pass the trained length
    for begin, end in pairwise(ends):
        part = attend(encoding, [tensor[:, begin:end] for tensor in (x, q, k, v)], state)
        # Compared with one pass over all tokens so far, because some forms depend on the length.
        whole = attend(encoding, [tensor[:, :end] for tensor in (x, q, k, v)])
        torch.testing.assert_close(part, whole[:, begin:])


@pytest.mark.parametrize("kind", [RoPE, PoPE])
def test_dynamic_ntk_does_not_change_trained_length(kind):
    encoding = kind(16, 2, 2, 8).double()
    plain = attend(encoding, inputs(24))
    encoding.stretch(Stretch("dynamic_ntk", 3, 24))
    torch.testing.assert_close(attend(encoding, inputs(24)), plain)
    encoding.stretch(Stretch("dynamic_ntk", 3, 23))
    assert (attend(encoding, inputs(24)) - plain).abs().max() > 1e-3


def test_unsupported_stretch_raises():
    with pytest.raises(ValueError, match="stretch=yarn: NoPE supports none"):
        NoPE(16, 2, 2, 8).stretch(Stretch("yarn", 2, 64))
    with pytest.raises(ValueError, match="stretch=yarn: PoPE supports interpolation, ntk, dynamic_ntk"):
        PoPE(16, 2, 2, 8).stretch(Stretch("yarn", 2, 64))


@pytest.mark.parametrize(("kind", "form"), [(RoPE, "longrope"), (RoPE, "yarn"), (PoPE, "dynamic_ntk")])
def test_stretched_kernels_match_torch(kind, form):
    """Prefill, a few tokens and one token; the trained length of 12 is passed on the way."""
    pytest.importorskip("triton")
    factors = [[1.0, 1.5, 2.0, 4.0, 4.0, 5.0, 6.0, 8.0]] if form == "longrope" else []
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, 24, heads, 16, device=DEVICE) for heads in (4, 2, 2))
    x, results = q.flatten(2), []
    for name in ("triton", "torch"):
        torch.manual_seed(1)
        encoding = kind(64, 4, 2, 16, implementation=name).to(DEVICE)
        encoding.stretch(Stretch(form, 3, 12, *factors))
        with torch.no_grad():
            state = encoding.new_state(2, 24, q)
            ends = pairwise((0, 11, 14, 15, 24))
            parts = [attend(encoding, [y[:, begin:end] for y in (x, q, k, v)], state) for begin, end in ends]
            results.append([attend(encoding, (x, q, k, v)), *parts])
        assert state.encoded is (name == "torch" and form == "yarn")
    for got, wanted in zip(*results, strict=True):
        torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-5)
