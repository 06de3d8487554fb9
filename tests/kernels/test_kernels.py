"""Properties of the operators that follow from their equations, and comparisons with the reference."""

import math

import pytest
import torch
from encodings_support import Inputs, attend, make_documents, make_encoding, make_inputs, one_thread  # noqa: F401
from fused_support import DEVICE
from hypothesis import given, settings
from hypothesis import strategies as st

from bearings.encodings.contract.context import Context
from bearings.encodings.contract.state import TailState
from bearings.encodings.path import PaTH, ceiling
from bearings.encodings.path_fox import PaTHFoX
from bearings.encodings.pope import PoPE
from bearings.encodings.rope import RoPE
from bearings.kernels import reference
from bearings.kernels.attention.blocks import CHUNK
from bearings.kernels.attention.fox import cumulative_log_gates, fox_attention
from bearings.kernels.attention.kernelized import kernelized_attention
from bearings.kernels.attention.lm_infinite import nearest_and_first
from bearings.kernels.attention.plain import causal_attention
from bearings.kernels.attention.pope import magnitude, pope_key, pope_query
from bearings.kernels.attention.rope import phases, rotate
from bearings.kernels.documents import Documents
from bearings.kernels.layers.moving_average import moving_average
from bearings.kernels.path.attention import path_attention

EXACT = {"rtol": 0.0, "atol": 1e-10}
pytestmark = pytest.mark.usefixtures("one_thread")


def reflections(length, kv_heads=2, head_dim=16, batch=2, seed=5):
    """Unit vectors w `[B, T, Hkv, D]` and beta `[B, T, Hkv]` covering (0, 2)."""
    draw = torch.Generator().manual_seed(seed)
    w = torch.randn(batch, length, kv_heads, head_dim, generator=draw, dtype=torch.float64)
    beta = 2 * torch.rand(batch, length, kv_heads, generator=draw, dtype=torch.float64)
    return w / w.norm(dim=-1, keepdim=True), beta


@pytest.mark.parametrize(("queries", "keys"), [(1, 1), (1, 9), (4, 9), (8, 9), (9, 9)])
def test_queries_align_with_last_keys(queries, keys):
    _, q, k, v = make_inputs(keys)
    got = causal_attention(q[:, keys - queries :], k, v)
    torch.testing.assert_close(got, reference.nope_attention(q, k, v)[:, keys - queries :], **EXACT)
    bias = torch.zeros(2, 4, queries, keys, dtype=torch.float64)
    torch.testing.assert_close(causal_attention(q[:, keys - queries :], k, v, bias=bias), got, **EXACT)


@pytest.mark.parametrize("width", [3, 16, 40])
def test_values_of_any_width(width):
    _, q, k, _ = make_inputs(20)
    v = torch.randn(2, 20, 2, width, dtype=torch.float64)
    got = causal_attention(q, k, v)
    assert got.shape == (2, 20, 4, width)
    torch.testing.assert_close(got, reference.nope_attention(q, k, v), **EXACT)


def test_repeated_id_is_a_new_document():
    _, q, k, v = make_inputs(9)
    again, other = torch.tensor([[0, 0, 0, 1, 1, 0, 0, 0, 0]] * 2), torch.tensor([[0, 0, 0, 1, 1, 2, 2, 2, 2]] * 2)
    expected = reference.nope_attention(q, k, v, documents=other)
    torch.testing.assert_close(causal_attention(q, k, v, documents=Documents.of(again)), expected, **EXACT)


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        (((4, 2), (3, 2), None), "4 queries, 3 keys"),
        (((4, 4), (4, 3), None), "4 query heads, 3 key heads"),
        (((2, 2), (4, 2), 2), r"documents \[1, 2\] with keys \[1, 4, 2, 8\]"),
    ],
)
def test_wrong_shapes_raise(shapes, message):
    (length, heads), (keys, kv_heads), packed = shapes
    q, k = torch.zeros(1, length, heads, 8), torch.zeros(1, keys, kv_heads, 8)
    documents = None if packed is None else Documents.of(torch.zeros(1, packed, dtype=torch.long))
    with pytest.raises(ValueError, match=message):
        causal_attention(q, k, k, documents)


def test_rope_rotates_half_split_pairs():
    x = torch.zeros(1, 1, 1, 6, dtype=torch.float64)
    x[..., 1] = 1.0
    angle = 5 * 100 ** (-2 / 6)
    expected = torch.zeros_like(x)
    expected[..., 1], expected[..., 4] = math.cos(angle), math.sin(angle)
    torch.testing.assert_close(rotate(x, torch.tensor([5]), 100.0), expected, **EXACT)


