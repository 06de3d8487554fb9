"""Encodings at positions in the medium: real numbers, or two axes, instead of the index of the token."""

from types import SimpleNamespace

import pytest
import torch
from encodings_support import ENCODINGS, HEADS, KV_HEADS, WIDTH, attend, make_encoding, make_inputs

from bearings.encodings.base import Encoding
from bearings.encodings.contract.context import contexts_of
from bearings.kernels.stretching import Stretch
from bearings.session.refusals import refuse_missing_axes

EXACT = {"rtol": 0.0, "atol": 1e-12}
TIMES = torch.tensor([[0, 0, 0.5, 3.25, 3.25, 4, 96, 97], [0, 1, 6, 12, 12, 13, 19, 25]], dtype=torch.float64)
INDEX = torch.arange(8)


def accepts_clock(kind) -> bool:
    if kind.encode_query is Encoding.encode_query:
        return False
    try:
        return kind(WIDTH, HEADS, KV_HEADS, 16, clock="medium").clock == "medium"
    except TypeError:
        return False


every_clocked = pytest.mark.parametrize("name", [name for name, kind in ENCODINGS.items() if accepts_clock(kind)])


def at(encoding, inputs, medium, state=None):
    return attend(encoding, inputs, state, None, medium)


def axes_of(encoding) -> torch.Tensor:
    """TIMES on each axis that the encoding uses, in different orders."""
    return TIMES if encoding.axes == 1 else torch.stack([TIMES, TIMES.flip(1)], -1)


def test_rotary_encodings_accept_the_clock():
    assert {"rope", "axial_rope"} <= set(every_clocked.args[1])


@every_clocked
def test_medium_that_counts_tokens_equals_the_index(name):
    index, medium, inputs = make_encoding(name), make_encoding(name, clock="medium"), make_inputs(8)
    counted = INDEX.double().expand(2, -1)
    if medium.axes == 2:
        counted = torch.stack([(counted - 1).div(4, rounding_mode="floor"), (counted - 1) % 4], -1)
    with torch.no_grad():
        torch.testing.assert_close(at(medium, inputs, counted), attend(index, inputs), **EXACT)


@every_clocked
def test_decoding_at_real_positions_equals_one_pass(name):
    encoding, inputs = make_encoding(name, clock="medium"), make_inputs(8)
    medium, state = axes_of(encoding), encoding.new_state(2, 8, inputs.q)
    with torch.no_grad():
        whole = at(encoding, inputs, medium)
        ends = [(0, 3), (3, 4), (4, 8)]
        parts = [at(encoding, inputs.part(a, b), medium[:, a:b], state) for a, b in ends]
        assert (whole - attend(make_encoding(name), inputs)).abs().max() > 0.01
    torch.testing.assert_close(torch.cat(parts, 1), whole, **EXACT)


@every_clocked
def test_translation_by_a_real_offset(name):
    """On each axis independently."""
    encoding, inputs = make_encoding(name, clock="medium"), make_inputs(8)
    medium = axes_of(encoding)
    if encoding.axes == 1 and not encoding.relative:
        pytest.skip(f"{name} is not relative")
    offset = 1234.567 if encoding.axes == 1 else torch.tensor([1234.567, -0.891])
    with torch.no_grad():
        torch.testing.assert_close(
            at(encoding, inputs, medium + offset), at(encoding, inputs, medium), rtol=0.0, atol=1e-10
        )


def test_axial_rope_by_index_is_relative_in_whole_rows():
    encoding, inputs = make_encoding("axial_rope", columns=3), make_inputs(8)
    scores = [
        torch.einsum("bthd,bshd->bts", encoding.encode_query(inputs.q[:, :, :2], p), encoding.encode_key(inputs.k, p))
        for p in (INDEX, INDEX + 3 * 41, INDEX + 1)
    ]
    torch.testing.assert_close(scores[0], scores[1], rtol=0.0, atol=1e-11)
    assert (scores[0] - scores[2]).abs().max() > 0.01


def test_axial_rope_ignores_the_column_in_the_first_half_of_the_pairs():
    encoding = make_encoding("axial_rope", clock="medium")
    q, medium = make_inputs(8).q, axes_of(encoding)
    turned, moved = (encoding.encode_query(q, medium + shift) for shift in torch.tensor([[0.0, 0.0], [0.0, 5.0]]))
    same = (turned == moved).all(dim=(0, 1, 2))
    assert same.tolist() == ([True] * 4 + [False] * 4) * 2


def test_encoding_with_one_axis_uses_the_first():
    encoding, inputs = make_encoding("rope", clock="medium"), make_inputs(8)
    with torch.no_grad():
        two = at(encoding, inputs, torch.stack([TIMES, TIMES + 7 * INDEX], -1))
        assert torch.equal(two, at(encoding, inputs, TIMES))


def test_layers_with_different_clocks_have_different_contexts():
    layers = [make_encoding("rope"), make_encoding("rope", clock="medium"), make_encoding("axial_rope", clock="medium")]
    medium = axes_of(layers[2])
    index, times, axes = contexts_of(layers, make_inputs(8).q, None, None, medium)
    assert torch.equal(index.positions, INDEX)
    assert torch.equal(times.positions, TIMES)
    assert torch.equal(axes.positions, medium)


def test_errors():
    inputs, axial = make_inputs(8), make_encoding("axial_rope", clock="medium")
    with pytest.raises(ValueError, match="clock=medium: this domain has no positions other than the index"):
        at(axial, inputs, None)
    with pytest.raises(ValueError, match="clock=medium: AxialRoPE needs 2 axes, this domain has 1"):
        at(axial, inputs, TIMES)
    with pytest.raises(ValueError, match="head_dim=18: AxialRoPE needs a multiple of 4"):
        ENCODINGS["axial_rope"](WIDTH, HEADS, KV_HEADS, 18)
    for form in ("dynamic_ntk", "lm_infinite"):
        with pytest.raises(ValueError, match=f"stretch={form}: RoPE supports interpolation, ntk, yarn"):
            make_encoding("rope", clock="medium").stretch(Stretch(form, 2.0, 64))


def test_a_raster_encoding_needs_a_domain_with_two_axes():
    raster = SimpleNamespace(medium=SimpleNamespace(axes=2), encodings=[make_encoding("axial_rope", clock="medium")])
    refuse_missing_axes(raster)
    raster.medium.axes = 1
    with pytest.raises(ValueError, match="AxialRoPE needs 2 axes, and the positions of this domain have 1: use clock"):
        refuse_missing_axes(raster)
