"""Scores made of content: special cases with a known result, and options that the laws do not cover."""

import itertools
import math

import pytest
import torch
from content_support import dape_scores
from distance_support import irpe_bucket, pairwise
from encodings_support import (
    ENCODINGS,
    HEADS,
    KV_HEADS,
    WIDTH,
    attend,
    make_documents,
    make_encoding,
    make_inputs,
    one_thread,  # noqa: F401
)
from torch import nn

from bearings.encodings.dape import BIASES
from bearings.kernels import reference
from bearings.kernels.attention.rows import attend_rows

pytestmark = pytest.mark.usefixtures("one_thread")
EXACT = {"rtol": 0.0, "atol": 1e-12}
LENGTH = 37


@pytest.fixture(scope="module")
def inputs():
    return make_inputs(LENGTH)


@torch.no_grad()
def check(encoding, inputs, expected, **tolerance):
    torch.testing.assert_close(attend(encoding, inputs), expected, **(tolerance or EXACT))


def without_positions(inputs):
    return reference.nope_attention(*inputs[1:])


def zeroed(encoding, *names):
    """The encoding with these parameters set to 0."""
    with torch.no_grad():
        for name in names:
            encoding.get_parameter(name).zero_()
    return encoding


WAVELETS = {
    "ricker": lambda x, _: (1 - x * x) * math.exp(-x * x / 2),
    "gaussian": lambda x, _: math.exp(-x * x),
    "morlet": lambda x, scale: math.exp(-x * x) * math.cos(scale * x),
    "haar": lambda x, _: (0 <= x < 0.5) - (0.5 <= x < 1),
}