def test_phases_of_a_scored_model_can_be_trained():
    """The table of frequencies, which is kept, was first used without gradients."""
    positions, frequencies = torch.arange(3.0), [0.7, 0.3]
    with torch.inference_mode():
        phases(positions, 2, frequencies)
    positions.requires_grad_()
    phases(positions, 2, frequencies).sum().backward()
    assert torch.equal(positions.grad, torch.ones(3))


def test_phases_are_exact_and_rope_keeps_dtype():
    got = phases(torch.tensor([1_000_000]), 4, 10000.0)[0].cos()
    expected = [math.cos(1_000_000 * 10000.0 ** (-channel / 4)) for channel in range(4)]
    torch.testing.assert_close(got, torch.tensor(expected, dtype=torch.float64), rtol=0.0, atol=1e-8)
    assert rotate(torch.ones(1, 3, 1, 8, dtype=torch.bfloat16), torch.arange(3), 10000.0).dtype == torch.bfloat16


def test_rope_rejects_odd_head_dim():
    with pytest.raises(ValueError, match="head_dim=31: RoPE needs a multiple of 2"):
        RoPE(8, 1, 1, 31)


@pytest.mark.parametrize("encoding", [RoPE, PoPE])
def test_a_base_must_be_positive(encoding):
    with pytest.raises(ValueError, match=r"base=0\.0: it must be above 0"):
        encoding(8, 1, 1, 8, base=0.0)


def test_softplus_is_stable_for_large_inputs():
    for dtype, tolerance in ((torch.float32, 1e-6), (torch.float64, 1e-14)):
        x = torch.tensor([-30.0, -17.0, 0.0, 19.0, 21.0, 60.0], dtype=dtype)
        expected = torch.tensor([math.log1p(math.exp(value)) for value in x.tolist()], dtype=dtype)
        for make in (pope_query, lambda q, at, base: pope_key(q, at, torch.zeros(1, 6), base)):
            got = make(x.view(1, 1, 1, 6), torch.tensor([0]), 10000.0)[0, 0, 0, :6]
            torch.testing.assert_close(got, expected, rtol=tolerance, atol=0.0)


def test_pope_adds_delta_to_key_phase():
    """One channel of base^0 = 1: the score is softplus(0)^2 cos(s - t + delta), with the sign of the paper."""
    zero, delta = torch.zeros(1, 1, 1, 1, dtype=torch.float64), torch.tensor([[-0.7]], dtype=torch.float64)
    q, k = pope_query(zero, torch.tensor([5]), 10000.0), pope_key(zero, torch.tensor([2]), delta, 10000.0)
    assert (q * k).sum().item() == pytest.approx(math.log(2) ** 2 * math.cos(2 - 5 - 0.7), abs=1e-12)


@pytest.mark.parametrize(
    ("clamp", "offset", "gradient", "frozen"),
    [
        ("clamp", [-2 * math.pi, -2 * math.pi, -1.0, 0.0, 0.0], [0, 1, 1, 1, 0], 0.4),
        ("straight_through", [-2 * math.pi, -2 * math.pi, -1.0, 0.0, 0.0], [1, 1, 1, 1, 1], 0.0),
        ("periodic", [-7.0, -2 * math.pi, -1.0, 0.0, 0.5], [1, 1, 1, 1, 1], 0.0),
    ],
)
def test_delta_clamp_and_its_gradient(clamp, offset, gradient, frozen):
    encoding = PoPE(8, 1, 1, 5, clamp=clamp)
    with torch.no_grad():
        encoding.delta.copy_(torch.tensor([[-7.0, -2 * math.pi, -1.0, 0.0, 0.5]]))
    got = encoding.phase_offset()
    got.sum().backward()
    torch.testing.assert_close(got, torch.tensor([offset]))
    assert encoding.delta.grad.tolist() == [gradient]
    assert encoding.diagnostics()["delta_frozen_share"] == pytest.approx(frozen)


def test_delta_init_and_dtype():
    zero, uniform = (PoPE(8, 8, 8, 64, delta_init=init) for init in ("zero", "uniform"))
    assert not zero.delta.any()
    assert -2 * math.pi <= uniform.delta.min() < -6
    assert -0.3 < uniform.delta.max() <= 0
    before = uniform.delta.detach().clone()
    for cast in (torch.bfloat16, torch.float16):
        assert torch.equal(uniform.to(cast).delta, before)
        assert uniform.delta.dtype == torch.float32
    assert uniform.double().delta.dtype == torch.float64
    with pytest.raises(ValueError, match="delta_init='one': it should be 'zero' or 'uniform'"):
        PoPE(8, 1, 1, 4, delta_init="one")
    with pytest.raises(ValueError, match="clamp='hard': it should be 'clamp', 'straight_through' or 'periodic'"):
        PoPE(8, 1, 1, 4, clamp="hard")


