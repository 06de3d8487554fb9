"""Methods for longer contexts, compared with `transformers`, hand-computed values and dense attention."""

import json
import math
from itertools import pairwise
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from encodings_support import ENCODINGS, attend, make_encoding, make_inputs
from fused_support import DEVICE

from bearings.core.options import options_of
from bearings.encodings.nope import NoPE
from bearings.encodings.pope import PoPE
from bearings.encodings.rope import RoPE
from bearings.kernels.attention import lm_infinite
from bearings.kernels.stretching import ON_REQUEST, Stretch
from bearings.session.settings import declared

PLAIN = [1.0, 0.1, 0.01, 0.001]  # base 10,000, four pairs
RECORDED = json.loads((Path(__file__).parents[1] / "fixtures" / "rope_scaling.json").read_text())["cases"]
EVERY_FORM = [(kind, form) for kind in (NoPE, RoPE, PoPE) for form in (*kind.stretches, "window")]
FREQUENCIES = [form for form in RoPE.stretches if form not in ON_REQUEST]


def stretch(form, factor, length):
    """A `Stretch`, with factors for four pairs if the form is longrope, and three first keys if it is lm_infinite."""
    return Stretch(form, factor, length, *([[1.0, 1.5, 2.0, 4.0]] if form == "longrope" else []), first=3)


@pytest.mark.parametrize("form", FREQUENCIES)
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


def test_power_and_truncated_bases_of_giraffe():
    power = Stretch("power", 8, 64).frequencies(4, 1e4, 64)
    assert power == pytest.approx([1.0, 0.1 * 0.75**0.5, 0.01 * 0.5**0.5, 0.001 * 0.25**0.5])
    truncated = Stretch("truncated", 8, 100).frequencies(4, 1e4, 100)  # 2 pi / 100 = 0.0628
    assert truncated == pytest.approx([1.0, 0.1, 2 * math.pi / 1600, 0.0])


def test_dynamic_ntk_matches_ntk_for_actual_length():
    for tokens, factor in ((10, 1), (64, 1), (192, 3)):
        expected = Stretch("ntk", factor, 64).frequencies(4, 1e4, tokens)
        assert Stretch("dynamic_ntk", 1, 64).frequencies(4, 1e4, tokens) == pytest.approx(expected)


@pytest.mark.parametrize("factor", [1.1, 3, 1e17])
def test_dynamic_ntk_changes_nothing_within_the_trained_length(factor):
    plain = Stretch("dynamic_ntk", 1, 64).frequencies(4, 1e4, 64)
    assert Stretch("dynamic_ntk", factor, 64).frequencies(4, 1e4, 64) == plain


@pytest.mark.parametrize(
    ("form", "factor", "length"),
    [("magic", 2, 64), ("ntk", 0.5, 64), ("yarn", 2, 0), ("ntk", math.nan, 64), ("yarn", math.inf, 64)],
)
def test_values_out_of_range_raise(form, factor, length):
    with pytest.raises(ValueError, match=r"must be (one of|at least)"):
        Stretch(form, factor, length)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (("longrope", 2, 64), "long_factors=.*: longrope needs one number per frequency"),
        (("longrope", 2, 64, [1.0, 2.0]), "long_factors: got 2 numbers; the encoding has 4 frequencies"),
        (("longrope", 2, 64, [1.0] * 4, [1.0]), "short_factors: got 1 numbers; the encoding has 4"),
        (("longrope", 2, 64, [1.0, 1.0, 0.0, 1.0]), "^long_factors: 0.0 is not allowed; each number must be finite"),
        (("longrope", 2, 64, [1.0] * 4, [1.0, math.nan]), "^short_factors: nan is not allowed; each number must"),
        (("longrope", 2, 1, [1.0] * 4), "length=1: longrope"),
        (("yarn", 2, 64), "base=1.0: yarn needs a base above 1"),
        (("lm_infinite", 2, 10), "first_tokens=10: lm_infinite needs at least 1 and fewer than the trained 10"),
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
    if form not in ("power", "truncated"):  # a factor of 1 changes results only by rounding
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
    with pytest.raises(ValueError, match="stretch=yarn: NoPE supports lm_infinite, window"):
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


@pytest.mark.parametrize("name", [name for name, kind in ENCODINGS.items() if kind.windowed])
def test_window_for_longer_contexts_matches_window_option(name):
    encoding, given = make_encoding(name), make_inputs(20)
    encoding.stretch(Stretch("window", 2, 7))
    assert torch.equal(attend(encoding, given), attend(make_encoding(name, window=7), given))
    encoding.stretch(None)
    assert torch.equal(attend(encoding, given), attend(make_encoding(name), given))


