"""Distance biases and embeddings: special cases with a known result, and the row-block attention that computes them."""

import json
import math
from pathlib import Path
from threading import Event, Thread, current_thread

import pytest
import torch
from distance_support import alibi_slopes
from encodings_support import (
    ENCODINGS,
    HEADS,
    KV_HEADS,
    WIDTH,
    Inputs,
    attend,
    make_documents,
    make_encoding,
    make_inputs,
    one_thread,  # noqa: F401
)
from fused_support import DEVICE

from bearings.encodings.alibi import slopes_of
from bearings.encodings.families.distance import DistanceBias
from bearings.encodings.irpe import IRPE
from bearings.kernels import reference
from bearings.kernels.attention import rows
from bearings.kernels.attention.distance import distance_attention
from bearings.kernels.attention.rows import attend_rows
from bearings.kernels.documents import Documents

pytestmark = pytest.mark.usefixtures("one_thread")
EXACT = {"rtol": 0.0, "atol": 1e-12}
LENGTH = 37
BIASES = [name for name, kind in ENCODINGS.items() if issubclass(kind, DistanceBias)]


@pytest.fixture(scope="module")
def inputs():
    return make_inputs(LENGTH)


@pytest.fixture(scope="module")
def without_positions(inputs):
    return reference.nope_attention(*inputs[1:])


def with_gates(inputs, slopes):
    """FoX with the constant gate exp(-m_h)."""
    gates = -torch.as_tensor(slopes, dtype=torch.float64).expand(len(inputs.q), LENGTH, HEADS)
    return reference.fox_attention(*inputs[1:], gates)


def filled(name, **values):
    """An encoding with these values of its parameters; 0 for all others."""
    encoding = make_encoding(name)
    with torch.no_grad():
        for parameter_name, parameter in encoding.named_parameters():
            parameter.copy_(torch.as_tensor(values.get(parameter_name, 0.0), dtype=torch.float64))
    return encoding


@torch.no_grad()
def check(encoding, inputs, expected):
    torch.testing.assert_close(attend(encoding, inputs), expected, **EXACT)


def test_alibi_is_fox_with_constant_gates(inputs):
    check(make_encoding("alibi"), inputs, with_gates(inputs, alibi_slopes(HEADS)))


def test_alibi_slopes_of_the_authors():
    found = {heads: slopes_of(heads, torch.device("cpu")).tolist() for heads in range(40)}
    assert found[0] == []
    assert found[8] == [2.0**-h for h in range(1, 9)]
    assert found[12] == pytest.approx([2.0**-h for h in range(1, 9)] + [2**-0.5, 2**-1.5, 2**-2.5, 2**-3.5])
    for heads in range(1, 40):
        assert found[heads] == pytest.approx(alibi_slopes(heads)), heads