@pytest.mark.parametrize("name", ["rope", "pope"])
def test_keys_are_encoded_once_without_decoding_kernel(name, monkeypatch):
    encoding, inputs = make_encoding(name), make_inputs(9)
    state, encoded, encode = encoding.new_state(2, 9, inputs.q), [], type(encoding).encode_key
    monkeypatch.setattr(
        encoding, "encode_key", lambda k, positions: encoded.append(k.shape[1]) or encode(encoding, k, positions)
    )
    with torch.no_grad():
        for part in (inputs.part(0, 5), *(inputs.part(t, t + 1) for t in range(5, 9))):
            attend(encoding, part, state)
    assert encoded == [5, 1, 1, 1, 1]


def test_pope_cache_width_with_decoding_kernel():
    encoding = make_encoding("pope", dtype=torch.float32, implementation="triton").to(DEVICE)
    inputs = Inputs(*(x.to(DEVICE) for x in make_inputs(4, dtype=torch.float32)))
    state = encoding.new_state(2, 4, inputs.q)
    with torch.no_grad():
        attend(encoding, inputs, state)
    assert state.keys.shape == inputs.k.shape
    assert torch.equal(state.keys, magnitude(inputs.k))


@settings(max_examples=15)
@given(length=st.integers(1, 3 * CHUNK) | st.sampled_from([CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK, 2 * CHUNK + 1]))
def test_path_with_beta_2_is_plain_attention_on_rotated_queries_and_keys(length):
    _, q, k, v = make_inputs(length)
    w, beta = reflections(length)
    turn, turned_q, turned_k = torch.eye(16, dtype=torch.float64).expand(2, 2, 16, 16), [], []
    for t in range(length):  # R_t^T = H_0 ... H_t
        turn = turn @ (torch.eye(16) - 2 * w[:, t, :, :, None] * w[:, t, :, None, :])
        turned_q.append(torch.einsum("bkij,bkgj->bkgi", turn, q[:, t].unflatten(1, (2, 2))).flatten(1, 2))
        turned_k.append(torch.einsum("bkij,bkj->bki", turn, k[:, t]))
    expected = reference.nope_attention(torch.stack(turned_q, 1), torch.stack(turned_k, 1), v)
    torch.testing.assert_close(path_attention(q, k, v, w, torch.full_like(beta, 2.0), 0.25), expected, **EXACT)


@pytest.mark.parametrize("length", [1, CHUNK, 200])
def test_path_without_reflections_is_nope(length):
    _, q, k, v = make_inputs(length)
    w, beta = reflections(length)
    expected = reference.nope_attention(q, k, v)
    torch.testing.assert_close(path_attention(q, k, v, torch.zeros_like(w), beta, 0.25), expected, **EXACT)
    torch.testing.assert_close(path_attention(q, k, v, w, torch.zeros_like(beta), 0.25), expected, **EXACT)


def test_path_reflections_are_bounded():
    encoding = make_encoding("path", dtype=torch.float32)
    x = 100 * make_inputs(50, dtype=torch.float32).x
    w, beta = encoding.reflections(x, Context.of(encoding, x))
    assert 1.99 < beta.max() <= 2
    assert beta.min() >= 0
    assert w.norm(dim=-1).max() <= 1 + 1e-6
    still, _ = encoding.reflections(torch.zeros_like(x), Context.of(encoding, x))
    assert not still.any()


@pytest.mark.parametrize(
    "options", [{"rank": 0}, {"convolution": 0}, {"convolution": 1}, {"silu": False}, {"rank": 3, "convolution": 5}]
)
def test_path_options(options):
    encoding, inputs = make_encoding("path", **options), make_inputs(12)
    out = attend(encoding, inputs)
    state, parts = encoding.new_state(2, 12, inputs.q), []
    with torch.no_grad():
        for start, end in ((0, 1), (1, 7), (7, 12)):
            parts.append(attend(encoding, inputs.part(start, end), state))
    torch.testing.assert_close(torch.cat(parts, 1), out, **EXACT)
    documents = make_documents([4, 1, 7])
    packed = attend(encoding, inputs, documents=documents)
    separate = attend(encoding, [tensor[:1, 5:] for tensor in inputs])
    torch.testing.assert_close(packed[:1, 5:], separate, **EXACT)
    assert (encoding.taps is None) == (options.get("convolution") == 0)
    default = attend(make_encoding("path"), inputs)
    assert not torch.allclose(default, out)


