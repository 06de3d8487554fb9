"""Rotary encodings equal their equations, and each other where the equations coincide."""

import math

import pytest
import torch
from encodings_support import (
    HEADS,
    KV_HEADS,
    attend,
    make_documents,
    make_encoding,
    make_inputs,
    one_thread,  # noqa: F401
)
from hypothesis import given
from hypothesis import strategies as st

from bearings.encodings.fope import FoPE
from bearings.encodings.hope_high_frequency import HoPEHighFrequency
from bearings.encodings.rope_pp import RoPEPP
from bearings.encodings.xpos import XPos
from bearings.kernels import reference
from bearings.kernels.attention.rope import cos_sin, rotate
from bearings.kernels.stretching import Stretch

pytestmark = pytest.mark.usefixtures("one_thread")
EXACT = {"rtol": 0.0, "atol": 1e-10}
GROUP = HEADS // KV_HEADS


def pairs(x: torch.Tensor) -> torch.Tensor:
    """Pairs of channels as complex numbers, `[B, T, H, D/2]`."""
    return torch.complex(*x.chunk(2, -1))


def times(length: int) -> torch.Tensor:
    return torch.arange(length, dtype=torch.float64)


def table(count: int, base: float = 10000.0) -> torch.Tensor:
    return torch.tensor([base ** (-c / count) for c in range(count)], dtype=torch.float64)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("partial_rope", {"share": 1.0}),
        ("p_rope", {"share": 1.0}),
        ("hope_high_frequency", {"trained_length": 10**9}),
        ("xpos", {"scale_base": 1e30}),
    ],
)
@pytest.mark.parametrize("packed", [False, True])
def test_special_case_equals_rope_bit_for_bit(name, options, packed):
    inputs, documents = make_inputs(33), make_documents([20, 13]) if packed else None
    expected = attend(make_encoding("rope"), inputs, documents=documents)
    assert torch.equal(attend(make_encoding(name, **options), inputs, documents=documents), expected)


def test_lightnet_on_one_axis_equals_rope():
    """MD-LRPE turns pairs, or multiplies queries and keys by cosines and sines of each channel."""
    inputs, rope, wide = make_inputs(33), make_encoding("rope"), make_encoding("rope", head_dim=32)
    turns = torch.polar(torch.ones(33, 8).double(), torch.outer(times(33), table(8))).unsqueeze(1)
    q, k = (pairs(each) * turns for each in (inputs.q, inputs.k))
    q, k = (torch.cat([each.real, each.imag], -1) for each in (q, k))
    torch.testing.assert_close(attend(rope, inputs), reference.nope_attention(q, k, inputs.v), **EXACT)
    angle = torch.outer(times(33), table(16)).unsqueeze(1)
    q, k = (torch.cat([each * angle.cos(), each * angle.sin()], -1) for each in (inputs.q, inputs.k))
    expected = reference.nope_attention(q, k, inputs.v)
    padded = [torch.nn.functional.pad(each, (0, 16)) for each in inputs[1:]]
    torch.testing.assert_close(attend(wide, (inputs.x, *padded))[..., :16], expected, **EXACT)


def test_moving_a_cached_key_equals_encoding_it_at_the_new_position():
    """PIE rotates keys in the cache."""
    rope, k = make_encoding("rope"), make_inputs(7).k
    moved = rotate(rope.encode_key(k, torch.arange(7)), torch.full((7,), 20), rope.base)
    torch.testing.assert_close(moved, rope.encode_key(k, torch.arange(20, 27)), **EXACT)


def test_gridpe_with_the_ratio_of_rope_equals_rope():
    inputs = make_inputs(33)
    got = attend(make_encoding("gridpe", ratio=10000 ** (2 / 16)), inputs)
    torch.testing.assert_close(got, attend(make_encoding("rope"), inputs), **EXACT)


@pytest.mark.parametrize(
    ("name", "options", "expected"),
    [
        ("partial_rope", {"share": 0.5}, [1, 0.1, 0.01, 0.001, 0, 0, 0, 0]),
        ("partial_rope", {"share": 0.01}, [1, 0, 0, 0, 0, 0, 0, 0]),
        ("p_rope", {"base": 1e8}, [1, 0.1, 0.01, 0.001, 1e-4, 1e-5, 0, 0]),
        ("hope_high_frequency", {"base": 1e8, "trained_length": 629}, [1, 0.1, 0.01, 0, 0, 0, 0, 0]),
        ("hope_high_frequency", {"base": 1e8, "trained_length": 628}, [1, 0.1, 0, 0, 0, 0, 0, 0]),
        ("gridpe", {}, [math.exp(-c) for c in range(8)]),
    ],
)
def test_tables_of_frequencies(name, options, expected):
    assert make_encoding(name, **options).frequencies() == pytest.approx(expected)