@pytest.mark.parametrize("wavelet", WAVELETS)
def test_wavelets_are_those_of_the_paper(wavelet, inputs):
    """With scales 2 and 4, some distances here are beyond the last one with an embedding."""
    encoding = make_encoding("wavelet", wavelet=wavelet, scales=2, first_scale=1)
    assert encoding.reach <= 47
    rows = [
        [WAVELETS[wavelet]((d - c % 8) / 2 ** (1 + c // 8), 2 ** (1 + c // 8)) for c in range(16)]
        for d in range(LENGTH)
    ]
    table = torch.tensor(rows, dtype=torch.float64)
    check(encoding, inputs, reference.embedded_attention(*inputs[1:], pairwise(lambda d: table[d], LENGTH)))


def test_wavelets_divide_the_channels_between_the_scales():
    """Five channels: two of scale 1 and three of scale 2, with shifts from 0."""
    encoding = ENCODINGS["wavelet"](WIDTH, HEADS, KV_HEADS, 5, scales=2)
    found = encoding.embedding(torch.arange(20))
    assert found.argmax(0).tolist() == [0, 1, 2, 0, 1]
    assert [round(width, 3) for width in (found[1] / found[0]).tolist()[::3]] == [
        0.0,
        round(0.75 * math.exp(-1 / 8), 3),
    ]


def test_wavelets_of_zero_are_no_encoding_and_learned_ones_are_shaw(inputs, monkeypatch):
    encoding, shaw = make_encoding("wavelet"), make_encoding("shaw", max_distance=LENGTH)
    with torch.no_grad():
        shaw.embeddings.copy_(encoding.embedding(torch.arange(LENGTH + 1)))
    check(encoding, inputs, attend(shaw, inputs).detach())
    monkeypatch.setattr(encoding, "embedding", lambda distances: torch.zeros(len(distances), 16))
    check(encoding, inputs, without_positions(inputs))


@pytest.mark.parametrize("packed", [False, True], ids=["one document", "packed"])
@pytest.mark.parametrize("on", ["queries", "both"])
def test_irpe_on_queries(on, packed, inputs):
    encoding = make_encoding("irpe", on=on, exact=3, last_bucket=5, max_distance=9)
    tables = {name: table.detach() for name, table in encoding.named_parameters()}
    assert tables.keys() == {"query_embeddings", *(["embeddings"] if on == "both" else [])}
    buckets = pairwise(lambda d: torch.tensor(irpe_bucket(d, 3, 5, 9)), LENGTH)
    ids, (_, q, k, v) = make_documents([20, 1, 16]) if packed else None, inputs
    k_heads = k.repeat_interleave(HEADS // KV_HEADS, 2)
    scores = reference.dots(q, k) + torch.einsum("bshd,tsd->bhts", k_heads, tables["query_embeddings"][buckets])
    if on == "both":
        scores = scores + torch.einsum("bthd,tsd->bhts", q, tables["embeddings"][buckets])
    with torch.no_grad():
        expected = reference.attend(scores, q, v, ids)
        torch.testing.assert_close(attend(encoding, inputs, documents=ids), expected, **EXACT)
        if not packed:
            state = encoding.new_state(2, LENGTH, q)
            parts = [attend(encoding, inputs.part(*ends), state) for ends in ((0, 20), (20, 21), (21, LENGTH))]
            torch.testing.assert_close(torch.cat(parts, 1), expected, **EXACT)


@pytest.mark.parametrize("entries", [1, 4, LENGTH])
@pytest.mark.parametrize("rows", [1, 5, 36, None])
def test_products_with_embeddings_in_blocks_of_rows(entries, rows, inputs):
    """Values and gradients, for tables that end before the row and for one that does not."""
    table = torch.randn(entries, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    tables = [each.requires_grad_() for each in (table, table.flip(-1))]
    q, k, v = (each.clone().requires_grad_() for each in inputs[1:])

    def scores(block, of_keys, of_queries):
        return 0.25 * (block.dots() + block.query_products(of_keys) + block.key_products(of_queries))

    nearest = pairwise(lambda d: torch.tensor(min(d, entries - 1)), LENGTH)
    k_heads = k.repeat_interleave(HEADS // KV_HEADS, 2)
    dense = reference.dots(q, k) + torch.einsum("bthd,tsd->bhts", q, tables[0][nearest])
    dense = dense + torch.einsum("bshd,tsd->bhts", k_heads, tables[1][nearest])
    outputs = attend_rows(q, k, v, scores, tables, rows=rows), reference.attend(dense, q, v, None)
    torch.testing.assert_close(*outputs, **EXACT)
    leaves, weights = (q, k, v, *tables), torch.randn(v.shape[0], LENGTH, HEADS, 16, dtype=torch.float64)
    for got, wanted in zip(*(torch.autograd.grad(each, leaves, weights) for each in outputs), strict=True):
        torch.testing.assert_close(got, wanted, **EXACT)


def test_cope_without_embeddings_is_no_encoding(inputs):
    check(zeroed(make_encoding("cope"), "embeddings"), inputs, without_positions(inputs))


def test_cope_with_open_gates_counts_all_tokens(inputs):
    """With large products the gates are 1. The scale does not apply to the embeddings, so the reference cancels it."""
    encoding = make_encoding("cope", positions=20)
    large = inputs._replace(q=inputs.q.clone(), k=inputs.k.clone())
    large.q[..., 0] = large.k[..., 0] = 30.0
    table = 16**0.5 * encoding.embeddings.detach()
    embedding = pairwise(lambda d: table[min(d + 1, 19)], LENGTH)
    check(encoding, large, reference.embedded_attention(*large[1:], embedding))


def test_cope_counts_only_the_selected_tokens():
    """Gates are 1 for keys in one direction and 0 for the others; the first token gets its count of selected tokens."""
    selected = torch.tensor([1, 0, 0, 1, 1, 0, 1])
    q, v = (
        torch.zeros(1, 7, HEADS, 4).double(),
        torch.eye(7).double()[:, :4].view(1, 7, 1, 4).expand(-1, -1, KV_HEADS, -1),
    )
    q[..., 0], q[..., 1] = 1e3, 1.0
    k = torch.zeros(1, 7, KV_HEADS, 4).double()
    k[..., 0] = (2.0 * selected - 1)[:, None] * 1e3
    encoding = make_encoding("cope", head_dim=4, positions=9)
    with torch.no_grad():
        encoding.embeddings.zero_()
        encoding.embeddings[:, 1] = torch.arange(9)  # the score grows by 1 with each selected token
        out = attend(encoding, (torch.zeros(1, 7, WIDTH), q, k, v))[0, -1, 0]
    # The last query sees the keys 0, 3, 4 and 6 at positions 4, 3, 2 and 1; the values show the first four keys.
    weights = torch.tensor([4.0, 3.0, 2.0, 1.0]).double().softmax(0)
    torch.testing.assert_close(out, torch.stack([weights[0], *out.new_zeros(2), weights[1]]), **EXACT)


def test_tapa_without_phase_is_no_encoding_on_the_amplitude_channels(inputs):
    encoding, (_, q, k, v) = make_encoding("tapa", amplitude_share=0.25), inputs
    assert encoding.amplitudes == 4
    unturned = k.clone()
    unturned[..., 4:] = 0
    expected = reference.attend(2 * reference.dots(q[..., :4], k[..., :4]), q, v, None)  # 4^-1/2 is 2 * 16^-1/2
    check(encoding, inputs._replace(k=unturned), expected)


@pytest.mark.parametrize("bias", [*BIASES, "none"])
def test_dape_without_its_last_layer_is_its_bias(bias, inputs):
    encoding = zeroed(make_encoding("dape", bias=bias), "output_weight", "output_bias")
    if bias == "none":
        expected = without_positions(inputs)
    else:
        plain = make_encoding(bias)
        plain.load_state_dict(encoding.bias.state_dict())
        expected = attend(plain, inputs).detach()
    check(encoding, inputs, expected)
    assert encoding.relative == (bias != "fire")
    spared = {name for name, each in encoding.named_parameters() if any(each is kept for kept in encoding.undecayed())}
    assert spared == {*dict(encoding.named_parameters())} - {"hidden_weight", "output_weight"}


def test_dape_with_a_kernel_of_1_is_a_network_of_linear_layers(inputs):
    """Version 1, which reads the scores of one pair; and version 2 with weights for the middle key only."""
    encoding, wide = make_encoding("dape", kernel=1, bias="none"), make_encoding("dape", bias="none")
    network = nn.Sequential(nn.Linear(HEADS, 32), nn.LeakyReLU(), nn.Linear(32, HEADS)).double()
    parameters = dict(encoding.named_parameters())
    with torch.no_grad():
        for (name, value), each in zip(parameters.items(), network.parameters(), strict=True):
            each.copy_(value.squeeze(0) if name.endswith("weight") else value)
            wide.get_parameter(name).zero_()
            wide.get_parameter(name)[1 if name.endswith("weight") else ...] = value[0 if value.ndim == 3 else ...]
        dots = reference.dots(inputs.q, inputs.k) / 4
        scores = dots + network(dots.movedim(1, -1)).movedim(-1, 1)
        expected = reference.attend(4 * scores, inputs.q, inputs.v, None)
    check(encoding, inputs, expected)
    check(wide, inputs, expected)


@pytest.mark.parametrize("options", [{"kernel": 5}, {"bias": "fire"}, {"bias": "none", "kernel": 1}], ids=str)
def test_dape_decodes_and_packs_with_other_options(options):
    pieces = [9, 4, 1, 6]
    encoding, inputs = make_encoding("dape", **options), make_inputs(20)
    with torch.no_grad():
        whole, state = attend(encoding, inputs), encoding.new_state(2, 20, inputs.q)
        ends = [sum(pieces[:n]) for n in range(5)]
        parts = [attend(encoding, inputs.part(*each), state) for each in itertools.pairwise(ends)]
        torch.testing.assert_close(torch.cat(parts, 1), whole, **EXACT)
        packed = attend(encoding, inputs, documents=make_documents(pieces))
        first, second = (slice(begin, begin + 9) for begin in (0, 11))
        for row, place in enumerate((first, second)):
            single = [each[row : row + 1, place] for each in inputs]
            torch.testing.assert_close(packed[row : row + 1, place], attend(encoding, single), **EXACT)


def test_dape_with_a_wide_kernel_equals_a_convolution(inputs):
    encoding, (_, q, k, v) = make_encoding("dape", kernel=5), inputs
    check(encoding, inputs, reference.attend(4 * dape_scores(encoding, q, k), q, v, None))


@pytest.mark.parametrize(
    ("name", "head_dim", "options", "problem"),
    [
        ("dape", 16, {"kernel": 2}, "kernel=2: it must be odd"),
        ("dape", 16, {"bias": "rope"}, "bias='rope': it should be 'kerple_log'"),
        ("tapa", 16, {"amplitude_share": 1.0}, "amplitude_share=1.0: it must be in"),
        ("tapa", 1, {}, "head_dim=1: TAPA needs at least 2"),
    ],
)
def test_wrong_options_are_refused(name, head_dim, options, problem):
    with pytest.raises(ValueError, match=problem):
        ENCODINGS[name](WIDTH, HEADS, KV_HEADS, head_dim, **options)


@pytest.mark.parametrize("name", ["wavelet", "irpe", "cope", "tapa", "dape"])
def test_no_scores_are_saved(name, inputs):
    """The backward pass computes blocks of rows again: saved tensors do not grow with the square of the length."""
    given, saved = [each.clone().requires_grad_() for each in inputs], []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: saved.append(x.numel()) or x, lambda x: x):
        attend(make_encoding(name), given, documents=make_documents([20, 17]))
    assert max(saved) <= inputs.q.numel() < 2 * HEADS * LENGTH**2