@pytest.mark.parametrize("option", ["rank", "convolution"])
def test_path_rejects_negative_options(option):
    with pytest.raises(ValueError, match=f"{option}=-1: it must be at least 0"):
        PaTH(8, 1, 1, 4, **{option: -1})


@pytest.mark.parametrize("beta_max", [0.0, -1.0, 2.01, math.nan])
def test_path_rejects_beta_max_out_of_range(beta_max):
    with pytest.raises(ValueError, match=rf"beta_max={beta_max}: it must be (a finite number )?in \(0, 2\]"):
        PaTHFoX(8, 1, 1, 4, beta_max=beta_max)


def strong_path(logit, training=False, **options):
    """A PaTH encoding in which beta has the same logit for all tokens."""
    encoding = make_encoding("path", dtype=torch.float32, **options).train(training)
    with torch.no_grad():
        encoding.projection.parts()["strength"].zero_()
        encoding.strength_bias.fill_(logit)
    return encoding


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("logit", [4.6, 8.0])
def test_beta_has_a_gradient_at_large_logits(logit, dtype):
    encoding = strong_path(logit).to(dtype)
    x = make_inputs(1, batch=1, dtype=dtype).x
    _, beta = encoding.reflections(x, Context.of(encoding, x))
    beta.sum().backward()
    slope = ceiling(2.0, dtype) * logit_slope(encoding.strength_bias)
    torch.testing.assert_close(encoding.strength_bias.grad.double(), slope, rtol=0.01, atol=0.0)


def logit_slope(logits):
    p = logits.detach().double().sigmoid()
    return p * (1 - p)