@pytest.mark.parametrize("base", [10000.0, 4.0], ids=["GPT-NeoX", "RoPE-ID"])
def test_partial_rope_is_rope_on_some_channels_and_nope_on_the_others(base):
    encoding, (x, q, k, v) = make_encoding("partial_rope", share=0.5, base=base), make_inputs(20)
    assert all(frequency > 1 / base for frequency in encoding.frequencies()[:4])
    turned, still = [0, 1, 2, 3, 8, 9, 10, 11], [4, 5, 6, 7, 12, 13, 14, 15]
    rope = make_encoding("rope", head_dim=8, base=base)
    at = torch.arange(20)
    parts = [rope.encode_query(q[..., turned], at), rope.encode_key(k[..., turned], at)]
    scores = reference.dots(*parts) + reference.dots(q[..., still], k[..., still])
    torch.testing.assert_close(attend(encoding, (x, q, k, v)), reference.attend(scores, q, v, None), **EXACT)


@pytest.mark.parametrize(("name", "turned"), [("partial_rope", 2), ("p_rope", 6)])
def test_stretch_keeps_unrotated_pairs(name, turned):
    encoding, stretch = make_encoding(name), Stretch("yarn", 4, 64)
    encoding.stretch(stretch)
    expected = stretch.frequencies(encoding.count, encoding.base, 1)[:turned]
    assert encoding.frequencies() == (*expected, *[0.0] * (8 - turned))


def test_xpos_equals_its_equation():
    encoding, (x, q, k, v) = make_encoding("xpos", scale_base=16.0), make_inputs(40)
    zeta = (times(8) / 8 + 0.4) / 1.4
    d = (times(40)[:, None] - times(40)).clamp(min=0).unsqueeze(-1)  # later keys are masked
    weight = torch.polar(zeta ** (d / 16), d * table(8))
    k_pairs = pairs(k).repeat_interleave(GROUP, 2)
    scores = torch.einsum("bthc,bshc,tsc->bhts", pairs(q), k_pairs.conj(), weight).real
    torch.testing.assert_close(attend(encoding, (x, q, k, v)), reference.attend(scores, q, v, None), **EXACT)


def test_xpos_without_rotation_decays_exponentially():
    encoding = make_encoding("xpos", scale_base=1.0, base=1e300)  # the second pair does not rotate
    only = torch.zeros(1, 5, 1, 16, dtype=torch.float64)
    only[..., 1] = 1.0
    at = torch.arange(5)
    scores = encoding.encode_query(only, at)[0, :, 0] @ encoding.encode_key(only, at)[0, :, 0].T
    expected = ((1 / 8 + 0.4) / 1.4) ** torch.arange(5).double()
    torch.testing.assert_close(scores[:, 0], expected)


def test_xpos_factors_stay_finite_up_to_the_limit():
    encoding = XPos(12, 4, 2, 16)
    longest = encoding._longest(torch.float32)
    assert 65_000 < encoding.longest <= longest < 67_000
    ends = torch.tensor([0, longest - 1])
    ones = torch.full((1, 2, 4, 16), 1000.0)
    for encoded in (encoding.encode_query(ones, ends), encoding.encode_key(ones, ends)):
        assert encoded.isfinite().all()
    short = XPos(12, 4, 2, 16, scale_base=1.0)
    q = torch.zeros(1, 200, 4, 16)
    message = r"scale_base=1: the factors of xPos overflow beyond 128 tokens, and the context has 200: use a larger"
    with pytest.raises(ValueError, match=message):
        attend(short, (q[:, :, 0], q, q[:, :, :2], q[:, :, :2]))
    q = q[:, :100].half()
    with pytest.raises(ValueError, match="beyond 4 tokens, and the context has 100"):  # float16 has a smaller range
        attend(short.half(), (q[:, :, 0], q, q[:, :, :2], q[:, :, :2]))