@pytest.mark.parametrize("form", ["lm_infinite", "window"])
@pytest.mark.parametrize("kind", [NoPE, RoPE, PoPE])
def test_limited_keys_match_dense_attention(kind, form, monkeypatch):
    monkeypatch.setattr(lm_infinite, "ROWS", 5)
    encoding, (x, q, k, v) = kind(16, 4, 2, 8).double(), inputs()
    q = torch.cat([q, q.flip(1)], 2)
    encoding.stretch(stretch(form, 3, 7))
    t, s = torch.arange(24)[:, None], torch.arange(24)
    distance = t - s
    seen = (distance >= 0) & ((distance < 7) | (s < (3 if form == "lm_infinite" else 0)))
    scores = dense_scores(encoding, q, k.repeat_interleave(2, 2), distance.clamp(max=7)) * 8**-0.5
    weights = scores.masked_fill(~seen, -torch.inf).softmax(-1)
    expected = torch.einsum("bhts,bshd->bthd", weights, v.repeat_interleave(2, 2))
    torch.testing.assert_close(attend(encoding, (x, q, k, v)), expected)


def dense_scores(encoding, q, k, distance):
    """Unscaled scores `[B, H, T, S]` for keys at `distance [T, S]` before each query."""
    pairs, angle = 4, distance.double()[..., None, None]  # [T, S, H, c]
    if isinstance(encoding, PoPE):
        delta = encoding.phase_offset().repeat_interleave(2, 0)
        angle = angle * torch.tensor([1e4 ** (-c / 8) for c in range(8)], dtype=torch.float64) - delta
        products = torch.einsum("bthc,bshc->btshc", F.softplus(q), F.softplus(k))
        return (products * angle.cos()).sum(-1).movedim(-1, 1)
    turned = angle * torch.tensor(PLAIN, dtype=torch.float64) * isinstance(encoding, RoPE)
    q, k = (torch.complex(x[..., :pairs], x[..., pairs:]) for x in (q, k))
    products = torch.einsum("bthc,bshc->btshc", q, k.conj())
    return (products * torch.polar(torch.ones_like(turned), turned)).real.sum(-1).movedim(-1, 1)


@pytest.mark.parametrize("name", [name for name, kind in ENCODINGS.items() if "lm_infinite" in kind.stretches])
def test_lm_infinite_does_not_change_trained_length(name):
    encoding, given = make_encoding(name), make_inputs(20)
    plain = attend(encoding, given)
    for length, same in ((20, 20), (7, 8)):  # at distance 7, the first key is as far away as in training
        encoding.stretch(stretch("lm_infinite", 1, length))
        limited = attend(encoding, given)
        torch.testing.assert_close(limited[:, :same], plain[:, :same], rtol=0, atol=1e-13)
    assert ((limited - plain)[:, 10:].abs().amax((0, 2, 3)) > 1e-6).all()


@pytest.mark.parametrize("options", [{}, {"window": 4}, {"clock": "medium"}, {"clock": "medium", "window": 4}])
@pytest.mark.parametrize("name", ENCODINGS)
def test_every_form_that_an_encoding_lists_is_accepted(name, options):
    """`task=extrapolate` tries them all."""
    kind = ENCODINGS[name]
    own = options_of(declared(f"{kind.__module__}.{kind.__name__}", "encoding"))
    if not options.keys() <= own.keys() or ("window" in options and not kind.windowed):
        pytest.skip("without these options")
    encoding = make_encoding(name, **options)
    for form in encoding.supported_stretches:
        if form != "longrope":  # needs factors
            encoding.stretch(Stretch(form, 2.0, 64))


def test_lm_infinite_rejects_kernels_windows_and_packed_rows():
    for options, message in (
        ({"implementation": "triton"}, "implementation=triton: lm_infinite"),
        ({"window": 4}, "stretch=lm_infinite: RoPE supports interpolation"),
    ):
        with pytest.raises(ValueError, match=message):
            RoPE(16, 2, 2, 8, **options).stretch(stretch("lm_infinite", 2, 8))
    encoding = NoPE(16, 2, 2, 8)
    encoding.stretch(stretch("lm_infinite", 2, 8))
    with pytest.raises(ValueError, match="stretch=lm_infinite: rows with several documents"):
        attend(encoding, inputs(), documents=torch.zeros(2, 24))