@pytest.mark.parametrize("training", [False, True])
def test_autocast_counts_as_16_bit_precision(training):
    """Covers training and evaluation, full passes and decoding. beta_max=1 needs no margin for rounding."""
    x = make_inputs(3, dtype=torch.float32).x
    for beta_max, dtype, wanted in (
        (2.0, torch.float32, 2.0),
        (2.0, torch.bfloat16, 2 / (1 + 2**-8) ** 2),
        (2.0, torch.float16, 2 / (1 + 2**-11) ** 2),
        (1.0, torch.bfloat16, 1.0),
    ):
        encoding = strong_path(40.0, training, beta_max=beta_max)
        tail = x.new_zeros(2, encoding.convolution - 1, encoding.kv_heads * encoding.head_dim)
        for state in (None, TailState(tail=tail)):
            with torch.autocast("cpu", dtype, enabled=dtype != torch.float32):
                _, beta = encoding.reflections(x, Context.of(encoding, x), state)
            torch.testing.assert_close(beta, torch.full_like(beta, wanted))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_reflections_of_rounded_directions_do_not_expand(dtype):
    """H = I - beta w w^T has the eigenvalue 1 - beta |w|^2 along w, and 1 across."""
    draw, longest = torch.Generator().manual_seed(0), 0.0
    for width in range(1, 257):
        w = torch.randn(64, width, generator=draw)
        w[0] = 1.0  # all components have the same rounding error
        w[1, : width // 2] *= 2.0 ** -torch.arange(width // 2)
        w = (w * torch.rsqrt(w.square().sum(-1, keepdim=True))).to(dtype).double()
        longest = max(longest, w.square().sum(-1).max().item())
    assert abs(1 - ceiling(2.0, dtype) * longest) <= 1 < abs(1 - 2.0 * longest)


@pytest.mark.parametrize("length", [1, 17, 65, 200])
def test_fox_equals_attention_with_two_more_channels(length):
    """The score is [q, c_t, 1] . [k, 1, -c_s], with unscaled gates divided by the scale first."""
    _, q, k, v = make_inputs(length)
    sums = cumulative_log_gates(torch.randn(2, length, 4, dtype=torch.float64))
    c, one, scale = sums.unsqueeze(-1), torch.ones(2, length, 4, 1, dtype=torch.float64), 0.25
    wide_q = torch.cat([q * scale, c, one], -1)
    wide_k, wide_v = torch.cat([k.repeat_interleave(2, 2), one, -c], -1), v.repeat_interleave(2, 2)
    expected = causal_attention(wide_q, wide_k, wide_v, scale=1.0)
    torch.testing.assert_close(fox_attention(q, k, v, sums, scale=scale), expected, **EXACT)
    last = fox_attention(q[:, -1:], k, v, sums, scale=scale)
    torch.testing.assert_close(last, expected[:, -1:], **EXACT)


@pytest.mark.parametrize("queries", [1, 8, 300])
def test_float32_fox_is_precise_after_many_tokens(queries):
    """After a million tokens of gates near 1/2, c is near -700,000 and float32 would round it by 0.03."""
    _, q, k, v = (tensor.float() for tensor in make_inputs(300))
    logits = torch.randn(2, 300, 4)
    near, far = (cumulative_log_gates(logits, torch.full((2, 4), before).double()) for before in (0.0, -7e5))
    outs = [fox_attention(q[:, -queries:], k, v, sums, scale=0.25) for sums in (near, far)]
    torch.testing.assert_close(outs[1], outs[0], rtol=1e-5, atol=1e-6)
    expected = reference.fox_attention(*(x.double() for x in (q, k, v)), logits.double().sigmoid().log())
    torch.testing.assert_close(outs[1].double(), expected[:, -queries:], rtol=1e-5, atol=2e-6)


def test_reference_translation_invariance():
    """Relative encodings do not change when all positions are shifted, also per document."""
    _, q, k, v = make_inputs(12)
    positions, delta = torch.tensor([[*range(12)], [*range(5), *range(7)]]), torch.randn(2, 16, dtype=torch.float64)
    for attention in (reference.rope_attention, lambda *args: reference.pope_attention(*args, delta)):
        near, far = attention(q, k, v, positions), attention(q, k, v, positions + 10_000)
        torch.testing.assert_close(far, near, **EXACT)
        assert not torch.allclose(near[1], attention(q, k, v, torch.arange(12))[1])


def test_reference_saves_scores_but_nothing_by_channel():
    """At 1,000 tokens that would take 10 to 20 GiB, which processes that share a GPU do not have."""
    _, q, k, v = (x.requires_grad_() for x in make_inputs(2 * reference.ROWS + 2))
    positions, delta = torch.arange(q.shape[1]), torch.randn(2, 16, dtype=torch.float64)
    scores = q.shape[0] * q.shape[2] * q.shape[1] ** 2 * q.element_size()
    for attention in (reference.rope_attention, lambda *args: reference.pope_attention(*args, delta)):
        saved = []
        with torch.autograd.graph.saved_tensors_hooks(lambda x, to=saved: to.append(x) or x, lambda x: x):
            attention(q, k, v, positions)
        assert sum({x.data_ptr(): x.untyped_storage().nbytes() for x in saved}.values()) < 5 * scores


@pytest.mark.parametrize("keys", [0, 5])
def test_no_queries_give_an_empty_output(keys):
    q, k = torch.randn(2, 0, 4, 16), torch.randn(2, keys, 2, 16, requires_grad=True)
    sums, w, beta = torch.zeros(2, keys, 4, dtype=torch.float64), torch.zeros_like(k), torch.zeros(2, keys, 2)
    outs = [
        causal_attention(q, k, k),
        fox_attention(q, k, k, sums),
        nearest_and_first(q, k, k, q, k[:, :1], 2, 0.25),
        kernelized_attention(q, k, k, torch.ones(4, 6)),
    ]
    if not keys:
        outs.append(path_attention(q, k, k, w, beta, 0.25))
    for out in outs:
        assert out.shape == (2, 0, 4, 16)
        assert not torch.autograd.grad(out.sum(), k, allow_unused=True)[0].any()
    for before in (None, torch.randn(2, 6)):
        assert moving_average(torch.randn(2, 0, 6), -torch.ones(3), before=before).shape == (2, 0, 6)


def test_kernelized_attention_refuses_keys_that_it_would_leave_out():
    q, k = torch.rand(2, 3, 4, 5), torch.rand(2, 6, 2, 5)
    kernelized_attention(q, k, k, torch.ones(4, 4))
    with pytest.raises(ValueError, match="6 keys, 3 queries: there must be at most 2, one less than the distances"):
        kernelized_attention(q, k, k, torch.ones(4, 3))
    with pytest.raises(ValueError, match="6 keys, 3 queries: there must be none before the queries"):
        kernelized_attention(q, k, k, torch.ones(4, 4), Documents.of(torch.zeros(2, 6)))
    with pytest.raises(ValueError, match="6 queries, 3 keys: causal attention needs at least as many keys as queries"):
        kernelized_attention(k, q, q, torch.ones(2, 4))
