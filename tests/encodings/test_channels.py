"""Encodings with additional channels: equal to their equations, and to other encodings in special cases."""

import math

import pytest
import torch
import torch.nn.functional as F
from encodings_support import (
    ENCODINGS,
    HEADS,
    KV_HEADS,
    WIDTH,
    attend,
    convolved,
    make_encoding,
    make_inputs,
    one_thread,  # noqa: F401
)

from bearings.kernels import reference

EXACT = {"rtol": 0.0, "atol": 1e-10}
pytestmark = pytest.mark.usefixtures("one_thread")


def zeroed(name, *parameters, **options):
    encoding = make_encoding(name, **options)
    with torch.no_grad():
        for each in parameters:
            encoding.get_parameter(each).zero_()
    return encoding


def xl_scores(encoding, q, k):
    """The paper's equation for each pair of tokens, `[B, H, T, T]`, unscaled."""
    tokens, size = q.shape[1], encoding.head_dim
    k = k.repeat_interleave(HEADS // KV_HEADS, 2)
    scores = torch.zeros(q.shape[0], HEADS, tokens, tokens, dtype=torch.float64)
    for t in range(tokens):
        for s in range(t + 1):
            angles = [(t - s) * encoding.base ** (-2 * c / size) for c in range(size // 2)]
            r = torch.tensor([*map(math.sin, angles), *map(math.cos, angles)], dtype=torch.float64)
            by_content = ((q[:, t] + encoding.content_bias) * k[:, s]).sum(-1)
            by_position = torch.einsum("bhd,hdr,r->bh", q[:, t] + encoding.position_bias, encoding.projection, r)
            scores[:, :, t, s] = by_content + by_position
    return scores


@torch.no_grad()
def test_transformer_xl_equals_the_double_loop():
    encoding, i = make_encoding("transformer_xl", base=50.0), make_inputs(13)
    expected = reference.attend(xl_scores(encoding, i.q, i.k), i.q, i.v, None)
    torch.testing.assert_close(attend(encoding, i), expected, **EXACT)


@torch.no_grad()
def test_transformer_xl_without_parameters_is_nope():
    i = make_inputs(20)
    encoding = zeroed("transformer_xl", "content_bias", "position_bias", "projection")
    torch.testing.assert_close(attend(encoding, i), reference.nope_attention(i.q, i.k, i.v), **EXACT)


@torch.no_grad()
def test_rcmha_is_transformer_xl_of_convolved_inputs():
    encoding, xl, i = make_encoding("rcmha"), make_encoding("transformer_xl"), make_inputs(20)
    xl.load_state_dict(encoding.state_dict(), strict=False)
    parts = [
        (convolved(x.flatten(2), taps.repeat(1, x.shape[2])).view_as(x) + bias)
        for x, taps, bias in zip(i[1:], encoding.taps, encoding.biases, strict=True)
    ]
    torch.testing.assert_close(attend(encoding, i), attend(xl, [i.x, *parts]), **EXACT)
    encoding.taps.zero_()
    encoding.biases.zero_()
    encoding.taps[:, 0] = 1
    torch.testing.assert_close(attend(encoding, i), attend(xl, i), **EXACT)


@torch.no_grad()
@pytest.mark.parametrize("options", [{}, {"sines": 3}, {"gated": False}, {"sines": 2, "gated": False}], ids=str)
def test_spe_equals_its_equation(options):
    encoding, i = make_encoding("spe", **options), make_inputs(11)
    distance = (torch.arange(11)[:, None] - torch.arange(11)).double()[..., None, None, None]
    phases = math.pi * encoding.frequencies.sigmoid() * distance + encoding.offsets
    kernel = (F.softplus(encoding.gains) ** 2 * phases.cos()).mean(-1) / 2
    if encoding.gate is not None:
        delta = encoding.gate.sigmoid()
        kernel = (1 - delta) * kernel + delta
    kernel, k = kernel.repeat_interleave(HEADS // KV_HEADS, 2), i.k.repeat_interleave(HEADS // KV_HEADS, 2)
    scores = torch.einsum("bthc,bshc,tshc->bhts", i.q, k, kernel)
    torch.testing.assert_close(attend(encoding, i), reference.attend(scores, i.q, i.v, None), **EXACT)


@torch.no_grad()
def test_spe_is_the_expectation_of_random_features():
    """The paper's features: their products have a standard error of about the inverse root of their number."""
    encoding, draws, tokens = make_encoding("spe", head_dim=4, sines=2), 40_000, 5
    i = make_inputs(tokens, head_dim=4, batch=1)
    k, per_head = i.k.repeat_interleave(2, 2), [x.repeat_interleave(2, 0) for x in encoding.parameters()]
    frequencies, offsets, gains, gate = per_head
    turned = torch.arange(tokens).double()[:, None, None, None] * math.pi * frequencies.sigmoid()
    noise = torch.randn(2, HEADS, 4, 2, draws, dtype=torch.float64) * F.softplus(gains).unsqueeze(-1) / 2
    shared = torch.randn(HEADS, 4, draws, dtype=torch.float64) * gate.sigmoid().sqrt().unsqueeze(-1)

    def features(x, phases):
        waves = torch.stack([phases.cos(), phases.sin()])
        codes = torch.einsum("ithck,ihckr->thcr", waves, noise) * (-gate).sigmoid().sqrt().unsqueeze(-1) + shared
        return torch.einsum("thc,thcr->thr", x[0], codes)

    products = torch.einsum("thr,shr->htsr", features(i.q, turned + offsets), features(k, turned))
    expected = products.mean(-1)
    positions = torch.arange(tokens)
    found = torch.einsum(
        "bthd,bshd->hts",
        encoding.encode_query(i.q, positions),
        encoding.encode_key(i.k, positions).repeat_interleave(2, 2),
    )
    assert ((found - expected).abs() < 5 * products.std(-1) / draws**0.5).all()


@torch.no_grad()
@pytest.mark.parametrize("frequency", [-40.0, 0.3])
def test_spe_of_frequency_zero_ignores_distances(frequency):
    encoding, i = zeroed("spe", "offsets", gated=False), make_inputs(9)
    encoding.frequencies.fill_(frequency)
    factor = F.softplus(encoding.gains).square().sum(-1).repeat_interleave(HEADS // KV_HEADS, 0) / 2
    same = torch.allclose(attend(encoding, i), reference.nope_attention(i.q * factor, i.k, i.v), atol=1e-9)
    assert same == (frequency < 0)


def test_initial_values():
    torch.manual_seed(0)
    xl, rcmha, spe = (ENCODINGS[name](64, 8, 8, 64) for name in ("transformer_xl", "rcmha", "spe"))
    for parameter in xl.parameters():
        assert parameter.std().item() == pytest.approx(0.02, rel=0.1)
    for parameter in (rcmha.taps, rcmha.biases):
        assert parameter.abs().max() <= 3**-0.5
        assert parameter.std().item() == pytest.approx(1 / 3, rel=0.1)
    assert spe.frequencies.mean().item() == pytest.approx(-4, abs=0.2)
    # With one cosine, 2 g / sqrt(|g|) for a normal g.
    assert spe.gains.square().mean().item() == pytest.approx(4 * (2 / math.pi) ** 0.5, rel=0.1)
    with pytest.raises(ValueError, match="head_dim=15: RCMHA needs a multiple of 2"):
        ENCODINGS["rcmha"](WIDTH, HEADS, KV_HEADS, 15)