def test_alibi_on_half_of_the_heads(inputs, without_positions):
    half = make_encoding("alibi", heads_share=0.5)
    assert half.slopes(inputs.q.device).tolist() == [*alibi_slopes(HEADS // 2), 0, 0]
    torch.testing.assert_close(attend(half, inputs)[:, :, 2:], without_positions[:, :, 2:], **EXACT)
    check(make_encoding("alibi", heads_share=0.0), inputs, without_positions)
    assert make_encoding("alibi", heads_share=0.1).slopes(inputs.q.device).tolist() == [*alibi_slopes(1), 0, 0, 0]


def test_kerple_power_with_exponent_1_is_alibi(inputs):
    encoding = filled("kerple_power", p=[[0.5], [-1.0], [0.0], [-4.0]])
    check(encoding, inputs, with_gates(inputs, 0.01 + encoding.p[:, 0].detach().exp().log1p()))


@pytest.mark.parametrize("name", ["kerple_power", "kerple_log"])
def test_kerple_gradients_are_finite_at_distance_0(name):
    encoding = make_encoding(name)
    encoding.bias(torch.arange(2)).square().sum().backward()
    for parameter in encoding.parameters():
        assert parameter.grad.isfinite().all()


def test_kerple_starts_as_in_the_authors_code():
    torch.manual_seed(0)
    for name, high_p, high_a in (("kerple_log", 2, 1), ("kerple_power", 1, 2)):
        encoding = ENCODINGS[name](WIDTH, 4000, 1, 16)
        two = -encoding.bias(torch.arange(3)).detach()  # distances 0, 1, 2
        p, a = two[:, 1], (two[:, 2] / two[:, 1]).log2()
        if name == "kerple_log":
            p = 0.01 + torch.nn.functional.softplus(encoding.p[:, 0].detach())
            a = (two[:, 1] / p).expm1()
        for values, high in ((p, high_p), (a, high_a)):
            quantiles = torch.quantile(values, torch.tensor([0.0, 0.25, 0.5, 0.75, 1.0]))
            torch.testing.assert_close(quantiles, high * torch.linspace(0, 1, 5), rtol=0.0, atol=0.03 * high)


def test_t5_with_a_bucket_for_each_distance_is_alibi(inputs):
    encoding = make_encoding("t5", buckets=2 * LENGTH, max_distance=3 * LENGTH)
    slopes = torch.tensor(alibi_slopes(HEADS), dtype=torch.float64)
    with torch.no_grad():
        encoding.biases.copy_(-slopes[:, None] * torch.arange(2 * LENGTH))
    check(encoding, inputs, with_gates(inputs, slopes))


@pytest.mark.parametrize("name", ["t5", "learned_distance"])
def test_constant_bias_is_no_encoding(name, inputs, without_positions):
    check(filled(name, biases=3.0), inputs, without_positions)


def test_t5_buckets_of_transformers():
    recorded = json.loads((Path(__file__).parents[1] / "fixtures" / "t5_buckets.json").read_text())
    for case in recorded["cases"]:
        encoding = make_encoding("t5", **{name: case[name] for name in ("buckets", "max_distance")})
        buckets = encoding.buckets_of(torch.arange(1200))
        first = [int((buckets == bucket).nonzero()[0]) for bucket in range(case["buckets"])]
        assert first == case["first_distances"]
        assert buckets.diff().min() >= 0
    assert recorded["cases"][0]["first_distances"][16:] == [
        *(16, 19, 21, 24, 27, 31, 35, 40, 46, 52, 59, 67, 77, 87, 99, 113),
    ]


def test_sandwich_is_a_dot_product_of_sinusoids(inputs):
    encoding = make_encoding("sandwich", sinusoids=5)
    angles = torch.arange(LENGTH, dtype=torch.float64)[:, None] * 10000 ** (-torch.arange(1, 6).double() / 5)
    waves = torch.cat([angles.sin(), angles.cos()], 1)
    divisors = 8 * torch.arange(1, HEADS + 1, dtype=torch.float64)[:, None, None] / HEADS
    check(encoding, inputs, reference.biased_attention(*inputs[1:], waves @ waves.T / divisors))
    assert encoding.bias(torch.arange(1)).abs().max() == 0


def test_linear_fire_is_kerple_log_below_the_threshold(inputs):
    slopes, c = torch.tensor([0.1, 1.0, 2.0, 5.0], dtype=torch.float64), 0.3

    def linear(multiplier):
        encoding = filled("fire", c=c, multiplier=multiplier)
        with torch.no_grad():
            encoding.hidden_weight[0] = 1.0
            encoding.output_weight[:, 0] = -slopes
        return encoding

    distances = (torch.arange(LENGTH)[:, None] - torch.arange(LENGTH)).clamp(min=0)
    kerple = -slopes[:, None, None] / (math.log1p(c * 512) + 1e-6) * (c * distances.double()).log1p()
    expected = reference.biased_attention(*inputs[1:], kerple)
    check(linear(1.0), inputs, expected)
    # Queries after position 10 are beyond this threshold.
    steeper = kerple * (math.log1p(c * 512) + 1e-6) / (math.log1p(c * 10) + 1e-6)
    expected = reference.biased_attention(*inputs[1:], steeper)
    out = attend(linear(10 / 512), inputs)
    torch.testing.assert_close(out[:, :11], expected[:, :11], **EXACT)
    assert (out - expected)[:, 11:].abs().amax((0, 2, 3)).min() > 1e-4


def test_fire_starts_with_the_papers_constants():
    encoding = ENCODINGS["fire"](WIDTH, HEADS, KV_HEADS, 16, threshold=100)
    assert (encoding.c.item(), encoding.threshold * encoding.multiplier.item()) == (pytest.approx(0.1), 100)


def test_urpe_with_multiplier_1_is_its_bias(inputs, without_positions):
    check(filled("urpe"), inputs, without_positions)
    plain = make_encoding("t5")
    check(filled("urpe", biases=plain.biases.detach()), inputs, attend(plain, inputs).detach())


def test_urpe_distinguishes_positions_of_equal_tokens(inputs):
    """All values are 1, so attention with weights that sum to 1 returns 1 at each position."""
    encoding = make_encoding("urpe", bias=False)
    assert [name for name, _ in encoding.named_parameters()] == ["multipliers"]
    ones = inputs._replace(v=torch.ones_like(inputs.v), k=torch.ones_like(inputs.k))
    out = attend(encoding, ones).detach()
    multipliers = encoding.log_multiplier(torch.arange(LENGTH)).detach().exp()
    means = multipliers.cumsum(1) / torch.arange(1, LENGTH + 1)
    torch.testing.assert_close(out, means.T[None, :, :, None].expand_as(out), **EXACT)


@pytest.mark.parametrize("name", ["shaw", "irpe"])
def test_zero_embeddings_are_no_encoding(name, inputs, without_positions):
    check(filled(name), inputs, without_positions)


def test_irpe_without_logarithmic_buckets_is_shaw(inputs):
    shaw, irpe = (
        make_encoding("shaw", max_distance=50),
        make_encoding("irpe", exact=49, last_bucket=50, max_distance=51),
    )
    with torch.no_grad():
        irpe.embeddings.copy_(shaw.embeddings)
    check(irpe, inputs, attend(shaw, inputs).detach())


def test_irpe_buckets_reach_the_last_at_the_maximum_distance():
    encoding = IRPE(WIDTH, HEADS, KV_HEADS, 1)
    with torch.no_grad():
        encoding.embeddings.copy_(torch.arange(33)[:, None])
    buckets = encoding.embedding(torch.arange(300)).detach()[:, 0]
    assert torch.equal(buckets[:17], torch.arange(17.0))
    assert buckets.diff().min() >= 0
    assert buckets[128] == buckets[-1] == 32
    assert buckets[110] == 31


@pytest.mark.parametrize("name", BIASES)
def test_biases_stay_float32_and_are_not_decayed(name):
    encoding = ENCODINGS[name](WIDTH, HEADS, KV_HEADS, 16).to(torch.bfloat16)
    assert {id(each) for each in encoding.undecayed()} == {id(each) for each in encoding.parameters()}
    assert all(parameter.dtype == torch.float32 for parameter in encoding.parameters())
    bias = encoding.bias(torch.arange(1000))
    assert bias.shape == (HEADS, 1000)
    assert bias.dtype in (torch.float32, torch.float64)


def test_options_that_contradict_each_other_are_refused():
    for name, options, problem in (
        ("t5", {"buckets": 32, "max_distance": 16}, "max_distance must be above buckets // 2"),
        ("irpe", {"exact": 40}, "they must increase"),
    ):
        with pytest.raises(ValueError, match=problem):
            ENCODINGS[name](WIDTH, HEADS, KV_HEADS, 16, **options)


def table_scores(block, table):
    return 0.25 * block.dots() + block.by_distance(table.unsqueeze(1))


@pytest.mark.parametrize("rows", [1, 5, 36, 37, None])
@pytest.mark.parametrize("packed", [False, True], ids=["one document", "packed"])
def test_row_blocks_agree_with_the_reference(rows, packed, inputs):
    table = torch.randn(HEADS, LENGTH + 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    ids = make_documents([20, 1, 16]) if packed else None
    documents = None if ids is None else Documents.of(ids)
    distances = (torch.arange(LENGTH)[:, None] - torch.arange(LENGTH)).clamp(min=0)
    _, q, k, v = inputs
    leaves = [each.clone().requires_grad_() for each in (q, k, v, table)]
    out = attend_rows(*leaves[:3], table_scores, leaves[3:], documents, rows=rows)
    expected = reference.biased_attention(*leaves[:3], leaves[3][:, distances], ids)
    torch.testing.assert_close(out, expected, **EXACT)
    weights = torch.randn(out.shape, dtype=torch.float64)
    for got, wanted in zip(*(torch.autograd.grad(each, leaves, weights) for each in (out, expected)), strict=True):
        torch.testing.assert_close(got, wanted, **EXACT)
    # The last 7 queries only, as in a pass with a cache.
    with torch.no_grad():
        last = attend_rows(q[:, -7:], k, v, table_scores, (table,), documents, rows=rows)
    torch.testing.assert_close(last, expected[:, -7:].detach(), **EXACT)


def test_row_blocks_limit_a_window(inputs):
    _, q, k, v = inputs
    token, documents = torch.arange(LENGTH), Documents.single(2, LENGTH, q.device).within(5)
    window = torch.where((token[:, None] - token) < 5, 0.0, -math.inf)
    table = torch.zeros(HEADS, LENGTH, dtype=torch.float64)
    expected = reference.biased_attention(q, k, v, window.double().expand(HEADS, -1, -1))
    hidden = table.masked_fill(token >= 5, -math.inf)
    for given in ((table, documents), (hidden, None), (hidden[:, :6], None)):
        torch.testing.assert_close(distance_attention(q, k, v, *given), expected, **EXACT)


def test_row_blocks_save_no_scores(inputs):
    """The backward pass recomputes scores: saved tensors do not grow with the square of the length."""
    _, q, k, v = (each.clone().requires_grad_() for each in inputs)
    saved = []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: saved.append(x.numel()) or x, lambda x: x):
        table = torch.zeros(HEADS, LENGTH, dtype=torch.float64, requires_grad=True)
        attend_rows(q, k, v, table_scores, (table,), rows=4)
    assert max(saved, default=0) <= q.numel()


@pytest.mark.parametrize("wider", range(4))
def test_row_blocks_take_tensors_of_different_dtypes(wider):
    """The result has the dtype of v; q, k and the table are used in the widest of theirs."""
    table = torch.randn(HEADS, 20, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    exact = [*make_inputs(20)[1:], table]
    given = [x if place == wider else x.float() for place, x in enumerate(exact)]
    out = attend_rows(*given[:3], table_scores, given[3:], rows=7)
    assert out.dtype == given[2].dtype
    wanted = attend_rows(*(x.double() for x in given[:3]), table_scores, [given[3].double()], rows=7)
    torch.testing.assert_close(out.double(), wanted, rtol=0.0, atol=1e-5)


def test_a_parameter_that_some_blocks_do_not_use_has_a_gradient(inputs):
    table = torch.zeros(HEADS, LENGTH, dtype=torch.float64, requires_grad=True)

    def scores(block, table):
        return table_scores(block, table) if block.begin else block.dots()

    attend_rows(*inputs[1:], scores, (table,), rows=5).square().sum().backward()
    assert table.grad.abs().sum() > 0


def test_gradients_of_row_blocks():
    _, *leaves = (each.requires_grad_() for each in make_inputs(9, head_dim=4, batch=1))
    table = torch.randn(HEADS, 9, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(
        lambda q, k, v, table: attend_rows(q, k, v, table_scores, (table,), rows=4), (*leaves, table), fast_mode=True
    )


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_row_blocks_on_a_gpu_are_as_exact_as_their_inputs(dtype):
    """Products of 16-bit inputs are TF32, which holds the inputs exactly; those of float32 are not rounded."""
    table = torch.randn(HEADS, 300, device=DEVICE)
    leaves = [each.to(DEVICE, dtype).requires_grad_() for each in make_inputs(300)[1:]] + [table.requires_grad_()]
    exact = [each.detach().double().requires_grad_() for each in leaves]
    results, before = [], torch.backends.cuda.matmul.fp32_precision
    for given in (leaves, exact):
        out = attend_rows(*given[:3], table_scores, given[3:], rows=64)
        results.append([out, *torch.autograd.grad(out.square().sum(), given)])
    for found, wanted in zip(*results, strict=True):
        error = (found.double() - wanted).abs().max() / wanted.abs().max()
        assert error < (1e-5 if dtype == torch.float32 else 2**-7)
    assert torch.backends.cuda.matmul.fp32_precision == before


def test_threads_leave_the_precision_of_products_as_it_was(monkeypatch):
    """One thread begins while another uses TF32, and ends after it."""
    begun, both, before = Event(), Event(), torch.backends.cuda.matmul.fp32_precision

    def compute(a, b, scale):
        if current_thread() is first:
            begun.set()
            both.wait(0.1)
        else:
            both.set()
            first.join()

    monkeypatch.setattr(rows, "_scaled_product", compute)
    first, second = (Thread(target=rows.product, args=(torch.ones(1, 1, 1),) * 2, kwargs={"short": True}) for _ in "ab")
    first.start()
    begun.wait()
    second.start()
    second.join()
    found, torch.backends.cuda.matmul.fp32_precision = torch.backends.cuda.matmul.fp32_precision, before
    assert found == before


def test_distance_attention_refuses_wrong_inputs(inputs):
    _, q, k, v = inputs
    table = torch.zeros(HEADS, LENGTH)
    for given, problem in (
        ({"table": table[1:]}, "one row per query head"),
        ({"table": table[:, :0]}, "one column per distance"),
        ({"table": table, "scale": 0.0}, "it must be above 0"),
        ({"table": table, "implementation": "cudnn"}, "use implementation=auto or torch"),
    ):
        with pytest.raises(ValueError, match=problem):
            distance_attention(q, k, v, **given)
    with pytest.raises(ValueError, match=r"the shape must be \[B, S\]"):
        distance_attention(q, k, v, table, Documents.of(torch.zeros(2, 3)))


def test_urpe_in_triton_agrees_with_torch():
    pytest.importorskip("triton")
    inputs, outputs = Inputs(*(each.to(DEVICE) for each in make_inputs(20, dtype=torch.float32))), {}
    for implementation in ("torch", "triton"):
        encoding = make_encoding("urpe", dtype=torch.float32, implementation=implementation, window=9)
        encoding.to(DEVICE)
        with torch.no_grad():
            state = encoding.new_state(2, 20, inputs.q)
            parts = [attend(encoding, inputs.part(*part), state) for part in ((0, 18), (18, 19), (19, 20))]
            outputs[implementation] = torch.cat([attend(encoding, inputs), *parts], 1)
    torch.testing.assert_close(outputs["triton"], outputs["torch"], rtol=0.0, atol=1e-5)