def test_comrope_equals_the_matrix_exponential():
    """Blocks of 4 channels: the eigenvectors of each skew-symmetric block are a basis in which it rotates pairs."""
    torch.manual_seed(3)
    encoding, (x, q, k, v) = make_encoding("comrope"), make_inputs(12)
    p = torch.randn(KV_HEADS, 4, 4, 4, dtype=torch.float64)  # key head, block, 4 x 4
    a = p - p.mT
    values, vectors = torch.linalg.eigh(1j * a)
    basis = vectors[..., values[0, 0] > 0] * 2**0.5  # [Hkv, block, 4, 2]
    changes = [
        torch.cat([torch.block_diag(*basis.real[h]), torch.block_diag(*basis.imag[h])], 1) for h in range(KV_HEADS)
    ]
    with torch.no_grad():
        encoding.log_frequencies.copy_(values[..., 2:].flatten(1).log())
    turned_q = torch.stack([q[:, :, h] @ changes[h // GROUP] for h in range(HEADS)], 2)
    turned_k = torch.stack([k[:, :, h] @ changes[h] for h in range(KV_HEADS)], 2)
    rotations = torch.matrix_exp(times(12)[:, None, None, None, None] * a)  # [T, Hkv, block, 4, 4]
    blocks = torch.stack([torch.stack([torch.block_diag(*each) for each in row]) for row in rotations])
    exact_q = torch.einsum("thij,bthj->bthi", blocks.repeat_interleave(GROUP, 1), q)
    exact_k = torch.einsum("thij,bthj->bthi", blocks, k)
    expected = reference.nope_attention(exact_q, exact_k, v)
    torch.testing.assert_close(attend(encoding, (x, turned_q, turned_k, v)), expected, rtol=0.0, atol=1e-9)


def test_comrope_starts_as_rope():
    encoding, inputs = make_encoding("comrope").double(), make_inputs(20)
    encoding.reset_parameters()
    torch.testing.assert_close(attend(encoding, inputs), attend(make_encoding("rope"), inputs), **EXACT)


def test_fope_without_noise_equals_clipped_rope():
    inputs = make_inputs(33)
    got = attend(make_encoding("fope", sigma=0.0, trained_length=64), inputs)
    torch.testing.assert_close(got, attend(make_encoding("hope_high_frequency", trained_length=64), inputs), **EXACT)


def test_fope_equals_its_equation():
    encoding, (x, q, k, v) = make_encoding("fope", trained_length=64, sigma=2.0), make_inputs(20)
    theta = table(8)[table(8) >= 2 * math.pi / 64]
    assert 0 < len(theta) < 8
    assert len(theta) == encoding.cosines.shape[-1]
    factors = torch.ones(20, KV_HEADS, 8, dtype=torch.complex128)
    for t in range(20):
        for m in range(len(theta)):
            for h in range(KV_HEADS):
                wave = zip(theta, encoding.cosines[h, :, m], encoding.sines[h, :, m], strict=True)
                factors[t, h, m] = sum(a * (w * t).cos() + 1j * b * (w * t).sin() for w, a, b in wave)
    q_pairs, k_pairs = pairs(q) * factors.repeat_interleave(GROUP, 1), pairs(k) * factors
    scores = torch.einsum("bthc,bshc->bhts", q_pairs, k_pairs.repeat_interleave(GROUP, 2).conj()).real
    torch.testing.assert_close(attend(encoding, (x, q, k, v)), reference.attend(scores, q, v, None), **EXACT)


def test_fope_starts_with_the_noise_of_the_published_code():
    torch.manual_seed(0)
    encoding = FoPE(12, 64, 32, 64, trained_length=10**9, sigma=0.5)
    for part in (encoding.cosines, encoding.sines):
        noise = part - torch.eye(32)
        assert noise.mean().item() == pytest.approx(0.0, abs=1e-3)
        assert noise.std().item() == pytest.approx(0.5 * (2 / ((32 + 32) * 32)) ** 0.5, rel=0.02)


@pytest.mark.parametrize("encoding", [FoPE, HoPEHighFrequency])
def test_a_trained_length_without_a_full_turn_is_refused(encoding):
    encoding(12, 4, 2, 16, trained_length=7)
    with pytest.raises(ValueError, match="trained_length=6: no frequency makes a turn"):
        encoding(12, 4, 2, 16, trained_length=6)
    with pytest.raises(ValueError, match=r"head_dim=1: .* needs a multiple of 2"):
        encoding(12, 4, 2, 1)


def test_rope_pp_scores_are_the_real_and_imaginary_parts():
    encoding, (x, q, k, v) = make_encoding("rope_pp"), make_inputs(20)
    turns = torch.exp(1j * (times(20)[:, None] - times(20)).unsqueeze(-1) * table(8))
    k_pairs = pairs(k).repeat_interleave(GROUP, 2)
    products = torch.einsum("bthc,bshc,tsc->bhts", pairs(q), k_pairs.conj(), turns)
    scores = torch.stack([products.real, products.imag], 2).flatten(1, 2)
    wide_q = q.repeat_interleave(2, 2)  # only for its shape
    torch.testing.assert_close(attend(encoding, (x, q, k, v)), reference.attend(scores, wide_q, v, None), **EXACT)
    at = torch.arange(20)
    encoded = reference.dots(encoding.encode_query(q, at), encoding.encode_key(k, at))
    torch.testing.assert_close(encoded, scores, **EXACT)


def test_rope_pp_has_twice_the_attention_heads_or_half_the_others():
    encoding = RoPEPP(64, 3, 3, 16)
    assert (encoding.query_heads, encoding.kv_heads, encoding.heads) == (3, 3, 6)
    encoding = RoPEPP(64, 8, 8, 16, equal="heads")
    assert (encoding.query_heads, encoding.kv_heads, encoding.heads) == (4, 4, 8)
    encoding = RoPEPP(64, 8, 2, 16, equal="heads")  # as the option says of fewer key heads
    assert (encoding.query_heads, encoding.kv_heads, encoding.heads) == (4, 2, 8)
    with pytest.raises(ValueError, match="equal=heads: needs an even number of heads, not 3"):
        RoPEPP(64, 3, 1, 16, equal="heads")


@pytest.mark.parametrize("name", ["comrope", "fope"])
def test_values_of_phases_stay_float32(name):
    encoding = make_encoding(name).to(torch.bfloat16)
    kept = [getattr(encoding, each) for each in encoding.keep_float32]
    assert kept
    assert all(tensor.dtype == torch.float64 for tensor in kept)


@pytest.mark.parametrize(("length", "damping"), [(40, None), (140, 9.0), (140, 40.0)])
def test_hope_hyperbolic_equals_its_equation(length, damping):
    encoding, (x, q, k, v) = make_encoding("hope_hyperbolic"), make_inputs(length)
    if damping is not None:
        torch.nn.init.constant_(encoding.damping, damping)
    prime = 1 + torch.nn.functional.softplus(encoding.damping)
    d = (times(length)[:, None] - times(length)).clamp(min=0).unsqueeze(-1)  # later keys are masked
    cosh, sinh = ((-d * prime).exp() * part for part in ((d * table(8)).cosh(), (d * table(8)).sinh()))
    (q1, q2), (k1, k2) = q.chunk(2, -1), k.repeat_interleave(GROUP, 2).chunk(2, -1)
    same, crossed = ("bthc,bshc,tsc->bhts", cosh), ("bthc,bshc,tsc->bhts", sinh)
    terms = [(q1, k1, same), (q2, k2, same), (q1, k2, crossed), (q2, k1, crossed)]
    scores = sum(torch.einsum(rule, a, b, weight) for a, b, (rule, weight) in terms)
    tolerance = EXACT if damping is None else {"atol": 1e-4, "rtol": 0}  # fast decays are limited
    torch.testing.assert_close(attend(encoding, (x, q, k, v)), reference.attend(scores, q, v, None), **tolerance)


@given(st.lists(st.floats(-1e7, 1e7), min_size=1, max_size=8))
def test_sines_in_float32_of_large_angles_are_exact_to_float32(angles):
    exact = torch.tensor(angles, dtype=torch.float64, requires_grad=True)
    found, slopes = cos_sin(exact, torch.float32), []
    for part in found:
        assert part.dtype == torch.float32
        slopes += torch.autograd.grad(part.sum(), exact, retain_graph=True)
    cosine, sine = exact.detach().cos(), exact.detach().sin()
    for each, expected in zip([*found, *slopes], [cosine, sine, -sine, cosine], strict=True):
        torch.testing.assert_close(each.detach().double(), expected, atol=4e-7, rtol=0)
    for each, expected in zip(cos_sin(exact, torch.float64), (cosine, sine), strict=True):
        torch.testing.assert_close(each.detach(), expected, atol=0, rtol=0)
